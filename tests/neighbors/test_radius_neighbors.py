# SPDX-License-Identifier: Apache-2.0
"""radius_neighbors: the hits of ball_query, all of them, in lists that end at the capacity."""

import pytest
import torch
from helpers import assert_same_bits, check_op, cube, forced, lattice
from hypothesis import given
from hypothesis import strategies as st
from search_cases import INF, NAN, spoilt

import torchvox

ops = torch.ops.torchvox
each_kernel = pytest.mark.parametrize("kernel", ["scan", "cells"])


@each_kernel
@pytest.mark.parametrize("radius", [0.0, 0.05, 0.3, 2.0, 1e19])
@pytest.mark.parametrize(
    "points", [cube(900)[0], spoilt(700)[0], lattice(600)[0]], ids=["cube", "spoilt", "lattice"]
)
def test_rows_of_no_some_and_all_points(device, points, radius, kernel):
    query = torch.cat([points[::60], points[:3] + 0.01])
    with forced(ball_kernel=kernel):
        whole = check_op("radius_neighbors", device, points, query, radius, 17_000)
        assert 0 < whole[3] < 17_000
        for capacity in (0, 1, int(whole[3]) // 2, int(whole[3])):
            check_op("radius_neighbors", device, points, query, radius, capacity)


LATTICE = lattice(400, seed=1)[0], lattice(60, seed=2)[0] + 0.25


@each_kernel
@pytest.mark.parametrize("offsets", [[-5, 30, 99, 7, 60], [300, 20, 390, -7, 100], [0, 2**40, 4]])
def test_offsets_in_disorder_stay_in_bounds(device, offsets, kernel):
    points, offsets = LATTICE[0].to(device), torch.tensor(offsets).to(device)
    both = {"batch_offsets": offsets, "query_batch_offsets": (offsets / 6).long()}
    with forced(ball_kernel=kernel):
        begins, index, _, count = ops.radius_neighbors(points, points[:60], 9.0, 5000, **both)
    assert ((index >= -1) & (index < 400)).all()
    assert (begins.diff() >= 0).all() and begins[-1] == count.clamp(max=5000)


@each_kernel
def test_rows_have_the_bits_of_a_ball_query_with_room(device, kernel):
    points, query = spoilt(3000, seed=2).to(device), cube(50, seed=3).to(device)
    with forced(ball_kernel=kernel):
        for convention in ("torchvox", "torch_cluster", "pointcept"):
            dist2, idx, count = torchvox.ball_query(
                points, query, 0.15, 500, convention=convention, fill="pad"
            )
            out = torchvox.radius_neighbors(
                points[0], query[0], 0.15, 9000, convention=convention, trim=True
            )
            kept = idx[0] >= 0
            assert count.max() > 30 and out.count == count.sum()
            assert_same_bits(out.offsets.diff(), count[0].long())
            assert_same_bits((out.index, out.dist2), (idx[0][kept], dist2[0][kept]))


@given(
    st.lists(st.integers(0, 3), min_size=0, max_size=40),
    st.integers(0, 60),
    st.sampled_from([0.0, 1.0, 1.5, INF]),
)
def test_the_last_row_with_room_keeps_its_lowest_indices(x, capacity, radius):
    points = torch.tensor(x, dtype=torch.float32)[:, None]
    query = torch.tensor([[0.0], [2.0], [NAN], [9.0]])
    call = ("radius_neighbors", "cpu", points, query, radius)
    offsets, index, dist2, count = check_op(*call, capacity)
    whole = check_op(*call, 200)
    kept = min(capacity, int(count))
    assert count == whole[3] == whole[0][-1]
    assert torch.equal(offsets, whole[0].clamp(max=capacity))
    assert torch.equal(index[:kept], whole[1][:kept]) and (index[kept:] == -1).all()
    assert torch.equal(dist2[:kept], whole[2][:kept]) and (dist2[kept:] == 0).all()


def test_trimmed_lists_are_the_part_in_use():
    points = cube(100)[0]
    full = torchvox.radius_neighbors(points, points, 0.2, 5000)
    trimmed = torchvox.radius_neighbors(points, points, 0.2, 5000, trim=True)
    assert len(trimmed.index) == len(trimmed.dist2) == full.count
    assert_same_bits(trimmed.index, full.index[: int(full.count)])
    without = torchvox.radius_neighbors(points, points, 0.2, 40, return_dist2=False, trim=True)
    assert len(without.index) == 40 and len(without.dist2) == 0 and without.count == full.count
    with pytest.raises(ValueError, match="convention must be one of"):
        torchvox.radius_neighbors(points, points, 0.2, 40, convention="mine")
