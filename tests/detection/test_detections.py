# SPDX-License-Identifier: Apache-2.0
"""anchor_decode_nms and center_decode_nms: rules of the contract, one by one, on maps by hand."""

import math

import numpy as np
import pytest
import torch
from helpers import assert_same_bits
from op_infos import detection as infos
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
    moved = {
        k: [t.to(device) for t in v]
        if isinstance(v, list) and v and isinstance(v[0], Tensor)
        else v
        for k, v in call.items()
    }
    op = ops.anchor_decode_nms if "cls" in call else ops.center_decode_nms
    return torchvox.ops.Detections(*(t.cpu() for t in op(**moved)))


def quiet(*shape: int) -> Tensor:
    return torch.full(shape, -9.0)


def numbers(out: torchvox.ops.Detections) -> list[int]:
    """Which anchors of far_anchors the rows are."""
    return (out.boxes[0, : int(out.count[0]), 0] / 10).round().int().tolist()


def test_ties_go_to_the_lower_place_and_the_best_come_first(device):
    logits = quiet(4, 3, 2, 1)
    logits.view(-1)[[20, 3, 11, 7]] = torch.tensor([1.0, 1.0, 2.0, 1.0])
    out = detect(device, anchor_call(logits))
    assert numbers(out) == [11, 3, 7, 20]
    out = detect(device, anchor_call(logits, pre=3))
    assert numbers(out) == [11, 3, 7] and out.overflow.tolist() == [1]


def test_ties_of_a_whole_map_go_to_the_lowest_numbers(device):
    out = detect(device, anchor_call(torch.zeros(100, 50, 4, 1), pre=700, post=700))
    assert numbers(out) == list(range(700)) and out.overflow.tolist() == [20_000 - 700]


def test_saturated_scores_are_ties_of_one_label_each(device):
    logits = quiet(1, 3, 1, 2) * 0 + 30
    logits[0, 0, 0, 1] = 40.0
    logits[0, 2, 0, 0] = 50.0
    out = detect(device, anchor_call(logits))
    assert numbers(out) == [0, 1, 2] and out.labels[0, :3].tolist() == [1, 0, 0]
    assert out.scores[0, :4].tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize(("closed", "count"), [(True, 3), (False, 1)])
def test_a_score_at_the_threshold_passes_when_closed(closed, count, device):
    logits = quiet(1, 4, 1, 1)
    logits.view(-1)[:3] = torch.tensor([0.0, 1e-3, 0.0])  # sigmoid(0) is 0.5
    assert detect(device, anchor_call(logits, closed=closed)).count.tolist() == [count]


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("threshold", [1e-45, 3e-45, 1e-42, 1e-38])
def test_thresholds_of_subnormal_scores_are_exact(threshold, closed, device):
    logits = torch.linspace(-104, -86, 2000).reshape(1, 2000, 1, 1)
    scores, least = portable_math.sigmoid(logits.numpy()), np.float32(threshold)
    expected = int((scores >= least).sum() if closed else (scores > least).sum())
    call = anchor_call(logits, score_threshold=threshold, closed=closed, pre=2000, post=2000)
    assert detect(device, call).count.tolist() == [expected]


def test_rows_past_the_count_are_filled(device):
    logits = quiet(1, 4, 1, 1)
    logits.view(-1)[2] = KEPT
    out = detect(device, anchor_call(logits, post=3))
    assert out.count.tolist() == [1] and out.labels.tolist() == [[0, -1, -1]]
    assert out.scores[0, 0].item() == pytest.approx(0.9) and (out.scores[0, 1:] == 0).all()
    assert (out.boxes[0, 1:] == 0).all()


def test_logits_and_boxes_that_are_not_finite_are_dropped(device):
    logits = quiet(1, 6, 1, 2)
    logits[..., 0] = KEPT
    logits[0, 0] = torch.tensor([float("nan"), 1.0])  # the other class stands
    logits[0, 1] = float("inf")
    call = anchor_call(logits)
    call["box"][0][0, 3, 0, 2] = 100.0  # exp overflows
    call["box"][0][0, 6, 0, 3] = float("nan")
    out = detect(device, call)
    assert numbers(out) == [4, 5, 0] and out.labels[0, :3].tolist() == [0, 0, 1]
    assert out.overflow.tolist() == [0]


def test_boxes_without_area_stay_and_suppress_nothing(device):
    logits = quiet(1, 2, 1, 1) * 0 + KEPT
    call = anchor_call(logits)
    call["anchors"][0][..., 0] = 0.0
    assert detect(device, call).count.tolist() == [1]
    call["box"][0][0, 3] = -200.0  # exp is 0
    assert detect(device, call).count.tolist() == [2]


def test_classes_are_apart_and_a_box_may_appear_once_a_class(device):
    logits = quiet(1, 2, 1, 2)
    logits[0, 0, 0], logits[0, 1, 0, 1] = torch.tensor([1.0, 2.0]), 3.0
    call = anchor_call(logits, group="class", post=2, class_labels=[7, 4])
    call["anchors"][0][..., 0] = 0.0  # all at one place
    out = detect(device, call)
    assert out.count.tolist() == [2] and out.labels.tolist() == [[7, 4, -1, -1]]
    out = detect(device, {**call, "global_post": True})
    assert out.labels.tolist() == [[4, 7]] and out.scores[0, 0] > out.scores[0, 1]


def test_a_shared_selection_takes_boxes_and_then_their_classes(device):
    logits = quiet(1, 3, 1, 2)
    logits[0, :, 0] = torch.tensor([[1.0, 3.0], [2.0, -9.0], [-9.0, 1.5]])
    call = anchor_call(logits, group="class", shared_pre=True, global_post=True, pre=2)
    out = detect(device, call)
    assert numbers(out) == [0, 1, 0] and out.labels[0, :3].tolist() == [1, 0, 0]
    assert out.overflow.tolist() == [1]


def test_of_one_candidate_too_many_the_worst_is_dropped(device):
    logits = torch.tensor([1.0, 3.0, 2.0]).reshape(1, 3, 1, 1)
    out = detect(device, anchor_call(logits, pre=2))
    assert numbers(out) == [1, 2] and out.overflow.tolist() == [1]


def test_a_shared_selection_reads_each_head_within_its_own_classes(device):
    """The map of the first head goes on with channels of somebody else, all of them high."""
    call, second = anchor_call(quiet(1, 2, 1, 1) * 0 + 2), anchor_call(quiet(1, 2, 1, 1) * 0 + 3)
    call["cls"] = [torch.cat([call["cls"][0], torch.full((1, 1, 1, 2), KEPT)], 1)[:, :1]]
    call = {k: v + second[k] if k in ("cls", "box", "anchors") else v for k, v in call.items()}
    out = detect(device, {**call, "group": "class", "shared_pre": True, "nms_threshold": [1.0]})
    assert out.count.tolist() == [4] and out.labels[0, :4].tolist() == [0, 0, 1, 1]
    assert (out.scores[0, 2:4] > 0.95).all()


def test_a_greedy_chain_keeps_what_only_a_suppressed_box_overlaps(device):
    logits = torch.tensor([3.0, 2.0, 1.0]).reshape(1, 3, 1, 1)
    call = anchor_call(logits, nms_threshold=[0.2])
    call["anchors"][0][0, :, 0, 0] = torch.tensor([0.0, 2.0, 4.0])  # of 3.9 m
    out = detect(device, call)
    assert out.boxes[0, : out.count[0], 0].tolist() == [0.0, 4.0]


def test_thresholds_of_circles_are_squared_and_one_a_group(device):
    logits = quiet(1, 4, 1, 2)
    logits[0, :2, 0, 0], logits[0, 2:, 0, 1] = KEPT, KEPT
    call = anchor_call(logits, group="class", nms="circle", nms_threshold=[4.0, 3.9])
    call["anchors"][0][0, :, 0, 0] = torch.tensor([0.0, 2.0, 0.0, 2.0])
    assert detect(device, call).labels[0, :4].tolist() == [0, 1, 1, -1]


def test_a_head_of_its_own_has_its_classes_and_cells(device):
    small, large = quiet(1, 2, 1, 1), quiet(2, 3, 2, 2)
    small[0, 1], large[1, 2, 1, 1] = KEPT, 3.0
    first, second = anchor_call(small), anchor_call(large)
    call = {k: v + second[k] if k in ("cls", "box", "anchors") else v for k, v in first.items()}
    for group, rows in (("none", [1, 0]), ("task", [0, 1]), ("class", [0, 1])):
        out = detect(device, {**call, "group": group})
        labels = [0, 2]
        assert out.labels[0, :2].tolist() == [labels[r] for r in rows], group
        assert numbers(out) == [[1, 11][r] for r in rows]


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


@pytest.mark.parametrize("make", [infos.anchor_call, infos.center_call], ids=["anchors", "centers"])
def test_maps_are_read_where_they_lie(make, device):
    """As channels of one channels-last convolution's output."""
    call = make(30)
    expected = detect(device, call)
    maps = [k for k, v in call.items() if isinstance(v, list) and isinstance(v[0], Tensor)]
    maps.remove("anchors") if "anchors" in maps else None
    for head in range(len(call[maps[0]])):
        merged = torch.cat([call[k][head] for k in maps], 1).to(memory_format=torch.channels_last)
        parts = merged.split([call[k][head].size(1) for k in maps], 1)
        for name, part in zip(maps, parts, strict=True):
            call[name][head] = part
    assert_same_bits(detect(device, call), expected)


def test_a_sample_does_not_depend_on_its_batch(device):
    call = infos.anchor_call(40)
    both = detect(device, call)
    for b in range(infos.BATCH):
        maps = {k: [t[b : b + 1] for t in call[k]] for k in ("cls", "box", "direction")}
        alone = detect(device, {**call, **maps})
        assert_same_bits(alone, type(both)(*(t[b : b + 1] for t in both)))


def test_box_decode_is_the_decoding_of_the_heads(device):
    call = infos.anchor_call(30, score_threshold=0.0, pre=10_000, post=10_000, nms_threshold=[1.0])
    call["cls"] = [torch.arange(2.0 * 3 * 30 * 3 * 2).flip(0).reshape(2, 6, 30, 3) * 1e-3]
    out = detect(device, call)
    values = [m[0].unflatten(1, (infos.ANCHORS, -1)).permute(0, 3, 4, 1, 2) for m in
              (call["box"], call["direction"])]  # fmt: skip
    boxes = torchvox.box_decode(values[0], call["anchors"][0], direction=values[1],
                                dir_offset=call["dir_offset"])  # fmt: skip
    finite = [b[b.isfinite().all(-1)] for b in boxes.flatten(1, 3)]
    for b, expected in enumerate(finite):
        n = int(out.count[b])
        got = out.boxes[b, :n]
        assert n > 50 and all((row == expected).all(-1).any() for row in got)


@pytest.mark.parametrize("code", [7, 8, 9, 10])
@pytest.mark.parametrize("bins", [0, 2, 4])
def test_box_decode_follows_its_formulas(code, bins, device):
    """In float64, by hand: Yan et al., SECOND, Sensors 2018."""
    call = infos.decode_call(200, code=code, bins=bins, dir_limit=0.5)
    deltas, anchors, logits = (call[k] for k in ("deltas", "anchors", "direction"))
    deltas, logits = deltas.nan_to_num(0.5, 1.0, -1.0), logits if logits is None else logits.sin()
    moved = {"anchors": anchors.to(device), "deltas": deltas.to(device)}
    moved["direction"] = None if logits is None else logits.nan_to_num(0.0).to(device)
    boxes = ops.box_decode(**{**call, **moved}).cpu().double()

    d, (x, y, z, length, width, height, turn) = deltas.double(), anchors.double().unbind(-1)
    diagonal = torch.hypot(length, width)
    sizes = (d[..., 3:6].exp() * anchors[:, 3:6].double()).unbind(-1)
    yaw = d[..., 6] + turn
    if code in (8, 10):
        yaw = torch.atan2(d[..., 7] + turn.sin(), d[..., 6] + turn.cos())
    if bins:
        period = 2 * math.pi / bins
        off = yaw - call["dir_offset"]
        wrapped = off - torch.floor(off / period + 0.5) * period
        best = moved["direction"].cpu().argmax(-1)
        yaw = wrapped + call["dir_offset"] + period * best
    places = (d[..., 0] * diagonal + x, d[..., 1] * diagonal + y, d[..., 2] * height + z)
    velocity = d[..., code - 2 :].unbind(-1) if code > 8 else ()
    expected = torch.stack([*places, *sizes, yaw, *velocity], -1)
    assert boxes.shape == expected.shape
    torch.testing.assert_close(boxes, expected, rtol=1e-5, atol=1e-5)
