# SPDX-License-Identifier: Apache-2.0
"""anchor_loss: its terms, ignored anchors, layouts, gradients."""

import math

import pytest
import torch
from helpers import assert_same_bits, check_op
from op_infos.targets import anchor_grid, loss_call
from samples import on

import torchvox

MAPS = ("cls", "box", "direction")


def one_anchor(box, code, anchor=(0, 0, 0, 4.0, 3.0, 2.0, 0), assigned=0, **options) -> dict:
    """A head of one anchor and one class; code: the box map."""
    return {
        "cls": torch.zeros(1, 1, 1, 1),
        "box": torch.tensor(code).reshape(1, -1, 1, 1),
        "direction": None,
        "anchors": torch.tensor(anchor).reshape(1, 1, 1, 7),
        "boxes": torch.tensor(box).reshape(1, 1, -1),
        "labels": torch.zeros(1, 1).int(),
        "assigned": torch.full((1, 1, 1, 1), assigned, dtype=torch.int32),
        **options,
    }


def test_the_class_term_is_focal(device):
    call = one_anchor([0.0] * 7, [0.0] * 7)
    half = math.log(2) / 4
    positive = torchvox.anchor_loss(**on(device, call))
    background = torchvox.anchor_loss(**on(device, call | {"assigned": call["assigned"] - 1}))
    ignored = torchvox.anchor_loss(**on(device, call | {"assigned": call["assigned"] - 2}))
    assert positive[0, 0].item() == pytest.approx(0.25 * half, rel=1e-6)
    assert background[0].tolist() == [pytest.approx(0.75 * half, rel=1e-6), 0, 0]
    assert ignored[0].tolist() == [0, 0, 0]
    weighed = call | {"assigned": call["assigned"] - 1, "negative_weight": 2.0}
    assert torchvox.anchor_loss(**on(device, weighed))[0, 0] == 2 * background[0, 0]


@pytest.mark.parametrize("logit", [-20.0, -9.0, -4.6, 0.3, 8.0, 60.0])
def test_the_class_term_is_exact_far_from_zero(logit, device):
    """1 + exp(-x) rounds to 1 there; what it rounds away counts."""
    call = one_anchor([0.0] * 7, [0.0] * 7, assigned=-1) | {"cls": torch.full((1, 1, 1, 1), logit)}
    wide = torch.tensor(logit, dtype=torch.float64)
    want = 0.75 * wide.sigmoid() ** 2 * torch.nn.functional.softplus(wide, threshold=100)
    got = torchvox.anchor_loss(**on(device, call))[0, 0].item()
    assert got == pytest.approx(want.item(), rel=1e-6, abs=0)


@pytest.mark.parametrize("codes", [7, 8, 9, 10])
def test_residuals_are_those_that_box_decode_reads(codes, device):
    """The box term is 0 where the map decodes to the box."""
    g, anchors = torch.Generator().manual_seed(0), anchor_grid(3, 5)
    code = torch.randn(1, 3, 5, 4, codes, generator=g) * 0.3
    if codes % 2 == 0:  # the cosine and sine of a yaw, less those of the anchor's
        yaw = code[..., 6] * 9
        code[..., 6] = yaw.cos() - anchors[..., 6].cos()
        code[..., 7] = yaw.sin() - anchors[..., 6].sin()
    call = {
        "cls": torch.zeros(1, 8, 3, 5),
        "box": code,
        "direction": None,
        "anchors": anchors,
        "boxes": torchvox.box_decode(code, anchors).flatten(1, 3),
        "labels": torch.zeros(1, 60).int(),
        "assigned": torch.arange(60).reshape(1, 3, 5, 4).int(),
    }
    assert torchvox.anchor_loss(**on(device, call))[0, 1] < 1e-9


def test_smooth_l1_turns_to_a_line_and_weights_stand_where_the_mode_says(device):
    target, code = [0.0, 0, 0, 4, 3, 2, 0], [0.05, -0.5, 0, 0, 0, 0, 0]
    square, line = 0.5 * 0.05**2 * 9, 0.5 - 1 / 18

    def boxes(**options) -> float:
        call = one_anchor(target, code, **options)
        return torchvox.anchor_loss(**on(device, call))[0, 1].item()

    assert boxes() == pytest.approx(square + line, rel=1e-6)
    assert boxes(beta=0.0) == pytest.approx(0.55, rel=1e-6)
    weights = [2.0, 0.5, 1, 1, 1, 1, 1]
    assert boxes(code_weights=weights) == pytest.approx(4 * square + 0.25 - 1 / 18, rel=1e-6)
    after = boxes(code_weights=weights, mode="mmdet")
    assert after == pytest.approx(2 * square + 0.5 * line, rel=1e-6)


def test_with_directions_a_box_may_face_either_way(device):
    """The sine of the difference; without a map of directions the difference itself."""
    call = one_anchor([0.0, 0, 0, 4, 3, 2, math.pi], [0.0] * 7)
    assert torchvox.anchor_loss(**on(device, call))[0, 1].item() == pytest.approx(math.pi - 1 / 18)
    call["direction"] = torch.zeros(1, 2, 1, 1)
    loss = torchvox.anchor_loss(**on(device, call))
    assert loss[0, 1] < 1e-10 and loss[0, 2].item() == pytest.approx(math.log(2))


def test_bins_part_at_the_offset_and_half_a_turn_behind(device):
    direction = torch.tensor([0.0, 100.0]).reshape(1, 2, 1, 1)  # bin 1, or a loss of 100

    def bin_of(yaw: float, **options) -> int:
        call = one_anchor([0.0, 0, 0, 4, 3, 2, yaw], [0.0] * 7, direction=direction, **options)
        return int(torchvox.anchor_loss(**on(device, call))[0, 2] < 1)

    assert [bin_of(y) for y in (0.0, 3.1, 3.2, 6.2, -0.1, -3.2)] == [0, 0, 1, 1, 1, 0]
    assert [bin_of(y, dir_offset=0.78539) for y in (0.0, 0.8, 3.9, 3.95)] == [1, 0, 0, 1]
    # From -pi to pi: what lies below 0 is the first bin.
    assert [bin_of(y, dir_limit=0.5) for y in (-0.1, 0.1, 3.2, 3.0)] == [0, 0, 0, 0]
    assert bin_of(3.1415927, dir_limit=0.25) == 1


def test_an_unknown_velocity_counts_for_nothing(device):
    nan = math.nan
    for codes in (9, 10):
        code = [0.0] * 6 + ([1.0, 0.0] if codes == 10 else [0.0]) + [3.0, 4.0]
        call = one_anchor([0.0, 0, 0, 4, 3, 2, 0, nan, 4.0], code, beta=0.0)
        call["box"] = call["box"].to(device).requires_grad_()
        loss = torchvox.anchor_loss(**on(device, call))[0, 1]
        (grad,) = torch.autograd.grad(loss, call["box"])
        assert grad[0, -2:, 0, 0].tolist() == [0, 0]
        assert loss == (0 if codes == 9 else 1)


def test_without_a_box_two_terms_and_their_gradients_are_zero(device):
    call = on(device, loss_call(9, assigned=torch.full((2, 3, 9, 4), -1, dtype=torch.int32)))
    for name in MAPS:
        call[name].requires_grad_()
    loss = torchvox.anchor_loss(**call)
    assert (loss[:, 1:] == 0).all() and (loss[:, 0] > 0).all()
    loss.sum().backward()
    assert (call["box"].grad == 0).all() and (call["direction"].grad == 0).all()
    assert (call["cls"].grad > 0).all()


def test_a_box_number_that_does_not_exist_is_ignored(device):
    call = on(device, loss_call(9, boxes=4))
    wrong = call | {"assigned": torch.where(call["assigned"] >= 0, 4, call["assigned"])}
    none = call | {"assigned": torch.where(call["assigned"] >= 0, -2, call["assigned"])}
    assert_same_bits(torchvox.anchor_loss(**wrong), torchvox.anchor_loss(**none))


def test_gradients_lie_as_the_maps_do(device):
    call = on(device, loss_call(9, codes=9))
    last = {k: call[k].contiguous(memory_format=torch.channels_last) for k in MAPS}
    split = {k: call[k].unflatten(1, (4, -1)).permute(0, 3, 4, 1, 2) for k in MAPS}
    grads = []
    for maps in (call, last, split):
        leaves = [maps[k].detach().requires_grad_() for k in MAPS]
        loss = torchvox.anchor_loss(**call | dict(zip(MAPS, leaves, strict=True)))
        grads.append(torch.autograd.grad(loss.sum(), leaves))
        assert [g.stride() for g in grads[-1]] == [leaf.stride() for leaf in leaves]
    assert_same_bits(grads[1], grads[0])
    assert_same_bits([g.permute(0, 3, 4, 1, 2).flatten(1, 2) for g in grads[2]], grads[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_are_computed_in_float32_and_gradients_rounded_once(dtype, device):
    call = on(device, loss_call(9))
    narrow = [call[k].to(dtype).requires_grad_() for k in MAPS]
    wide = [v.detach().float().requires_grad_() for v in narrow]
    losses = [
        torchvox.anchor_loss(**call | dict(zip(MAPS, maps, strict=True))) for maps in (narrow, wide)
    ]
    assert_same_bits(*losses)
    got = torch.autograd.grad(losses[0].sum(), narrow)
    want = torch.autograd.grad(losses[1].sum(), wide)
    assert_same_bits(got, [g.to(dtype) for g in want])


def test_sums_of_several_levels_have_the_bits_of_the_loops(device):
    """More than 256 blocks of 256 anchors, most of which are ignored."""
    call = loss_call(150, height=111)  # 66,600 anchors
    most = torch.rand(call["assigned"].shape, generator=torch.Generator().manual_seed(2)) < 0.99
    call["assigned"] = torch.where(most, -2, call["assigned"])
    check_op("anchor_loss", device, **call)
