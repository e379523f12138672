# SPDX-License-Identifier: Apache-2.0
"""Occupancy maps, one ray and one hit or miss at a time; tables as if keys came in order."""

import math

import numpy as np
import torch
from torch import Tensor

from torchvox.reference import ndt as normal
from torchvox.reference.definition import define_op
from torchvox.reference.occupancy_steps import (
    HIGHEST,
    IN_USE,
    NO_SLOT,
    REFUSED,
    SAMPLE_ROWS,
    UNOBSERVED,
    Model,
    Votes,
    distribution,
    enter_regions,
    enter_slots,
    excluded,
    in_region,
    is_occupied,
    label_of,
    level_of,
    ray_units,
    slots_of,
    units_of,
    until_stop,
    votes,
    write_distribution,
)
from torchvox.reference.rays import UNIT, left_out, map_rays, map_units, region_key, rows_of, walk

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


@define_op
def occupancy_integrate_(state, points, origins, voxel_size, map_origin, sensor, max_touched, *,
                         rule, flags, threshold, missing, stamp, timestamps, time_base, ndt,
                         intensity, intensity_range, **options) -> Tensor:  # fmt: skip
    _, _, stamps, status, logodds, _, touch, traversal, sample_row, *samples = state
    flags, units, bounds = flags or [], [units_of(x) for x in sensor], intensity_range or [0.0, 1.0]
    ndt = normal.Ndt(*ndt) if ndt else None
    model = Model(units, rule, ndt, ndt.noise / voxel_size if ndt else 0.0, bounds)
    rays = map_rays(points, origins, voxel_size, map_origin, **options)
    counts = left_out(rays, 16)
    row, old, slots = counts[0], logodds.clone(), slots_of(state)
    row[1], row[10] = sum(ray.status >= 0 for ray in rays), status[IN_USE]
    if status[REFUSED]:
        row[11] = 8
        return counts

    def before(voxel) -> int:
        slot = slots.get(region_key(voxel))
        return UNOBSERVED if slot is None else int(old[slot, in_region(voxel)])

    whole = {i: ray for i, ray in enumerate(rays) if ray.status == 0}
    walked = {i: ray._replace(visits=until_stop(ray, flags, before, threshold))
              for i, ray in whole.items()}  # fmt: skip
    row[5] = sum(ray.truncated for ray in whole.values())
    row[6] = sum(len(ray.visits) for ray in whole.values())
    ends = {region_key(v.voxel) for ray in whole.values() for v, hit in votes(ray, flags) if hit}
    touched = {region_key(visit.voxel) for ray in walked.values() for visit in ray.visits}
    if not enter_regions(state, row, touched, ends, max_touched, missing == "skip"):
        status[REFUSED] = 1
        return counts
    row[0], slots = len(walked), slots_of(state)
    for slot in (slots[key] for key in touched & slots.keys() if stamp is not None):
        stamps[slot] = max(int(stamps[slot]), int(stamp))
    voxels: dict[tuple[int, int], Votes] = {}
    for i, ray in walked.items():
        end = any(hit for _, hit in votes(whole[i], flags))
        level = 0 if intensity is None else level_of(float(intensity[i]), bounds)
        for visit, hit in votes(ray, flags):
            place = slots.get(region_key(visit.voxel), -1), in_region(visit.voxel)
            if place[0] < 0 or excluded(int(old[place]), flags, threshold, units):
                continue
            vote = voxels.setdefault(place, Votes())
            vote.hits, vote.misses = vote.hits + hit, vote.misses + 1 - hit
            if len(traversal):
                traversal[place] += int((visit.leave - visit.enter) * ray_units(ray))
            if hit and len(touch) and timestamps is not None:
                ms = min(max((float(timestamps[i]) - time_base) * 1000, 0), 2**31 - 1)
                touch[place] = max(int(touch[place]), int(ms))
            if len(sample_row) and sample_row[place[0]] >= 0:
                at = int(sample_row[place[0]]), place[1]
                vote.before = vote.before or distribution(samples, at)
                model.weigh(vote, ray, visit, hit, end, level)
    for place, vote in voxels.items():
        model.change(state, place, vote)
        row[7] += int(logodds[place] != old[place])
    status[HIGHEST] = max(int(status[HIGHEST]), units[3]) if walked else status[HIGHEST]
    return counts


def lookup(state, places, shape, voxel_size, map_origin, threshold, fill) -> tuple[Tensor, Tensor]:
    """Log-odds and labels at places in meters; None is nowhere."""
    slots = slots_of(state)
    logodds, label = [], []
    for p in places:
        finite = p is not None and np.isfinite(p).all()
        units = map_units(p, voxel_size, map_origin) if finite else []
        value = UNOBSERVED
        if units:
            voxel = tuple(u // UNIT for u in units)
            slot = slots.get(region_key(voxel))
            value = UNOBSERVED if slot is None else int(state[4][slot, in_region(voxel)])
        nothing = math.nan if fill is None else fill
        logodds.append(nothing if value == UNOBSERVED else value / 1024)
        label.append(label_of(value, threshold))
    return (
        torch.tensor(logodds, dtype=torch.float32).reshape(shape),
        torch.tensor(label, dtype=torch.int8).reshape(shape),
    )


@define_op
def occupancy_query(
    state, points, voxel_size, map_origin, *, num_valid, threshold, fill
) -> tuple[Tensor, Tensor]:
    valid = len(points) if num_valid is None else int(num_valid.reshape(-1)[0])
    rows = rows_of(points)[:, :3].astype(np.float64)
    places = [p if i < valid else None for i, p in enumerate(rows)]
    return lookup(state, places, [len(rows)], voxel_size, map_origin, threshold, fill)


@define_op
def occupancy_crop(
    state, voxel_size, map_origin, cell_size, point_cloud_range, *, poses, threshold, fill
) -> tuple[Tensor, Tensor]:
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
                p = np.array([r[0] * p[0] + r[1] * p[1] + r[2] * p[2] + r[3] for r in pose])
            places.append(p)
    shape = [len(matrices), nz, ny, nx]
    return lookup(state, places, shape, voxel_size, map_origin, threshold, fill)


@define_op
def occupancy_raycast(
    state, points, origins, voxel_size, map_origin, *, threshold, stop_unknown, solid_angle, **rays
) -> tuple[Tensor, ...]:
    slots = slots_of(state)
    n = len(points)
    distance, unseen = np.full(n, np.nan, np.float32), np.zeros(n, np.float32)
    status, unknown = np.full(n, 3, np.int8), np.zeros(n, np.int32)
    indices = np.full((n, 4), -1, np.int32)
    for i, ray in enumerate(map_rays(points, origins, voxel_size, map_origin, **rays)):
        if ray.status != 0:
            continue
        x, y, z = ((np.float64(abs(b - a)) / UNIT) for a, b in zip(ray.start, ray.end, strict=True))
        length = np.sqrt(x * x + y * y + z * z) * np.float64(voxel_size)
        volume = np.float64(0)
        for visit in walk(ray.start, ray.end):
            slot = slots.get(region_key(visit.voxel))
            value = UNOBSERVED if slot is None else int(state[4][slot, in_region(visit.voxel)])
            indices[i] = (0, *visit.voxel[::-1])
            near, far = np.float64(visit.enter) * length, np.float64(visit.leave) * length
            distance[i], status[i] = near, 0
            if is_occupied(value, threshold):
                status[i] = 1
            elif stop_unknown and value == UNOBSERVED:
                status[i] = 2
            if status[i]:
                break
            if value == UNOBSERVED:
                volume = volume + (far * far * far - near * near * near)
                unknown[i] += 1
        if status[i] == 0:
            distance[i] = length
        unseen[i] = np.float64(solid_angle) / 3 * volume
    return tuple(torch.from_numpy(a) for a in (distance, unseen, status, indices, unknown))


@define_op
def occupancy_extract(state, max_out, *, select, threshold) -> tuple[Tensor, ...]:
    labels = {"occupied": (1,), "free": (0,), "observed": (0, 1)}[select]
    logodds, mean = torch.zeros(max_out), torch.zeros(max_out, 3)
    num_samples = torch.zeros(max_out, dtype=torch.int32)
    indices = torch.full((max_out, 4), -1, dtype=torch.int32)
    count = 0
    for key, slot in sorted(slots_of(state).items()):
        corner = [(key >> 21 * axis) % 2**21 * 8 - 2**23 for axis in range(3)]
        for i, value in enumerate(state[4][slot].tolist()):
            if label_of(value, threshold) not in labels:
                continue
            if count < max_out:
                x, y, z = (corner[axis] + (i >> 3 * axis) % 8 for axis in range(3))
                logodds[count] = value / 1024
                indices[count] = torch.tensor([0, z, y, x])
                row = int(state[8][slot]) if len(state[8]) else -1
                if row >= 0:
                    num_samples[count], mean[count] = state[9][row, i], state[10][row, i]
            count += 1
    counts = torch.zeros(1, 8, dtype=torch.int64)
    counts[0, :2] = torch.tensor([min(count, max_out), count])
    return logodds, mean, indices, num_samples, counts


@define_op
def occupancy_decay_(state, factor, step, forget, *, mask) -> tuple[Tensor, Tensor]:
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


@define_op
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


def insert_samples(samples, row: int, others, other_row: int, copies: bool) -> None:
    """Adds a row of other samples to a row of those of the state."""
    for layer in samples if copies else []:
        if len(layer):
            layer[row] = 0
    for i in range(512 if 0 <= other_row < len(others[0]) else 0):
        old, more = distribution(samples, (row, i)), distribution(others, (other_row, i))
        if more.n <= 0:
            continue
        both = normal.added(old, normal.moments_of(more)) if old.n else more
        write_distribution(samples, (row, i), both)
        if len(samples[4]):
            total = samples[4][row, i].long() + others[4][other_row, i]
            samples[4][row, i] = total.clamp(-(2**31), 2**31 - 1).int()


@define_op
def occupancy_insert_(state, keys, layers, *, sensor, merge, num_valid) -> Tensor:
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
    counts[0, 0] = len(rows) if layers and merge != "keep" else len(new)
    bound = clamp_max if counts[0, 0] else 0
    for row, key in rows if layers else []:
        slot, copies = slots[key], key in new or merge == "replace"
        if not copies and merge == "keep":
            continue
        stamp = layers[0][row]
        stamps[slot] = stamp if copies else torch.maximum(stamps[slot], stamp)
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
