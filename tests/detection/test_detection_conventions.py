# SPDX-License-Identifier: Apache-2.0
"""A convention finds what its library finds, each rule on maps by hand.

Whole networks beside the originals: tests/models/test_importing_detectors.py.
"""

import math

import pytest
import torch
from op_infos.op_info import on
from test_detections import anchor_call, center_maps, quiet

import torchvox
from torchvox.ops.detection import ANCHOR_DECODE_NMS_CONVENTIONS as ANCHORS
from torchvox.ops.detection import CENTER_DECODE_NMS_CONVENTIONS as CENTERS

ops = torch.ops.torchvox
BEST_CLASSES = [(2, 1), (1, 0)]  # (box, class)
OF_SHARED_BOXES = [(2, 1), (1, 0), (2, 0)]
# Rows; whether a score at the threshold passes; limit and flip of the direction.
ANCHOR_RULES = {
    "torchvox": (BEST_CLASSES, True, 0, False),
    "openpcdet": (BEST_CLASSES, True, 0, False),
    "openpcdet_multihead": ([(1, 0), (2, 0), (2, 1), (3, 1)], True, 0, False),
    "mmdet3d": (OF_SHARED_BOXES, False, 0, False),
    "mmdet3d_0": (OF_SHARED_BOXES, False, 1, False),
    "zhulf0804": (OF_SHARED_BOXES, False, 1, True),
}
# Labels of two tasks; the yaw of the numbers (1, 0).
CENTER_RULES = {
    "torchvox": ([1, 0, 3, 2], math.pi / 2),
    "openpcdet": ([1, 0, 3, 2], 0.0),
    "mmdet3d": ([1, 0, 3, 2], math.pi / 2),
    "mmdet3d_0": ([1, 0, 3, 2], math.pi / 2),
    "det3d": ([1, 3], math.pi / 2),
}
each_anchor_convention = pytest.mark.parametrize("name", ANCHORS)


@each_anchor_convention
def test_an_anchor_convention_selects_as_its_library(device, name):
    logits = torch.tensor([[0.0, -9.0], [2.0, -9.0], [1.5, 3.0], [-9.0, 0.5]])
    call = on(device, anchor_call(logits.reshape(1, 4, 1, 2), pre=2, post=3))
    out = torchvox.anchor_decode_nms(**call, convention=name)
    count = int(out.count[0])
    boxes = (out.boxes[0, :count, 0] / 10).round().int().tolist()
    rows, closed, _, _ = ANCHOR_RULES[name]
    assert list(zip(boxes, out.labels[0, :count].tolist(), strict=True)) == rows

    at_threshold = quiet(1, 2, 1, 1)
    at_threshold[0, 0] = 0.0
    out = torchvox.anchor_decode_nms(**on(device, anchor_call(at_threshold)), convention=name)
    assert out.count.tolist() == [int(closed)]


@each_anchor_convention
def test_an_anchor_convention_turns_boxes_as_its_library(device, name):
    yaw, offset = torch.tensor([-4.0, -1.0, 0.5, 2.0]), 0.25
    deltas, anchors = torch.zeros(4, 7), torch.ones(4, 7)
    deltas[:, 6], anchors[:, 6] = yaw, 0.0
    direction = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    tensors = {"deltas": deltas, "anchors": anchors, "direction": direction}
    boxes = torchvox.box_decode(**on(device, tensors), dir_offset=offset, convention=name)
    _, _, limit, flip = ANCHOR_RULES[name]
    turned = yaw - offset - torch.floor((yaw - offset) / math.pi + limit) * math.pi + offset
    number = direction[:, 0] if flip else direction[:, 1]
    torch.testing.assert_close(boxes[:, 6].cpu(), turned + number * math.pi)


@pytest.mark.parametrize("name", CENTERS)
def test_a_center_convention_selects_and_turns_as_its_library(device, name):
    call = center_maps(1, 2, 2)
    call["heatmap"][0][0, :, 0, 0] = torch.tensor([1.0, 2.0])
    call["heatmap"][0][0, 0, 0, 1] = 0.0  # at the threshold
    call["rot"][0][0, 0] = 1.0
    maps = {k: v * 2 for k, v in call.items() if isinstance(v, list) and torch.is_tensor(v[0])}
    call = on(device, {**call, **maps, "score_threshold": 0.5, "nms_threshold": [1.0]})
    out = torchvox.center_decode_nms(**call, convention=name)
    labels, yaw = CENTER_RULES[name]
    assert out.labels[0, : int(out.count[0])].tolist() == labels
    assert out.boxes[0, 0, 6].item() == pytest.approx(yaw)
