# SPDX-License-Identifier: Apache-2.0
"""Batch norms fused into the layers."""

import pytest
import torch
from helpers import assert_same_bits
from nets import SMALL
from torch import nn

from torchvox.models.fuse import fuse_batch_norms
from torchvox.nn import SetAbstraction
from torchvox.nn.shared_mlp import FusedLayer, SharedLayer


def test_a_fused_layer_is_the_affine_map_in_float64():
    layer = SharedLayer(5, 7, bias=True).double().eval()
    with torch.no_grad():
        for tensor in (*layer.norm.parameters(), layer.norm.running_mean):
            tensor.copy_(torch.randn(7))
        layer.norm.running_var.copy_(torch.rand(7) + 0.1)
    rows = torch.randn(20, 5, dtype=torch.float64)
    fused = fuse_batch_norms(nn.Sequential(layer))
    torch.testing.assert_close(fused(rows), layer(rows), rtol=1e-12, atol=1e-12)


def test_the_layer_has_the_same_bits_with_and_without_a_gradient_to_come():
    layer = FusedLayer(torch.randn(33, 21), torch.randn(33))
    rows = torch.randn(50, 21)
    quiet = layer(rows)
    assert_same_bits(layer(rows.requires_grad_()), quiet)
    (gradient,) = torch.autograd.grad(layer(rows).sum(), rows)
    torch.testing.assert_close(gradient, (quiet > 0).float() @ layer.weight)


def test_fusing_leaves_the_model_as_it_was():
    model = SMALL["classifier"]().train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    fuse_batch_norms(model)
    assert model.training and all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("options", [{}, {"features_first": True}, {"normalize_xyz": True}])
@pytest.mark.parametrize("columns", [0, 5])
def test_balls_in_one_kernel_are_those_of_the_layers(columns, options):
    """What the GPU runs for half weights, on the CPU, which has the op too."""
    torch.manual_seed(0)
    module = SetAbstraction(9, [0.5, 1.0], [5, 12], columns, [[8, 16], [16]], **options)
    module = fuse_batch_norms(nn.ModuleList([module]), torch.bfloat16)[0]
    xyz = torch.rand(2, 60, 3) * 2 - 1
    features = torch.randn(2, 60, columns) if columns else None
    lengths, centers = torch.tensor([60, 0]), xyz[:, :9]
    found = module.pool_fused(xyz, features, lengths, centers)
    expected = module.pool_balls(xyz, features, lengths, centers)
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected.float(), rtol=2e-2, atol=1e-2)


def test_only_levels_that_tensor_cores_hold_run_in_one_kernel():
    levels = [
        SetAbstraction(9, [0.5], [5], 0, [widths]) for widths in ([256, 512], [257, 8], [257])
    ]
    modules = nn.ModuleList(levels)
    for dtype in (torch.bfloat16, torch.float16):
        fused = fuse_batch_norms(modules, dtype)
        assert [level.fused_op for level in fused] == [True, False, False]
    assert not any(level.fused_op for level in fuse_batch_norms(modules))
