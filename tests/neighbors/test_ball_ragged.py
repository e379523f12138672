# SPDX-License-Identifier: Apache-2.0
"""ball_query_ragged: the batched query of every cloud, with its offsets on the device."""

import pytest
import torch
from ball_cases import NAN, assert_ragged_as_reference, ops, spoilt
from helpers import assert_same_bits, cube, forced, lattice

OFFSETS = torch.tensor([0, 0, 40, 41, 41, 200])
QUERY_OFFSETS = torch.tensor([0, 3, 9, 9, 15, 30])

each_kernel = pytest.mark.parametrize("kernel", ["scan", "cells"])


@each_kernel
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("fill", ["first", "pad"])
def test_each_cloud_is_queried_alone(device, local, fill, kernel):
    points, query = lattice(200, side=4)[0], lattice(30, side=4, seed=1)[0]
    with forced(ball_kernel=kernel):
        assert_ragged_as_reference(
            device, points, query, OFFSETS, QUERY_OFFSETS, 1.5, 7, local_index=local, fill=fill
        )


@each_kernel
def test_it_equals_the_batched_query_of_equal_clouds(device, kernel):
    points, query = spoilt(100, batch=3).to(device), cube(20, seed=1, batch=3).to(device)
    batch_offsets, query_batch_offsets = (
        torch.arange(4, device=device) * 100,
        torch.arange(4, device=device) * 20,
    )
    with forced(ball_kernel=kernel):
        dist2, idx, count = ops.ball_query(points, query, 0.3, 8)
        got = ops.ball_query_ragged(
            points.flatten(0, 1),
            query.flatten(0, 1),
            batch_offsets,
            query_batch_offsets,
            0.3,
            8,
            local_index=True,
        )
    assert_same_bits(got, (dist2.flatten(0, 1), idx.flatten(0, 1), count.flatten()))


def test_an_empty_ball_names_row_0_of_its_cloud(device):
    points = torch.zeros(6, 3, device=device)
    query = torch.full((2, 3), 9.0, device=device)
    batch_offsets, query_batch_offsets = (
        torch.tensor([0, 4, 6]).to(device),
        torch.tensor([0, 1, 2]).to(device),
    )
    _, idx, count = ops.ball_query_ragged(points, query, batch_offsets, query_batch_offsets, 1.0, 2)
    assert idx.tolist() == [[0, 0], [4, 4]] and count.tolist() == [0, 0]


@each_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_ball_in_a_cloud_without_points_names_none(device, dtype, kernel):
    """Row 0 of the cloud would be the first point of the next one."""
    points, query = torch.zeros(5, 3, dtype=dtype), torch.zeros(3, 3, dtype=dtype)
    batch_offsets, query_batch_offsets = torch.tensor([0, 2, 2, 5]), torch.tensor([0, 1, 2, 3])
    with forced(ball_kernel=kernel):
        _, idx, count = assert_ragged_as_reference(
            device, points, query, batch_offsets, query_batch_offsets, 1.0, 2
        )
        assert idx.tolist() == [[0, 1], [-1, -1], [2, 3]] and count.tolist() == [2, 0, 2]
        _, idx, _ = assert_ragged_as_reference(
            device, points, query, batch_offsets, query_batch_offsets, 1.0, 2, local_index=True
        )
        assert idx.tolist() == [[0, 1], [0, 0], [0, 1]]


@each_kernel
def test_queries_outside_of_query_ptr_have_no_neighbors(device, kernel):
    points, query = torch.zeros(8, 3), torch.zeros(6, 3)
    with forced(ball_kernel=kernel):
        _, idx, count = assert_ragged_as_reference(
            device, points, query, torch.tensor([2, 4, 8]), torch.tensor([1, 3, 5]), 1.0, 3
        )
    assert count.tolist() == [0, 2, 2, 3, 3, 0] and idx[0].tolist() == [0, 0, 0]


@each_kernel
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_many_small_clouds(device, dtype, kernel):
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(0, 9, (300,), generator=generator)
    wanted = torch.randint(0, 5, (300,), generator=generator)
    batch_offsets = torch.cat([torch.zeros(1), sizes.cumsum(0)]).to(dtype)
    query_batch_offsets = torch.cat([torch.zeros(1), wanted.cumsum(0)]).to(dtype)
    points, query = (
        lattice(int(batch_offsets[-1]), side=3)[0],
        lattice(int(query_batch_offsets[-1]), side=3)[0],
    )
    with forced(ball_kernel=kernel):
        assert_ragged_as_reference(
            device, points, query, batch_offsets, query_batch_offsets, 1.5, 4
        )


@each_kernel
@pytest.mark.parametrize("batch_offsets", [[-5, 3, 99], [7, 2, 9], [9, 9, 0], [0, 2**40, 4]])
def test_wrong_offsets_stay_inside_the_memory(device, batch_offsets, kernel):
    points, query = torch.zeros(8, 3, device=device), torch.zeros(6, 3, device=device)
    batch_offsets = torch.tensor(batch_offsets, device=device)
    for query_batch_offsets in (torch.tensor([0, 3, 6], device=device), batch_offsets):
        with forced(ball_kernel=kernel):
            _, idx, count = ops.ball_query_ragged(
                points, query, batch_offsets, query_batch_offsets, 1.0, 4
            )
        assert (idx >= -1).all() and (idx <= 8).all() and (count <= 4).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes_and_more_axes(device, dtype):
    points, query = cube(200, 5)[0].to(dtype), cube(30, 5, seed=1)[0].to(dtype)
    assert_ragged_as_reference(device, points, query, OFFSETS, QUERY_OFFSETS, 0.8, 7)


def test_no_clouds_at_all(device):
    points, query = torch.zeros(4, 3), torch.zeros(3, 3)
    none = torch.zeros(1, dtype=torch.int64)
    _, _, count = assert_ragged_as_reference(device, points, query, none, none, 1.0, 2)
    assert count.tolist() == [0, 0, 0]


def test_a_query_that_is_not_finite(device):
    points, query = torch.zeros(4, 3), torch.tensor([[0.0, 0.0, NAN], [0.0, 0.0, 0.0]])
    batch_offsets, query_batch_offsets = torch.tensor([1, 4]), torch.tensor([0, 2])
    _, idx, count = assert_ragged_as_reference(
        device, points, query, batch_offsets, query_batch_offsets, 1.0, 2
    )
    assert count.tolist() == [0, 2] and idx.tolist() == [[1, 1], [1, 2]]
