# SPDX-License-Identifier: Apache-2.0
"""Gradients of distances to neighbors; tests/core compares them with formulas and differences."""

import torch
from helpers import cube

import torchvox


def gradients(points, query, k, **options):
    points, query = points.detach().requires_grad_(), query.detach().requires_grad_()
    dist2 = torchvox.knn(points, query, k, **options).dist2
    seed = torch.arange(dist2.numel(), dtype=dist2.dtype, device=dist2.device) % 7 - 3.0
    return torch.autograd.grad(dist2, (points, query), seed.reshape(dist2.shape))


def test_a_slot_without_a_neighbor_passes_nothing_on(device):
    points, query = cube(3).to(device), cube(5, seed=1).to(device)
    lengths = torch.tensor([2], device=device)
    of_points, of_query = gradients(points, query, 4, lengths=lengths)
    assert of_points.isfinite().all() and of_query.isfinite().all()
    assert (of_points[0, 2] == 0).all() and (of_points[0, :2] != 0).all()
    bad = query.clone()
    bad[0, 1] = float("nan")
    assert (gradients(points, bad, 2)[1][0, 1] == 0).all()


def test_a_point_at_distance_0_has_gradient_0(device):
    points = cube(20).to(device)
    for norm in (1, 2):
        of_points, of_query = gradients(points, points, 1, norm=norm)
        assert (of_points == 0).all() and (of_query == 0).all()


def test_one_set_may_be_both(device):
    """Each point's distance to its nearest other one: both ends of the pair move."""
    points = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [5, 0, 0]]], device=device).requires_grad_()
    torchvox.knn(points, points, 2).dist2[..., 1].sum().backward()
    assert points.grad[0, :, 0].tolist() == [-4.0, 4.0 - 8.0, 8.0]
