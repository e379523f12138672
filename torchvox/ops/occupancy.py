# SPDX-License-Identifier: Apache-2.0
"""Occupancy maps on tensors that the caller owns: rays update them, points and rays query them.

A map is a list of tensors, `state`, that `occupancy_state` makes. Ops with a trailing underscore
write it; CPU and CUDA give the same bits, in every run and for every order of the rays of a call.
"""

from typing import List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from torchvox.ops.annotations import LongRays, Merge, Missing, Rule, Select, Sequence

__all__ = [
    "DecayedRegions",
    "OccupancyRays",
    "OccupancyRows",
    "OccupancyValues",
    "StateTensor",
    "occupancy_crop",
    "occupancy_decay_",
    "occupancy_extract",
    "occupancy_insert_",
    "occupancy_integrate_",
    "occupancy_layout",
    "occupancy_query",
    "occupancy_raycast",
    "occupancy_remove_",
    "occupancy_state",
]


LAYERS = ("hit_miss", "touch", "traversal")  # with one row per region
SAMPLE_LAYERS = (
    "sample_mean",
    "sample_cov",
    "intensity",
    "passes",
)  # with one per region that has samples


class StateTensor(NamedTuple):
    """A tensor of a map's state; rows of regions not in use hold the fill."""

    name: str
    shape: Tuple[int, ...]
    dtype: torch.dtype
    fill: int


class DecayedRegions(NamedTuple):
    """Result of `occupancy_decay_`, for C slots.

    empty: [C] bool, regions in use in which no voxel is observed.
    counts: [1, 8] int64: regions changed, in use and of the mask; 4 regions in use; the rest 0.
    """

    empty: Tensor
    counts: Tensor


class OccupancyValues(NamedTuple):
    """Result of `occupancy_query` [N] and `occupancy_crop` [B, nz, ny, nx].

    logodds: float32.
    label: int8: -1 not observed, 0 free, 1 occupied.
    """

    logodds: Tensor
    label: Tensor


class OccupancyRays(NamedTuple):
    """Result of `occupancy_raycast`.

    distance: [N] float32, meters to where the ray enters the voxel that stops it, its length if
        none does, NaN without a ray.
    unseen: [N] float32, volume of the unobserved part of the cone of the ray, in cubic meters.
    status: [N] int8: 0 the end is in sight, 1 occupied, 2 not observed, 3 no ray.
    indices: [N, 4] int32, (0, z, y, x) of the voxel that stops the ray, or of its end.
    unknown: [N] int32, voxels passed that were not observed.
    """

    distance: Tensor
    unseen: Tensor
    status: Tensor
    indices: Tensor
    unknown: Tensor


class OccupancyRows(NamedTuple):
    """Result of `occupancy_extract`.

    logodds: [max_out] float32; 0 in unused rows.
    mean: [max_out, 3] float32, of the samples, in voxels from the center; 0 without.
    indices: [max_out, 4] int32, (0, z, y, x); -1 in unused rows.
    num_samples: [max_out] int32.
    counts: [1, 8] int64: rows kept, rows found, 0 six times.
    """

    logodds: Tensor
    mean: Tensor
    indices: Tensor
    num_samples: Tensor
    counts: Tensor


def occupancy_layout(
    capacity: int, *, layers: Sequence[str] = ("logodds",), sample_rows: int = 0
) -> Tuple[StateTensor, ...]:
    """The tensors of a map of `capacity` regions of 8 x 8 x 8 voxels, in the order of its state.

    layers: "logodds", which every map has; "hit_miss": how many rays hit and missed a voxel;
    "touch": when it was hit last, in ms; "traversal": the way of rays in it, in 2^-16 voxels;
    "sample_mean": number and mean of the ends of rays in it; with that "sample_cov", their
    covariance, and "intensity", and with both "passes", rays that its surface stopped or not.
    A layer that is off has 0 rows. sample_rows: regions that may have samples.
    """
    names = ("logodds", *LAYERS, *SAMPLE_LAYERS)
    if not set(layers) <= set(names) or "logodds" not in layers:
        raise ValueError(
            f"occupancy_layout: layers must be 'logodds' and maybe {', '.join(names[1:])}, "
            f"got {list(layers)}"
        )
    for layer, needs in (
        ("sample_cov", "sample_mean"),
        ("intensity", "sample_mean"),
        ("passes", "sample_cov"),
    ):
        if layer in layers and needs not in layers:
            raise ValueError(f"occupancy_layout: layers with {layer} must have {needs}")
    for name, rows in (("capacity", capacity), ("sample_rows", sample_rows)):
        if rows != int(rows):
            raise TypeError(f"occupancy_layout: {name} must be an int, got {rows}")
        if not 0 <= rows < 2**30:
            raise ValueError(f"occupancy_layout: {name} must be from 0 to 2^30 - 1, got {rows}")
    entries = 1 << max(2 * capacity - 1, 1).bit_length()
    counted, touched, traversed = (capacity if name in layers else 0 for name in LAYERS)
    means, covs, intensities, passed = (
        sample_rows if name in layers else 0 for name in SAMPLE_LAYERS
    )
    return (
        StateTensor("table", (entries,), torch.int32, 2**31 - 1),
        StateTensor("region_key", (capacity,), torch.int64, -1),
        StateTensor("region_stamp", (capacity,), torch.int32, 0),
        StateTensor("status", (8,), torch.int64, 0),
        StateTensor("logodds", (capacity, 512), torch.int16, -32768),
        StateTensor("hit_miss", (counted, 512, 2), torch.int32, 0),
        StateTensor("touch", (touched, 512), torch.int32, -1),
        StateTensor("traversal", (traversed, 512), torch.int64, 0),
        StateTensor("sample_row", (capacity if means else 0,), torch.int32, -1),
        StateTensor("sample_count", (means, 512), torch.int32, 0),
        StateTensor("sample_mean", (means, 512, 3), torch.float32, 0),
        StateTensor("sample_cov", (covs, 512, 6), torch.float32, 0),
        StateTensor("intensity", (intensities, 512, 2), torch.float32, 0),
        StateTensor("passes", (passed, 512, 2), torch.int32, 0),
    )


def occupancy_state(
    capacity: int,
    *,
    layers: Sequence[str] = ("logodds",),
    sample_rows: int = 0,
    device: Optional[torch.device] = None,
) -> List[Tensor]:
    """An empty map: the tensors of `occupancy_layout`, on a device. docs/occupancy.md has them."""
    state = [
        torch.full(tensor.shape, tensor.fill, dtype=tensor.dtype, device=device)
        for tensor in occupancy_layout(capacity, layers=layers, sample_rows=sample_rows)
    ]
    state[3][:1] = 1  # the version of the layout
    return state


def occupancy_integrate_(
    state: List[Tensor],
    points: Tensor,
    origins: Tensor,
    voxel_size: float,
    map_origin: Sequence[float],
    sensor: Sequence[float],
    max_touched: int = -1,
    *,
    origin_index: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
    ray_flags: Optional[Tensor] = None,
    point_cloud_range: Optional[Sequence[float]] = None,
    min_range: float = 0.0,
    max_range: float = -1.0,
    long_rays: LongRays = "truncate",
    rule: Rule = "every_ray",
    flags: Optional[Sequence[str]] = None,
    threshold: float = 0.0,
    missing: Missing = "allocate",
    stamp: Optional[Tensor] = None,
    timestamps: Optional[Tensor] = None,
    time_base: float = 0.0,
    ndt: Optional[Sequence[float]] = None,
    intensity: Optional[Tensor] = None,
    intensity_range: Optional[Sequence[float]] = None,
) -> Tensor:
    """Update a map by rays, in place: voxels that rays pass are missed, those where they end hit.

    A call is the batch: its misses count before its hits, whatever the order of the rays; the same
    rays in two calls are another result.

    state: of `occupancy_state`. points to long_rays: rays as in `ray_voxels`; of `ray_flags` 2
        means no hit (the end was cut off), 4 hit only, 8 a secondary return, whose first voxel is
        not missed. A ray that max_range cuts hits nothing and leaves its last voxel alone.
    sensor: log-odds (hit, miss, clamp_min, clamp_max), each within +-31.9, rounded to 1/1024.
    max_touched: regions that one call may touch, which sets its scratch memory, 1 to 2 KB each;
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
    timestamps: [N] float64, seconds; in the layer "touch" a voxel keeps the latest of its hits, in
        whole ms after time_base, from 0 to 2^31 - 1.
    ndt: (noise, adaptation, samples, reset, reset samples), for the layer "sample_cov". A miss of a
        voxel with so many samples counts by how near the ray comes to their distribution: noise is
        the standard deviation of ranges in meters; adaptation, from 0 to 1, is how much a miss
        through the middle weighs. A voxel that is hit with log-odds below reset, and with so many
        samples, forgets these first. rule must be "every_ray".
    intensity: [N] float32, for the layer "intensity", in steps of 1/65535 of intensity_range =
        (lowest, highest).

    Returns counts [1, 16] int64: 0 rays integrated, 1 given, 2 not finite, 3 left out (flag, index,
    range), 4 outside, 5 truncated, 6 visits, 7 voxels whose log-odds changed, 8 regions touched, 9
    new, 10 in use, 11 overflow (1 more touched than max_touched, 2 more regions than the capacity,
    4 more rows of samples than there are, 8 refused since an earlier call did not fit), 12 regions
    skipped, 13 new rows of samples. All or nothing: a call that does not fit writes only status[3],
    by which all later ones are refused until it is cleared; 8, 9 and 13 say what was needed. Not
    differentiable.
    Raises ValueError (shapes, sizes, options) and TypeError (dtypes), with nothing written.
    Source: OHM (Stepanas et al., OHM: GPU Based Occupancy Map Generation, RA-L 2022); OctoMap
    (Hornung et al., Autonomous Robots 2013); tables of Blelloch and Golovin, FOCS 2007; NDT-OM
    (Saarinen et al., IJRR 2013) and NDT-TM (Ahtiainen et al., JFR 2017).
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
        timestamps=timestamps,
        time_base=time_base,
        ndt=ndt,
        intensity=intensity,
        intensity_range=intensity_range,
    )


def occupancy_query(
    state: List[Tensor],
    points: Tensor,
    voxel_size: float,
    map_origin: Sequence[float],
    *,
    num_valid: Optional[Tensor] = None,
    threshold: float = 0.0,
    fill: Optional[float] = None,
) -> OccupancyValues:
    """Log-odds and labels of a map at points.

    points: [N, C] float, C >= 3, in meters. num_valid: one count; rows past it are not observed.
    threshold: log-odds from which a voxel is occupied. fill: log-odds of what was not observed,
        None for NaN.

    Returns logodds [N] float32 and label [N] int8: -1 not observed, 0 free, 1 occupied. Not
    differentiable.
    """
    logodds, label = torch.ops.torchvox.occupancy_query(
        state, points, voxel_size, map_origin, num_valid=num_valid, threshold=threshold, fill=fill
    )
    return OccupancyValues(logodds, label)


def occupancy_crop(
    state: List[Tensor],
    voxel_size: float,
    map_origin: Sequence[float],
    cell_size: Sequence[float],
    point_cloud_range: Sequence[float],
    *,
    poses: Optional[Tensor] = None,
    threshold: float = 0.0,
    fill: Optional[float] = None,
) -> OccupancyValues:
    """A map at the cell centers of a grid, as dense volumes.

    cell_size, point_cloud_range: the grid, as of `voxelize`. poses: [B, 3, 4] float, each from the
    grid's frame to the map's; None: one volume in the map's frame. threshold, fill: as in
    `occupancy_query`.

    Returns logodds [B, nz, ny, nx] float32 and label [B, nz, ny, nx] int8. Not differentiable.
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
    map_origin: Sequence[float],
    *,
    origin_index: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
    threshold: float = 0.0,
    stop_unknown: bool = False,
    solid_angle: float = 1.0,
) -> OccupancyRays:
    """How far rays from origins to points see in a map, their first and last voxels included.

    points, origins, origin_index, num_valid: as in `ray_voxels`. threshold: log-odds from which a
    voxel is occupied. stop_unknown: voxels that were not observed stop a ray as well.
    solid_angle: of each ray, in steradians.

    Returns `OccupancyRays`. Not differentiable.
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
    state: List[Tensor], max_out: int, *, select: Select = "occupied", threshold: float = 0.0
) -> OccupancyRows:
    """The voxels of a map as rows, by region key, then by place in the region (x fastest).

    select: "occupied", "free" or "observed". max_out: rows of the outputs; the first ones are kept.

    Returns `OccupancyRows`. Not differentiable.
    """
    logodds, mean, indices, num_samples, counts = torch.ops.torchvox.occupancy_extract(
        state, max_out, select=select, threshold=threshold
    )
    return OccupancyRows(logodds, mean, indices, num_samples, counts)


def occupancy_decay_(
    state: List[Tensor], factor: int, step: int, forget: int, *, mask: Optional[Tensor] = None
) -> DecayedRegions:
    """Shrinks log-odds toward 0 and forgets small ones. Writes `state`.

    Log-odds are in units of 1/1024: L becomes sign(L) * max((|L| * factor >> 16) - step, 0), and a
    voxel with |L| <= forget then becomes unobserved, in every layer.
    factor: 0 to 65536; round(65536 * 2^(-time / half_life)). step: 0 or more.
    mask: [C] bool, regions that decay; None: all.

    Returns `DecayedRegions`; its mask empty is one for `occupancy_remove_`. Not differentiable.
    Raises ValueError (shapes, strides, numbers) and TypeError (dtypes).
    """
    return DecayedRegions(
        *torch.ops.torchvox.occupancy_decay_(state, factor, step, forget, mask=mask)
    )


def occupancy_remove_(state: List[Tensor], mask: Tensor) -> Tensor:
    """Removes regions from the map. Writes `state`.

    mask: [C] bool, by slot; slots not in use are ignored. With n slots left, the regions that stay
    in slots n and up move in order into the free slots below n; the slots from n on get the fill.

    Returns counts [1, 8] int64: regions removed, the same, 4 regions in use, 7 rows of samples in
    use, the rest 0. Not differentiable.
    Raises ValueError (shapes, strides) and TypeError (dtypes).
    """
    return torch.ops.torchvox.occupancy_remove_(state, mask)


def occupancy_insert_(
    state: List[Tensor],
    keys: Tensor,
    layers: List[Tensor],
    *,
    sensor: Sequence[float],
    merge: Merge = "add",
    num_valid: Optional[Tensor] = None,
) -> Tensor:
    """Inserts regions into the map, all of them or none. Writes `state`.

    keys: [K] int64, ascending; a row whose key is below 0, or not above all keys before it, is
        refused and counted.
    layers: (region_stamp [K], logodds [K, 512], hit_miss, touch, traversal, sample_row [K],
        sample_count [S, 512], sample_mean, sample_cov, intensity, passes), types and shapes as in
        the state, with 0 rows where the state has none; sample_row says which of the S rows a
        region has, -1 none. Or no tensors: regions that are new start unobserved.
    sensor: (hit, miss, clamp_min, clamp_max) in log-odds, within 31.9.
    merge: of regions that exist. "add": log-odds add up and are clamped, counts add up, samples
        become those of both, the stamp is the larger one; "replace" and "keep". New regions are
        copied, with "add" clamped too.
    num_valid: one int32 or int64, rows that count.

    Returns counts [1, 8] int64: regions changed, rows given, rows refused for their keys, regions
    new, regions in use, overflow bits, rows of samples new, and in use. New regions get the next
    slots, in order. If they do not fit, bit 2 is set, if their samples do not, bit 4, nothing is
    written but a 1 to status[3], and nothing counts as changed. Not differentiable.
    Raises ValueError (shapes, strides, numbers, words) and TypeError (dtypes).
    """
    return torch.ops.torchvox.occupancy_insert_(
        state, keys, layers, sensor=sensor, merge=merge, num_valid=num_valid
    )
