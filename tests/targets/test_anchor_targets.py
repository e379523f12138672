# SPDX-License-Identifier: Apache-2.0
"""anchor_targets: both orders of assignment, ties, ignored boxes."""

import pytest
import torch
from helpers import check_op
from hypothesis import given, settings
from hypothesis import strategies as st
from op_infos.targets import anchor_call, anchor_grid
from samples import on
from scenes import scene

import torchvox

RULES = {"class_of_anchor": [0], "matched": [0.6], "unmatched": [0.4]}


def square(x: float, l: float = 2.0, w: float = 2.0, yaw: float = 0.0) -> list[float]:  # noqa: E741
    return [x, 0.0, 0.0, l, w, 1.5, yaw]


NAN = float("nan")
MMDET, A_THIRD = {"mode": "mmdet"}, {"mode": "mmdet", "min_pos": [0.3]}
TWO, SAME = [square(0.0), square(0.9)], [square(0.0)] * 3
NO_BOXES = [square(0.0, l=0.0), square(0.0, w=-2.0), square(NAN), square(0.0, yaw=NAN), square(0)]
EACH_MODE = ({"mode": "pcdet"}, MMDET)
CLASSES = {"class_of_anchor": [0, 1, -1], "matched": [0.6] * 3, "unmatched": [0.4] * 3}
TURNED = {"class_of_anchor": [0, 0], "matched": [0.9] * 2, "unmatched": [0.8] * 2}
LONG = [square(0.0, l=4.0), square(0.0, l=4.0, yaw=1.57)]  # along x and across
EIGHTH = [square(0.0, l=4.0, yaw=torch.pi / 4)]


@pytest.mark.parametrize(
    ("boxes", "anchors", "options", "assigned"),
    [
        # Shifts of 0, 1/3, 1/2, 1 and 2 m of 2 m: overlaps of 1, .71, .6, .33 and 0.
        *(([square(0.0)], [0.0, 1 / 3, 0.5, 1.0, 2.0], {**mode, "matched": [0.65]},
           [0, 0, -2, -1, -1]) for mode in EACH_MODE),
        # All anchors that tie for a box are forced; a third is below what mmdetection asks for.
        ([square(0.0)], [-1.0, 1.0, 3.0], {}, [0, 0, -1]),
        ([square(0.0)], [-1.0, 1.0, 3.0], MMDET, [-1, -1, -1]),
        ([square(0.0)], [-1.0, 1.0, 3.0], A_THIRD, [0, 0, -1]),
        # An anchor that is the best of both boxes learns its own best box or the one that forces.
        (TWO, [0.0, 9.0], {}, [0, -1]),
        (TWO, [0.0, 9.0], A_THIRD, [1, -1]),
        (TWO[::-1], [0.0, 9.0], {}, [1, -1]),
        (TWO[::-1], [0.0, 9.0], A_THIRD, [1, -1]),
        # Of equal boxes the first is best and the last forces.
        (SAME, [0.0, 0.4], {}, [0, 0]),
        (SAME, [0.0, 0.4], MMDET, [2, 0]),
        # An anchor that overlaps an ignored box most is ignored.
        *(([square(0.0)], [0.0, 0.5, 1.0, 1.9, 4.0], {**mode, "weight": [0.0]}, [-2] * 4 + [-1])
          for mode in EACH_MODE),
        *(([square(0.0), square(1.0)], [0.0, 0.5, 1.0, 1.9, 4.0], {**mode, "weight": [0.0, 1.0]},
           [-2, -2, 1, -1, -1]) for mode in EACH_MODE),
        # Boxes without an area, not finite or without a label leave background.
        *((NO_BOXES, [0.0, 1.0], {**mode, "labels": [0, 0, 0, 0, -1], "min_pos": [0.0]}, [-1, -1])
          for mode in EACH_MODE),
        *(([], [0.0, 1.0], mode, [-1, -1]) for mode in EACH_MODE),
        # Anchors meet boxes of their class or of all.
        ([square(0.0)], [[square(0.0)] * 3], {**CLASSES, "labels": [1]}, [-1, 0, 0]),
        ([square(0.0)], [[square(0.0)] * 3], {**CLASSES, "labels": [2]}, [-1, -1, 0]),
        # Boxes lie along the nearest axis; the modes round an eighth of a turn differently.
        ([square(0.0, l=4.0, yaw=3.0)], [LONG], TURNED, [0, -1]),
        ([square(0.0, l=4.0, yaw=-1.2)], [LONG], TURNED, [-1, 0]),
        (EIGHTH, [LONG], TURNED, [-1, 0]),
        (EIGHTH, [LONG], {**TURNED, **MMDET}, [0, -1]),
    ],
)  # fmt: skip
def test_anchors_by_hand(device, boxes, anchors, options, assigned):
    """anchors: the x of squares of 2 m, or a cell of boxes."""
    cells = [a if isinstance(a, list) else [square(a)] for a in anchors]
    call = {"labels": [0] * len(boxes), "weight": None, **RULES, **options}
    call["labels"] = torch.tensor([call["labels"]], dtype=torch.int32)
    call["weight"] = None if call["weight"] is None else torch.tensor([call["weight"]])
    call |= {"boxes": torch.tensor([boxes]).reshape(1, -1, 7), "num_boxes": None}
    out = torchvox.anchor_targets(**on(device, {**call, "anchors": torch.tensor([cells])}))
    assert out.assigned.flatten().tolist() == assigned
    assert out.num_pos.tolist() == [sum(box >= 0 for box in assigned)]


@settings(max_examples=250)
@given(
    st.integers(0, 8),
    st.integers(0, 2**30),
    st.sampled_from(["pcdet", "mmdet"]),
    st.lists(st.sampled_from([-1, 0, 1, 2]), min_size=2, max_size=2),
    st.lists(st.sampled_from([1.0, 0.5, 0.6, 1 / 3, 0.2]), min_size=4, max_size=4),
    st.sampled_from([None, [0.0, 0.3], [0.5, 1.0]]),
)
def test_any_scene_is_assigned_as_the_loops_do(count, seed, mode, classes, thresholds, min_pos):
    anchors = torch.zeros(3, 6, 2, 7)
    anchors[..., 0] = torch.arange(6)[:, None] * 0.5
    anchors[..., 1] = torch.arange(3)[:, None, None] * 0.5
    anchors[..., 3:6] = torch.tensor([2.0, 1.0, 1.5])
    anchors[..., 1, 6] = 1.57
    call = {
        **scene(count, seed),
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
