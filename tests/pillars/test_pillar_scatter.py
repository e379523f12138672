# SPDX-License-Identifier: Apache-2.0
"""pillar_scatter: rows to cells and back."""

import pytest
import torch

import torchvox


def test_rows_go_to_their_cells_and_all_else_is_zero(device):
    indices = torch.tensor([[1, 0, 2, 3], [-1, -1, -1, -1], [0, 7, 0, 1]], dtype=torch.int32)
    feats = torch.arange(1.0, 7.0).view(3, 2)
    canvas = torchvox.pillar_scatter(feats.to(device), indices.to(device), 2, [4, 3])
    assert canvas.is_contiguous(memory_format=torch.channels_last)
    want = torch.zeros(2, 2, 3, 4)
    want[1, :, 2, 3] = feats[0]
    want[0, :, 0, 1] = feats[2]  # z is ignored
    assert torch.equal(canvas.cpu(), want)


def test_of_rows_with_one_cell_the_lowest_is_shown_and_has_the_gradient(device):
    indices = torch.zeros(3, 4, dtype=torch.int32)
    indices[0] = -1
    feats = torch.tensor([[5.0], [7.0], [9.0]], device=device, requires_grad=True)
    canvas = torchvox.pillar_scatter(feats, indices.to(device), 1, [2, 2])
    assert canvas[0, 0].tolist() == [[7.0, 0.0], [0.0, 0.0]]
    canvas.sum().backward()
    assert feats.grad.tolist() == [[0.0], [1.0], [0.0]]


@pytest.mark.parametrize("cell", [[2, 0, 0, 0], [0, 0, 6, 0], [0, 0, 0, 8], [0, 0, -1, 3]])
def test_rows_outside_the_canvas_are_skipped(cell, device):
    feats = torch.ones(1, 3, device=device)
    indices = torch.tensor([cell], dtype=torch.int32, device=device)
    assert (torchvox.pillar_scatter(feats, indices, 2, [8, 6]) == 0).all()


def test_a_canvas_without_channels_needs_no_memory(device):
    """However many cells it has: their table once wrapped around 2^64 bytes."""
    feats = torch.zeros(1, 0, device=device, requires_grad=True)
    indices = torch.zeros(1, 4, dtype=torch.int32, device=device)
    canvas = torchvox.pillar_scatter(feats, indices, 4, [2**30, 2**30])
    assert canvas.shape == (4, 0, 2**30, 2**30)
    (grad,) = torch.autograd.grad(canvas.sum(), feats)
    assert grad.shape == feats.shape
