# SPDX-License-Identifier: Apache-2.0
"""rotated_nms is greedy suppression, ties, groups, capacities and large inputs included."""

import time

import pytest
import torch
from box_cases import box, random_pairs
from helpers import assert_same_bits, forced

import torchvox


def scattered(n: int, spread: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """boxes [1, n, 7] over some meters and scores [1, n] with many ties."""
    boxes, _ = random_pairs(n, seed, scale=spread)
    g = torch.Generator().manual_seed(seed)
    return boxes[None], (torch.rand(1, n, generator=g) * 50).round() / 50


def greedy(boxes, scores, threshold) -> list[int]:
    """One sample: the oracle over the matrix of overlaps."""
    iou = torchvox.rotated_iou(boxes, boxes)
    alive, kept = torch.ones(len(boxes), dtype=torch.bool), []
    for i in torch.sort(scores, descending=True, stable=True).indices.tolist():
        if alive[i]:
            kept.append(i)
            alive &= ~(iou[i] > threshold)
    return kept


@pytest.mark.parametrize("threshold", [0.0, 0.01, 0.2, 0.7, 1.0])
@pytest.mark.parametrize(("n", "spread"), [(65, 1.0), (500, 3.0), (1000, 30.0), (4500, 60.0)])
def test_it_keeps_what_the_greedy_oracle_keeps(n, spread, threshold, device):
    boxes, scores = scattered(n, spread)
    kept = greedy(boxes[0], scores[0], threshold)
    for order in ("counted", "sorted"):
        with forced(nms_order=order):
            index, count = torchvox.rotated_nms(boxes.to(device), scores.to(device), threshold, n)
        assert int(count) == len(kept)
        assert index[0].tolist() == kept + [-1] * (n - len(kept))


def test_one_sample_needs_no_batch_and_no_capacity(device):
    boxes, scores = (t.to(device) for t in scattered(70, 8.0))
    group = torch.arange(70, device=device)[None] % 2
    kept = torchvox.rotated_nms(boxes, scores, 0.1, 70, group=group)
    alone = torchvox.rotated_nms(boxes[0], scores[0], 0.1, group=group[0])
    assert_same_bits(alone.index, kept.index[0])
    assert_same_bits(alone.count, kept.count[0])
    with pytest.raises(ValueError, match=r"boxes must be \[B, N, 7\], .*, got \[70, 7\]"):
        torchvox.rotated_nms(boxes[0], scores, 0.1, 4)


def test_equal_scores_go_by_index(device):
    boxes = torch.tensor([[box(), box(x=0.1), box(x=9.0), box(x=9.1)]], device=device)
    for scores in ([0.5] * 4, [0.0, -0.0, -0.0, 0.0]):
        index, count = torchvox.rotated_nms(boxes, torch.tensor([scores], device=device), 0.5, 4)
        assert index.tolist() == [[0, 2, -1, -1]] and count.tolist() == [2]


def test_capacity_cuts_the_list_and_nothing_else(device):
    boxes, scores = (t.to(device) for t in scattered(400, 20.0))
    whole, total = torchvox.rotated_nms(boxes, scores, 0.1, 400)
    for most in (0, 1, 63, 64, 65, int(total), 1000):
        index, count = torchvox.rotated_nms(boxes, scores, 0.1, most)
        kept = min(most, int(total))
        assert int(count) == kept and (index[0, kept:] == -1).all()
        assert_same_bits(index[0, :kept], whole[0, :kept])


def test_circles_compare_the_squared_distance(device):
    x = torch.tensor([0.0, 2.0, 4.5, 4.6, 8.0])
    boxes = torch.zeros(1, 5, 7)  # sizes do not count
    boxes[0, :, 0] = x
    scores = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0]])
    index, count = torchvox.rotated_nms(boxes.to(device), scores.to(device), 4.0, 5, mode="circle")
    assert index.tolist() == [[0, 2, 4, -1, -1]] and int(count) == 3


def test_boxes_and_scores_that_are_not_finite_are_left_out(device):
    bad = float("nan")
    boxes = torch.tensor(
        [[box(), box(x=bad), box(z=bad), box(yaw=float("inf")), box(), box(l=0.0)]]
    )
    scores = torch.tensor([[0.1, 0.9, 0.9, 0.9, bad, 0.5]])
    index, _ = torchvox.rotated_nms(boxes.to(device), scores.to(device), 0.0, 6)
    assert index[0].tolist() == [5, 0, -1, -1, -1, -1]  # a box without area overlaps nothing


def test_a_chain_across_tiles_keeps_every_second_box(device):
    n = 9000
    boxes = torch.zeros(1, n, 7)
    boxes[0, :, 0] = torch.arange(n) * 0.5
    boxes[0, :, 3:6] = 1.0
    scores = -torch.arange(n, dtype=torch.float32)[None]
    index, count = torchvox.rotated_nms(boxes.to(device), scores.to(device), 0.3, n)
    assert int(count) == n // 2
    assert index[0, : n // 2].tolist() == list(range(0, n, 2))


def test_fifty_thousand_candidates_stay_bounded(device):
    """CUDA-PointPillars#43 reports 80 s with 3,000. Widely spread: no box saves others the work."""
    boxes, scores = (t.to(device) for t in scattered(50_000, 800.0))
    begin = time.perf_counter()
    assert int(torchvox.rotated_nms(boxes, scores, 0.2, 50_000).count) > 9_999
    assert time.perf_counter() - begin < 60
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torchvox.rotated_nms(boxes, scores, 0.2, 50_000)
        assert torch.cuda.max_memory_allocated() - before < 16 << 20


def test_groups_never_meet(device):
    boxes, scores = scattered(600, 4.0)
    group = torch.randint(-1, 3, (1, 600), generator=torch.Generator().manual_seed(1))
    index, count = torchvox.rotated_nms(
        boxes.to(device), scores.to(device), 0.1, 600, group=group.to(device)
    )
    kept = index[0, : int(count)].tolist()
    alone = []
    for g in range(-1, 3):
        members = (group[0] == g).nonzero()[:, 0]
        alone += members[greedy(boxes[0, members], scores[0, members], 0.1)].tolist()
    assert sorted(kept) == sorted(alone)
    by_score = sorted(kept, key=lambda i: (-float(scores[0, i]), i))
    assert kept == by_score
