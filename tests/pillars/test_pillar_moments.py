# SPDX-License-Identifier: Apache-2.0
"""pillar_moments: what is counted, what is summed, in which order."""

import pytest
import torch
from helpers import assert_same_bits, to
from op_infos.op_info import cloud
from op_infos.pillars import GRID, MAP, MODES, decorated, mapped, moments_call

import torchvox
import torchvox.reference


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
