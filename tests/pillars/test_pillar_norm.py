# SPDX-License-Identifier: Apache-2.0
"""pillar_moments: what is counted and summed; pillar_norm: batch norm by these alone."""

import pytest
import torch
from helpers import assert_same_bits, to
from op_infos.op_info import cloud, generator
from op_infos.pillars import GRID, MAP, MODES, decorated, mapped, moments_call
from torch.nn import functional as F

import torchvox
import torchvox.reference


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


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
def test_they_are_the_sums_over_the_padded_rows(options):
    call = moments_call(200, **options)
    rows, filled = decorated({**call, "points": call["points"].double()})
    g = torch.cat([torch.ones(int(filled.sum()), 1), rows[filled]], 1)
    left, right = torch.triu_indices(g.size(1), g.size(1))
    want = (g.T @ g)[left, right]
    if call.get("pad_semantics") != "none" and call["max_points"] >= 0:
        want[0] = call["max_points"] * (call["indices"][:, 0] >= 0).sum()
    got = torchvox.pillar_moments(**call)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-3)  # decorated in float32
    assert_same_bits(got, torchvox.reference.pillar_moments(**call))


def test_a_slot_from_the_number_of_points_or_slots_on_is_none(device):
    call = moments_call(200, pad_semantics="none")
    call = {k: to(device, v) for k, v in call.items()}
    slot, fewer = call["point_slot"], (call["num_points"] - 1).clamp(min=0)
    past = slot >= fewer[call["point_voxel"].clamp(min=0).long()]
    assert (past & (slot >= 0)).any()
    short = {**call, "num_points": fewer}
    without = {**short, "point_slot": torch.where(past, -1, slot)}
    assert_same_bits(torchvox.pillar_moments(**short), torchvox.pillar_moments(**without))
    assert (torchvox.pillar_moments(**{**call, "max_points": 0}) == 0).all()
    assert (torchvox.pillar_moments(**{**call, "num_points": fewer - 999}) == 0).all()


@pytest.mark.parametrize("n", [1, 2, 33])
def test_a_sum_that_is_zero_has_no_sign(n):
    """Sums begin at +0: the products -0 of one point with its offset to the mean do not show."""
    points = torch.tensor([[-1.5, -0.5, -1.0, -2.0]]).repeat(n, 1)
    call = moments_call(0) | mapped(points) | {"max_points": 3}
    got = torchvox.pillar_moments(**call)
    assert not torch.signbit(got[got == 0]).any()
    assert_same_bits(got, torchvox.reference.pillar_moments(**call))


@pytest.mark.parametrize("n", [1, 31, 32, 33, 1023, 1024, 1025, 40_000])
def test_large_clouds_have_the_bits_of_the_reference(n, device):
    points, grid = cloud(n), {**GRID, "max_points": -1}
    voxels = torchvox.voxel_map(points, **grid, max_voxels=-1)
    call = {"points": points, **{k: getattr(voxels, k) for k in MAP}, **grid}
    call |= {"pad_semantics": "none"}
    got = torchvox.pillar_moments(**{k: to(device, v) for k, v in call.items()})
    assert_same_bits(got, torchvox.reference.pillar_moments(**call))
    assert got[0] == (voxels.point_slot >= 0).sum()
