# SPDX-License-Identifier: Apache-2.0
"""Steps of the reference of occupancy maps: tables of regions, votes of rays, updates of voxels."""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchvox.reference import ndt as normal
from torchvox.reference.rays import HIT_ONLY, NO_HIT, SECONDARY, UNIT, regions_limit, table_size

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


@dataclasses.dataclass
class Votes:
    """What the rays of a call say of a voxel."""

    hits: int = 0
    misses: int = 0
    before: normal.Distribution | None = None  # its samples, where its region has a row of them
    ends: list = dataclasses.field(default_factory=list)  # offset and level of each new sample
    down: int = 0  # misses of its distribution, in 2^-16
    passes: list[int] = dataclasses.field(default_factory=lambda: [0, 0])  # hits, misses


class Model(NamedTuple):
    """Options of a call."""

    sensor: list[int]  # in 1/1024
    rule: str
    ndt: normal.Ndt | None
    noise: float  # in voxels
    bounds: list[float]  # of intensities

    def weigh(self, vote: Votes, ray, visit, hit: int, end: bool, level: int) -> None:
        """Adds what a ray says of the samples of a voxel. end: whether the ray hits anything."""
        voxel = vote.before
        assert voxel is not None
        p_v = p_s = 1.0
        here = self.ndt if self.ndt and voxel.n >= self.ndt.samples else None
        if here:
            way = voxel, ray.start, ray.end, visit.voxel, end, self.noise
            p_v, p_s = normal.likelihoods(*way)
        eta = self.ndt.adaptation / 2 if self.ndt else 0.0
        if hit:
            offset = tuple(e % UNIT - UNIT // 2 for e in ray.end)
            vote.ends.append((offset, level))
            goes = 0 if p_v * p_s >= eta else 1 if p_v >= eta else None
        elif here:
            lowest = (self.sensor[2] - self.sensor[3]) / 1024
            vote.down += normal.miss(p_v, p_s, here.adaptation, lowest)
            goes = 1 if p_v * (1 - p_s) >= eta else None
        else:
            goes = 1 if voxel.n > 0 else None
        if goes is not None:
            vote.passes[goes] += 1

    def change(self, state: list[Tensor], place: tuple[int, int], vote: Votes) -> None:
        """Updates a voxel once."""
        _, _, _, _, logodds, hit_miss, _, _, sample_row, *samples = state
        old, units, misses = int(logodds[place]), self.sensor, vote.misses
        voxel, ndt = vote.before, self.ndt
        if voxel and ndt and voxel.n >= ndt.samples and misses:
            down = max(-math.floor(-vote.down / 64 + 0.5), -(2**16))
            units, misses = [units[0], down, *units[2:]], 1
        logodds[place] = updated(old, vote.hits, misses, units, self.rule)
        if voxel:
            at = int(sample_row[place[0]]), place[1]
            if ndt and voxel.n >= ndt.reset_samples and UNOBSERVED < old < 1024 * ndt.reset:
                voxel = voxel._replace(n=0)
            if vote.ends:
                offsets, levels = map(list, zip(*vote.ends, strict=True))
                voxel = normal.added(voxel, normal.summed(offsets, levels, self.bounds))
                write_distribution(samples, at, voxel)
            if len(samples[4]):
                add_counts(samples[4], at, vote.passes)
        if len(hit_miss):
            add_counts(hit_miss, place, [vote.hits, vote.misses])


def add_counts(layer: Tensor, place: tuple[int, int], counts: list[int]) -> None:
    both = layer[place].long() + torch.tensor(counts)
    layer[place] = both.clamp(max=2**31 - 1).int()


def enter_regions(state: list[Tensor], row: Tensor, touched: set[int], ends: set[int],
                  max_touched: int, skips: bool) -> bool:  # fmt: skip
    """Whether the regions that a call touches fit, which the row of counts gets; if so, new ones
    enter the map, and those in which rays end get rows of samples. skips: only resident ones."""
    _, keys, _, status, *_, sample_row, sample_count, _, _, _, _ = state
    slots, in_use, capacity = slots_of(state), int(status[IN_USE]), len(keys)
    room = capacity if max_touched < 0 else max_touched
    limit = regions_limit(room)
    if len(touched) > limit:
        row[8] = limit
        row[11] = 2 if max_touched < 0 and not skips else 1
        return False
    order = place_keys(touched, table_size(room))
    new = [key for key in order if key not in slots]
    sampled = []
    for key in order if len(sample_count) else []:
        has = key in slots and sample_row[slots[key]] >= 0
        if key in ends and not has and not (skips and key in new):
            sampled.append(key)
    row[13] = len(sampled)
    row[8] = len(touched) - len(new) if skips else len(touched)
    row[12 if skips else 9] = len(new)
    row[11] = int(max_touched >= 0 and row[8] > room)
    if not skips and in_use + len(new) > capacity:
        row[11] += 2
    if int(status[SAMPLE_ROWS]) + len(sampled) > len(sample_count):
        row[11] += 4
    if row[11]:
        return False
    for key in [] if skips else new:
        slots[key] = len(slots)
        keys[slots[key]] = key
    enter_slots(state, in_use, len(slots))
    status[IN_USE] = row[10] = len(slots)
    for key in sampled:
        sample_row[slots[key]] = status[SAMPLE_ROWS]
        status[SAMPLE_ROWS] += 1
    return True
