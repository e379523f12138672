# SPDX-License-Identifier: Apache-2.0
"""Clouds and comparisons shared by the tests of furthest point sampling."""

import torch
from helpers import check_op, cube, lattice, to

import torchvox  # noqa: F401  (registers the ops)

ops = torch.ops.torchvox


def _spiked():
    cloud = cube(200, seed=3)
    cloud[0, 17] = 1e30  # squares overflow
    cloud[0, 90] = -1e30
    cloud[0, 91] = -1e30
    return cloud


CLOUDS = {
    "cube": cube(300),
    "lattice": lattice(300),
    "duplicates": cube(40, seed=1).repeat(1, 6, 1),
    "all_equal": torch.full((1, 70, 3), 0.3),
    "collinear": torch.arange(100.0).reshape(1, 100, 1) * torch.tensor([0.1, 0.2, 0.3]),
    "regular_lattice": torch.cartesian_prod(*[torch.arange(6.0)] * 3)[None],
    "overflow": cube(100, seed=2, scale=3e38),
    "spiked": _spiked(),
    "wide_spacing": torch.floor(cube(150, seed=4, scale=40.0)) * 2e5,
    "denormal": cube(100, seed=5, scale=1e-38),
    "squares_underflow": cube(100, seed=6, scale=1e-22),
    "negative_zero": lattice(64, side=2, seed=7) * -0.0,
    "far_from_origin": cube(200, seed=8) + 1e4,
}


def assert_as_reference(device, points, num_samples, **options):
    """The op on `device` returns the bits of the reference; returns (idx, dist2) on the CPU."""
    return check_op("furthest_point_sample", device, points, num_samples, **options)


def assert_ragged_as_reference(device, points, batch_offsets, out_offsets, max_total, **options):
    args = (points, batch_offsets, out_offsets, max_total)
    return check_op("furthest_point_sample_ragged", device, *args, **options)


def samples(device, points, num_samples, **options):
    """idx and dist2 of the op as NumPy arrays, for tests that state the values themselves."""
    on_device = {k: to(device, v) for k, v in options.items()}
    idx, dist2 = ops.furthest_point_sample(points.to(device), num_samples, **on_device)
    return idx.cpu().numpy(), dist2.cpu().numpy()
