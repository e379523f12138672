# SPDX-License-Identifier: Apache-2.0
"""The gradient of distances to neighbors, which ball_query, knn and three_nn share."""

import pytest
import torch
from helpers import assert_same_bits
from op_infos import distances, grouping

from torchvox.reference import neighbor_distance_backward as reference

backward = torch.ops.torchvox._neighbor_distance_backward
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def both(call, device):
    """The op's gradients, which have the bits of the reference."""
    actual = backward(**{k: v.to(device) if torch.is_tensor(v) else v for k, v in call.items()})
    assert_same_bits(actual, reference(**call))
    return actual


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_equal_the_reference(device, dtype, norm):
    both({**distances.distance_in(dtype), "norm": norm}, device)


@pytest.mark.parametrize("name", ["count", "ragged", "ragged global", "no neighbors"])
def test_counts_and_packed_clouds_equal_the_reference(device, name):
    both(distances.DISTANCE_SAMPLE_INPUTS[name](), device)


@pytest.mark.parametrize("dims", [1, 2, 3, 7])
def test_any_number_of_axes(device, dims):
    g = torch.Generator().manual_seed(dims)
    call = {
        "grad_dist2": torch.randn(2, 9, 4, generator=g),
        "points": torch.randn(2, 20, dims, generator=g),
        "query": torch.randn(2, 9, dims, generator=g),
        "idx": grouping.neighbors(9, 20, k=4),
    }
    both(call, device)


@pytest.mark.parametrize("k", [255, 256, 257, 700])
def test_long_lists_sum_in_runs_of_256(device, k):
    g = torch.Generator().manual_seed(k)
    call = {
        "grad_dist2": torch.randn(1, 3, k, generator=g),
        "points": torch.randn(1, 4, 3, generator=g),
        "query": torch.randn(1, 3, 3, generator=g),
        "idx": torch.full((1, 3, k), 2, dtype=torch.int32),
    }
    both(call, device)


def test_slots_past_the_count_and_indices_outside_pass_nothing_on(device):
    points, query = torch.ones(1, 2, 3), torch.zeros(1, 3, 3)
    idx = torch.tensor([[[0, 0, 0], [1, -1, 2], [1, 1, 1]]])
    count = torch.tensor([[1, 3, 0]], dtype=torch.int32)
    call = {
        "grad_dist2": torch.ones(1, 3, 3), "points": points, "query": query, "idx": idx,
        "count": count,
    }  # fmt: skip
    grad_points, grad_query = both(call, device)
    assert grad_points[0, :, 0].tolist() == [2, 2]
    assert grad_query[0, :, 0].tolist() == [-2, -2, 0]


def test_a_gradient_that_is_not_wanted_is_empty(device):
    call = {
        k: v.to(device) if torch.is_tensor(v) else v for k, v in distances.distance_call(40).items()
    }
    whole = backward(**call)
    only_points = backward(**call, for_query=False)
    only_query = backward(**call, for_points=False)
    assert_same_bits(only_points[0], whole[0])
    assert_same_bits(only_query[1], whole[1])
    assert only_points[1].shape == only_query[0].shape == (0,)


def test_offsets_are_never_trusted(device):
    call = distances.ragged_distance_call(5, local_index=True)
    for batch_offsets in ([-5, 3, 900, 2], [9, 9, 0, 0]):
        for query_batch_offsets in ([-2, 40, 3, 99], [5, 4, 3, 2]):
            call["batch_offsets"], call["query_batch_offsets"] = (
                torch.tensor(batch_offsets),
                torch.tensor(query_batch_offsets),
            )
            grads = backward(**{k: v.to(device) if torch.is_tensor(v) else v
                                for k, v in call.items()})  # fmt: skip
            assert all(grad.isfinite().all() for grad in grads)
