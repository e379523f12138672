# SPDX-License-Identifier: Apache-2.0
"""Clouds and comparisons shared by the tests of furthest point sampling."""

import torch
from helpers import check_op, to

import torchvox  # noqa: F401  (registers the ops)

ops = torch.ops.torchvox


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
