# SPDX-License-Identifier: Apache-2.0
"""anchor_decode_nms and center_decode_nms: rules of the contract, one by one, on maps by hand."""

import math

import numpy as np
import pytest
import torch
from op_infos import detection as infos
from op_infos.op_info import on
from torch import Tensor

import torchvox
from torchvox.reference import portable_math

ops = torch.ops.torchvox
KEPT = math.log(0.9 / 0.1)  # the logit of a score of 0.9


def far_anchors(height: int, width: int, each: int) -> Tensor:
    """Cars 10 m apart: none suppresses another."""
    anchors = infos.anchors(height)[:, :1, :1].repeat(1, width, each, 1)
    number = torch.arange(height * width * each).reshape(height, width, each)
    anchors[..., 0] = number * 10.0
    anchors[..., 1] = 0.0
    return anchors


def anchor_call(logits: Tensor, **options) -> dict:
    """logits [H, W, A, C], one sample; boxes are the anchors."""
    height, width, each, classes = logits.shape
    cls = logits.permute(2, 3, 0, 1).reshape(1, each * classes, height, width)
    call = {
        "cls": [cls],
        "box": [torch.zeros(1, each * 7, height, width)],
        "direction": [],
        "anchors": [far_anchors(height, width, each)],
        "score_threshold": 0.5,
        "nms_threshold": [0.1],
        "pre": 100,
        "post": 20,
    }
    return {**call, **options}


def detect(device: str, call: dict) -> torchvox.ops.Detections:
    op = ops.anchor_decode_nms if "cls" in call else ops.center_decode_nms
    return torchvox.ops.Detections(*(t.cpu() for t in op(**on(device, call))))


def quiet(*shape: int) -> Tensor:
    return torch.full(shape, -9.0)


def boxes_x(out: torchvox.ops.Detections) -> list[int]:
    """x of the boxes: ten times the number of an anchor of far_anchors."""
    return out.boxes[0, : int(out.count[0]), 0].round().int().tolist()


MANY = {"pre": 700, "post": 700}
SHARED = {"group": "class", "shared_pre": True, "global_post": True, "pre": 2}
LABELED = {"x": [0, 0], "group": "class", "post": 2, "class_labels": [7, 4]}
CIRCLES = {"x": [0, 2, 0, 2], "group": "class", "nms": "circle", "nms_threshold": [4.0, 3.9]}


@pytest.mark.parametrize(
    ("shape", "logits", "options", "xs", "labels", "overflow"),
    [
        # The best come first, of ties the lower places.
        ((4, 3, 2, 1), {20: 1, 3: 1, 11: 2, 7: 1}, {}, [110, 30, 70, 200], [0] * 4, 0),
        ((4, 3, 2, 1), {20: 1, 3: 1, 11: 2, 7: 1}, {"pre": 3}, [110, 30, 70], [0] * 3, 1),
        ((100, 50, 4, 1), dict.fromkeys(range(20_000), 0), MANY, [*range(0, 7000, 10)], [0] * 700,
         20_000 - 700),
        # Saturated scores are ties, with one label each.
        ((1, 3, 1, 2), dict.fromkeys(range(6), 30) | {1: 40, 4: 50}, {}, [0, 10, 20], [1, 0, 0], 0),
        # A score at the threshold, sigmoid(0) = 0.5, passes when closed.
        ((1, 4, 1, 1), {0: 0, 1: 1e-3, 2: 0}, {"closed": True}, [10, 0, 20], [0] * 3, 0),
        ((1, 4, 1, 1), {0: 0, 1: 1e-3, 2: 0}, {"closed": False}, [10], [0], 0),
        # Of one candidate too many the worst is dropped.
        ((1, 3, 1, 1), {0: 1, 1: 3, 2: 2}, {"pre": 2}, [10, 20], [0, 0], 1),
        # A greedy chain keeps what only a suppressed box overlaps: boxes of 3.9 m.
        ((1, 3, 1, 1), {0: 3, 1: 2, 2: 1}, {"x": [0, 2, 4], "nms_threshold": [0.2]}, [0, 4],
         [0, 0], 0),
        # Classes are apart, and a box may appear once per class.
        ((1, 2, 1, 2), {0: 1, 1: 2, 3: 3}, LABELED, [0, 0], [7, 4], 0),
        ((1, 2, 1, 2), {0: 1, 1: 2, 3: 3}, {**LABELED, "global_post": True}, [0, 0], [4, 7], 0),
        # A shared selection takes boxes and then their classes.
        ((1, 3, 1, 2), {0: 1, 1: 3, 2: 2, 5: 1.5}, SHARED, [0, 10, 0], [1, 0, 0], 1),
        # Thresholds of circles are squared, and one per group.
        ((1, 4, 1, 2), {0: KEPT, 2: KEPT, 5: KEPT, 7: KEPT}, CIRCLES, [0, 0, 2], [0, 1, 1], 0),
    ],
)  # fmt: skip
def test_rows_by_hand(device, shape, logits, options, xs, labels, overflow):
    """shape [H, W, A, C]; options["x"]: where the anchors are."""
    cls, options = quiet(*shape), dict(options)
    cls.view(-1)[list(logits)] = torch.tensor([float(v) for v in logits.values()])
    places = options.pop("x", None)
    call = anchor_call(cls, **options)
    if places:
        call["anchors"][0][0, :, 0, 0] = torch.tensor(places).float()
    out = detect(device, call)
    rows = int(out.count[0])
    assert boxes_x(out) == xs and out.labels[0, :rows].tolist() == labels
    assert out.overflow.tolist() == [overflow]
    assert options.get("group") or (out.scores[0, :rows].diff() <= 0).all()
    # Rows past the count are filled.
    assert (out.labels[0, rows:] == -1).all() and (out.scores[0, rows:] == 0).all()
    assert (out.boxes[0, rows:] == 0).all()


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("threshold", [1e-45, 3e-45, 1e-42, 1e-38])
def test_thresholds_of_subnormal_scores_are_exact(threshold, closed, device):
    logits = torch.linspace(-104, -86, 2000).reshape(1, 2000, 1, 1)
    scores, least = portable_math.sigmoid(logits.numpy()), np.float32(threshold)
    expected = int((scores >= least).sum() if closed else (scores > least).sum())
    call = anchor_call(logits, score_threshold=threshold, closed=closed, pre=2000, post=2000)
    assert detect(device, call).count.tolist() == [expected]


def test_logits_and_boxes_that_are_not_finite_are_dropped(device):
    logits = quiet(1, 6, 1, 2)
    logits[..., 0] = KEPT
    logits[0, 0] = torch.tensor([float("nan"), 1.0])  # the other class stands
    logits[0, 1] = float("inf")
    call = anchor_call(logits)
    call["box"][0][0, 3, 0, 2] = 100.0  # exp overflows
    call["box"][0][0, 6, 0, 3] = float("nan")
    out = detect(device, call)
    assert boxes_x(out) == [40, 50, 0] and out.labels[0, :3].tolist() == [0, 0, 1]
    assert out.overflow.tolist() == [0]


def test_boxes_without_area_stay_and_suppress_nothing(device):
    logits = quiet(1, 2, 1, 1) * 0 + KEPT
    call = anchor_call(logits)
    call["anchors"][0][..., 0] = 0.0
    assert detect(device, call).count.tolist() == [1]
    call["box"][0][0, 3] = -200.0  # exp is 0
    assert detect(device, call).count.tolist() == [2]


def test_a_shared_selection_reads_each_head_within_its_own_classes(device):
    """The map of the first head goes on with channels of somebody else, all of them high."""
    call, second = anchor_call(quiet(1, 2, 1, 1) * 0 + 2), anchor_call(quiet(1, 2, 1, 1) * 0 + 3)
    call["cls"] = [torch.cat([call["cls"][0], torch.full((1, 1, 1, 2), KEPT)], 1)[:, :1]]
    call = {k: v + second[k] if k in ("cls", "box", "anchors") else v for k, v in call.items()}
    out = detect(device, {**call, "group": "class", "shared_pre": True, "nms_threshold": [1.0]})
    assert out.count.tolist() == [4] and out.labels[0, :4].tolist() == [0, 0, 1, 1]
    assert (out.scores[0, 2:4] > 0.95).all()


def test_a_head_of_its_own_has_its_classes_and_cells(device):
    small, large = quiet(1, 2, 1, 1), quiet(2, 3, 2, 2)
    small[0, 1], large[1, 2, 1, 1] = KEPT, 3.0
    first, second = anchor_call(small), anchor_call(large)
    call = {k: v + second[k] if k in ("cls", "box", "anchors") else v for k, v in first.items()}
    for group, rows in (("none", [1, 0]), ("task", [0, 1]), ("class", [0, 1])):
        out = detect(device, {**call, "group": group})
        labels = [0, 2]
        assert out.labels[0, :2].tolist() == [labels[r] for r in rows], group
        assert boxes_x(out) == [[10, 110][r] for r in rows]


def test_the_direction_turns_the_box(device):
    logits = quiet(1, 4, 1, 1) * 0 + KEPT
    call = anchor_call(logits, dir_offset=0.78539)
    call["box"][0][0, 6, 0] = torch.tensor([0.0, 0.0, 2.0, -1.0])
    call["direction"] = [torch.zeros(1, 2, 1, 4)]
    call["direction"][0][0, 1, 0, 1] = 1.0
    yaw = detect(device, call).boxes[0, :4, 6]
    expected = torch.tensor([math.pi, 0 + 2 * math.pi, 2.0, math.pi - 1])
    torch.testing.assert_close(yaw, expected)
    flipped = detect(device, {**call, "dir_flip": True}).boxes[0, :4, 6]
    torch.testing.assert_close(flipped, expected + torch.tensor([1, -1, 1, 1]) * math.pi)


def center_maps(height: int, width: int, classes: int) -> dict:
    names = {"heatmap": classes, "offset": 2, "z": 1, "dim": 3, "rot": 2, "vel": 2}
    maps = {k: [torch.zeros(1, c, height, width)] for k, c in names.items()}
    maps["heatmap"][0][:] = -9.0
    rest = {
        "voxel_size": [0.5, 0.25, 1.0],
        "point_cloud_range": [-10.0, 5.0, 0.0, 10.0, 15.0, 1.0],
        "stride": 4,
        "score_threshold": 0.1,
        "nms_threshold": [0.2],
        "pre": 50,
        "post": 5,
    }
    return {**maps, **rest}


def test_a_center_is_its_cell_in_the_world(device):
    call = center_maps(3, 4, 2)
    call["heatmap"][0][0, 1, 2, 3] = KEPT
    values = {"offset": (0.25, 0.5), "z": (-1.0,), "dim": (0.0, 1.0, 2.0), "rot": (1.0, 0.0)}
    for name, column in {**values, "vel": (3.0, -4.0)}.items():
        call[name][0][0, :, 2, 3] = torch.tensor(column)
    out = detect(device, call)
    assert out.count.tolist() == [1] and out.labels[0, 0] == 1
    expected = [-10 + 3.25 * 2, 5 + 2.5 * 1, -1, 1, math.e, math.e**2, math.pi / 2, 3, -4]
    torch.testing.assert_close(out.boxes[0, 0], torch.tensor(expected))
    turned = detect(device, {**call, "rot_order": "cos_sin"}).boxes[0, 0, 6]
    assert turned == 0
    assert detect(device, {**call, "vel": []}).boxes.shape[-1] == 7


def test_the_range_includes_its_bounds_and_makes_room_for_none(device):
    call = center_maps(1, 4, 1)
    call["heatmap"][0][0, 0, 0] = torch.tensor([4.0, 3.0, 2.0, 1.0])  # x = -10, -8, -6, -4
    call["post_range"] = [-8.0, -99.0, -9.0, -4.0, 99.0, 9.0]
    out = detect(device, call)
    assert out.boxes[0, :3, 0].tolist() == [-8, -6, -4] and out.count.tolist() == [3]
    out = detect(device, {**call, "pre": 2})
    assert out.boxes[0, :1, 0].tolist() == [-8] and out.count.tolist() == [1]


def test_a_cell_appears_once_with_best_class(device):
    call = center_maps(1, 2, 2)
    call["heatmap"][0][0, :, 0, 0] = torch.tensor([1.0, 2.0])
    call["nms_threshold"] = [1.0]
    assert detect(device, call).labels[0, :3].tolist() == [1, 0, -1]
    assert detect(device, {**call, "best_class": True}).labels[0, :2].tolist() == [1, -1]


@pytest.mark.parametrize(
    ("code", "yaw"),
    [
        ([0.1], 0.6),
        ([0.1, 7.0, -8.0], 0.6),
        ([-math.cos(0.5), 1 - math.sin(0.5)], math.pi / 2),  # a cosine and a sine
        ([-math.cos(0.5), 1 - math.sin(0.5), 7.0, -8.0], math.pi / 2),
    ],
)
def test_box_decode_by_hand(code, yaw, device):
    """Differences in parts of the diagonal and the height, logarithms of sizes (SECOND, 2018)."""
    anchor = torch.tensor([1.0, 2.0, 3.0, 3.0, 4.0, 2.0, 0.5])
    deltas = torch.tensor([1.0, 2.0, 0.5, math.log(2), 0.0, -1.0, *code])
    boxes = ops.box_decode(deltas.to(device), anchor.to(device)).cpu()
    velocity = code[-2:] if len(code) > 2 else []
    expected = [6.0, 12.0, 4.0, 6.0, 4.0, 2 / math.e, yaw, *velocity]
    torch.testing.assert_close(boxes, torch.tensor(expected))
