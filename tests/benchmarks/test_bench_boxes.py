# SPDX-License-Identifier: Apache-2.0
"""How results of other libraries for boxes and groups are judged."""

import pytest
import torch

from benchmarks.boxes import InsideCase, NmsCase, candidates, compare_inside, compare_kept
from benchmarks.neighbor_lists import WithDistCase, compare_samples
from benchmarks.neighbors import BallCase, compare_groups
from benchmarks.suite import WrongResult


@pytest.fixture
def case():
    boxes, scores = candidates(400)
    return NmsCase(boxes[None], scores[None], 0.2, 100)


def test_kept_boxes_may_go_past_the_limit_and_differ_in_a_few(case):
    outputs = case.torchvox()
    kept = outputs[0][0][outputs[0][0] >= 0].long()
    assert len(kept) == 100
    more = torch.cat([kept, torch.tensor([399])])
    assert compare_kept(case, outputs, [more]) == "the same boxes"
    other = next(i for i in range(400) if i not in kept)
    one_off = torch.cat([kept[:-1], torch.tensor([other])])
    assert compare_kept(case, outputs, [one_off]) == "99.00 % of the kept boxes are the same"
    with pytest.raises(WrongResult, match=r"50\.0 % of the kept boxes"):
        compare_kept(case, outputs, [kept[:50]])


def test_other_boxes_of_points_are_wrong():
    points = torch.rand(1, 2000, 3)
    boxes = torch.tensor([[[0.5, 0.5, 0.5, 0.4, 0.4, 2.0, 0.3]]])
    case = InsideCase(points, boxes, "index", "cube")
    outputs = case.torchvox()
    assert compare_inside(outputs, outputs[0]).startswith("0 of 2000 differ")
    with pytest.raises(WrongResult, match="of 2000 differ"):
        compare_inside(outputs, torch.full_like(outputs[0], -1))


def test_other_groups_are_wrong():
    points = torch.rand(1, 300, 3)
    case = BallCase(points, points[:, :50], "cube", (0.2,), (8,), torch.rand(1, 300, 2))
    case = BallCase(**{**vars(case), "op": "query_and_group"})
    outputs = case.torchvox()
    assert compare_groups(outputs, outputs[0].clone()) == "the same groups in all but 0 balls"
    with pytest.raises(WrongResult, match="1 of 50 groups differ"):
        changed = outputs[0].clone()
        changed[0, 3, 1, 0] += 0.01
        compare_groups(outputs, changed)


def test_of_points_as_far_any_is_a_sample():
    x = torch.tensor([0.0, 1.0, -4.0, 4.0])
    case = WithDistCase((x[:, None] - x).abs()[None], 3, "by hand")
    outputs = case.torchvox()
    first = outputs[0][0].tolist()
    other = [0, *{2: (3, 2), 3: (2, 3)}[first[1]]]
    assert compare_samples(case, outputs, torch.tensor([first])) == "same samples"
    assert compare_samples(case, outputs, torch.tensor([other])).startswith("each sample a furth")
    with pytest.raises(WrongResult, match="2 samples are not the furthest"):
        compare_samples(case, outputs, torch.tensor([[0, 1, 1]]))
