# SPDX-License-Identifier: Apache-2.0
"""Rays through voxels: exact walks, the volumes that sweeps see, points under poses; and sweeps as
the input of networks."""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from torchvox.ops.annotations import Finite, LongRays, Sequence

__all__ = [
    "RayRegions",
    "RayVoxels",
    "SelectedPoints",
    "Visibility",
    "crop_points",
    "merge_sweeps",
    "ray_regions",
    "ray_visibility",
    "ray_voxels",
    "transform_points",
    "unpack_points",
]


class Visibility(NamedTuple):
    """Result of `ray_visibility`.

    visibility: [B, nz, ny, nx] uint8: 2 occupied, where a ray with a hit ends or is stopped; else
        1 free, where one passes; else 0 unknown.
    reached: [N] int8: 0 end in the grid, 1 stopped, 2 end outside, -1 no ray.
    counts: [B + 1, 8] int32, of the call and of each sample: rays walked, given, with their end
        in the grid, with it outside, stopped, skipped (by flag or index), too long, not finite.
    """

    visibility: Tensor
    reached: Tensor
    counts: Tensor


class RayVoxels(NamedTuple):
    """Result of `ray_voxels`.

    indices: [max_out, 4] int32, (0, z, y, x); -1 in unused rows.
    ray: [max_out] int32, the ray of each row; -1 in unused rows.
    span: [max_out, 2] float64, where in the ray its way through the voxel begins and ends, 0 to
        1.
    offsets: [N + 1] int64; ray i has the rows offsets[i] to offsets[i + 1], kept or not.
    counts: [1, 8] int64: rows kept, rows in all, rays that are not finite, rays left out (by flag,
        index or range), rays outside, 0, 0, 0.
    """

    indices: Tensor
    ray: Tensor
    span: Tensor
    offsets: Tensor
    counts: Tensor


class RayRegions(NamedTuple):
    """Result of `ray_regions`.

    keys: [max_out] int64, ascending; -1 in unused rows.
    counts: [1, 8] int64, as in `RayVoxels`.
    """

    keys: Tensor
    counts: Tensor


class SelectedPoints(NamedTuple):
    """Result of `merge_sweeps` and `crop_points`.

    points: rows packed to the front; 0 behind them.
    num_points: int32, how many, of each cloud.
    counts: int32, of the whole call, then of each slot or cloud. `merge_sweeps`: rows, kept, in a
        box, not finite. `crop_points`: rows, kept, out of range, in a box, not finite.
    """

    points: Tensor
    num_points: Tensor
    counts: Tensor


def merge_sweeps(
    points: Tensor,
    poses: Tensor,
    *,
    lengths: Optional[Tensor] = None,
    order: Optional[Tensor] = None,
    age: Optional[Tensor] = None,
    times: Optional[Tensor] = None,
    knots: Optional[Tensor] = None,
    drop_boxes: Optional[Sequence[float]] = None,
) -> SelectedPoints:
    """Sweeps as one cloud in one frame, packed without gaps in input order; a dropped point stays
    where it is, with x, y, z NaN, which ops downstream drop.

    points: [S, N, C] float32, C >= 3: slots of sweeps; columns 0-2 are x, y, z in meters.
    poses: [S, 3, 4] float32 or float64, from the sensor at each sweep to the target frame.
    lengths: [S] int32 or int64, rows in use; None: all.
    order: [L] int32 or int64, L <= 64, slots in the order in which they are packed; one outside
        [0, S) is skipped. None: 0 to S - 1.
    age: [S] float32 or float64, in seconds; becomes one more column.
    times, knots: [S, N] and [S, K], K >= 2, float32 or float64, with poses [S, K, 3, 4] at the
        knots, which ascend: deskews each point to its time. `torchvox.mapping.pose_knots` makes
        such poses.
    drop_boxes: six bounds (x0, y0, z0, x1, y1, z1) per box in meters, in the frame of the sensor;
        points strictly inside are dropped. 32 boxes at most.

    Returns `SelectedPoints`: points [L * N, C], or [L * N, C + 1] with `age`, num_points [1] and
    counts [1 + S, 4]. An input that requires a gradient is refused.
    Raises ValueError (shapes, bounds) and TypeError (dtypes).
    """
    return SelectedPoints(*torch.ops.torchvox.merge_sweeps(
        points, poses, lengths=lengths, order=order, age=age, times=times, knots=knots,
        drop_boxes=drop_boxes,
    ))  # fmt: skip


def crop_points(
    points: Tensor,
    *,
    lengths: Optional[Tensor] = None,
    keep_range: Optional[Sequence[float]] = None,
    drop_boxes: Optional[Sequence[float]] = None,
    finite: Finite = "xyz",
) -> SelectedPoints:
    """The points of a range and outside of boxes, moved to the front in input order, bit for bit.

    points: [B, N, C] or [N, C] float32, C >= 3; columns 0-2 are x, y, z in meters.
    lengths: [B] (one cloud: [1]) int32 or int64, rows in use; None: all.
    keep_range: (x0, y0, z0, x1, y1, z1) in meters; lower <= p < upper is kept.
    drop_boxes: as in `merge_sweeps`. All bounds are rounded to float32 and may be infinite.
    finite: "xyz" or "all", the columns that must be finite.

    Returns `SelectedPoints`: points as `points`, num_points [B], counts [1 + B, 5].
    Raises as `merge_sweeps`.
    """
    return SelectedPoints(*torch.ops.torchvox.crop_points(
        points, lengths=lengths, keep_range=keep_range, drop_boxes=drop_boxes, finite=finite
    ))  # fmt: skip


def unpack_points(
    data: Tensor,
    point_step: int,
    offsets: Sequence[int],
    types: Sequence[str],
    *,
    shift: Optional[Tensor] = None,
    scale: Optional[Tensor] = None,
) -> Tensor:
    """Points from the bytes of a driver's packet or of a PointCloud2 message, as float32.

    data: [T] or [S, T] uint8. point_step: bytes per point; the rest of a row is ignored.
    offsets, types: of each column, the byte within a point where its little-endian field begins,
        and one of i1, u1, i2, u2, i4, u4, f4 and f8. 64 columns at most.
    shift, scale: [columns] float64; a value is (v - shift) * scale in float64, then rounded once.

    Returns [T // point_step, columns] or [S, T // point_step, columns] float32.
    Raises ValueError (shapes, fields, an unknown type) and TypeError (dtypes).
    """
    return torch.ops.torchvox.unpack_points(
        data, point_step, offsets, types, shift=shift, scale=scale
    )


def transform_points(
    points: Tensor, poses: Tensor, *, pose_index: Optional[Tensor] = None
) -> Tensor:
    """Points under poses in float64, ((r0 x + r1 y) + r2 z) + t for each row of a pose: the same
    bits everywhere, unlike a matrix product.

    points: [N, C] float, C >= 3; columns 0-2 are x, y, z in meters. poses: [O, 3, 4] float.
    pose_index: [N] int32 or int64, the pose of each point; None where O is 1. A point whose index
        is outside [0, O) becomes NaN.

    Returns [N, 3] float64. An input that requires a gradient is refused.
    Raises ValueError (shapes) and TypeError (dtypes).
    """
    return torch.ops.torchvox.transform_points(points, poses, pose_index=pose_index)


def ray_visibility(
    points: Tensor,
    origins: Tensor,
    voxel_size: Sequence[float],
    point_cloud_range: Sequence[float],
    *,
    origin_index: Optional[Tensor] = None,
    batch_offsets: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
    ray_flags: Optional[Tensor] = None,
    blockers: Optional[Tensor] = None,
) -> Visibility:
    """Which cells of a grid are free, occupied or unknown to rays from sensors to points.

    points: [N, C] float, C >= 3; columns 0-2 are x, y, z in meters, where rays end.
    origins: [O, 3] float, where they begin; row b for the points of sample b.
    voxel_size, point_cloud_range: the grid of `voxelize`, cell for cell, in meters.
    origin_index: [N] int32 or int64, the row of `origins` of each point instead.
    batch_offsets, num_valid: as in `voxelize`.
    ray_flags: [N] uint8, a sum of 1 (skip the ray), 2 (no hit: the end was cut off), 4 (hit only:
        nothing is free) and 8 (a secondary return: the first voxel is not free for it).
    blockers: [B, nz, ny, nx] uint8 or bool; a ray ends at the first set voxel between its first and
        its last one.

    Returns `Visibility`. A ray is too long from 2^22 cells away from the corner of the range on, or
    if it has 2^15 cells or more on an axis. Not differentiable.
    Raises ValueError (shapes, sizes) and TypeError (dtypes).
    Source: Hu et al., What You See is What You Get, CVPR 2020; the walk is Amanatides and Woo's in
    integers (docs/rays.md).
    """
    visibility, reached, counts = torch.ops.torchvox.ray_visibility(
        points,
        origins,
        voxel_size,
        point_cloud_range,
        origin_index=origin_index,
        batch_offsets=batch_offsets,
        num_valid=num_valid,
        ray_flags=ray_flags,
        blockers=blockers,
    )
    return Visibility(visibility, reached, counts)


def ray_voxels(
    points: Tensor,
    origins: Tensor,
    voxel_size: float,
    map_origin: Sequence[float],
    max_out: int,
    *,
    origin_index: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
    ray_flags: Optional[Tensor] = None,
    point_cloud_range: Optional[Sequence[float]] = None,
    min_range: float = 0.0,
    max_range: float = -1.0,
    long_rays: LongRays = "truncate",
    reverse: bool = False,
) -> RayVoxels:
    """The voxels that each ray visits, in order.

    points: [N, C] float, C >= 3, where rays end, in meters. origins: [O, 3] float, where they
        begin; one row without `origin_index` [N] int32 or int64.
    voxel_size: edge of a voxel in meters. map_origin: (x, y, z), a corner of voxel (0, 0, 0).
    max_out: rows of the outputs; the first ones are kept.
    num_valid: one count; rows past it are padding. ray_flags: [N] uint8 as in `ray_visibility`;
        only 1 (skip) and 4 (the end alone) matter here.
    point_cloud_range: (x0, y0, z0, x1, y1, z1) in meters; visits outside are left out.
    min_range: shorter rays are left out. max_range: longer ones are cut there, or left out with
        long_rays="drop"; below 0: no limit.
    reverse: the rows of each ray from its end to its beginning.

    Returns `RayVoxels`. Rays are outside from 2^23 voxels away from the origin on, or if they have
    2^15 voxels or more on an axis. Not differentiable.
    Raises ValueError (shapes, sizes, options) and TypeError (dtypes).
    """
    indices, ray, span, offsets, counts = torch.ops.torchvox.ray_voxels(
        points,
        origins,
        voxel_size,
        map_origin,
        max_out,
        origin_index=origin_index,
        num_valid=num_valid,
        ray_flags=ray_flags,
        point_cloud_range=point_cloud_range,
        min_range=min_range,
        max_range=max_range,
        long_rays=long_rays,
        reverse=reverse,
    )
    return RayVoxels(indices, ray, span, offsets, counts)


def ray_regions(
    points: Tensor,
    origins: Tensor,
    voxel_size: float,
    map_origin: Sequence[float],
    max_out: int,
    *,
    origin_index: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
    ray_flags: Optional[Tensor] = None,
    point_cloud_range: Optional[Sequence[float]] = None,
    min_range: float = 0.0,
    max_range: float = -1.0,
    long_rays: LongRays = "truncate",
) -> RayRegions:
    """Keys of the regions of 8 x 8 x 8 voxels that rays visit; arguments as in `ray_voxels`.

    Returns keys [max_out] int64, ascending, unused rows -1; counts [1, 8] as `ray_voxels`. A key is
    z, y, x of a region, 21 bits each with a bias of 2^20. The search is exact up to 7/8,
    rounded up, of the smallest power of two of at least 2 * max_out + 2 regions; with more, no row
    is kept and the count is that limit.
    """
    keys, counts = torch.ops.torchvox.ray_regions(
        points,
        origins,
        voxel_size,
        map_origin,
        max_out,
        origin_index=origin_index,
        num_valid=num_valid,
        ray_flags=ray_flags,
        point_cloud_range=point_cloud_range,
        min_range=min_range,
        max_range=max_range,
        long_rays=long_rays,
    )
    return RayRegions(keys, counts)
