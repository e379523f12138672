# SPDX-License-Identifier: Apache-2.0
"""The clouds and boxes of test_values.py, and expressions over them."""

import math
from math import prod

import numpy as np
import torch
from torch.nn.functional import pad

import torchvox
from tests.helpers import cube, lattice


def clouds(on):
    """Padded clouds p of 60 points and q of 9, the last far from all, and features of p."""
    p, q = on(lattice(60, 6, batch=2)), on(lattice(9, 6, seed=1, batch=2))
    q[:, -1] = 100
    f, w = on(cube(60, 4, batch=2).transpose(1, 2).contiguous()), on(cube(9, seed=2, batch=2))
    idx = on(torch.from_numpy(np.random.default_rng(3).integers(60, size=(2, 9, 5)))).int()
    for leaf in (p, q, f, w):
        leaf.requires_grad_()
    lengths, new_lengths = on(torch.tensor([60, 2])), on(torch.tensor([9, 4]))
    balls = torchvox.ball_query(p, q, 2.0, 5, convention="pointnet2").idx
    nearest = torchvox.knn(p, q, 5).idx
    of_lengths = {"lengths": lengths, "query_lengths": new_lengths}

    def fps(points, count, convention):
        return torchvox.furthest_point_sample(points, count, convention=convention).idx

    def far(distances, count):
        return torchvox.furthest_point_sample_with_dist(distances, count, convention="mmcv")

    def samples(count):
        counts = on(torch.as_tensor(count)).expand(2)
        options = {"lengths": lengths, "counts": torch.minimum(counts, lengths)}
        return torchvox.furthest_point_sample(p, 12, convention="pytorch3d", **options).idx

    def square(a, b):
        return (a[:, :, None] - b[:, None]).square().sum(-1)

    def rows(features, index):
        """[B, C, ...] of [B, C, N] by [B, ...]."""
        return torch.stack([f[:, i.long()] for f, i in zip(features, index, strict=True)])

    def near(index):
        return rows(p.transpose(1, 2), index) - q.transpose(1, 2)[..., None]

    def measured(index, power):
        """Distances of q and p, 0 where the index is -1."""
        difference = rows(p.transpose(1, 2), index.clamp(min=0)) - q.transpose(1, 2)[..., None]
        return (difference.abs() ** power).sum(1) * (index >= 0)

    def pytorch3d_nearest(power):
        index = torchvox.knn(p, q, 4, norm=power, **of_lengths).idx.long()
        slots = torch.arange(4, device=index.device) < lengths[:, None, None]
        points = rows(p.transpose(1, 2), index.clamp(min=0)).permute(0, 2, 3, 1)
        return measured(index, power), index.clamp(min=0), points * slots[..., None]

    def pytorch3d_balls():
        index = torchvox.ball_query(p, q, 2.0, 5, fill="pad", **of_lengths).idx.long()
        points = rows(p.transpose(1, 2), index.clamp(min=0)).permute(0, 2, 3, 1)
        return measured(index, 2), index, points * (index >= 0)[..., None]

    hit = torchvox.ball_query(p, q, 2.0, 5).count[..., None] > 0
    tri = idx[..., :3].contiguous()
    mix = (rows(f, tri) * w.detach()[:, None]).sum(-1)
    one, starts = idx[..., 0].contiguous(), on(torch.tensor([3, 1]))
    both = torch.cat([p, f.transpose(1, 2)], 2)
    return locals()


def packed(on):
    """Four clouds, one empty and one of two points, behind each other."""
    cnt, new_cnt, number = (
        on(torch.tensor(sizes)).int() for sizes in ([30, 0, 2, 18], [5, 0, 7, 8], [8, 0, 3, 2])
    )
    flat_p, flat_q = on(lattice(50, 6)[0]), on(lattice(20, 6, seed=1)[0])
    flat_f, flat_w = on(cube(50, 4)[0]), on(cube(20, seed=2)[0])
    for leaf in (flat_p, flat_q, flat_f, flat_w):
        leaf.requires_grad_()
    ends, new_ends = cnt.cumsum(0), new_cnt.cumsum(0)
    start = torch.repeat_interleave(ends - cnt, new_cnt)[:, None]
    ptr_p, ptr_q = pad(ends, (1, 0)), pad(new_ends, (1, 0))
    offsets = {"batch_offsets": ptr_p, "query_batch_offsets": ptr_q}

    def stacked_balls(radius, k, fill=0):
        """Local rows; -1, fill, .. of an empty ball."""
        balls = torchvox.ball_query(flat_p, flat_q, radius, k, local_index=True, **offsets)
        empty = balls.idx.new_tensor([-1] + [fill] * (k - 1))
        return torch.where(balls.count[:, None] > 0, balls.idx, empty)

    def stacked_rows(features, index):
        taken = features[(index.clamp(min=0) + start).long()]
        return (taken * (index >= 0)[..., None]).transpose(1, 2)

    def stacked_fps(convention):
        places = pad(ends, (1, 0)), pad(number.cumsum(0), (1, 0)), 13
        return torchvox.furthest_point_sample_ragged(flat_p, *places, convention=convention).idx

    def stacked_nearest(k, distance, index=None):
        """Distances and packed rows; a missing one is at `distance`, and has `index` or the first
        row of its cloud."""
        dist2, near = torchvox.knn(flat_p.detach(), flat_q.detach(), k, **offsets)
        first = start if index is None else torch.full_like(start, index)
        far = dist2.sqrt().masked_fill(near < 0, distance)
        return far, torch.where(near < 0, first, near).int()

    def graph(rows, most=None, loop=True):
        """[2, E]: the number of each row and its first entries, without its own if not loop."""
        edges = []
        for i, row in enumerate(rows.tolist()):
            edges += [(i, j) for j in row if j >= 0 and (loop or i != j)][:most]
        return on(torch.tensor(edges).T)

    def search(points, query, k):
        return torchvox.knn(points[None], query[None], k).idx[0]

    def parts_of(ratio):
        ends = pad((cnt * ratio).ceil().long().cumsum(0), (1, 0))
        options = {"convention": "torch_cluster"}
        fps = torchvox.furthest_point_sample_ragged
        return fps(flat_p, ptr_p, ends, int(ends[-1]), **options).idx.long()

    of_p, of_q = (torch.arange(4, device=n.device).repeat_interleave(n) for n in (cnt, new_cnt))
    all_balls = torchvox.ball_query(flat_p, flat_q, 2.0, 50, fill="pad", **offsets).idx
    own_balls = torchvox.ball_query(flat_p[None], flat_p[None], 2.0, 50, fill="pad").idx[0]
    unit = torch.nn.functional.normalize
    spots = on(torch.tensor([[0, 0], [11, 9], [2, 8], [2, 2], [8, 3]]))
    clouds_of_f = flat_f.split(cnt.tolist())
    sums = torch.stack([part.sum(0) for part in clouds_of_f])
    local = stacked_balls(2.0, 4)
    both = torch.cat([flat_p, flat_f], 1)
    stacked_group = stacked_rows(both, local.clamp(min=0))
    stacked_group = torch.cat([stacked_group[:, :3] - flat_q[..., None], stacked_group[:, 3:]], 1)
    stacked_group = stacked_group * (local[:, 0] >= 0)[:, None, None]
    dist, row = stacked_nearest(6, 1e5, -1)
    there = (row >= 0)[..., None]
    weight = (1 / (dist + 1e-8)) * there[..., 0]
    weight = weight / weight.sum(1, keepdim=True)
    taken, row3 = flat_f[row.long()] * there, row[:, :3].clamp(min=0)
    mixed = (taken * weight[..., None]).sum(1)
    flat_mix = (flat_f[row3.long()] * flat_w.detach()[..., None]).sum(1)
    own = on(torch.from_numpy(np.random.default_rng(3).integers(50, size=(50, 3)))).int()
    flat_g, position, share = (
        on(cube(50, math.prod(shape), seed=5)[0].view(50, *shape)).requires_grad_()
        for shape in ((4,), (3, 4), (3, 2))
    )
    difference = flat_f[:, None] - flat_g[own.long()]
    added = ((flat_f[own.long()] + position) * torch.cat([share, share], -1)).sum(1)
    del both
    return locals()


def boxes_of(n, seed=0, scale=8.0):
    """[n, 7]: x y z l w h yaw."""
    rows = cube(n, 7, seed)[0]
    return torch.cat([rows[:, :3] * scale, rows[:, 3:6] * 3 + 0.5, rows[:, 6:] * 6 - 3], 1)


def turn(boxes, sign=1):
    """x y w h angle of boxes of 7 columns."""
    return boxes[:, [0, 1, 3, 4, 6]] * boxes.new_tensor([1, 1, 1, 1, sign])


def corners(boxes):
    """x1 y1 x2 y2 angle of boxes of 7 columns."""
    half = boxes[:, 3:5] / 2
    return torch.cat([boxes[:, :2] - half, boxes[:, :2] + half, boxes[:, 6:]], 1)


def rotated(on):
    """Boxes, their scores and classes, and points among them."""
    boxes, other, scores = on(boxes_of(40)), on(boxes_of(40, seed=1)), on(cube(40, 1)[0][:, 0])
    scores[20:30] = scores[10].clone()  # equal scores come by index
    low, straight, group = boxes[None].clone(), boxes.clone(), on(torch.arange(40) % 3)
    low[..., 2] -= low[..., 5] / 2
    straight[:, 6] = 0
    order = scores.sort(descending=True, stable=True).indices
    best, spread = order[:20], on(cube(200, seed=1) * 8)
    x, y, z, length, *_, yaw = boxes[0].tolist()
    for i, beyond in enumerate((5e-3, 5e-6)):  # points within the margins of OpenPCDet
        away = length / 2 + beyond
        spread[0, i] = torch.tensor([x + away * math.cos(yaw), y + away * math.sin(yaw), z])
    for leaf in (boxes, other, spread):
        leaf.requires_grad_()

    def inside_boxes(margin):
        """[G, N]"""
        return torchvox.points_in_boxes(spread, boxes[None], mode="mask", margin=margin)[0]

    def keep(rows, rank=scores, group=None):
        group = None if group is None else group[None]
        batch = rows.detach()[None], rank[None]
        index, count = torchvox.rotated_nms(*batch, 0.2, len(rows), group=group)
        return index[0, : int(count)].long()

    def scored(rows, index):
        return torch.cat([rows, scores[:, None]], 1)[index]

    def point_pool(points, features, boxes, k, margin):
        pooled = []
        rows = torch.cat([points, features], 2)[0]
        for hits in torchvox.box_query(points.detach(), boxes.detach(), k, margin=margin).index[0]:
            taken = rows[np.resize(hits[hits >= 0].cpu(), k)]
            pooled.append(taken if hits[0] >= 0 else torch.zeros_like(taken[:1]).expand(k, -1))
        return torch.stack(pooled)[None]

    def cell_pool(boxes, points, features, shape, most, reduce, margin):
        cells = torchvox.box_query(points[None], boxes[None], most, grid=shape, margin=margin)
        pooled = []
        for hits in cells.index.flatten(0, -2):
            taken = features[hits[hits >= 0].long()] if hits[0] >= 0 else 0 * features[:1]
            pooled.append(taken.amax(0) if reduce == "max" else taken.mean(0))
        return torch.stack(pooled).view(len(boxes), *shape, -1)

    return locals()


def voxels(on):
    """Points of 4 columns, a few outside, and their cells z y x in a grid."""
    size, bounds = (0.25, 0.5, 1.0), (0.0, 0.0, 0.0, 1.0, 1.0, 1.0)
    points = on(cube(60, 4, scale=1.2)[0] - 0.1).requires_grad_()
    cells = (points[:, :3].detach() / points.new_tensor(size)).floor().int()
    inside = ((cells >= 0) & (cells < cells.new_tensor([4, 2, 1]))).all(1)
    cells = torch.where(inside[:, None], cells.flip(1), -1)

    def scattered(features, cells, reduce):
        used = (cells >= 0).all(1)
        unique, group = cells[used].unique(dim=0, return_inverse=True)
        group, out = group[:, None].expand(-1, 4), features.new_zeros(len(unique), 4)
        reduce = {"max": "amax"}.get(reduce, reduce)
        return out.scatter_reduce(0, group, features[used], reduce, include_self=False), unique

    return locals()


SHAPE, CHANNELS = [5, 8, 9], 4  # of sparse_rows


def sparse_rows(axes=3, seed=0, most=260):
    """Features and indices of random cells of two samples, in any order."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [2, *SHAPE[-axes:]]
    cells = torch.randperm(prod(sizes), generator=generator)[:most]
    places, steps = [], prod(sizes)
    for size in sizes:
        steps //= size
        places.append(cells // steps % size)
    features = torch.randn(len(cells), CHANNELS, generator=generator)
    return features, torch.stack(places, 1).int()
