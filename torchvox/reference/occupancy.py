# SPDX-License-Identifier: Apache-2.0
"""Occupancy maps, one ray and one hit or miss at a time; tables as if keys came in order."""

import math

import numpy as np
import torch
from torch import Tensor

from torchvox.reference import ndt as normal
from torchvox.reference.rays import (
    HIT_ONLY,
    NO_HIT,
    SECONDARY,
    UNIT,
    left_out,
    map_rays,
    map_units,
    region_key,
    regions_limit,
    rows_of,
    table_size,
    walk,
)

__all__ = [
    "occupancy_crop",
    "occupancy_decay_",
    "occupancy_extract",
    "occupancy_insert_",
    "occupancy_integrate_",
    "occupancy_query",
    "occupancy_raycast",
    "occupancy_remove_",
]

UNOBSERVED, NO_SLOT = -32768, 2**31 - 1
LAYOUT, IN_USE, SAMPLE_ROWS, REFUSED, HIGHEST = range(5)  # of status


def mix(key: int) -> int:
    """The finalizer of MurmurHash3."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        key = (key ^ key >> 33) * factor % 2**64
    return key ^ key >> 33


def place_keys(keys: set[int], size: int) -> list[int]:
    """Keys in the order of a table with linear probing in which the lower of two keys stays."""
    table = [-1] * size
    for key in keys:
        at = mix(key) % size
        while table[at] >= 0:
            if key < table[at]:
                table[at], key = key, table[at]
            at = (at + 1) % size
        table[at] = key
    return [key for key in table if key >= 0]


def enter_slots(state: list[Tensor], first: int, end: int) -> None:
    """Enters slots into the map's table, in order."""
    table, keys = state[0], state[1]
    for slot in range(first, end):
        at = mix(int(keys[slot])) % len(table)
        while table[at] != NO_SLOT:
            at = (at + 1) % len(table)
        table[at] = slot


def slots_of(state: list[Tensor]) -> dict[int, int]:
    in_use = int(state[3][IN_USE])
    return {int(key): slot for slot, key in enumerate(state[1][:in_use])}


def units_of(logodds: float) -> int:
    """In 1/1024, half away from zero."""
    return int(math.copysign(math.floor(abs(logodds) * 1024 + 0.5), logodds))


def in_region(voxel: tuple[int, ...]) -> int:
    x, y, z = (v % 8 for v in voxel)
    return z * 64 + y * 8 + x


def is_occupied(logodds: int, threshold: float) -> bool:
    return logodds != UNOBSERVED and logodds / 1024 >= threshold


def label_of(logodds: int, threshold: float) -> int:
    return -1 if logodds == UNOBSERVED else int(is_occupied(logodds, threshold))


def updated(before: int, hits: int, misses: int, sensor: list[int], rule: str) -> int:
    hit, miss, clamp_min, clamp_max = sensor
    logodds = 0 if before == UNOBSERVED else before
    if rule == "scan":
        hits, misses = min(hits, 1), int(hits == 0)
    for _ in range(misses):
        logodds = max(logodds + miss, clamp_min)
    for _ in range(hits):
        logodds = min(logodds + hit, clamp_max)
    return logodds


def excluded(before: int, flags: list[str], threshold: float, sensor: list[int]) -> bool:
    label = label_of(before, threshold)
    return (
        ("exclude_unobserved" in flags and label == -1)
        or ("exclude_free" in flags and label == 0)
        or ("exclude_occupied" in flags and label == 1)
        or ("lock_min" in flags and label >= 0 and before <= sensor[2])
        or ("lock_max" in flags and before >= sensor[3])
    )


def until_stop(ray, flags: list[str], before, threshold: float) -> list:
    """The visits that count; before(voxel): log-odds before the call."""
    for i, visit in enumerate(ray.visits):
        stops = "stop_at_occupied" in flags and not visit.last
        if stops and is_occupied(before(visit.voxel), threshold):
            return list(ray.visits[: i + 1])
    return list(ray.visits)


def votes(ray, flags: list[str]):
    """(visit, 1 for a hit or 0 for a miss) of a ray."""
    cut = ray.truncated or bool(ray.flags & NO_HIT)
    hit_only = bool(ray.flags & HIT_ONLY)
    for visit in ray.visits:
        if visit.last:
            free = "end_as_free" in flags
            counts = free or not cut
            if counts and "exclude_sample" not in flags and not (hit_only and cut):
                yield visit, int(not free)
            return
        spared = "exclude_ray" in flags
        if visit.first:
            spared = "exclude_origin" in flags or bool(ray.flags & SECONDARY)
        if not spared:
            yield visit, 0


def distribution(samples, at) -> normal.Distribution:
    """samples: the tensors of the state from sample_count on."""
    count, mean, cov, intensity, _ = samples
    some = [layer[at].tolist() if len(layer) else None for layer in (cov, intensity)]
    return normal.Distribution(int(count[at]), mean[at].tolist(), *some)


def write_distribution(samples, at, voxel: normal.Distribution) -> None:
    for layer, value in zip(samples, voxel, strict=False):
        if len(layer):
            layer[at] = torch.tensor(value)


def level_of(intensity: float, bounds: list[float]) -> int:
    part = (intensity - bounds[0]) / (bounds[1] - bounds[0]) * 65535
    return math.floor(min(max(part, 0.0), 65535.0) + 0.5) if part > 0 else 0


def ray_units(ray) -> float:
    """The length of the walked ray in units."""
    x, y, z = (np.float64(abs(b - a)) for a, b in zip(ray.start, ray.end, strict=True))
    return float(np.sqrt(x * x + y * y + z * z))


def occupancy_integrate_(state, points, origins, voxel_size, map_origin, sensor, max_touched=-1, *,
                         origin_index=None, num_valid=None, ray_flags=None, point_cloud_range=None,
                         min_range=0.0, max_range=-1.0, long_rays="truncate", rule="every_ray",
                         flags=None, threshold=0.0, missing="allocate", stamp=None,
                         timestamps=None, time_base=0.0, ndt=None, intensity=None,
                         intensity_range=None) -> Tensor:  # fmt: skip
    flags = flags or []
    _, keys, stamps, status, logodds, hit_miss, touch, traversal, sample_row, *samples = state
    passes = samples[4]
    rays = map_rays(points, origins, voxel_size, map_origin, origin_index, num_valid, ray_flags,
                    point_cloud_range, min_range, max_range, long_rays)  # fmt: skip
    given = [i for i, ray in enumerate(rays) if ray.status == 0]
    walked = [rays[i] for i in given]
    counts = left_out(rays, 16)
    row = counts[0]
    row[1] = sum(ray.status >= 0 for ray in rays)
    in_use, capacity = int(status[IN_USE]), len(keys)
    row[10] = in_use
    if status[REFUSED]:
        row[11] = 8
        return counts
    slots, old = slots_of(state), logodds.clone()

    def before(voxel) -> int:
        slot = resident.get(region_key(voxel))
        return UNOBSERVED if slot is None else int(old[slot, in_region(voxel)])

    resident = dict(slots)
    row[5] = sum(ray.truncated for ray in walked)
    row[6] = sum(len(ray.visits) for ray in walked)
    ends = {region_key(visit.voxel) for ray in walked for visit, hit in votes(ray, flags) if hit}
    walked = [ray._replace(visits=until_stop(ray, flags, before, threshold)) for ray in walked]
    touched = {region_key(v.voxel) for ray in walked for v in ray.visits}
    room = capacity if max_touched < 0 else max_touched
    limit = regions_limit(room)
    new: list[int] = []
    sampled: list[int] = []  # regions that get a row of samples
    if len(touched) > limit:
        row[8] = limit
        row[11] = 2 if max_touched < 0 and missing == "allocate" else 1
    else:
        order = place_keys(touched, table_size(room))
        new = [key for key in order if key not in slots]
        skips = missing == "skip"
        for key in order if len(samples[0]) else []:
            has = key in slots and sample_row[slots[key]] >= 0
            if key in ends and not has and not (skips and key in new):
                sampled.append(key)
        row[13] = len(sampled)
        row[8] = len(touched) - len(new) if skips else len(touched)
        row[12 if skips else 9] = len(new)
        row[11] = int(max_touched >= 0 and row[8] > room)
        if not skips and in_use + len(new) > capacity:
            row[11] += 2
        if int(status[SAMPLE_ROWS]) + len(sampled) > len(samples[0]):
            row[11] += 4
    if row[11]:
        status[REFUSED] = 1
        return counts
    row[0] = len(walked)
    if missing == "allocate":
        for key in new:
            slots[key] = len(slots)
            keys[slots[key]] = key
        enter_slots(state, in_use, len(slots))
        status[IN_USE] = row[10] = len(slots)
    for key in sampled:
        sample_row[slots[key]] = status[SAMPLE_ROWS]
        status[SAMPLE_ROWS] += 1
    for key in touched & slots.keys():
        if stamp is not None:
            stamps[slots[key]] = max(int(stamps[slots[key]]), int(stamp))
    units = [units_of(x) for x in sensor]
    model = normal.Ndt(*ndt) if ndt else None
    lowest, bounds = (units[2] - units[3]) / 1024, intensity_range or [0.0, 1.0]
    tally: dict[tuple[int, int], list[int]] = {}
    known: dict[tuple[int, int], normal.Distribution] = {}  # voxels, as they were
    ended: dict[tuple[int, int], list[tuple[tuple[int, ...], int]]] = {}
    missed: dict[tuple[int, int], int] = {}
    passed: dict[tuple[int, int], list[int]] = {}
    for i, ray in zip(given, walked, strict=True):
        for visit, hit in votes(ray, flags):
            key = region_key(visit.voxel)
            if key not in slots:
                continue
            place = (slots[key], in_region(visit.voxel))
            tally.setdefault(place, [0, 0])[1 - hit] += 1
            if excluded(int(old[place]), flags, threshold, units):
                continue
            if len(traversal):
                traversal[place] += int((visit.leave - visit.enter) * ray_units(ray))
            if hit and len(touch) and timestamps is not None:
                ms = min(max((float(timestamps[i]) - time_base) * 1000, 0), 2**31 - 1)
                touch[place] = max(int(touch[place]), int(ms))
            if not len(sample_row) or sample_row[slots[key]] < 0:
                continue
            at = int(sample_row[slots[key]]), place[1]
            voxel = known.setdefault(place, distribution(samples, at))
            p_v = p_s = 1.0
            here = model if model and voxel.n >= model.samples else None
            if here:
                end = any(h for _, h in votes(rays[i], flags))
                way = voxel, ray.start, ray.end, visit.voxel, end, here.noise / voxel_size
                p_v, p_s = normal.likelihoods(*way)
            eta = model.adaptation / 2 if model else 0.0
            if hit:
                offset = tuple(e % UNIT - UNIT // 2 for e in ray.end)
                level = 0 if intensity is None else level_of(float(intensity[i]), bounds)
                ended.setdefault(place, []).append((offset, level))
                goes = 0 if p_v * p_s >= eta else 1 if p_v >= eta else None
            elif here:
                value = normal.miss(p_v, p_s, here.adaptation, lowest)
                missed[place] = missed.get(place, 0) + value
                goes = 1 if p_v * (1 - p_s) >= eta else None
            else:
                goes = 1 if voxel.n > 0 else None
            if goes is not None:
                passed.setdefault(place, [0, 0])[goes] += 1
    for place, (hits, misses) in tally.items():
        if excluded(int(old[place]), flags, threshold, units):
            continue
        model_units, each = units, misses
        if model and place in known and known[place].n >= model.samples and misses:
            down = max(-math.floor(-missed[place] / 64 + 0.5), -(2**16))
            model_units, each = [units[0], down, *units[2:]], 1
        logodds[place] = updated(int(old[place]), hits, each, model_units, rule)
        if place in ended:
            offsets, levels = map(list, zip(*ended[place], strict=True))
            voxel, was = known[place], int(old[place])
            if model and voxel.n >= model.reset_samples and was != UNOBSERVED:
                voxel = voxel._replace(n=0 if was / 1024 < model.reset else voxel.n)
            voxel = normal.added(voxel, normal.summed(offsets, levels, bounds))
            write_distribution(samples, (int(sample_row[place[0]]), place[1]), voxel)
        if place in passed and len(passes):
            at = int(sample_row[place[0]]), place[1]
            both = passes[at].long() + torch.tensor(passed[place])
            passes[at] = both.clamp(max=2**31 - 1).int()
        row[7] += int(logodds[place] != old[place])
        if len(hit_miss):
            both = hit_miss[place].long() + torch.tensor([hits, misses])
            hit_miss[place] = both.clamp(max=2**31 - 1).int()
    if walked:
        status[HIGHEST] = max(int(status[HIGHEST]), units[3])
    return counts


def lookup(state, places, shape, voxel_size, map_origin, threshold, fill) -> tuple[Tensor, Tensor]:
    """Log-odds and labels at places in meters; None is nowhere."""
    slots = slots_of(state)
    logodds, label = [], []
    for p in places:
        known = p is not None and np.isfinite(p).all()
        units = map_units(p, voxel_size, map_origin) if known else []
        found = UNOBSERVED
        if units:
            voxel = tuple(u // UNIT for u in units)
            slot = slots.get(region_key(voxel))
            found = UNOBSERVED if slot is None else int(state[4][slot, in_region(voxel)])
        nothing = math.nan if fill is None else fill
        logodds.append(nothing if found == UNOBSERVED else found / 1024)
        label.append(label_of(found, threshold))
    return (
        torch.tensor(logodds, dtype=torch.float32).reshape(shape),
        torch.tensor(label, dtype=torch.int8).reshape(shape),
    )


def occupancy_query(state, points, voxel_size, map_origin, *, num_valid=None, threshold=0.0,
                    fill=None) -> tuple[Tensor, Tensor]:  # fmt: skip
    valid = len(points) if num_valid is None else int(num_valid.reshape(-1)[0])
    rows = rows_of(points)[:, :3].astype(np.float64)
    places = [p if i < valid else None for i, p in enumerate(rows)]
    return lookup(state, places, [len(rows)], voxel_size, map_origin, threshold, fill)


def occupancy_crop(state, voxel_size, map_origin, cell_size, point_cloud_range, *, poses=None,
                   threshold=0.0, fill=None) -> tuple[Tensor, Tensor]:  # fmt: skip
    bounds = (point_cloud_range[:3], point_cloud_range[3:], cell_size)
    lo, hi, size = (np.array(v, np.float32) for v in bounds)
    nx, ny, nz = (math.floor(float(c) + 0.5) for c in (hi - lo) / size)
    matrices = [None] if poses is None else rows_of(poses).astype(np.float64)
    lo, size = lo.astype(np.float64), size.astype(np.float64)
    places = []
    for pose in matrices:
        for cell in np.ndindex(nz, ny, nx):
            p = lo + (np.array(cell[::-1], np.float64) + 0.5) * size
            if pose is not None:
                with np.errstate(all="ignore"):
                    p = np.array([r[0] * p[0] + r[1] * p[1] + r[2] * p[2] + r[3] for r in pose])
            places.append(p)
    shape = [len(matrices), nz, ny, nx]
    return lookup(state, places, shape, voxel_size, map_origin, threshold, fill)


def occupancy_raycast(state, points, origins, voxel_size, map_origin, *, origin_index=None,
                      num_valid=None, threshold=0.0, stop_unknown=False,
                      solid_angle=1.0):  # fmt: skip
    slots = slots_of(state)
    n = len(points)
    distance, unseen = np.full(n, np.nan, np.float32), np.zeros(n, np.float32)
    status, unknown = np.full(n, 3, np.int8), np.zeros(n, np.int32)
    indices = np.full((n, 4), -1, np.int32)
    rays = map_rays(points, origins, voxel_size, map_origin, origin_index, num_valid)
    for i, ray in enumerate(rays):
        if ray.status != 0:
            continue
        x, y, z = ((np.float64(abs(b - a)) / UNIT) for a, b in zip(ray.start, ray.end, strict=True))
        length = np.sqrt(x * x + y * y + z * z) * np.float64(voxel_size)
        volume = np.float64(0)
        for visit in walk(ray.start, ray.end):
            slot = slots.get(region_key(visit.voxel))
            found = UNOBSERVED if slot is None else int(state[4][slot, in_region(visit.voxel)])
            indices[i] = (0, *visit.voxel[::-1])
            near, far = np.float64(visit.enter) * length, np.float64(visit.leave) * length
            distance[i], status[i] = near, 0
            if is_occupied(found, threshold):
                status[i] = 1
            elif stop_unknown and found == UNOBSERVED:
                status[i] = 2
            if status[i]:
                break
            if found == UNOBSERVED:
                volume = volume + (far * far * far - near * near * near)
                unknown[i] += 1
        if status[i] == 0:
            distance[i] = length
        unseen[i] = np.float64(solid_angle) / 3 * volume
    return tuple(torch.from_numpy(a) for a in (distance, unseen, status, indices, unknown))


def occupancy_extract(state, max_out, *, select="occupied", threshold=0.0):
    wanted = {"occupied": (1,), "free": (0,), "observed": (0, 1)}[select]
    logodds, mean = torch.zeros(max_out), torch.zeros(max_out, 3)
    num_samples = torch.zeros(max_out, dtype=torch.int32)
    indices = torch.full((max_out, 4), -1, dtype=torch.int32)
    found = 0
    for key, slot in sorted(slots_of(state).items()):
        corner = [(key >> 21 * axis) % 2**21 * 8 - 2**23 for axis in range(3)]
        for i, value in enumerate(state[4][slot].tolist()):
            if label_of(value, threshold) not in wanted:
                continue
            if found < max_out:
                x, y, z = (corner[axis] + (i >> 3 * axis) % 8 for axis in range(3))
                logodds[found] = value / 1024
                indices[found] = torch.tensor([0, z, y, x])
                row = int(state[8][slot]) if len(state[8]) else -1
                if row >= 0:
                    num_samples[found], mean[found] = state[9][row, i], state[10][row, i]
            found += 1
    counts = torch.zeros(1, 8, dtype=torch.int64)
    counts[0, :2] = torch.tensor([min(found, max_out), found])
    return logodds, mean, indices, num_samples, counts


def occupancy_decay_(state, factor, step, forget, *, mask=None) -> tuple[Tensor, Tensor]:
    _, keys, _, status, logodds, hit_miss, touch, traversal, sample_row, *samples = state
    in_use = int(status[IN_USE])
    empty = torch.zeros(len(keys), dtype=torch.bool)
    counts = torch.zeros(1, 8, dtype=torch.int64)
    counts[0, 4] = in_use
    for slot in range(in_use):
        if mask is None or mask[slot]:
            before = logodds[slot].clone()
            for i, old in enumerate(before.tolist()):
                size = max((abs(old) * factor >> 16) - step, 0)
                if old == UNOBSERVED:
                    continue
                logodds[slot, i] = UNOBSERVED if size <= forget else math.copysign(size, old)
                for layer, fill in ((hit_miss, 0), (touch, -1), (traversal, 0)):
                    if size <= forget and len(layer):
                        layer[slot, i] = fill
                for layer in samples if size <= forget and len(sample_row) else []:
                    if len(layer) and sample_row[slot] >= 0:
                        layer[sample_row[slot], i] = 0
            counts[0, 0] += int((logodds[slot] != before).any())
            counts[0, 1] += 1
        empty[slot] = bool((logodds[slot] == UNOBSERVED).all())
    return empty, counts


def occupancy_remove_(state, mask) -> Tensor:
    table, status, sample_row, samples = state[0], state[3], state[8], state[9:]
    in_use, sample_rows = int(status[IN_USE]), int(status[SAMPLE_ROWS])
    gone = {int(sample_row[slot]) for slot in range(in_use) if len(sample_row) and mask[slot]}
    kept = [row for row in range(sample_rows) if row not in gone]
    targets = [row for row in range(len(kept)) if row in gone]
    moved = dict(zip([row for row in kept if row >= len(kept)], targets, strict=True))
    for layer in samples:
        if len(layer):
            layer[targets] = layer[list(moved)]
            layer[len(kept) : sample_rows] = 0
    for slot, row in enumerate(sample_row.tolist()):
        sample_row[slot] = moved.get(row, row)
    stays = [slot for slot in range(in_use) if not mask[slot]]
    movers = [slot for slot in stays if slot >= len(stays)]
    holes = [slot for slot in range(len(stays)) if mask[slot]]
    for layer, fill in zip((1, 2, 4, 5, 6, 7, 8), (-1, 0, UNOBSERVED, 0, -1, 0, -1), strict=True):
        if len(state[layer]):
            state[layer][holes] = state[layer][movers]
            state[layer][len(stays) : in_use] = fill
    table.fill_(NO_SLOT)
    enter_slots(state, 0, len(stays))
    status[IN_USE], status[SAMPLE_ROWS] = len(stays), len(kept)
    counts = torch.zeros(1, 8, dtype=torch.int64)
    counts[0, 0] = counts[0, 1] = in_use - len(stays)
    counts[0, 4], counts[0, 7] = len(stays), len(kept)
    return counts


def insert_samples(samples, row: int, given, given_row: int, copies: bool) -> None:
    """Adds a row of given samples to a row of the state's."""
    for layer in samples if copies else []:
        if len(layer):
            layer[row] = 0
    for i in range(512 if 0 <= given_row < len(given[0]) else 0):
        old, more = distribution(samples, (row, i)), distribution(given, (given_row, i))
        if more.n <= 0:
            continue
        both = normal.added(old, normal.moments_of(more)) if old.n else more
        write_distribution(samples, (row, i), both)
        if len(samples[4]):
            total = samples[4][row, i].long() + given[4][given_row, i]
            samples[4][row, i] = total.clamp(-(2**31), 2**31 - 1).int()


def occupancy_insert_(state, keys, layers, *, sensor, merge="add", num_valid=None) -> Tensor:
    _, region_key, stamps, status, logodds, hit_miss, touch, traversal, sample_row, *samples = state
    valid = len(keys) if num_valid is None else min(max(int(num_valid), 0), len(keys))
    clamp_min, clamp_max = units_of(sensor[2]), units_of(sensor[3])
    rows, highest = [], -1
    for row, key in enumerate(keys[:valid].tolist()):
        if key > highest:
            rows.append((row, key))
            highest = key
    slots, in_use = slots_of(state), int(status[IN_USE])
    new = [key for _, key in rows if key not in slots]
    counts = torch.zeros(1, 8, dtype=torch.int64)
    sample_rows = int(status[SAMPLE_ROWS])
    sampled = []
    for row, key in rows if layers and len(samples[0]) else []:
        has = key in slots and sample_row[slots[key]] >= 0
        changes = key not in slots or merge != "keep"
        if changes and not has and 0 <= layers[5][row] < len(layers[6]):
            sampled.append(key)
    counts[0, 1:5] = torch.tensor([valid, valid - len(rows), len(new), in_use])
    counts[0, 5] = 2 * (in_use + len(new) > len(region_key))
    counts[0, 5] += 4 * (sample_rows + len(sampled) > len(samples[0]))
    counts[0, 6], counts[0, 7] = len(sampled), sample_rows
    if counts[0, 5]:
        status[REFUSED] = 1
        return counts
    status[SAMPLE_ROWS] = counts[0, 7] = sample_rows + len(sampled)
    for slot, key in enumerate(new, in_use):
        slots[key], region_key[slot] = slot, key
    enter_slots(state, in_use, len(slots))
    status[IN_USE] = counts[0, 4] = len(slots)
    merges = len(layers) > 0 and merge != "keep"
    counts[0, 0] = len(rows) if merges else len(new)
    bound = clamp_max if counts[0, 0] else 0
    for row, key in rows if layers else []:
        slot, copies = slots[key], key in new or merge == "replace"
        if not copies and merge == "keep":
            continue
        given = layers[0][row]
        stamps[slot] = given if copies else torch.maximum(stamps[slot], given)
        for i, value in enumerate(layers[1][row].tolist()):
            old = UNOBSERVED if copies else int(logodds[slot, i])
            if merge != "add":
                bound = max(bound, value)
            elif value != UNOBSERVED or old != UNOBSERVED:
                value = sum(x for x in (value, old) if x != UNOBSERVED)
                value = min(max(value, clamp_min), clamp_max)
            logodds[slot, i] = value
        if len(hit_miss):
            both = layers[2][row].long() + (0 if copies else hit_miss[slot].long())
            hit_miss[slot] = both.clamp(-(2**31), 2**31 - 1).int()
        if len(touch):
            touch[slot] = layers[3][row] if copies else layers[3][row].maximum(touch[slot])
        if len(traversal):
            traversal[slot] = layers[4][row] + (0 if copies else traversal[slot])
        if key in sampled:
            sample_row[slot] = sample_rows + sampled.index(key)
        if len(sample_row) and sample_row[slot] >= 0:
            insert_samples(samples, int(sample_row[slot]), layers[6:], int(layers[5][row]), copies)
    status[HIGHEST] = max(int(status[HIGHEST]), bound)
    return counts
