# SPDX-License-Identifier: Apache-2.0
"""pillar_norm: batch norm of rows that are known by their moments alone."""

import pytest
import torch
from op_infos.op_info import generator
from torch.nn import functional as F

import torchvox


def moments_of(rows: torch.Tensor) -> torch.Tensor:
    g = torch.cat([torch.ones(len(rows), 1, dtype=torch.float64), rows], 1)
    left, right = torch.triu_indices(g.size(1), g.size(1))
    return (g.T @ g)[left, right]


def parameters(columns: int, outputs: int = 6) -> tuple[torch.Tensor, ...]:
    g = generator(columns)
    weight = torch.randn(outputs, columns, generator=g, dtype=torch.float64)
    gamma = torch.randn(outputs, generator=g, dtype=torch.float64)
    gamma[1] = 0
    beta = torch.randn(outputs, generator=g, dtype=torch.float64)
    return tuple(t.requires_grad_() for t in (weight, gamma, beta))


@pytest.mark.parametrize("columns", [1, 10, 27])
def test_the_fused_layer_is_batch_norm_and_has_its_gradients(columns):
    rows = torch.randn(50, columns, generator=generator(2), dtype=torch.float64) + 3
    weight, gamma, beta = parameters(columns)
    norm = torchvox.pillar_norm(moments_of(rows), weight, gamma, beta, 1e-3)
    got = F.linear(rows, norm.folded_weight, norm.folded_bias)
    y = F.linear(rows, weight)
    want = F.batch_norm(y, None, None, gamma, beta, training=True, eps=1e-3)
    torch.testing.assert_close(got, want, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(norm.mean, y.mean(0).detach(), atol=1e-10, rtol=0)
    torch.testing.assert_close(norm.var, y.var(0).detach(), atol=1e-10, rtol=1e-10)
    seed = torch.randn(want.shape, generator=generator(3), dtype=torch.float64)
    leaves = (weight, gamma, beta)
    for a, b in zip(
        torch.autograd.grad(got, leaves, seed), torch.autograd.grad(want, leaves, seed), strict=True
    ):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("count", [0, 1])
def test_few_rows_have_no_variance(count):
    rows = torch.full((count, 3), 2.0, dtype=torch.float64)
    weight, gamma, beta = parameters(3)
    norm = torchvox.pillar_norm(moments_of(rows), weight, gamma, beta, 1e-3)
    assert (norm.var == 0).all()
    torch.testing.assert_close(norm.mean, 2.0 * count * weight.sum(1).detach())
    out = F.linear(rows, norm.folded_weight, norm.folded_bias)
    torch.testing.assert_close(out, beta.expand_as(out))
    grads = torch.autograd.grad(norm.folded_weight.sum() + norm.folded_bias.sum(), (weight, gamma))
    assert all(torch.isfinite(g).all() for g in grads)
