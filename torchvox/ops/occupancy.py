# SPDX-License-Identifier: Apache-2.0
"""Occupancy maps on tensors that the caller owns: rays update them, points and rays ask them.

A map is a list of tensors, `state`, that `occupancy_state` makes. Ops with a trailing underscore
write it; CPU and CUDA give the same bits, in every run and for every order of the rays of a call.
"""

from typing import List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

__all__ = [
    "OccupancyRays",
    "OccupancyRows",
    "OccupancyValues",
    "occupancy_crop",
    "occupancy_extract",
    "occupancy_integrate_",
    "occupancy_query",
    "occupancy_raycast",
    "occupancy_state",
]


class OccupancyValues(NamedTuple):
    logodds: Tensor
    label: Tensor


class OccupancyRays(NamedTuple):
    distance: Tensor
    unseen: Tensor
    status: Tensor
    indices: Tensor
    unknown: Tensor


class OccupancyRows(NamedTuple):
    logodds: Tensor
    indices: Tensor
    counts: Tensor


def occupancy_state(
    capacity: int,
    *,
    layers: Tuple[str, ...] = ("logodds",),
    device: Optional[torch.device] = None,
) -> List[Tensor]:
    """An empty map for `capacity` regions of 8 x 8 x 8 voxels, 1 KB each and 20 bytes.

    layers: "logodds", and "hit_miss" (4 KB a region) for the numbers of rays that hit and missed.

    Returns table [H] int32, H the smallest power of two of at least 2 * C: slots by open addressing,
    2^31 - 1 where there is none; region_key [C] int64, -1; region_stamp [C] int32; status [8] int64:
    layout version, slots in use, sample rows in use, refused, bound of all log-odds in 1/1024;
    logodds [C, 512] int16 in 1/1024, -32768 where nothing was observed; hit_miss [C, 512, 2] int32,
    or no rows.
    """
    if capacity < 0:
        raise ValueError(f"occupancy_state: capacity must be >= 0, got {capacity}")
    unknown = sorted(set(layers) - {"logodds", "hit_miss"})
    if unknown or "logodds" not in layers:
        raise ValueError(
            "occupancy_state: layers must be 'logodds' and, if wanted, 'hit_miss', got "
            f"{tuple(layers)}"
        )
    counted = capacity if "hit_miss" in layers else 0
    status = torch.zeros(8, dtype=torch.int64, device=device)
    status[0] = 1
    table = 1 << max(2 * capacity - 1, 1).bit_length()
    return [
        torch.full([table], 2**31 - 1, dtype=torch.int32, device=device),
        torch.full([capacity], -1, dtype=torch.int64, device=device),
        torch.zeros([capacity], dtype=torch.int32, device=device),
        status,
        torch.full([capacity, 512], -32768, dtype=torch.int16, device=device),
        torch.zeros([counted, 512, 2], dtype=torch.int32, device=device),
    ]


def occupancy_integrate_(
    state: List[Tensor],
    points: Tensor,
    origins: Tensor,
    voxel_size: float,
    map_origin: List[float],
    sensor: List[float],
    max_touched: int = -1,
    *,
    origin_index: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
    ray_flags: Optional[Tensor] = None,
    point_cloud_range: Optional[List[float]] = None,
    min_range: float = 0.0,
    max_range: float = -1.0,
    long_rays: str = "truncate",
    rule: str = "every_ray",
    flags: Optional[List[str]] = None,
    threshold: float = 0.0,
    missing: str = "allocate",
    stamp: Optional[Tensor] = None,
) -> Tensor:
    """Update a map by rays, in place: voxels that rays pass are missed, those where they end hit.

    A call is the batch: its misses count before its hits, whatever the order of the rays; the same
    rays in two calls are another result.

    state: of `occupancy_state`. points to long_rays: rays as in `ray_voxels`; of `ray_flags` 2 means
        no hit (the end was cut off), 4 hit only, 8 a secondary return, whose first voxel is not
        missed. A ray that max_range cuts hits nothing and leaves its last voxel alone.
    sensor: log-odds (hit, miss, clamp_min, clamp_max), each within +-31.9, rounded to 1/1024.
    max_touched: regions that one call may touch, which sets its scratch memory of 2 to 4 KB each;
        -1: the map's capacity.
    rule: "every_ray" adds all misses and clamps below, then all hits and clamps above; "scan"
        (OctoMap's) adds one hit if there is one, else one miss.
    flags: "end_as_free": ends are missed too. "stop_at_occupied": a ray ends, missing it, at the
        first voxel before its end that was occupied. "exclude_origin", "exclude_sample",
        "exclude_ray": first voxels, ends, those between are left alone. "exclude_unobserved",
        "exclude_free", "exclude_occupied", and "lock_min", "lock_max" for voxels at a clamp: voxels
        that were so before the call are left alone.
    threshold: log-odds from which a voxel is occupied.
    missing: "allocate" gives new regions slots; "skip" leaves rays in regions without a slot out.
    stamp: [1] int32; regions that the call touches keep the largest.

    Returns counts [1, 16] int64: 0 rays integrated, 1 given, 2 not finite, 3 left out (flag, index,
    range), 4 outside, 5 truncated, 6 visits, 7 voxels whose log-odds changed, 8 regions touched,
    9 new, 10 in use, 11 overflow (1 more touched than max_touched, 2 more regions than the capacity,
    8 refused since an earlier call did not fit), 12 regions skipped.
    All or nothing: a call that does not fit writes only status[3], by which all later ones are
    refused until it is cleared; 8 and 9 say what was needed.
    Deterministic; CPU and CUDA give the same bits; no host synchronization; not differentiable.
    Raises ValueError (shapes, sizes, options) and TypeError (dtypes), with nothing written.
    Source: OHM (Stepanas et al., OHM: GPU Based Occupancy Map Generation, RA-L 2022); OctoMap
    (Hornung et al., Autonomous Robots 2013); tables of Blelloch and Golovin, FOCS 2007.
    """
    return torch.ops.torchvox.occupancy_integrate_(
        state,
        points,
        origins,
        voxel_size,
        map_origin,
        sensor,
        max_touched,
        origin_index=origin_index,
        num_valid=num_valid,
        ray_flags=ray_flags,
        point_cloud_range=point_cloud_range,
        min_range=min_range,
        max_range=max_range,
        long_rays=long_rays,
        rule=rule,
        flags=flags,
        threshold=threshold,
        missing=missing,
        stamp=stamp,
    )


def occupancy_query(
    state: List[Tensor],
    points: Tensor,
    voxel_size: float,
    map_origin: List[float],
    *,
    num_valid: Optional[Tensor] = None,
    threshold: float = 0.0,
    fill: Optional[float] = None,
) -> OccupancyValues:
    """What a map holds at points.

    points: [N, C] float, C >= 3, in meters. num_valid: one count; rows past it are unknown.
    threshold: log-odds from which a voxel is occupied. fill: log-odds of what was not observed,
        None for NaN.

    Returns logodds [N] float32 and label [N] int8: -1 not observed, 0 free, 1 occupied.
    CPU and CUDA give the same bits; no host synchronization; not differentiable.
    """
    logodds, label = torch.ops.torchvox.occupancy_query(
        state,
        points,
        voxel_size,
        map_origin,
        num_valid=num_valid,
        threshold=threshold,
        fill=fill,
    )
    return OccupancyValues(logodds, label)


def occupancy_crop(
    state: List[Tensor],
    voxel_size: float,
    map_origin: List[float],
    cell_size: List[float],
    point_cloud_range: List[float],
    *,
    poses: Optional[Tensor] = None,
    threshold: float = 0.0,
    fill: Optional[float] = None,
) -> OccupancyValues:
    """A map at the cell centers of a grid, as dense volumes.

    cell_size, point_cloud_range: the grid, as of `voxelize`. poses: [B, 3, 4] float, each from the
    grid's frame to the map's; None: one volume in the map's frame. threshold, fill: as in
    `occupancy_query`.

    Returns logodds [B, nz, ny, nx] float32 and label [B, nz, ny, nx] int8.
    CPU and CUDA give the same bits; no host synchronization; not differentiable.
    """
    logodds, label = torch.ops.torchvox.occupancy_crop(
        state,
        voxel_size,
        map_origin,
        cell_size,
        point_cloud_range,
        poses=poses,
        threshold=threshold,
        fill=fill,
    )
    return OccupancyValues(logodds, label)


def occupancy_raycast(
    state: List[Tensor],
    points: Tensor,
    origins: Tensor,
    voxel_size: float,
    map_origin: List[float],
    *,
    origin_index: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
    threshold: float = 0.0,
    stop_unknown: bool = False,
    solid_angle: float = 1.0,
) -> OccupancyRays:
    """How far rays from origins to points see in a map; the first and the last voxel count too.

    points, origins, origin_index, num_valid: as in `ray_voxels`. threshold: log-odds from which a
    voxel is occupied. stop_unknown: voxels that were not observed stop a ray as well.
    solid_angle: of each ray, in steradians.

    Returns distance [N] float32 in meters, to where the ray enters the voxel that stops it, its
    length if none does, NaN without a ray; unseen [N] float32, the volume in cubic meters of the
    unobserved part of the ray's cone; status [N] int8: 0 the end is in sight, 1 occupied, 2 not
    observed, 3 no ray; indices [N, 4] int32 (0, z, y, x) of the voxel that stops the ray, or of its
    end; unknown [N] int32, voxels passed that were not observed.
    CPU and CUDA give the same bits; no host synchronization; not differentiable.
    """
    distance, unseen, status, indices, unknown = torch.ops.torchvox.occupancy_raycast(
        state,
        points,
        origins,
        voxel_size,
        map_origin,
        origin_index=origin_index,
        num_valid=num_valid,
        threshold=threshold,
        stop_unknown=stop_unknown,
        solid_angle=solid_angle,
    )
    return OccupancyRays(distance, unseen, status, indices, unknown)


def occupancy_extract(
    state: List[Tensor], max_out: int, *, select: str = "occupied", threshold: float = 0.0
) -> OccupancyRows:
    """The voxels of a map as rows, by region key, then by place in the region (x fastest).

    select: "occupied", "free" or "observed". max_out: rows of the outputs; the first ones are kept.

    Returns logodds [max_out] float32, unused rows 0; indices [max_out, 4] int32 (0, z, y, x), -1;
    counts [1, 8] int64: rows kept, found.
    CPU and CUDA give the same bits; no host synchronization; not differentiable.
    """
    logodds, indices, counts = torch.ops.torchvox.occupancy_extract(
        state, max_out, select=select, threshold=threshold
    )
    return OccupancyRows(logodds, indices, counts)
