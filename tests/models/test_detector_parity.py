# SPDX-License-Identifier: Apache-2.0
"""What the parity report of an imported detector tells."""

import pytest
import torch
from upstream.detector_parity import DetectorReport, agreement, detector_parity
from upstream_nets import small, small_points

from torchvox.models.importing import convert


def imported(upstream, **settings):
    return convert(upstream.network.state_dict(), settings={**upstream.settings, **settings})


def test_weights_that_are_not_finite_are_trouble():
    upstream = small("openpcdet anchors")
    upstream.network.dense_head.conv_box.weight.data[3] = float("nan")
    trouble = detector_parity(imported(upstream), small_points(4)).trouble(1e-3)
    assert "differ by nan" in trouble


def test_a_report_without_boxes_says_that_none_were_compared():
    upstream = small("openpcdet anchors")
    words = "no box was found here: how boxes are decoded was not compared"
    found = imported(upstream, **{"detections.score": 0.999})
    report = detector_parity(found, small_points(4))
    assert (report.boxes.theirs, report.boxes.ours) == (0, 0)
    assert dict(report.rows())["note"] == words
    assert "note" not in dict(detector_parity(imported(upstream), small_points(4)).rows())


BOXES = torch.tensor([[0.0, 0, 0, 1, 1, 1, 0], [5, 0, 0, 1, 1, 1, 3.1]])
SCORES, LABELS = torch.tensor([0.5, 0.4]), torch.tensor([0, 1])


def test_boxes_agree_in_any_order_and_up_to_whole_turns():
    turned = BOXES + torch.tensor([0, 0, 0, 0, 0, 0, 2 * torch.pi])
    mine = (BOXES, SCORES, LABELS)
    same = agreement(mine, (turned.flip(0), SCORES.flip(0), LABELS.flip(0)))
    assert (same.same, same.ours, same.score) == (2, 2, 0.0)
    assert same.box < 1e-5
    bad = BOXES.clone()
    bad[0, 5] = float("nan")
    for theirs, count in (
        ((BOXES, SCORES, LABELS.flip(0)), 0),
        ((BOXES[:1], SCORES[:1], LABELS[:1]), 1),
        ((BOXES[:0], SCORES[:0], LABELS[:0]), 0),
        ((bad, SCORES, LABELS), 1),
    ):
        assert agreement(mine, theirs).same == agreement(theirs, mine).same == count


def test_two_boxes_there_do_not_agree_with_one_here():
    two = BOXES[:1].repeat(2, 1), SCORES, torch.tensor([0, 0])
    assert agreement(two, [one[:1] for one in two]).same == 1


@pytest.mark.parametrize(
    ("theirs", "ours", "fits"),
    [(50, 49, True), (49, 50, True), (49, 48, False), (48, 49, False), (1, 9, False)],
)
def test_boxes_may_be_too_many_as_little_as_too_few(theirs, ours, fits):
    cars = torch.ones(50, 7)
    cars[:, 0] = 10.0 * torch.arange(50)  # meters apart
    rows = cars, torch.full((50,), 0.5), torch.zeros(50)
    found = agreement([one[:theirs] for one in rows], [one[:ours] for one in rows])
    assert (found.theirs, found.ours, found.same) == (theirs, ours, min(theirs, ours))
    trouble = DetectorReport(None, "", 1.0, {"cls": 0.0}, found).trouble(1e-4)
    words = f"{min(theirs, ours)} boxes agree of {theirs} there and {ours} here"
    assert trouble == (None if fits else words)
