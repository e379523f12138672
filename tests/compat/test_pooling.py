# SPDX-License-Identifier: Apache-2.0
"""RoI pooling against loops over boxes, cells and points."""

import pytest
import torch
from helpers import assert_same_bits

import torchvox
from torchvox.compat._pooling import roiaware_pool, roipoint_pool


def scene(dtype=torch.float32):
    """points [2, 300, 3], features [2, 300, 4], boxes [2, 5, 7], the last one empty."""
    g = torch.Generator().manual_seed(3)
    points = torch.rand(2, 300, 3, generator=g, dtype=dtype) * 6 - 3
    boxes = torch.rand(2, 5, 7, generator=g, dtype=dtype) * 2
    boxes[..., :3] -= 1
    boxes[..., 3:6] += 1
    boxes[:, 4, 2] = 50
    return points, torch.randn(2, 300, 4, generator=g, dtype=dtype), boxes


@pytest.mark.parametrize("k", [1, 16, 400])
def test_the_points_of_a_box_are_repeated_cyclically(k, device):
    points, features, boxes = (t.to(device) for t in scene())
    pooled, empty = roipoint_pool(points, features, boxes, k)
    assert pooled.shape == (2, 5, k, 7) and empty.dtype == torch.int32
    inside = torchvox.points_in_boxes(points, boxes, mode="mask")
    for b in range(2):
        for g in range(5):
            rows = inside[b, g].nonzero()[:k, 0]
            assert int(empty[b, g]) == (len(rows) == 0)
            want = torch.zeros(k, 7, device=device)
            for slot in range(k if len(rows) else 0):
                i = rows[slot % len(rows)]
                want[slot] = torch.cat([points[b, i], features[b, i]])
            assert_same_bits(pooled[b, g], want)


def test_pooled_points_and_features_have_gradients():
    points, features, boxes = scene(torch.float64)
    inputs = [t[:, :40].clone().requires_grad_() for t in (points, features)]
    assert torch.autograd.gradcheck(lambda *call: roipoint_pool(*call, boxes, 8)[0], inputs)


@pytest.mark.skipif(not hasattr(torchvox, "segment_reduce"), reason="no torchvox.segment_reduce")
@pytest.mark.parametrize("mode", ["max", "avg"])
@pytest.mark.parametrize("max_pts", [3, 128])
def test_cells_of_boxes_are_pooled(mode, max_pts, device):
    points, features, boxes = (t[0].to(device) for t in scene(torch.float64))
    features.requires_grad_()
    size = (3, 2, 4)
    pooled = roiaware_pool(boxes, points, features, size, max_pts, mode)
    assert pooled.shape == (5, *size, 4)
    index, _ = torchvox.reference.box_query(points[None].cpu(), boxes[None].cpu(), 300, grid=size)
    want = []
    for found in index.reshape(-1, 300):
        rows = found[found >= 0][: max_pts - 1].long()
        picked = features[rows.to(device)] if len(rows) else features[:1] * 0
        want.append(picked.amax(0) if mode == "max" else picked.mean(0))
    want = torch.stack(want).view_as(pooled)
    torch.testing.assert_close(pooled, want)
    weight = torch.randn(pooled.shape, dtype=torch.float64, device=device)
    grads = [torch.autograd.grad((t * weight).sum(), features)[0] for t in (pooled, want)]
    torch.testing.assert_close(*grads)
