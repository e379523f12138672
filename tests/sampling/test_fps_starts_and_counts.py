# SPDX-License-Identifier: Apache-2.0
"""Start points, start sets, per-cloud lengths and counts of furthest_point_sample."""

import numpy as np
import pytest
import torch
from fps_cases import assert_as_reference, samples
from helpers import cube, lattice

INF = float("inf")


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"start": 0}, [0] * 3),
        ({"start": 99}, [99] * 3),
        ({"start": 100}, [0] * 3),  # no point: the first candidate
        ({"start": 20, "lengths": torch.tensor([20, 0, 21])}, [0, -1, 20]),
        ({"start_idx": torch.tensor([7, 0, 42])}, [7, 0, 42]),
        ({"start_idx": torch.tensor([7, 0, 42], dtype=torch.int32)}, [7, 0, 42]),
        ({"start_idx": torch.tensor([8, 9, 1]), "start": 3}, [8, 9, 1]),
        ({"start_idx": torch.tensor([100, 2**31 - 1, -1])}, [0] * 3),
        ({"start_idx": torch.tensor([-(2**31), 2**32 + 5, -(2**40)])}, [0] * 3),  # none wraps
    ],
    ids=str,
)
def test_the_first_sample_is_the_start(device, options, first):
    idx, dist2 = assert_as_reference(device, cube(100, batch=3), 10, **options)
    assert idx[:, 0].tolist() == first
    assert dist2[:, 0].tolist() == [INF if i >= 0 else 0 for i in first]
    assert torch.isfinite(dist2[:, 1:]).all()


def test_a_start_set_is_emitted_first_with_its_repeats(device):
    start_idx = torch.tensor([[5, 3, 5, 3], [0, 1, 2, 99]])
    points = cube(60, batch=2, seed=4)
    for s in range(4):
        idx, _ = assert_as_reference(device, points, s, start_idx=start_idx)
        assert idx[0].tolist() == [5, 3, 5, 3][:s]
    idx, dist2 = assert_as_reference(device, points, 12, start_idx=start_idx)
    assert idx[:, :4].tolist() == [[5, 3, 5, 3], [0, 1, 2, 0]]
    assert torch.isinf(dist2[:, :4]).all() and torch.isfinite(dist2[:, 4:]).all()


@pytest.mark.parametrize("n", [300, 9000])
def test_a_long_start_set(device, n):
    starts = torch.from_numpy(np.random.default_rng(0).integers(-5, n + 5, (2, 130)))
    assert_as_reference(device, lattice(n, side=20, batch=2), 160, start_idx=starts)


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


@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3), (0, 0, 3), (3, 1, 3)])
@pytest.mark.parametrize("s", [0, 1, 4])
@pytest.mark.parametrize("exhausted", ["distinct", "repeat"])
def test_every_size_may_be_zero(device, shape, s, exhausted):
    idx, dist2 = assert_as_reference(device, torch.ones(shape), s, exhausted=exhausted)
    assert idx.shape == dist2.shape == (shape[0], s)
    if shape[1] == 0:
        assert (idx == -1).all() and (dist2 == 0).all()
