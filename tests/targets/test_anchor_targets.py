# SPDX-License-Identifier: Apache-2.0
"""anchor_targets: both orders of assignment, ties, ignored boxes."""

import pytest
import torch
from helpers import check_op
from hypothesis import given, settings
from hypothesis import strategies as st
from op_infos.targets import anchor_call, anchor_grid
from scenes import scenes

import torchvox

RULES = {"class_of_anchor": [0], "matched": [0.6], "unmatched": [0.4]}


def square(x: float, l: float = 2.0, w: float = 2.0, yaw: float = 0.0) -> list[float]:  # noqa: E741
    return [x, 0.0, 0.0, l, w, 1.5, yaw]


def row_of_anchors(*xs: float) -> torch.Tensor:
    """[1, W, 1, 7]: squares of 2 m."""
    return torch.tensor([[[square(x)] for x in xs]])


def assign(boxes, anchors, device="cpu", labels=None, weight=None, **options) -> list:
    call = {
        "boxes": torch.tensor([boxes], device=device).reshape(1, -1, 7),
        "labels": torch.tensor([labels or [0] * len(boxes)], device=device, dtype=torch.int32),
        "weight": None if weight is None else torch.tensor([weight], device=device),
        "num_boxes": None,
        "anchors": anchors.to(device),
        **RULES,
        **options,
    }
    out = torchvox.anchor_targets(**call)
    assert out.num_pos.tolist() == [(out.assigned >= 0).sum().item()]
    return out.assigned.flatten().tolist()


def test_overlaps_decide_between_positive_background_and_neither(device):
    # Shifts of 0, 1/3, 1/2, 1 and 2 m of 2 m: overlaps of 1, .71, .6, .33 and 0.
    anchors = row_of_anchors(0.0, 1 / 3, 0.5, 1.0, 2.0)
    for mode in ("pcdet", "mmdet"):
        got = assign([square(0.0)], anchors, device, mode=mode, matched=[0.65], unmatched=[0.4])
        assert got == [0, 0, -2, -1, -1]


def test_all_anchors_that_tie_for_a_box_are_forced(device):
    anchors = row_of_anchors(-1.0, 1.0, 3.0)
    assert assign([square(0.0)], anchors, device) == [0, 0, -1]
    # A third is below what mmdetection asks for.
    assert assign([square(0.0)], anchors, device, mode="mmdet") == [-1, -1, -1]
    assert assign([square(0.0)], anchors, device, mode="mmdet", min_pos=[0.3]) == [0, 0, -1]


def test_a_forced_anchor_learns_its_own_best_box_or_the_one_that_forces(device):
    """The anchor is the best of both boxes; the second overlaps it less."""
    boxes, anchors = [square(0.0), square(0.9)], row_of_anchors(0.0, 9.0)
    assert assign(boxes, anchors, device) == [0, -1]
    assert assign(boxes, anchors, device, mode="mmdet", min_pos=[0.3]) == [1, -1]
    assert assign(boxes[::-1], anchors, device) == [1, -1]
    assert assign(boxes[::-1], anchors, device, mode="mmdet", min_pos=[0.3]) == [1, -1]


def test_of_equal_boxes_the_first_is_best_and_the_last_forces(device):
    boxes, anchors = [square(0.0)] * 3, row_of_anchors(0.0, 0.4)
    assert assign(boxes, anchors, device) == [0, 0]
    assert assign(boxes, anchors, device, mode="mmdet") == [2, 0]


@pytest.mark.parametrize("mode", ["pcdet", "mmdet"])
def test_what_overlaps_an_ignored_box_most_counts_for_nothing(mode, device):
    anchors = row_of_anchors(0.0, 0.5, 1.0, 1.9, 4.0)
    assert assign([square(0.0)], anchors, device, weight=[0.0], mode=mode) == [-2] * 4 + [-1]
    boxes = [square(0.0), square(1.0)]
    got = assign(boxes, anchors, device, weight=[0.0, 1.0], mode=mode)
    assert got == [-2, -2, 1, -1, -1]


@pytest.mark.parametrize("mode", ["pcdet", "mmdet"])
def test_boxes_that_are_none_leave_background(mode, device):
    nan = float("nan")
    boxes = [square(0.0, l=0.0), square(0.0, w=-2.0), square(nan), square(0.0, yaw=nan), square(0)]
    labels = [0, 0, 0, 0, -1]
    anchors = row_of_anchors(0.0, 1.0)
    assert assign(boxes, anchors, device, labels=labels, mode=mode, min_pos=[0.0]) == [-1, -1]
    assert assign([], anchors, device, mode=mode) == [-1, -1]


def test_anchors_meet_boxes_of_their_class_or_of_all(device):
    anchors = row_of_anchors(0.0).expand(1, 1, 3, 7)
    options = {"class_of_anchor": [0, 1, -1], "matched": [0.6] * 3, "unmatched": [0.4] * 3}
    assert assign([square(0.0)], anchors, device, labels=[1], **options) == [-1, 0, 0]
    assert assign([square(0.0)], anchors, device, labels=[2], **options) == [-1, -1, 0]


def test_boxes_lie_along_the_nearest_axis(device):
    """A turned box, and one at an eighth of a turn, which the two modes round differently."""
    along, across = square(0.0, l=4.0), square(0.0, l=4.0, yaw=1.57)
    anchors = torch.tensor([[[along, across]]])
    rules = {"class_of_anchor": [0, 0], "matched": [0.9] * 2, "unmatched": [0.8] * 2}
    assert assign([square(0.0, l=4.0, yaw=3.0)], anchors, device, **rules) == [0, -1]
    assert assign([square(0.0, l=4.0, yaw=-1.2)], anchors, device, **rules) == [-1, 0]
    eighth = [square(0.0, l=4.0, yaw=torch.pi / 4)]
    assert assign(eighth, anchors, device, **rules) == [-1, 0]
    assert assign(eighth, anchors, device, mode="mmdet", **rules) == [0, -1]


@settings(max_examples=150, deadline=None)
@given(
    scenes(),
    st.sampled_from(["pcdet", "mmdet"]),
    st.lists(st.sampled_from([-1, 0, 1, 2]), min_size=2, max_size=2),
    st.lists(st.sampled_from([1.0, 0.5, 0.6, 1 / 3, 0.2]), min_size=4, max_size=4),
    st.sampled_from([None, [0.0, 0.3], [0.5, 1.0]]),
)
def test_any_scene_is_assigned_as_the_loops_do(scene, mode, classes, thresholds, min_pos):
    anchors = torch.zeros(3, 6, 2, 7)
    anchors[..., 0] = torch.arange(6)[:, None] * 0.5
    anchors[..., 1] = torch.arange(3)[:, None, None] * 0.5
    anchors[..., 3:6] = torch.tensor([2.0, 1.0, 1.5])
    anchors[..., 1, 6] = 1.57
    call = {
        **scene,
        "anchors": anchors,
        "class_of_anchor": classes,
        "matched": thresholds[:2],
        "unmatched": thresholds[2:],
        "mode": mode,
        "min_pos": min_pos,
    }
    check_op("anchor_targets", "cpu", **call)


@pytest.mark.parametrize("mode", ["pcdet", "mmdet"])
def test_a_grid_of_a_detectors_size_is_assigned_as_the_loops_do(mode, device):
    """Several blocks of anchors, more boxes than one list takes."""
    call = anchor_call(290, anchors=anchor_grid(32, 30), mode=mode)
    assigned, _ = check_op("anchor_targets", device, **call)
    assert (assigned >= 0).any() and (assigned == -2).any()
