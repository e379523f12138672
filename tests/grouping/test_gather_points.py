# SPDX-License-Identifier: Apache-2.0
"""gather_points, group_points, neighbor_rows: rows by index, zeros where there is no such row."""

import pytest
import torch
from helpers import assert_same_bits, to
from hypothesis import given, settings
from hypothesis import strategies as st
from op_infos import grouping

from torchvox import reference

ops = torch.ops.torchvox
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INF, NAN = float("inf"), float("nan")


def check(device, features, idx, channels_first=False):
    """Both ops and their gradients have the bits of the reference; features [B, N, C]."""
    n, options = features.size(1), {"channels_first": channels_first}
    features = features.mT.contiguous() if channels_first else features
    expected = reference.group_points(features, idx, **options)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(n)).to(features)
    begin = 2 if channels_first else 1
    flat = grad.flatten(begin, begin + 1)
    gradient = reference.gather_points_backward(flat, idx.flatten(1), n, **options)
    leaf, there = features.to(device, copy=True).requires_grad_(), idx.to(device)
    grouped = ops.group_points(leaf, there, **options)
    gathered = ops.gather_points(leaf, there.flatten(1), **options)
    assert_same_bits(grouped, expected, "group_points")
    assert_same_bits(gathered, expected.flatten(begin, begin + 1), "gather_points")
    assert grouped.is_contiguous() and gathered.is_contiguous()
    for out, seed in ((grouped, grad), (gathered, flat)):
        assert_same_bits(torch.autograd.grad(out, leaf, seed.to(device))[0], gradient, "gradient")


def taken_often(rows: int, dtype, queries=400, k=8):
    """Lists of one, a few and thousands of slots side by side, with ends inside chunks of 256."""
    g = torch.Generator().manual_seed(rows)
    idx = (torch.rand(2, queries, k, generator=g) ** 4 * (rows + 1)).int() - int(rows > 2)
    return torch.randn(2, rows, 8, generator=g).to(dtype), idx


def one_row(slots: int):
    return torch.zeros(1, 4, 2), torch.full((1, slots, 1), 2, dtype=torch.int32)


CASES = {
    **{
        f"{c} channels of {dtype}": (
            grouping.features_of(20, 1, c).to(dtype), grouping.neighbors(11, 20, 2)
        )
        for dtype in FLOATS
        for c in (0, 1, 3, 4, 8, 33, 64)
    },
    **{f"{n} rows of {dtype}": taken_often(n, dtype) for n in (1, 2, 40) for dtype in FLOATS},
    **{f"one row of {n} slots": one_row(n) for n in (255, 256, 257, 511, 512, 513, 70_000)},
    **{
        f"B, N, M, k, C {shape}": (torch.ones(*shape[:2], shape[4]), torch.zeros(
            shape[0], *shape[2:4], dtype=torch.int32))
        for shape in ((0, 5, 4, 3, 2), (2, 0, 4, 3, 2), (2, 5, 0, 3, 2), (2, 5, 4, 0, 2))
    },
}  # fmt: skip


@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_both_ops_and_their_gradients_equal_the_reference(device, name, channels_first):
    check(device, *CASES[name], channels_first)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    b=st.integers(0, 3), n=st.integers(0, 9), c=st.integers(0, 5),
    slots=st.lists(st.integers(-2, 10), max_size=12), channels_first=st.booleans(),
)  # fmt: skip
def test_any_small_gather(device, b, n, c, slots, channels_first):
    idx = torch.tensor([slots] * b, dtype=torch.int64).reshape(b, len(slots), 1)
    check(device, torch.randn(b, n, c), idx, channels_first)


@pytest.mark.parametrize(
    "index", [-1, -2, 20, 21, 2**31 - 1, -(2**31), 2**32, 2**32 + 5, -(2**32), 2**62]
)
def test_an_index_outside_gives_a_zero_row_and_no_gradient(device, index):
    features = torch.randn(2, 20, 5, device=device, requires_grad=True)
    idx = torch.full((2, 4, 2), index, device=device)
    idx[:, 1] = 19
    for out in (
        ops.group_points(features, idx),
        ops.gather_points(features, idx.flatten(1)).unflatten(1, (4, 2)),
    ):
        assert (out[:, [0, 2, 3]] == 0).all() and (out[:, 1] == features[:, 19:]).all()
        (grad,) = torch.autograd.grad(out.sum(), features)
        assert grad[:, :19].abs().sum() == 0 and (grad[:, 19] == 2).all()
    rows = ops.neighbor_rows(idx, 20)
    assert (rows[:, 1] == 19).all() and (rows[:, [0, 2, 3]] == -1).all()


def test_values_are_copied_bit_for_bit(device):
    features = torch.tensor([[[NAN], [-0.0], [-INF], [1e-45]]])
    idx = torch.tensor([[3, 2, 1, 0]], device=device)
    assert_same_bits(ops.gather_points(features.to(device), idx), features[:, [3, 2, 1, 0]])


@pytest.mark.parametrize("local_index", [False, True])
def test_offsets_in_disorder_stay_in_bounds(device, local_index):
    group = grouping.packed_group(5, local_index=local_index)
    distance = grouping.ragged_distance_call(5, local_index=local_index)
    for offsets in ([-5, 3, 900, 2], [9, 9, 0, 0]):
        for query_offsets in ([-2, 40, 3, 99], [5, 4, 3, 2]):
            disorder = {
                "batch_offsets": torch.tensor(offsets),
                "query_batch_offsets": torch.tensor(query_offsets),
            }
            for op, call in (
                (ops.group_points, group),
                (ops._neighbor_distance_backward, distance),
            ):
                outs = op(**{k: to(device, v) for k, v in {**call, **disorder}.items()})
                assert all(out.isfinite().all() for out in outs)


def test_neighbor_rows_turns_the_repeats_of_a_ball_into_zero_rows(device):
    idx = torch.tensor([[[3, 4, 3], [0, 0, 0]]], dtype=torch.int32, device=device)
    count = torch.tensor([[2, 0]], dtype=torch.int32, device=device)
    rows = ops.neighbor_rows(idx, 5, count=count)
    assert rows.tolist() == [[[3, 4, -1], [-1, -1, -1]]]
    out = ops.group_points(torch.ones(1, 5, 2, device=device), rows)
    assert out[..., 0].tolist() == [[[1, 1, 0], [0, 0, 0]]]
