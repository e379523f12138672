# SPDX-License-Identifier: Apache-2.0
"""The adapters of Pointnet2_PyTorch and of plain PointNet++ against loops over points."""

import numpy as np
import pytest
import torch

from tests.compat import loops
from torchvox.compat import pointnet2_plain as plain
from torchvox.compat.pointnet2_ops import _ext, pointnet2_modules, pointnet2_utils


@pytest.fixture
def clouds(device):
    """Two clouds with duplicates and points near the origin, and their features [2, 4, 40]."""
    torch.manual_seed(0)
    xyz = torch.rand(2, 40, 3) - 0.5
    xyz[:, 5:9] *= 0.02
    xyz[:, 20:25] = xyz[:, :5]
    return xyz.to(device), torch.rand(2, 4, 40, device=device)


def rows(function, *batches):
    return torch.tensor(np.array([function(*one) for one in zip(*batches, strict=True)]))


@pytest.mark.parametrize("count", [9, 44])
def test_sampling_skips_the_origin_and_breaks_ties_as_512_threads(clouds, count):
    xyz = clouds[0]
    expected = rows(lambda cloud: loops.fps(cloud, count, 512, True), xyz.cpu())
    idx = pointnet2_utils.furthest_point_sample(xyz, count)
    assert idx.dtype == torch.int32
    torch.testing.assert_close(idx.cpu().long(), expected)
    torch.testing.assert_close(_ext.furthest_point_sampling(xyz, count), idx)
    torch.testing.assert_close(pointnet2_utils.FurthestPointSampling.apply(xyz, count), idx)


def test_balls_are_open_hold_the_first_by_index_and_0_when_empty(clouds):
    xyz = clouds[0]
    new = torch.cat([xyz[:, :6], xyz[:, :2] + 9], 1)
    idx = pointnet2_utils.ball_query(0.3, 5, xyz, new)
    expected = [
        [loops.ball(xyz[b].cpu(), c, 0.3, 5) or [0] * 5 for c in new[b].cpu()] for b in (0, 1)
    ]
    assert idx.dtype == torch.int32 and idx.tolist() == expected
    torch.testing.assert_close(_ext.ball_query(new, xyz, 0.3, 5), idx)
    edge = torch.tensor([[[0.0, 0, 0], [0.5, 0, 0]]], device=xyz.device)
    assert pointnet2_utils.ball_query(0.5, 2, edge, edge[:, :1]).tolist() == [[[0, 0]]]


def test_three_nn_gives_roots_without_gradient_inf_and_0_for_few_points(clouds):
    xyz = clouds[0].clone().requires_grad_()
    for known in (xyz[:, 20:], xyz[:, :2], xyz[:, :0]):
        dist, idx = pointnet2_utils.three_nn(xyz[:, :7], known)
        pairs = [
            loops.three_nearest(known[b].detach().cpu(), c)
            for b in (0, 1)
            for c in xyz[b, :7].cpu().detach()
        ]
        d2, where = (
            torch.tensor(np.array(part)).view(2, 7, 3) for part in zip(*pairs, strict=True)
        )
        assert idx.dtype == torch.int32 and idx.cpu().tolist() == where.tolist()
        torch.testing.assert_close(dist.cpu(), d2.sqrt().float())
        assert not dist.requires_grad
        squared, same = _ext.three_nn(xyz[:, :7].detach(), known.detach())
        torch.testing.assert_close((squared.sqrt(), same), (dist, idx))


def test_gathers_and_their_gradients(clouds):
    _, features = clouds
    torch.manual_seed(1)
    idx = torch.randint(40, (2, 6, 3), dtype=torch.int32, device=features.device)
    weight = torch.rand(2, 6, 3, device=features.device, requires_grad=True)
    batch = torch.arange(2)[:, None, None]
    plain = features.clone().requires_grad_()
    taken = plain.permute(0, 2, 1)[batch, idx.long()].permute(0, 3, 1, 2)  # [B, C, 6, 3]
    mixed = (taken * weight.detach()[:, None]).sum(-1)
    utils = pointnet2_utils
    for make, expected, grad_function, extra in (
        (lambda f: utils.grouping_operation(f, idx), taken, _ext.group_points_grad, [idx]),
        (
            lambda f: utils.gather_operation(f, idx[..., 0].contiguous()),
            *(taken[..., 0], _ext.gather_points_grad, [idx[..., 0].contiguous()]),
        ),
        (
            lambda f: utils.three_interpolate(f, idx, weight),
            *(mixed, _ext.three_interpolate_grad, [idx, weight.detach()]),
        ),
    ):
        ours = features.clone().requires_grad_()
        out = make(ours)
        torch.testing.assert_close(out, expected)
        assert out.is_contiguous()
        grad = torch.rand_like(out)
        wanted = torch.autograd.grad(expected, plain, grad, retain_graph=True)[0]
        torch.testing.assert_close(torch.autograd.grad(out, ours, grad)[0], wanted)
        torch.testing.assert_close(grad_function(grad, *extra, 40), wanted)
    mixed = utils.three_interpolate(features.requires_grad_(), idx, weight).sum()
    assert torch.autograd.grad(mixed, weight, allow_unused=True)[0] is None


def test_groups_hold_relative_xyz_then_features(clouds):
    xyz, features = clouds
    new = xyz[:, :6].clone().requires_grad_()
    idx = pointnet2_utils.ball_query(0.3, 5, xyz, new)
    near = (
        pointnet2_utils.grouping_operation(xyz.transpose(1, 2), idx)
        - new.transpose(1, 2)[..., None]
    )
    taken = pointnet2_utils.grouping_operation(features, idx)
    group = pointnet2_utils.QueryAndGroup(0.3, 5)(xyz, new, features)
    torch.testing.assert_close(group, torch.cat([near, taken], 1))
    assert group.is_contiguous()
    grads = (
        torch.autograd.grad(x.square().sum(), new, retain_graph=True)[0] for x in (group, near)
    )
    torch.testing.assert_close(*grads)
    alone = pointnet2_utils.QueryAndGroup(0.3, 5, use_xyz=False)
    torch.testing.assert_close(alone(xyz, new, features), taken)
    with pytest.raises(AssertionError):
        alone(xyz, new)
    every = pointnet2_utils.GroupAll()(xyz, None, features)
    assert every.shape == (2, 7, 1, 40) and torch.equal(every[:, 3:, 0], features)
    assert torch.equal(pointnet2_utils.GroupAll(False)(xyz, None, features)[:, :, 0], features)
    assert pointnet2_utils.GroupAll(False)(xyz, None).shape == (2, 3, 1, 40)


def test_modules_have_the_names_and_shapes_of_the_published_ones(clouds):
    xyz, features = clouds
    widths = [[4, 8, 6], [4, 5]]
    module = pointnet2_modules.PointnetSAModuleMSG(7, [0.2, 0.4], [4, 6], widths).to(xyz.device)
    assert widths == [[7, 8, 6], [7, 5]]
    keys = {key: tuple(value.shape) for key, value in module.named_parameters()}
    conv = {"mlps.0.0.weight": (8, 7, 1, 1), "mlps.0.3.weight": (6, 8, 1, 1)}
    norm = {f"mlps.0.{i}.{name}": (n,) for i, n in ((1, 8), (4, 6)) for name in ("weight", "bias")}
    other = {"mlps.1.0.weight": (5, 7, 1, 1), "mlps.1.1.weight": (5,), "mlps.1.1.bias": (5,)}
    assert keys == {**conv, **norm, **other}
    new, out = module(xyz, features)
    assert new.shape == (2, 7, 3) and out.shape == (2, 11, 7)
    plain = pointnet2_modules.PointnetSAModule([4, 8], bn=False, use_xyz=False).to(xyz.device)
    assert list(plain.state_dict()) == ["mlps.0.0.weight", "mlps.0.0.bias"]
    new, whole = plain(xyz, features)
    assert new is None and whole.shape == (2, 8, 1)
    back = pointnet2_modules.PointnetFPModule([12, 9]).to(xyz.device)
    assert [key for key in back.state_dict() if "0" in key] == ["mlp.0.weight"]
    assert back(xyz, None, features, whole).shape == (2, 9, 40)
    deep = torch.rand(2, 8, 7, device=xyz.device)
    assert back(xyz, xyz[:, :7], features, deep).shape == (2, 9, 40)
    dist, idx = pointnet2_utils.three_nn(xyz, xyz[:, :7])
    weight = 1 / (dist + 1e-8)
    mixed = pointnet2_utils.three_interpolate(deep, idx, weight / weight.sum(2, keepdim=True))
    expected = back.mlp(torch.cat([mixed, features], 1)[..., None])[..., 0]
    torch.testing.assert_close(back(xyz, xyz[:, :7], features, deep), expected)


def test_plain_functions_keep_their_own_conventions(clouds):
    xyz = clouds[0]
    idx = plain.farthest_point_sample(xyz, 9)
    assert idx.dtype == torch.int64 and idx.shape == (2, 9)
    starts = {tuple(plain.farthest_point_sample(xyz, 1).flatten().tolist()) for _ in range(20)}
    assert len(starts) > 5
    for b in (0, 1):  # each is one of those furthest from the ones before
        for i in range(1, 9):
            d = torch.cdist(xyz[b], xyz[b, idx[b, :i]]).amin(1)
            torch.testing.assert_close(d[idx[b, i]], d.max())
    new = torch.cat([xyz[:, :6], xyz[:, :1] + 9], 1)
    found = plain.query_ball_point(0.3, 5, xyz, new)
    expected = [
        [loops.ball(xyz[b].cpu(), c, 0.3, 5, closed=True) or [0] * 5 for c in new[b].cpu()]
        for b in (0, 1)
    ]
    assert found.dtype == torch.int64 and found.tolist() == expected
    edge = torch.tensor([[[0.0, 0, 0], [0.5, 0, 0]]], device=xyz.device)
    assert plain.query_ball_point(0.5, 2, edge, edge[:, :1]).tolist() == [[[0, 1]]]
    batch = torch.arange(2, device=xyz.device)[:, None, None]
    torch.testing.assert_close(plain.index_points(xyz, found), xyz[batch, found])
    torch.testing.assert_close(plain.index_points(xyz, idx), xyz[batch[..., 0], idx])
    square = ((new[:, :, None] - xyz[:, None]) ** 2).sum(-1)
    torch.testing.assert_close(plain.square_distance(new, xyz), square, atol=1e-4, rtol=1e-5)
    points = clouds[1].transpose(1, 2)
    center, grouped, coordinates, samples = plain.sample_and_group(6, 0.3, 5, xyz, points, True)
    torch.testing.assert_close(center, xyz[batch[..., 0], samples])
    torch.testing.assert_close(grouped[..., :3], coordinates - center[:, :, None])
    assert len(plain.sample_and_group(6, 0.3, 5, xyz, None)) == 2 and grouped.shape == (2, 6, 5, 7)
    origin, rows_ = plain.sample_and_group_all(xyz, points)
    assert not origin.any() and origin.shape == (2, 1, 3) and rows_.shape == (2, 1, 40, 7)
