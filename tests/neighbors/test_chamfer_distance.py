# SPDX-License-Identifier: Apache-2.0
"""chamfer_distance: the nearest point of the other cloud, both ways, and its gradient."""

import pytest
import torch
from helpers import assert_same_bits, cube

import torchvox
from torchvox import reference

NAN = float("nan")


def plain(x, y, norm):
    """dist and index [N] of x [N, D] by all distances."""
    d = x[:, None] - y
    d = d.abs().sum(-1) if norm == 1 else d.square().sum(-1)
    return d.min(1)


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("d", [2, 3, 6])
def test_both_ways_and_their_gradients(device, norm, d):
    x = cube(70, d, seed=1).double().to(device).requires_grad_()
    y = cube(90, d, seed=2).double().to(device).requires_grad_()
    out = torchvox.chamfer_distance(x, y, norm=norm)
    near_x, near_y = plain(x[0], y[0], norm), plain(y[0], x[0], norm)
    for near, dist, index in ((near_x, out.dist_x, out.index_x), (near_y, out.dist_y, out.index_y)):
        torch.testing.assert_close(dist[0], near.values)
        assert torch.equal(index[0].long(), near.indices)
    loss = out.dist_x.mean() + 3 * out.dist_y.mean()
    expected = near_x.values.mean() + 3 * near_y.values.mean()
    gradients = (torch.autograd.grad(value, (x, y)) for value in (loss, expected))
    torch.testing.assert_close(*gradients)


def test_points_without_another_hold_0_and_minus_1_and_have_no_gradient(device):
    x, y = cube(5, batch=3).to(device), cube(4, seed=1, batch=3).to(device)
    x[0, 1, 2] = NAN
    lengths_x, lengths_y = (torch.tensor(n, device=device) for n in ([5, 3, 5], [4, 2, 0]))
    x.requires_grad_()
    out = torchvox.chamfer_distance(x, y, lengths_x=lengths_x, lengths_y=lengths_y)
    none = torch.zeros(3, 5, dtype=torch.bool, device=device)
    none[0, 1] = none[1, 3:] = none[2] = True
    assert torch.equal(out.index_x < 0, none) and (out.dist_x[none] == 0).all()
    assert (out.index_y[1, 2:] == -1).all() and (out.index_y[2] == -1).all()
    (grad,) = torch.autograd.grad(out.dist_x.sum() + out.dist_y.sum(), x)
    assert (grad[none] == 0).all() and (grad[~none] != 0).any(-1).all()


@pytest.mark.parametrize("norm", [1, 2])
def test_packed_clouds_equal_padded_ones(device, norm):
    x, y = cube(40, batch=2).to(device), cube(30, seed=1, batch=2).to(device)
    options = {"norm": norm, "convention": "pytorch3d"}
    padded = torchvox.chamfer_distance(x, y, **options)
    offsets = {
        "batch_offsets_x": torch.tensor([0, 40, 80], device=device),
        "batch_offsets_y": torch.tensor([0, 30, 60], device=device),
    }
    packed = torchvox.chamfer_distance(x.flatten(0, 1), y.flatten(0, 1), **options, **offsets)
    cloud = torch.arange(2, device=device)[:, None].int()
    assert_same_bits(packed.dist_x, padded.dist_x.flatten())
    assert_same_bits(packed.dist_y, padded.dist_y.flatten())
    assert_same_bits(packed.index_x, (padded.index_x + 30 * cloud).flatten())
    assert_same_bits(packed.index_y, (padded.index_y + 40 * cloud).flatten())
    expected = reference.knn(y.cpu(), x.cpu(), 1, norm=norm, dist_order="loop")
    assert_same_bits((padded.dist_x[..., None], padded.index_x[..., None]), expected)


@pytest.mark.parametrize(
    ("x", "y", "options", "words"),
    [
        ((5, 3), (4, 3), {}, "x and y must be .* without offsets, got .5, 3. and .4, 3."),
        ((1, 5, 3), (2, 4, 3), {}, "x and y must be .*, got .1, 5, 3. and .2, 4, 3."),
        ((1, 5, 3), (1, 4, 3), {"norm": 3}, "norm must be 1 or 2, got 3"),
        ((5, 3), (4, 3), {"batch_offsets_x": [0, 5]}, "given together, got batch_offsets_x"),
    ],
)
def test_wrong_arguments_are_refused_by_name(x, y, options, words):
    options = {k: torch.tensor(v) if isinstance(v, list) else v for k, v in options.items()}
    with pytest.raises(ValueError, match=f"chamfer_distance: .*{words}"):
        torchvox.chamfer_distance(torch.zeros(x), torch.zeros(y), **options)
