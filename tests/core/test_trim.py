# SPDX-License-Identifier: Apache-2.0
"""Trimming voxels to the rows in use: the one place that reads a count on the host. The trimmed
module is one of MODULES, which compile, export and script."""

import torch
from helpers import assert_same_bits
from op_infos.voxel import voxelize_call
from samples import on

import torchvox

ROWS_LAST = ("features", "indices", "num_points")  # the outputs with one row per voxel


def test_trimmed_rows_are_the_prefix_in_use(device):
    call = on(device, voxelize_call(60))
    full = torchvox.voxelize(**call)
    trimmed = torchvox.voxelize(**call, trim=True)
    rows = int(full.counts[0, 0])
    assert 0 < rows < len(full.indices)
    for name, value in trimmed._asdict().items():
        whole = getattr(full, name)
        assert_same_bits(value, whole[:rows] if name in ROWS_LAST else whole, name)


def test_gradients_flow_through_trimmed_rows(device):
    call = on(device, voxelize_call(60))
    points = call["points"].requires_grad_()
    whole, trimmed = (
        torch.autograd.grad(torchvox.voxelize(**call, trim=trim).features.square().sum(), points)
        for trim in (False, True)
    )
    assert_same_bits(trimmed, whole)
