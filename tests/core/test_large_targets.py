# SPDX-License-Identifier: Apache-2.0
"""Targets and losses of detection heads beyond 2^31 elements."""

import torch
from large import marks

import torchvox

pytestmark = marks

SIDE = 4096  # cells of one anchor
BOX = [0.0, 0, 0, 1, 1, 1, 0]


def wide_anchors() -> torch.Tensor:
    """[SIDE, SIDE, 1, 7]: squares side by side."""
    anchors = torch.tensor(BOX).expand(SIDE, SIDE, 1, 7).clone()
    anchors[..., 0] = torch.arange(SIDE)[None, :, None]
    anchors[..., 1] = torch.arange(SIDE)[:, None, None]
    return anchors


def test_anchor_targets():
    boxes, labels = torch.tensor(BOX).expand(130, 1, 7).clone(), torch.full((130, 1), -1)
    boxes[-1, 0, :2] = SIDE - 1
    labels[-1] = 0
    out = torchvox.anchor_targets(
        boxes, labels, None, None, wide_anchors(), [0], [0.6], [0.45]
    )  # 2.2e9 anchors
    assert out.assigned[-1, -1, -1, 0] == 0 and out.num_pos.tolist() == [0] * 129 + [1]
    assert out.assigned.sum(dtype=torch.int64) == 1 - out.assigned.numel()


def test_center_targets():
    boxes = torch.tensor(BOX).expand(3, 1, 7).clone()
    boxes[-1, 0, :2] = (1 << 15) - 1
    area = [0.0, 0.0, 0.0, 32768.0, 32768.0, 1.0]
    call = (boxes, torch.zeros(3, 1).int(), None, None, area, [1.0, 1.0], 1, [1 << 15] * 2, [0])
    out = torchvox.center_targets(*call, max_objects=1)
    assert out.heatmap[-1, 0, -1, -1] == 1 and out.cell[-1, 0, 0] == (1 << 30) - 1
    assert out.heatmap[:, 0, -1, -1].tolist() == [0, 0, 1]


def test_anchor_loss():
    cls = torch.zeros(1, 130, SIDE, SIDE, dtype=torch.half)  # 2.2e9 logits
    box = torch.zeros(1, 7, SIDE, SIDE, dtype=torch.half)
    assigned = torch.full((1, SIDE, SIDE, 1), -2, dtype=torch.int32)
    assigned[0, -1, -1] = -1
    call = (
        cls,
        box,
        None,
        wide_anchors(),
        torch.tensor([[BOX]]),
        torch.zeros(1, 1).int(),
        assigned,
    )
    loss = torchvox.anchor_loss(*call)
    assert abs(loss[0, 0] / (130 * 0.75 * 0.25 * torch.tensor(2.0).log()) - 1) < 1e-5
    assert loss[0, 1:].tolist() == [0, 0]
    grads = torch.ops.torchvox._anchor_loss_backward(torch.ones(1, 3), *call)
    assert (grads[0][0, :, -1, -1] > 0).all() and (grads[0][0, :, :-1] == 0).all()


def test_place_boxes():
    scenes, tries = 310_000, 1000  # 2.2e9 numbers
    candidates = torch.tensor(BOX).expand(scenes, 1, tries, 7).clone()
    candidates[-1, 0, -1, 0] = 5.0
    group = torch.full((scenes, 1), -1)
    group[-1] = 0
    choice = torchvox.place_boxes(torch.tensor(BOX).expand(scenes, 1, 7), candidates, group)
    assert choice[-1, 0] == tries - 1 and (choice[:-1] == -1).all()
