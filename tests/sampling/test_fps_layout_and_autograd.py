# SPDX-License-Identifier: Apache-2.0
"""Strides, autocast and gradients of furthest_point_sample."""

import numpy as np
import pytest
import torch
from fps_cases import samples
from helpers import cube, lattice

ops = torch.ops.torchvox


def strided_views(points):
    """The same [B, N, 3] values in other memory layouts."""
    b, n, d = points.shape
    wide = torch.full((b, n, d + 2), float("nan"))
    wide[..., 1 : 1 + d] = points
    every_other = torch.full((b, 2 * n, d), float("nan"))
    every_other[:, ::2] = points
    storage = torch.full((b * n * d + 1,), float("nan"))
    storage[1:] = points.reshape(-1)
    return {
        "columns_of_wider_rows": wide[..., 1 : 1 + d],
        "every_other_row": every_other[:, ::2],
        "channels_first": points.transpose(1, 2).contiguous().transpose(1, 2),
        "batch_innermost": points.permute(1, 2, 0).contiguous().permute(2, 0, 1),
        "unaligned_storage": storage[1:].view(b, n, d),
    }


LAYOUTS = ["columns_of_wider_rows", "every_other_row", "channels_first", "batch_innermost",
           "unaligned_storage"]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", [90, 9000])
def test_strides_do_not_matter(device, layout, n):
    points = lattice(n, side=15, batch=3)
    view = strided_views(points.to(device))[layout] if n else None
    assert torch.equal(view.cpu(), points)
    expected = samples(device, points, 30)
    idx, dist2 = ops.furthest_point_sample(view, 30)
    np.testing.assert_array_equal(idx.cpu().numpy(), expected[0])
    np.testing.assert_array_equal(dist2.cpu().numpy(), expected[1])


def test_expanded_batches(device):
    one = lattice(100)
    idx, _ = ops.furthest_point_sample(one.to(device).expand(4, -1, -1), 20)
    assert (idx.cpu() == torch.from_numpy(samples(device, one, 20)[0])).all()


def test_strided_integer_arguments(device):
    points = cube(50, batch=4)
    lengths = torch.tensor([[10, 0], [50, 0], [3, 0], [30, 0]])
    starts = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    expected = samples(
        device, points, 9, lengths=lengths[:, 0].contiguous(), start_idx=starts.t().contiguous()
    )
    idx, _ = ops.furthest_point_sample(
        points.to(device), 9, lengths=lengths.to(device)[:, 0], start_idx=starts.to(device).t()
    )
    np.testing.assert_array_equal(idx.cpu().numpy(), expected[0])


def test_ragged_strides_do_not_matter(device):
    points = lattice(200, side=15)[0].to(device)
    batch_offsets = torch.tensor([0, 90, 200], device=device)
    out_offsets = torch.tensor([0, 20, 50], device=device)
    expected = ops.furthest_point_sample_ragged(points, batch_offsets, out_offsets, 50)
    for view in (points.t().contiguous().t(), torch.cat([points, points], 1)[:, 3:]):
        actual = ops.furthest_point_sample_ragged(view, batch_offsets, out_offsets, 50)
        assert torch.equal(actual[0], expected[0]) and torch.equal(actual[1], expected[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_leaves_coordinates_alone(device, dtype):
    points = cube(200).to(device)
    expected = ops.furthest_point_sample(points, 50)
    with torch.autocast(torch.device(device).type, dtype=dtype):
        actual = ops.furthest_point_sample(points, 50)
    assert torch.equal(actual[0], expected[0]) and torch.equal(actual[1], expected[1])
    assert actual[1].dtype == torch.float32


def test_neither_output_requires_a_gradient(device):
    points = cube(30).to(device).requires_grad_()
    idx, dist2 = ops.furthest_point_sample(points, 5)
    assert not idx.requires_grad and not dist2.requires_grad
    batch_offsets = torch.tensor([0, 30], device=device)
    out_offsets = torch.tensor([0, 5], device=device)
    idx, dist2 = ops.furthest_point_sample_ragged(points[0], batch_offsets, out_offsets, 5)
    assert not idx.requires_grad and not dist2.requires_grad


def test_gathered_samples_carry_the_gradient(device):
    points = cube(30).to(device).requires_grad_()
    idx, _ = ops.furthest_point_sample(points, 5)
    ops.gather_points(points, idx).sum().backward()
    expected = torch.zeros(30, 3)
    expected[idx[0].cpu().long()] = 1
    assert torch.equal(points.grad[0].cpu(), expected)
