# SPDX-License-Identifier: Apache-2.0
"""Pointcept's pointops: packed clouds by their ends, against loops; its compiled module too."""

import pytest
import torch

from tests.compat import loops
from tests.helpers import cube, lattice
from torchvox.compat import pointops, pointops_c

ENDS, NEW_ENDS = (30, 34, 70), (5, 12, 20)


@pytest.fixture
def clouds(device):
    """xyz, offset, new_xyz, new_offset: the second cloud has four points."""
    xyz, new = lattice(70, 6)[0], lattice(20, 6, seed=1)[0]
    both = [xyz, torch.tensor(ENDS), new, torch.tensor(NEW_ENDS, dtype=torch.int32)]
    return [one.to(device) for one in both]


def nearest(xyz, new, k):
    """(rows, squared distances) of each cloud, -1 and 1e10 behind."""
    rows, far, begin, new_begin = [], [], 0, 0
    for end, new_end in zip(ENDS, NEW_ENDS, strict=True):
        for row in loops.nearest(xyz[begin:end], new[new_begin:new_end], k):
            rows.append([begin + i for _, i in row])
            far.append([d for d, _ in row])
        begin, new_begin = end, new_end
    return loops.padded(rows, k), loops.padded(far, k, 1e10).float()


def test_knn_query(clouds):
    xyz, offset, new, new_offset = clouds
    rows, far = nearest(xyz, new, 6)
    idx, dist = pointops.knn_query(6, xyz.requires_grad_(), offset, new, new_offset)
    assert idx.dtype == torch.int32 and torch.equal(idx.cpu(), rows.int())
    assert torch.equal(dist.cpu(), far.sqrt()) and not dist.requires_grad
    raw = torch.empty_like(idx), torch.empty_like(dist)
    pointops_c.knn_query_cuda(20, 6, xyz, new, offset, new_offset, *raw)
    assert torch.equal(raw[0], idx) and torch.equal(raw[1].cpu(), far)
    own, _ = pointops.knn_query(1, xyz, offset)
    assert torch.equal(xyz[own[:, 0].long()], xyz)
    with pytest.raises(ValueError, match=r"pointops\._C\.knn_query_cuda: the output must be"):
        pointops_c.knn_query_cuda(20, 6, xyz, new, offset, new_offset, raw[0][:3], raw[1])


def test_sampling(device):
    xyz, ends = cube(70)[0], (0, *ENDS)
    counts = torch.tensor([4, 6, 16])
    wanted = []
    for b, count in enumerate((4, 2, 10)):
        wanted += [ends[b] + i for i in loops.furthest(xyz[ends[b] : ends[b + 1]], count)]
    arguments = [one.to(device) for one in (xyz, torch.tensor(ENDS), counts)]
    idx = pointops.farthest_point_sampling(*arguments)
    assert idx.dtype == torch.int32 and idx.tolist() == wanted
    raw = torch.empty_like(idx)
    pointops_c.farthest_point_sampling_cuda(3, 36, *arguments, None, raw)
    assert torch.equal(raw, idx)
    batch = pointops.offset2batch(arguments[1])
    assert batch.tolist() == [0] * 30 + [1] * 4 + [2] * 36
    assert pointops.batch2offset(batch).tolist() == list(ENDS)


def test_grouping_and_interpolation(clouds):
    xyz, offset, new, new_offset = clouds
    feat = cube(70, 4, seed=3)[0].to(xyz.device)
    idx, dist = pointops.knn_query(6, xyz, offset, new, new_offset)
    there = (idx >= 0)[..., None]
    grouped = torch.cat([xyz[idx.long()] - new[:, None], feat[idx.long()]], -1) * there
    assert torch.equal(pointops.grouping(idx, feat, xyz, new, True), grouped)
    both = pointops.knn_query_and_group(feat, xyz, offset, new, new_offset, nsample=6)
    assert torch.equal(both[0], grouped[..., 3:]) and torch.equal(both[1], idx)
    weight = (1 / (dist + 1e-8)) * there[..., 0]
    weight = weight / weight.sum(1, keepdim=True)
    wanted = (feat[idx.long()] * weight[..., None]).sum(1)
    leaf = feat.clone().requires_grad_()
    found = pointops.interpolation(xyz, new, leaf, offset, new_offset, 6)
    assert torch.allclose(found, wanted, rtol=1e-5)
    out, grad = torch.zeros_like(wanted), torch.rand_like(wanted)
    pointops_c.interpolation_forward_cuda(20, 4, 6, feat, idx, weight, out)
    assert torch.allclose(out, wanted, rtol=1e-5)
    raw = torch.zeros_like(feat)
    pointops_c.interpolation_backward_cuda(20, 4, 6, grad, idx, weight, raw)
    assert torch.allclose(raw, torch.autograd.grad(found, leaf, grad)[0], rtol=1e-5)


@pytest.mark.parametrize("dilation", (0, 2))
def test_query_and_group_spreads_small_clouds(clouds, dilation):
    xyz, offset, new, new_offset = clouds
    feat, total = cube(70, 4)[0].to(xyz.device), 1 + 5 * (dilation + 1)
    rows, _ = nearest(xyz, new, total)
    wanted, begin = [], 0
    for b, end in enumerate(NEW_ENDS):
        size = ENDS[b] - (ENDS[b - 1] if b else 0)
        step = (size - 1) / 5 - 1 if size < total else dilation
        wanted += rows[begin:end, [int((step + 1) * i) for i in range(6)]].tolist()
        begin = end
    grouped, idx = pointops.query_and_group(6, xyz, new, feat, None, offset, new_offset, dilation)
    assert idx.tolist() == wanted and grouped.shape == (20, 6, 7)


def test_subtraction_and_aggregation(device):
    one, two = (cube(9, 4, seed=s)[0].double().to(device) for s in (0, 1))
    idx = torch.randint(0, 9, (9, 3), generator=torch.Generator().manual_seed(0)).int().to(device)
    position, weight = (cube(9, 3 * c, seed=c)[0].view(9, 3, c).double() for c in (4, 2))
    position, weight = position.to(device), weight.to(device)
    for name, inputs, wanted in (
        ("subtraction", (one, two), lambda a, b: a[:, None] - b[idx.long()]),
        ("aggregation", (one, position, weight),
         lambda a, p, w: ((a[idx.long()] + p) * torch.cat([w, w], -1)).sum(1)),
        ("grouping", (one,), lambda a: a[idx.long()]),
    ):  # fmt: skip
        leaves = [x.clone().requires_grad_() for x in inputs]
        public = getattr(pointops, "grouping2" if name == "grouping" else name)
        found, expected = public(*leaves, idx), wanted(*leaves)
        assert torch.allclose(found, expected)
        grad = torch.rand_like(found)
        gradients = torch.autograd.grad(expected, leaves, grad)
        for ours, theirs in zip(torch.autograd.grad(found, leaves, grad), gradients, strict=True):
            assert torch.allclose(ours, theirs)
        sizes = (9, 3, 4, 2) if name == "aggregation" else (9, 3, 4)
        out, raw = torch.zeros_like(found), [torch.zeros_like(x) for x in inputs]
        getattr(pointops_c, f"{name}_forward_cuda")(*sizes, *inputs, idx, out)
        assert torch.allclose(out, expected)
        before = () if name in ("subtraction", "grouping") else inputs
        order = (grad, idx) if name == "grouping" else (idx, grad)
        getattr(pointops_c, f"{name}_backward_cuda")(*sizes, *before, *order, *raw)
        assert all(torch.allclose(a, b) for a, b in zip(raw, gradients, strict=True))
