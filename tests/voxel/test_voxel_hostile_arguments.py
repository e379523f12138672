# SPDX-License-Identifier: Apache-2.0
"""Arguments that only a mistake produces: nothing leaves its bounds, nothing wraps."""

import pytest
import torch
from helpers import assert_same_bits

import torchvox  # noqa: F401  (registers the ops)

ops = torch.ops.torchvox
GRID = ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 400.0, 400.0, 4.0])


def cloud(n, device):
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([400.0, 400.0, 4.0, 1.0])
    return (torch.rand(n, 4, generator=generator) * scale).to(device)


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("order", ["first", "zyx"])
@pytest.mark.parametrize("max_voxels", [-1, 50, 20_000])
@pytest.mark.parametrize(
    "offsets", [[0] + [20_000] * 29 + [0, 5_000], [0, 100] * 3, [9_000, 3, -4]]
)
def test_offsets_in_disorder_stay_in_bounds(device, threads, order, max_voxels, offsets):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        offsets = torch.tensor(offsets, device=device)
        points, options = cloud(20_000, device), {"batch_offsets": offsets, "order": order}
        for _ in range(3):
            out = ops.voxelize(points, *GRID, 5, max_voxels, **options, reduce="sum")
            rows = ops.voxel_map(points, *GRID, 5, max_voxels, **options)[2]
            capacity, counts = out[1].size(0), out[4].cpu()
            assert all(r.min() >= -1 and r.max() < capacity for r in (out[3], rows))
            assert 0 <= counts[0, 0] <= capacity
            assert counts[:, 0].min() >= 0
    finally:
        torch.set_num_threads(before)


def test_a_double_gradient_of_half_points_is_rounded_once(device):
    points = torch.tensor([[0.5, 0.5, 0.5]], dtype=torch.half, device=device, requires_grad=True)
    out = ops.voxelize(points, *GRID, 1, -1, reduce="sum", out_dtype=torch.float64)[0]
    out.backward(torch.full_like(out, 1 + 2**-11 + 2**-40))
    assert points.grad.unique().tolist() == [1 + 2**-10]


def test_wrong_offsets_of_a_scatter_are_clamped_in_its_gradient_too(device):
    feats = torch.ones(4, 1, device=device, requires_grad=True)
    row = torch.tensor([0, 0, 1, 1], dtype=torch.int32, device=device)
    offsets = torch.tensor([0, 2, 2**31 - 1], dtype=torch.int32, device=device)
    perm = torch.arange(4, dtype=torch.int32, device=device)
    out, _ = ops.voxel_scatter(feats, row, 2, "mean", offsets=offsets, perm=perm)
    out.sum().backward()
    assert_same_bits(feats.grad, torch.full((4, 1), 0.5), "gradient")
