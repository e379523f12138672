# SPDX-License-Identifier: Apache-2.0
"""mmcv.ops: sampling, neighbors and voxels, against loops."""

import numpy as np
import pytest
import torch

from tests.compat import loops
from tests.helpers import cube, lattice
from torchvox.compat import mmcv_ops
from torchvox.compat._errors import NotCoveredError

SIZE, BOUNDS = (0.25, 0.5, 1.0), (0.0, 0.0, 0.0, 1.0, 1.0, 1.0)
SIZES, NEW_SIZES = (30, 0, 20), (5, 4, 6)


@pytest.fixture
def clouds(device):
    """points [2, 40, 3], centers [2, 9, 3], the last of which is far from all points."""
    points, centers = lattice(40, 6, batch=2), lattice(9, 6, seed=1, batch=2)
    centers[:, -1] = 100
    return points.to(device), centers.to(device)


def each(points, centers, search, k, fill):
    found = [loops.padded(search(a, b), k, fill) for a, b in zip(points, centers, strict=True)]
    return torch.stack(found)


def test_sampling_and_gathering(device):
    points, features = cube(50, batch=2), cube(50, 4, batch=2).transpose(1, 2).to(device)
    idx = mmcv_ops.furthest_point_sample(points.to(device), 7)
    assert idx.dtype == torch.int32
    assert idx.tolist() == [loops.furthest(cloud, 7) for cloud in points]
    leaf = features.clone().requires_grad_()
    found = mmcv_ops.gather_points(leaf, idx)
    assert torch.equal(found, features.gather(2, idx.long()[:, None].expand(-1, 4, -1)))
    found.sum().backward()
    assert leaf.grad.sum() == found.numel()
    sampler = mmcv_ops.PointsSampler([5, 3], ["D-FPS", "D-FPS"], [30, -1])
    both = [loops.furthest(c[:30], 5) + [30 + i for i in loops.furthest(c[30:], 3)] for c in points]
    assert sampler(points.to(device), features).tolist() == both
    with pytest.raises(KeyError, match="Supported `sampler_type`"):
        mmcv_ops.get_sampler_cls("FPS")


def test_sampling_by_features(device):
    points, features = cube(30, batch=2), cube(30, 4, seed=1, batch=2)
    both = torch.cat([points, features], 2)
    wanted = torch.tensor([loops.furthest(rows, 6) for rows in both])
    clouds = (points.to(device), features.transpose(1, 2).to(device))
    assert torch.equal(mmcv_ops.PointsSampler([6], ["F-FPS"])(*clouds).cpu(), wanted)
    near = mmcv_ops.furthest_point_sample(points, 6).long()
    assert torch.equal(
        mmcv_ops.PointsSampler([6], ["FS"])(*clouds).cpu(), torch.cat([wanted, near], 1)
    )


@pytest.mark.parametrize("least", (0.0, 1.5))
def test_ball_query(clouds, least):
    points, centers = clouds
    wanted = each(points, centers, lambda a, b: loops.in_ball(a, b, 2.0, least), 5, "first")
    found = mmcv_ops.ball_query(least, 2.0, 5, points, centers)
    assert found.dtype == torch.int32 and torch.equal(found.cpu(), wanted.int())
    assert not found[:, -1].any()


def test_stacked(device):
    points, centers = lattice(50, 6)[0], lattice(15, 6, seed=1)[0]
    counts = [torch.tensor(one, dtype=torch.int32, device=device) for one in (SIZES, NEW_SIZES)]
    wanted, begin, new_begin = [], 0, 0
    for size, new_size in zip(SIZES, NEW_SIZES, strict=True):
        cloud, new = points[begin : begin + size], centers[new_begin : new_begin + new_size]
        for row in loops.in_ball(cloud, new, 2.0):
            wanted.append(loops.padded([row], 4, "first")[0].tolist() if row else [-1, 0, 0, 0])
        begin, new_begin = begin + size, new_begin + new_size
    clouds = (points.to(device), centers.to(device))
    idx = mmcv_ops.ball_query(1.5, 2.0, 4, *clouds, *counts)  # no inner radius in this form
    assert idx.dtype == torch.int32 and idx.tolist() == wanted
    features = cube(50, 3, seed=2)[0].to(device).requires_grad_()
    start = torch.repeat_interleave(torch.tensor([0, 30, 30]), torch.tensor(NEW_SIZES))
    rows = torch.tensor(wanted)
    there = (rows >= 0) & (
        rows < torch.tensor(SIZES).repeat_interleave(torch.tensor(NEW_SIZES))[:, None]
    )
    plain = features.cpu()[(rows.clamp(min=0) + start[:, None]).clamp(max=49)] * there[..., None]
    found = mmcv_ops.grouping_operation(features, idx, *counts)
    assert found.is_contiguous() and torch.equal(found.cpu(), plain.transpose(1, 2))
    grad = torch.rand_like(found)
    ours, theirs = (
        torch.autograd.grad(one, features, g)[0]
        for one, g in ((found, grad), (plain, grad.transpose(1, 2).cpu()))
    )
    assert torch.allclose(ours, theirs)


@pytest.mark.parametrize("radius", (2.0, None))
@pytest.mark.parametrize("with_features", (False, True))
def test_query_and_group(clouds, radius, with_features):
    points, centers = clouds
    features = cube(40, 4, batch=2).transpose(1, 2).to(points.device) if with_features else None
    if radius is None:
        idx = mmcv_ops.knn(5, points, centers).transpose(1, 2)
    else:
        idx = mmcv_ops.ball_query(0, radius, 5, points, centers)
    xyz = torch.stack([cloud[i.long()] for cloud, i in zip(points, idx, strict=True)])
    relative = (xyz - centers[:, :, None]).permute(0, 3, 1, 2)
    parts = [relative / 2 if radius else relative]
    if with_features:
        parts += [torch.stack([f[:, i.long()] for f, i in zip(features, idx, strict=True)])]
    wanted = torch.cat(parts, 1)
    options = {"normalize_xyz": radius is not None}
    grouped = mmcv_ops.QueryAndGroup(radius, 5, **options)(points, centers, features)
    assert torch.equal(grouped, wanted) and grouped.is_contiguous()
    three = mmcv_ops.QueryAndGroup(
        radius, 5, return_grouped_xyz=True, return_grouped_idx=True, **options
    )(points, centers, features)
    for ours, theirs in zip(three, (wanted, xyz.permute(0, 3, 1, 2), idx), strict=True):
        assert torch.equal(ours, theirs)
    leaves = [x.clone().requires_grad_() for x in (points, centers)]
    grad = torch.rand_like(wanted)
    gradients = [
        torch.autograd.grad(one, leaves, grad)
        for one in (
            mmcv_ops.QueryAndGroup(radius, 5, **options)(*leaves, features),
            mmcv_ops.QueryAndGroup(radius, 5, return_grouped_xyz=True, **options)(
                *leaves, features
            )[0],
        )
    ]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*gradients, strict=True))
    if with_features:
        alone = mmcv_ops.QueryAndGroup(radius, 5, use_xyz=False)(points, centers, features)
        assert torch.equal(alone, parts[1])
    every = mmcv_ops.GroupAll()(points, centers, features)
    assert every.shape == (2, 7 if with_features else 3, 1, 40)
    assert torch.equal(every[:, :3, 0], points.transpose(1, 2))
    with pytest.raises(NotCoveredError, match="QueryAndGroup: uniform_sample=True is not covered"):
        mmcv_ops.QueryAndGroup(radius, 5, uniform_sample=True)


def test_nearest(clouds):
    points, centers = clouds
    near = lambda a, b: [[i for _, i in row] for row in loops.nearest(a, b, 5)]  # noqa: E731
    wanted = each(points, centers, near, 5, 0).transpose(1, 2).int()
    found = mmcv_ops.knn(5, points, centers)
    assert found.is_contiguous() and torch.equal(found.cpu(), wanted)
    turned = mmcv_ops.knn(5, points.transpose(1, 2), centers.transpose(1, 2), True)
    assert torch.equal(turned, found)
    assert torch.equal(mmcv_ops.knn(2, points), mmcv_ops.knn(2, points, points))
    assert not mmcv_ops.knn(5, points[:, :2], centers)[:, 2:].any()
    dist, idx = mmcv_ops.three_nn(centers.requires_grad_(), points[:, :2])
    assert not dist.requires_grad and idx.dtype == torch.int32
    assert bool(dist[..., 2].isinf().all()) and not idx[..., 2].any()
    dist, idx = mmcv_ops.three_nn(centers, points)
    assert torch.equal(idx.cpu(), wanted.transpose(1, 2)[..., :3])
    root = [[d**0.5 for d, _ in row] for row in loops.nearest(points[0], centers[0], 3)]
    assert torch.allclose(dist[0].cpu(), torch.tensor(root).float())


def test_three_interpolate(clouds):
    features = cube(40, 4, batch=2).transpose(1, 2).contiguous().to(clouds[0].device)
    idx = mmcv_ops.three_nn(clouds[1], clouds[0])[1]
    weight = torch.rand(idx.shape, device=idx.device).requires_grad_()
    leaf = features.requires_grad_()
    found = mmcv_ops.three_interpolate(leaf, idx, weight)
    grouped = torch.stack([f[:, i.long()] for f, i in zip(features, idx, strict=True)])
    assert torch.allclose(found, (grouped * weight[:, None]).sum(-1))
    found.sum().backward()
    assert weight.grad is None and leaf.grad is not None


def test_chamfer_distance(device):
    a, b = (lattice(n, 6, seed=n, batch=2)[..., :2].to(device) for n in (20, 30))
    dist1, dist2, idx1, idx2 = mmcv_ops.chamfer_distance(a.requires_grad_(), b)
    for one, two, dist, idx in ((a, b, dist1, idx1), (b, a, dist2, idx2)):
        near = [[row[0] for row in loops.nearest(y, x, 1)] for x, y in zip(one, two, strict=True)]
        assert idx.dtype == torch.int32 and idx.tolist() == [[i for _, i in row] for row in near]
        assert dist.tolist() == [[d for d, _ in row] for row in near]
    dist1.sum().backward()
    assert a.grad.abs().sum() > 0


def test_voxelization(device):
    points = cube(60, 4, scale=1.2)[0] - 0.1
    rows, cells, _, of_point = loops.voxels(points.numpy(), SIZE, BOUNDS, 3, 6)
    voxels, coors, counts = mmcv_ops.voxelization(points.to(device), SIZE, BOUNDS, 3, 6)
    assert coors.dtype == counts.dtype == torch.int32 and coors.tolist() == cells
    assert counts.tolist() == [len(row) for row in rows]
    for voxel, row in zip(voxels.cpu(), rows, strict=True):
        assert torch.equal(voxel[: len(row)], points[row]) and not voxel[len(row) :].any()
    for limits in ((-1, -1), (-1, 6), (3, -1)):
        found = mmcv_ops.voxelization(points.to(device), torch.tensor(SIZE), BOUNDS, *limits)
        assert found.dtype == torch.int32 and found.tolist() == of_point
    inside = points[np.array(of_point)[:, 0] >= 0].to(device)
    assert -1 not in mmcv_ops.voxelization(inside, SIZE, BOUNDS, -1, -1)
    module = mmcv_ops.Voxelization(list(SIZE), list(BOUNDS), 3, [6, 2])
    assert module.grid_size.tolist() == [4, 2, 1] and [int(n) for n in module.pcd_shape] == [
        1,
        2,
        4,
    ]
    assert len(module(points.to(device))[0]) == 6 and len(module.eval()(points.to(device))[0]) == 2


@pytest.mark.parametrize("reduce", ("max", "mean", "sum"))
@pytest.mark.parametrize("columns", (3, 4))
def test_dynamic_scatter(device, reduce, columns):
    feats, coors = cube(60, 5)[0] - 0.5, lattice(60, 3, seed=1)[0].int() - 1  # a third has a -1
    if columns == 4:
        coors = torch.cat([(torch.arange(60) // 30).int()[:, None], coors], 1)
    groups: dict[tuple, list[int]] = {}
    for i, cell in enumerate(coors.tolist()):
        if min(cell) >= 0:
            groups.setdefault(tuple(cell), []).append(i)
    leaf = feats.clone().requires_grad_()
    whole = {"max": lambda f: f.amax(0), "mean": lambda f: f.mean(0), "sum": lambda f: f.sum(0)}
    wanted = torch.stack([whole[reduce](leaf[groups[cell]]) for cell in sorted(groups)])
    ours = feats.to(device).requires_grad_()
    found, cells = mmcv_ops.dynamic_scatter(ours, coors.to(device), reduce)
    assert cells.dtype == torch.int32 and cells.tolist() == [list(cell) for cell in sorted(groups)]
    assert torch.allclose(found.cpu(), wanted, atol=1e-6)
    grad = torch.rand_like(wanted)
    gradients = (
        torch.autograd.grad(found, ours, grad.to(device)),
        torch.autograd.grad(wanted, leaf, grad),
    )
    assert torch.allclose(gradients[0][0].cpu(), gradients[1][0])
    if reduce != "sum":
        module = mmcv_ops.DynamicScatter(SIZE, BOUNDS, reduce == "mean")
        assert torch.equal(module(ours, coors.to(device))[0], found)
