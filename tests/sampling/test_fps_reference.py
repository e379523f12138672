# SPDX-License-Identifier: Apache-2.0
"""The reference itself, against values worked out by hand."""

import numpy as np
import pytest
import torch

from torchvox import reference
from torchvox.reference import sampling

INF = float("inf")


def cloud(*rows):
    return torch.tensor([rows], dtype=torch.float32)


def on_axis(*x):
    return cloud(*[(v, 0.0, 0.0) for v in x])


def fps(points, s, **options):
    idx, dist2 = reference.furthest_point_sample(points, s, **options)
    return idx[0].tolist(), dist2[0].tolist()


def test_points_on_a_line_halve_the_largest_gap():
    # 0, then 8 (64 away), then 4 (16), then 2 and 6 (4 each, the lower index first).
    assert fps(on_axis(*range(9)), 5) == ([0, 8, 4, 2, 6], [INF, 64, 16, 4, 4])


def test_outputs_are_int32_and_float32():
    idx, dist2 = reference.furthest_point_sample(on_axis(0, 1), 1)
    assert (idx.dtype, dist2.dtype) == (torch.int32, torch.float32)


def test_the_corners_of_a_rectangle():
    points = cloud((0, 0, 0), (4, 0, 0), (0, 3, 0), (4, 3, 0))
    assert fps(points, 4) == ([0, 3, 1, 2], [INF, 25, 9, 9])


def test_start_at_another_point():
    assert fps(on_axis(*range(9)), 3, start=4) == ([4, 0, 8], [INF, 16, 16])


def test_equal_distances_go_to_the_lower_index():
    points = on_axis(0, 1, -1, 1, -1)
    assert fps(points, 2)[0] == [0, 1]


@pytest.mark.parametrize(
    ("tie_block", "order"),
    [
        (1, [0, 1, 2, 3, 4, 5, 6, 7]),  # code = i
        (2, [0, 2, 4, 6, 1, 3, 5, 7]),  # even before odd
        (4, [0, 4, 2, 6, 1, 5, 3, 7]),
        (8, [0, 4, 2, 6, 1, 5, 3, 7]),  # bit reversal of three bits
        (1024, [0, 4, 2, 6, 1, 5, 3, 7]),  # any larger block gives the same order
    ],
)
def test_mmcv_tie_order_of_eight_equal_points(tie_block, order):
    points = on_axis(*[1.0] * 8)
    assert fps(points, 8, tie="mmcv", tie_block=tie_block)[0] == order


def test_mmcv_ties_among_equal_distances():
    # After 0 every other point is 1 away: bit 0 decides first, so 4 before 2 before 6 before 1.
    points = on_axis(0, 1, 1, 1, 1, 1, 1)
    assert fps(points, 3, tie="mmcv") == ([0, 4, 2], [INF, 1, 0])


def test_the_two_contractions_round_differently():
    # dy*dy is rounded first in pn2, dx*dx in loop.
    p = torch.tensor([[[0.0, 0.0, 0.0], [0.1, 0.7, 0.3]]])
    x, y, z = (float(np.float32(v)) for v in (0.1, 0.7, 0.3))
    f32 = np.float32

    def round_once(value):  # these sums of two terms are exact enough in double
        return float(f32(value))

    pn2 = round_once(z * z + round_once(x * x + round_once(y * y)))
    loop = round_once(z * z + round_once(y * y + round_once(x * x)))
    assert fps(p, 2)[1] == [INF, pn2]
    assert fps(p, 2, dist_order="loop")[1] == [INF, loop]


def test_a_case_where_the_contractions_disagree():
    rng = np.random.default_rng(0)
    points = torch.from_numpy(rng.random((1, 2000, 3)).astype(np.float32))
    pn2 = sampling.squared_distance(points[0].numpy(), points[0, 0].numpy(), "pn2")
    loop = sampling.squared_distance(points[0].numpy(), points[0, 0].numpy(), "loop")
    assert 100 < (pn2 != loop).sum() < 1000
    np.testing.assert_allclose(pn2, loop, rtol=3e-7)


def test_dimensions_other_than_three_use_the_loop():
    points = torch.tensor([[[0.0], [3.0], [1.0]]])
    assert fps(points, 3) == ([0, 1, 2], [INF, 9, 1])
    points = torch.tensor([[[0.0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 3]]])
    assert fps(points, 3) == ([0, 2, 1], [INF, 9, 4])


def test_exhausted_distinct_gives_each_point_once_then_minus_one():
    points = on_axis(5, 5, 7, 5)
    assert fps(points, 6) == ([0, 2, 1, 3, -1, -1], [INF, 4, 0, 0, 0, 0])


def test_exhausted_repeat_gives_the_tie_winner_again():
    points = on_axis(5, 5, 7, 5)
    expected = ([2, 0, 0, 0, 0, 0], [INF, 4, 0, 0, 0, 0])
    assert fps(points, 6, start=2, exhausted="repeat") == expected


def test_repeat_with_an_unusable_point_zero_gives_the_first_candidate():
    points = on_axis(float("nan"), 5, 7)
    assert fps(points, 4, exhausted="repeat") == ([1, 2, 1, 1], [INF, 4, 0, 0])


def test_lengths_hide_points_and_counts_end_rows():
    points = on_axis(0, 1, 2, 100).expand(3, -1, -1)
    idx, dist2 = reference.furthest_point_sample(
        points, 3, lengths=torch.tensor([3, 0, 9]), counts=torch.tensor([2, 3, -1])
    )
    assert idx.tolist() == [[0, 2, -1], [-1, -1, -1], [-1, -1, -1]]
    assert dist2.tolist() == [[INF, 4, 0], [0, 0, 0], [0, 0, 0]]


def test_a_start_set_is_emitted_as_given():
    points = on_axis(0, 1, 2, 3, 9)
    options = {"start_idx": torch.tensor([[2, 2, 0]])}
    assert fps(points, 5, **options) == ([2, 2, 0, 4, 1], [INF, INF, INF, 49, 1])
    assert fps(points, 2, **options) == ([2, 2], [INF, INF])


def test_an_invalid_start_becomes_the_first_candidate():
    points = on_axis(float("nan"), 1, 2, 4)
    for start in ([0], [7], [-3]):
        assert fps(points, 2, start_idx=torch.tensor(start)) == ([1, 3], [INF, 9])
    assert fps(points, 3, start_idx=torch.tensor([[3, 0]])) == ([3, 1, 2], [INF, INF, 1])
    assert fps(points, 2, start=4)[0] == [1, 3]


def test_nonfinite_points_are_skipped_or_come_last():
    points = on_axis(float("nan"), 0, INF, 3, -INF)
    assert fps(points, 5, start=1) == ([1, 3, -1, -1, -1], [INF, 9, 0, 0, 0])
    assert fps(points, 5, start=1, nonfinite="last") == ([1, 3, 0, 2, 4], [INF, 9, 0, 0, 0])


def test_only_nonfinite_points():
    points = on_axis(float("nan"), INF, -INF)
    assert fps(points, 4) == ([-1, -1, -1, -1], [0, 0, 0, 0])
    assert fps(points, 4, nonfinite="last") == ([0, 1, 2, -1], [0, 0, 0, 0])
    assert fps(points, 3, exhausted="repeat") == ([0, 0, 0], [INF, 0, 0])


def test_skip_origin_excludes_near_points_but_not_the_start():
    points = on_axis(0.01, 0.02, 5, 6)
    assert fps(points, 4, skip_origin=True) == (
        [0, 3, 2, -1],
        [INF, float(np.float32(6 - np.float32(0.01)) ** 2), 1, 0],
    )


def test_init_dist2_saturates_distances():
    points = on_axis(0, 3e5, 9e5)
    assert fps(points, 2)[0] == [0, 2]
    assert fps(points, 3, init_dist2=1e10) == ([0, 1, 2], [INF, 1e10, 1e10])  # mmcv's order
    assert fps(on_axis(0, 1, 2), 3, init_dist2=0.0) == ([0, 1, 2], [INF, 0, 0])


def test_float64_distances_are_not_rounded_to_float32():
    points = torch.tensor([[[0.0, 0, 0], [1 + 2.0**-40, 0, 0]]], dtype=torch.float64)
    _, dist2 = reference.furthest_point_sample(points, 2)
    assert dist2.dtype == torch.float64 and dist2[0, 1].item() == (1 + 2.0**-40) ** 2


def test_ragged_clouds_by_hand():
    points = on_axis(0, 1, 2, 10, 10, 20, 15)[0]
    batch_offsets, out_offsets = torch.tensor([0, 3, 3, 7]), torch.tensor([0, 2, 3, 6])
    idx, dist2 = reference.furthest_point_sample_ragged(points, batch_offsets, out_offsets, 8)
    assert idx.tolist() == [0, 2, -1, 3, 5, 6, -1, -1]
    assert dist2.tolist() == [INF, 4, 0, INF, 100, 25, 0, 0]
    idx, _ = reference.furthest_point_sample_ragged(
        points, batch_offsets, out_offsets, 8, local_index=True
    )
    assert idx.tolist() == [0, 2, -1, 0, 2, 3, -1, -1]


def test_gather_by_hand():
    features = torch.tensor([[[1.0, 2], [3, 4], [5, 6]]])
    out = reference.gather_points(features, torch.tensor([[2, -1, 3, 0]]))
    assert out.tolist() == [[[5, 6], [0, 0], [0, 0], [1, 2]]]
    out = reference.gather_points(
        features.transpose(1, 2), torch.tensor([[2, -1, 3, 0]]), channels_first=True
    )
    assert out.tolist() == [[[5, 0, 0, 1], [6, 0, 0, 2]]]


def test_gather_backward_adds_runs_of_256():
    # 256 ones after 2^24: one by one they vanish, as the sum of a second run they do not.
    grad = torch.ones(1, 512, 1)
    grad[0, 0, 0] = 2.0**24
    idx = torch.zeros(1, 512, dtype=torch.int32)
    out = reference.gather_points_backward(grad, idx, 2)
    assert out.flatten().tolist() == [2.0**24 + 256, 0]
