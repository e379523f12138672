# SPDX-License-Identifier: Apache-2.0
"""Labels of occupancy networks from sweeps with poses, and their file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchvox._util.errors import expect
from torchvox.data.collate import collate_points
from torchvox.data.portable_math import sin_cos, sqrt
from torchvox.io.poses import inverse, joined
from torchvox.io.writers import write_npz
from torchvox.ops.boxes import points_in_boxes
from torchvox.ops.rays import ray_visibility, transform_points
from torchvox.ops.voxel import voxel_map

ME = "occupancy_labels:"
HIT_ONLY = 4  # a ray flag
UNKNOWN, OCCUPIED = 0, 2  # in a volume of ray_visibility
Grid = tuple[list[float], list[float]]


class Camera(NamedTuple):
    """A pinhole camera at the keyframe. intrinsics: [3, 3] in pixels, of which fx, fy, cx and cy
    count; the first pixel's center is (0, 0). pose: [3, 4], camera (x right, y down, z forward) to
    world. size: (width, height) in pixels."""

    intrinsics: Tensor
    pose: Tensor
    size: tuple[int, int]


class OccupancyLabels(NamedTuple):
    """semantics: [nz, ny, nx] uint8; mask_lidar and, with cameras, mask_camera: bool."""

    semantics: Tensor
    mask_lidar: Tensor
    mask_camera: Tensor | None


def occupancy_labels(
    sweeps: Sequence[Tensor],
    poses: Tensor,
    keyframe: int,
    voxel_size: Sequence[float],
    point_cloud_range: Sequence[float],
    classes: Sequence[Tensor] | None = None,
    boxes: Tensor | None = None,
    cameras: Sequence[Camera] | None = None,
    *,
    free: int = 17,
    unknown: int = 255,
    other: int = 0,
    origins: Sequence[Tensor] | None = None,
    counts: dict[str, int] | None = None,
) -> OccupancyLabels:
    """Labels of the cells around one of several sweeps; docs/rays.md has the rules.

    sweeps: S tensors [N_i, C] float on one device, x, y, z in meters first, each in a frame of its
        own. poses: [S, 3, 4], from it to the world. keyframe: the number of the sweep in whose
        frame the labels are. voxel_size, point_cloud_range: the grid of `voxelize`.
    classes: S tensors [N_i] of integers; negative ones, those above 255, `free` and `unknown` do
        not count. A cell gets the label of most of its points, the lowest of equal ones.
    boxes: [S, K, 7] objects in the world at the time of each sweep, as of `points_in_boxes`, row k
        the same one in all; NaN where it is absent. Points in a box that lies elsewhere in the
        keyframe are moved there, where they occupy cells but free none; if the keyframe lacks the
        box they are dropped.
    cameras: see `Camera`. free, unknown, other: labels of free cells, of cells that no ray met,
        and of occupied cells without a labelled point.
    origins: S tensors [1, 3] or [N_i, 3], where the rays of the points begin in the frame of the
        sweep; by default at (0, 0, 0), the sensor. counts: gets the numbers of points that were
        "carried" with their boxes and of those "dropped", which waits for the device.

    CPU and CUDA give the same labels. Raises ValueError (shapes, keyframe, labels).
    """
    count, words = len(sweeps), (free, unknown, other)
    expect(0 <= keyframe < count, f"{ME} keyframe must name one of {count} sweeps", keyframe)
    expect(all(0 <= v < 256 for v in words), f"{ME} labels must be 0 to 255", words)
    _check("poses", poses, [count, 3, 4])
    grid = [float(v) for v in voxel_size], [float(v) for v in point_cloud_range]
    points, _ = collate_points(sweeps)
    device, lengths = points.device, [len(sweep) for sweep in sweeps]
    ends = [sum(lengths[:i]) for i in range(count + 1)]
    sweep_of = torch.arange(count).repeat_interleave(torch.tensor(lengths)).to(device)
    poses = poses.detach().to("cpu", torch.float64)
    to_keyframe = torch.from_numpy(inverse(poses[keyframe].numpy()))
    world, flags = transform_points(points, poses.to(device), pose_index=sweep_of), None
    if boxes is not None:
        shape = boxes.shape
        good = len(shape) == 3 and shape[0] == count and shape[2] == 7
        expect(good, f"{ME} boxes must be [{count}, K, 7]", list(shape))
        world, carried = _carried(world, sweep_of, ends, boxes.to("cpu", torch.float64), keyframe)
        flags = carried.to(torch.uint8) * HIT_ONLY
        if counts is not None:
            counts["dropped"] = int(world[carried].isnan().any(1).sum())
            counts["carried"] = int(carried.sum()) - counts["dropped"]
    local = transform_points(world, to_keyframe[None].to(device)).to(points.dtype)
    own = slice(ends[keyframe], ends[keyframe + 1])  # these have not moved
    local[own] = points[own, :3]
    starts, start_of = _starts(origins, lengths, poses, keyframe, to_keyframe)
    volume, reached, _ = ray_visibility(
        local, starts.to(device), *grid, origin_index=start_of.to(device), ray_flags=flags
    )
    occupied = volume == OCCUPIED
    semantics = torch.where(volume == UNKNOWN, unknown, free).to(torch.uint8)
    semantics.masked_fill_(occupied, other)
    if classes is not None:
        shapes, rule = [list(one.shape) for one in classes], [[length] for length in lengths]
        expect(shapes == rule, f"{ME} classes must have shapes {rule}", shapes)
        labels = torch.cat([one.to(device, torch.int64) for one in classes])
        labelled = (labels >= 0) & (labels < 256) & (labels != free) & (labels != unknown)
        _vote(semantics, local, labels, labelled & (reached == 0), grid)
    seen = None if cameras is None else torch.zeros_like(occupied)
    for camera in cameras or ():
        far, origin = _pixel_rays(camera, to_keyframe, grid[1], device)
        seen |= ray_visibility(far, origin, *grid, blockers=occupied).visibility != UNKNOWN
    return OccupancyLabels(semantics[0], volume[0] != UNKNOWN, None if seen is None else seen[0])


def write_labels(path: str | Path, labels: OccupancyLabels) -> None:
    """Write labels.npz in Occ3D's layout, atomically: the fields that are not None, each
    [nx, ny, nz] uint8."""
    write_npz(path, **label_arrays(labels))


def label_arrays(labels: OccupancyLabels) -> dict[str, np.ndarray]:
    """The arrays of labels.npz, on the host."""
    arrays = {k: v for k, v in labels._asdict().items() if v is not None}
    arrays = {k: v.to(torch.uint8).permute(2, 1, 0).contiguous() for k, v in arrays.items()}
    return {k: v.cpu().numpy() for k, v in arrays.items()}


def _check(name: str, tensor: Tensor, shape: list[int]) -> None:
    expect(list(tensor.shape) == shape, f"{ME} {name} must be {shape}", list(tensor.shape))


def _starts(
    origins: Sequence[Tensor] | None, lengths: list[int], poses: Tensor, keyframe: int, to: Tensor
) -> tuple[Tensor, Tensor]:
    """The origins of rays in the keyframe [O, 3], and which one each point has."""
    own = [torch.zeros(1, 3)] * len(lengths) if origins is None else origins
    shapes = [list(each.shape) for each in own]
    good = len(own) == len(lengths) and all(
        shape in ([1, 3], [n, 3]) for shape, n in zip(shapes, lengths, strict=True)
    )
    expect(good, f"{ME} origins must be [1, 3] or [N, 3] of sweeps of {lengths} points", shapes)
    sizes = torch.tensor([len(each) for each in own])
    starts = torch.cat([each.to("cpu", torch.float64) for each in own])
    sweep_of = torch.arange(len(own)).repeat_interleave(sizes)
    moved = transform_points(transform_points(starts, poses, pose_index=sweep_of), to[None])
    first = (sizes.cumsum(0) - sizes).tolist()
    index = [a + (torch.arange(n) if len(each) > 1 else torch.zeros(n, dtype=torch.int64))
             for a, n, each in zip(first, lengths, own, strict=True)]  # fmt: skip
    return torch.where((sweep_of == keyframe)[:, None], starts, moved), torch.cat(index)


def _carried(
    world: Tensor, sweep_of: Tensor, ends: list[int], boxes: Tensor, keyframe: int
) -> tuple[Tensor, Tensor]:
    """The points, those of moving objects at their places in the keyframe, and which ones moved."""
    there = boxes[keyframe]
    moving = (boxes != there).any(2, keepdim=True)
    moving_boxes = boxes.masked_fill(~moving, torch.nan).to(world.device)
    parts = zip(moving_boxes, pairwise(ends), strict=True)
    inside = torch.cat([points_in_boxes(world[None, a:b], now[None])[0] for now, (a, b) in parts])
    turn = there[:, 6] - boxes[..., 6]
    s, c = sin_cos(turn * (1 / math.tau))
    (x, y, z), zero = boxes[..., :3].unbind(-1), torch.zeros_like(turn)
    shift = (there[:, 0] - (c * x - s * y), there[:, 1] - (s * x + c * y), there[:, 2] - z)
    rows = [c, -s, zero, shift[0], s, c, zero, shift[1], zero, zero, zero + 1, shift[2]]
    carry = torch.stack(rows, -1).view(-1, 3, 4).to(world.device)
    pose = torch.where(inside >= 0, sweep_of * boxes.size(1) + inside, -1)
    moved = inside >= 0
    carried = transform_points(world, carry, pose_index=pose)
    return torch.where(moved[:, None], carried, world), moved


def _vote(semantics: Tensor, points: Tensor, classes: Tensor, voting: Tensor, grid: Grid) -> None:
    """Write the class of most voting points into each cell; counts are integers."""
    cells = voxel_map(points, *grid, -1, -1)
    _, z, y, x = cells.indices[cells.point_voxel[voting]].long().unbind(1)
    cell = (z * semantics.size(2) + y) * semantics.size(3) + x
    pair, votes = torch.unique(cell * 256 + classes[voting], return_counts=True)
    best = torch.zeros(semantics.numel(), dtype=torch.int64, device=points.device)
    best.scatter_reduce_(0, pair // 256, votes * 256 + 255 - pair % 256, "amax")
    flat = semantics.view(-1)
    flat.copy_(torch.where(best > 0, 255 - best % 256, flat))


def _pixel_rays(
    camera: Camera, frame: Tensor, limits: list[float], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Ends [pixels, 3] of a camera's rays in a frame, beyond the range, and their origin."""
    _check("a camera's intrinsics", camera.intrinsics, [3, 3])
    _check("a camera's pose", camera.pose, [3, 4])
    pose = torch.from_numpy(joined(frame.numpy(), camera.pose.to(frame).numpy()))
    place = pose[:, 3:].T.contiguous()
    corners = torch.tensor(limits, dtype=torch.float64).view(2, 3)
    a, b, c = (place - corners).abs().amax(0).tolist()
    far = math.sqrt(a * a + b * b + c * c) + 1.0
    (fx, _, cx), (_, fy, cy) = camera.intrinsics.double().tolist()[:2]
    width, height = camera.size
    x, y = (torch.arange(width).double() - cx) / fx, (torch.arange(height).double() - cy) / fy
    y, x = torch.meshgrid(y.to(device), x.to(device), indexing="ij")
    ends = torch.stack([x, y, torch.ones_like(x)], -1).view(-1, 3)
    ends *= far / sqrt(x * x + y * y + 1.0).view(-1, 1)
    return transform_points(ends, pose[None].to(device)), place.to(device)
