# SPDX-License-Identifier: Apache-2.0
"""Sweeps to a network's input, one cloud after the other in float64."""

import numpy as np
import torch
from torch import Tensor

from torchvox.reference.definition import define_op

__all__ = ["crop_points", "merge_sweeps", "unpack_points"]


def rows_of(points: Tensor, lengths: Tensor | None, b: int) -> Tensor:
    rows = points.size(1)
    return points[b, : rows if lengths is None else min(max(int(lengths[b]), 0), rows)]


def in_a_box(p: Tensor, drop_boxes: list[float] | None) -> Tensor:
    lower, upper = torch.tensor(drop_boxes or [], dtype=torch.float32).reshape(-1, 2, 3).unbind(1)
    return ((p[:, None] > lower) & (p[:, None] < upper)).all(2).any(1)


def count(counts: Tensor, b: int, columns: Tensor) -> None:
    counts[[0, 1 + b]] += torch.bincount(columns, minlength=counts.size(1)).int()
    counts[[0, 1 + b], 0] += len(columns)


def under(poses: Tensor, p: Tensor) -> Tensor:
    x, y, z = p.double()[..., None].unbind(1)
    return poses[..., 0] * x + poses[..., 1] * y + poses[..., 2] * z + poses[..., 3]


def deskewed(time: Tensor, knots: Tensor, poses: Tensor, p: Tensor) -> Tensor:
    k = ((knots <= time[:, None]).sum(1) - 1).clamp(0, len(knots) - 2)
    step = knots[k + 1] - knots[k]
    share = torch.where(step > 0, (time - knots[k]) / step, 0).clamp(0, 1)[:, None]
    first = under(poses[k], p)
    return first + share * (under(poses[k + 1], p) - first)


@define_op
def merge_sweeps(
    points: Tensor, poses: Tensor, *, lengths, order, age, times, knots, drop_boxes
) -> tuple[Tensor, Tensor, Tensor]:
    slots, rows, columns = points.shape
    counts = torch.zeros(1 + slots, 4, dtype=torch.int32)
    picked = range(slots) if order is None else order.tolist()
    out, end = torch.zeros(len(picked) * rows, columns + (age is not None)), 0
    for slot in (slot for slot in picked if 0 <= slot < slots):
        cells, pose = rows_of(points, lengths, slot), poses[slot].double()
        p = cells[:, :3]
        if knots is None:
            bad, q = ~p.isfinite().all(1), under(pose, p).float()
        else:
            time = times[slot, : len(p)].double()
            bad = ~(p.isfinite().all(1) & time.isfinite())
            q = deskewed(time, knots[slot].double(), pose, p).float()
        column = torch.where(q.isfinite().all(1), 1, 3)
        column[in_a_box(p, drop_boxes)] = 2
        column[bad] = 3
        q[column > 1] = torch.nan
        parts = [q, cells[:, 3:]] + ([] if age is None else [age[slot].float().expand(len(p), 1)])
        out[end : end + len(p)] = torch.cat(parts, 1)
        end += len(p)
        count(counts, slot, column)
    return out, torch.tensor([end], dtype=torch.int32), counts


@define_op
def crop_points(
    points: Tensor, *, lengths, keep_range, drop_boxes, finite: str
) -> tuple[Tensor, Tensor, Tensor]:
    clouds = points[None] if points.dim() == 2 else points
    out, counts = torch.zeros_like(clouds), torch.zeros(1 + len(clouds), 5, dtype=torch.int32)
    bounds = torch.tensor(keep_range or [-torch.inf] * 3 + [torch.inf] * 3, dtype=torch.float32)
    for b in range(len(clouds)):
        rows = rows_of(clouds, lengths, b)
        p = rows[:, :3]
        column = torch.where(in_a_box(p, drop_boxes), 3, 1)
        column[~((bounds[:3] <= p) & (p < bounds[3:])).all(1)] = 2
        column[~(rows if finite == "all" else p).isfinite().all(1)] = 4
        count(counts, b, column)
        kept = rows[column == 1]
        out[b, : len(kept)] = kept
    return out.reshape(points.shape), counts[1:, 1].clone(), counts


@define_op
def unpack_points(data: Tensor, point_step: int, offsets, types, *, shift, scale) -> Tensor:
    points = data.size(-1) // point_step
    rows = np.ascontiguousarray(data[..., : points * point_step].numpy())
    rows = rows.reshape(*data.shape[:-1], points, point_step)
    out = torch.zeros(*data.shape[:-1], points, len(types))
    for c, (offset, name) in enumerate(zip(offsets, types, strict=True)):
        field = np.ascontiguousarray(rows[..., offset : offset + int(name[1])])
        values = torch.from_numpy(field.view(f"<{name}")[..., 0].astype(np.float64))
        values = values if shift is None else values - shift[c]
        values = values if scale is None else values * scale[c]
        out[..., c] = values.float().masked_fill(values.isnan(), torch.nan)
    return out
