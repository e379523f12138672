# SPDX-License-Identifier: Apache-2.0
"""Start points, start sets, per-cloud lengths and counts of furthest_point_sample."""

import numpy as np
import pytest
import torch
from fps_cases import assert_as_reference, samples
from helpers import cube, lattice

INF = float("inf")


def on_axis(*x):
    return torch.tensor([[(v, 0.0, 0.0) for v in x]])


@pytest.mark.parametrize("start", [0, 1, 99])
def test_start_is_the_first_sample(device, start):
    idx, dist2 = assert_as_reference(device, cube(100, batch=3), 10, start=start)
    assert idx[:, 0].tolist() == [start] * 3
    assert torch.isinf(dist2[:, 0]).all() and torch.isfinite(dist2[:, 1:]).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_start_idx_gives_each_cloud_its_start(device, dtype):
    start_idx = torch.tensor([7, 0, 42], dtype=dtype)
    idx, _ = assert_as_reference(device, cube(100, batch=3), 10, start_idx=start_idx)
    assert idx[:, 0].tolist() == [7, 0, 42]


def test_start_idx_wins_over_start(device):
    idx, _ = assert_as_reference(
        device, cube(100, batch=2), 5, start=3, start_idx=torch.tensor([8, 9])
    )
    assert idx[:, 0].tolist() == [8, 9]


@pytest.mark.parametrize("bad", [100, 2**31 - 1, -1, -(2**31)])
def test_a_start_that_is_no_point_becomes_the_first_candidate(device, bad):
    points = cube(100, seed=2)
    idx, _ = assert_as_reference(device, points, 5, start_idx=torch.tensor([bad]))
    assert idx[0, 0] == 0
    if bad > 0:
        assert torch.equal(assert_as_reference(device, points, 5, start=bad)[0], idx)


def test_a_start_index_beyond_int32_is_no_point(device):
    starts = torch.tensor([2**32 + 5, -(2**40)])  # must not wrap to a valid index
    idx, _ = assert_as_reference(device, cube(100, batch=2), 5, start_idx=starts)
    assert idx[:, 0].tolist() == [0, 0]


def test_a_start_past_the_length_becomes_the_first_candidate(device):
    idx, _ = assert_as_reference(device, cube(50), 5, start=20, lengths=torch.tensor([20]))
    assert idx[0, 0] == 0


@pytest.mark.parametrize("tie", ["lowest", "mmcv"])
def test_the_first_candidate_is_the_first_in_tie_order(device, tie):
    points = torch.arange(8.0).reshape(1, 8, 1).expand(1, 8, 3).clone()
    points[0, 0] = float("nan")
    idx, _ = assert_as_reference(device, points, 3, tie=tie)
    assert idx[0, 0] == (4 if tie == "mmcv" else 1)


def test_a_start_set_is_emitted_first_with_its_repeats(device):
    start_idx = torch.tensor([[5, 3, 5, 3], [0, 1, 2, 99]])
    points = cube(60, batch=2, seed=4)
    idx, dist2 = assert_as_reference(device, points, 12, start_idx=start_idx)
    assert idx[:, :4].tolist() == [[5, 3, 5, 3], [0, 1, 2, 0]]
    assert torch.isinf(dist2[:, :4]).all() and torch.isfinite(dist2[:, 4:]).all()


def test_later_samples_keep_away_from_the_whole_start_set(device):
    idx, dist2 = samples(device, on_axis(0, 10, 4, 5), 3, start_idx=torch.tensor([[0, 1]]))
    assert idx[0].tolist() == [0, 1, 3] and dist2[0].tolist() == [INF, INF, 25]


@pytest.mark.parametrize("s", [0, 1, 2, 3, 4])
def test_fewer_samples_than_starts(device, s):
    start_idx = torch.tensor([[5, 3, 5]])
    idx, _ = assert_as_reference(device, cube(60), s, start_idx=start_idx)
    assert idx[0, :3].tolist() == [5, 3, 5][:s]


@pytest.mark.parametrize("n", [300, 9000])
def test_a_long_start_set(device, n):
    starts = torch.from_numpy(np.random.default_rng(0).integers(-5, n + 5, (2, 130)))
    assert_as_reference(device, lattice(n, side=20, batch=2), 160, start_idx=starts)


@pytest.mark.parametrize("exhausted", ["distinct", "repeat"])
def test_a_start_set_that_covers_the_cloud_exhausts_it(device, exhausted):
    starts = torch.tensor([[2, 0, 1]])
    idx, dist2 = assert_as_reference(
        device, on_axis(1, 2, 3), 5, start_idx=starts, exhausted=exhausted
    )
    assert idx[0, 3:].tolist() == ([-1, -1] if exhausted == "distinct" else [0, 0])
    assert dist2[0, 3:].tolist() == [0, 0]


@pytest.mark.parametrize("init_dist2", [0.0, 0.25, 1e10])
def test_start_slots_are_infinite_whatever_the_initial_distance(device, init_dist2):
    starts = torch.tensor([[2, 2]])
    _, dist2 = assert_as_reference(device, cube(9), 5, start_idx=starts, init_dist2=init_dist2)
    assert dist2[0, :2].tolist() == [INF, INF]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_lengths_hide_the_points_behind_them(device, dtype):
    points = lattice(80, batch=6)
    points[:, 79] = 1e6  # the furthest by far, visible only to full clouds
    lengths = torch.tensor([80, 79, 1, 0, 500, -3], dtype=dtype)
    idx, _ = assert_as_reference(device, points, 10, lengths=lengths)
    assert idx[0, 1] == 79 and idx[4, 1] == 79 and 79 not in idx[1]
    assert idx[2].tolist() == [0] + [-1] * 9
    assert idx[3].tolist() == idx[5].tolist() == [-1] * 10


def test_hidden_points_may_be_anything(device):
    points = cube(50, batch=2)
    lengths = torch.tensor([30, 30])
    expected = samples(device, points, 20, lengths=lengths)
    points[:, 30:] = float("nan")
    np.testing.assert_array_equal(samples(device, points, 20, lengths=lengths)[0], expected[0])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("exhausted", ["distinct", "repeat"])
def test_counts_end_each_row(device, dtype, exhausted):
    counts = torch.tensor([0, 1, 7, 20, 500, -2], dtype=dtype)
    idx, dist2 = assert_as_reference(
        device, cube(60, batch=6), 20, counts=counts, exhausted=exhausted
    )
    for b, s in enumerate([0, 1, 7, 20, 20, 0]):
        assert (idx[b, :s] >= 0).all()
        assert (idx[b, s:] == -1).all() and (dist2[b, s:] == 0).all()


def test_a_count_is_a_prefix_of_the_full_row(device):
    points = cube(60)
    full = samples(device, points, 20)
    cut = samples(device, points, 20, counts=torch.tensor([9]))
    np.testing.assert_array_equal(cut[0][0, :9], full[0][0, :9])
    np.testing.assert_array_equal(cut[1][0, :9], full[1][0, :9])


@pytest.mark.parametrize("exhausted", ["distinct", "repeat"])
def test_lengths_and_counts_together(device, exhausted):
    rng = np.random.default_rng(3)
    lengths = torch.from_numpy(rng.integers(0, 40, 50))
    counts = torch.from_numpy(rng.integers(0, 30, 50))
    idx, _ = assert_as_reference(
        device,
        lattice(40, side=3, batch=50),
        25,
        lengths=lengths,
        counts=counts,
        exhausted=exhausted,
    )
    assert (idx[lengths == 0] == -1).all()


@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3), (0, 0, 3), (3, 1, 3)])
@pytest.mark.parametrize("s", [0, 1, 4])
@pytest.mark.parametrize("exhausted", ["distinct", "repeat"])
def test_every_size_may_be_zero(device, shape, s, exhausted):
    idx, dist2 = assert_as_reference(device, torch.ones(shape), s, exhausted=exhausted)
    assert idx.shape == dist2.shape == (shape[0], s)
    if shape[1] == 0:
        assert (idx == -1).all() and (dist2 == 0).all()
