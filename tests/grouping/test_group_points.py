# SPDX-License-Identifier: Apache-2.0
"""group_points and its ragged form: rows by index, zeros where there is no such row, gradients."""

import math

import pytest
import torch
from helpers import assert_same_bits, forced
from op_infos import grouping

from torchvox import reference

ops = torch.ops.torchvox
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def case(n=20, m=11, k=3, c=5, dtype=torch.float32):
    return grouping.features_of(n, 1, c).to(dtype), grouping.neighbors(m, n, 2, k)


@pytest.mark.one_of("c")
@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("c", [0, 1, 3, 4, 8, 33, 64])
def test_forward_and_gradient_equal_the_reference(device, c, dtype, channels_first):
    features, idx = case(c=c, dtype=dtype)
    features = features.mT.contiguous() if channels_first else features
    expected = reference.group_points(features, idx, channels_first=channels_first)
    leaf = features.to(device).requires_grad_()
    actual = ops.group_points(leaf, idx.to(device), channels_first=channels_first)
    assert_same_bits(actual, expected)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(c)).to(dtype)
    (got,) = torch.autograd.grad(actual, leaf, grad.to(device))
    flat = grad.flatten(2) if channels_first else grad.flatten(1, 2)
    want = reference.gather_points_backward(flat, idx.flatten(1), 20, channels_first=channels_first)
    assert_same_bits(got, want)


@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rows", [1, 2, 40])
def test_points_that_many_queries_took(device, rows, dtype, channels_first):
    """Lists of one, a few and thousands of slots side by side, with ends inside chunks of 256."""
    g = torch.Generator().manual_seed(rows)
    idx = (torch.rand(2, 400, 8, generator=g) ** 4 * (rows + 1)).int() - int(rows > 2)
    shape = (2, 8, 400, 8) if channels_first else (2, 400, 8, 8)
    grad = torch.randn(shape, generator=g).to(dtype)
    flat = grad.flatten(2) if channels_first else grad.flatten(1, 2)
    want = reference.gather_points_backward(
        flat, idx.flatten(1), rows, channels_first=channels_first
    )
    got = ops._group_points_backward(
        grad.to(device), idx.to(device), rows, channels_first=channels_first
    )
    assert_same_bits(got, want)


def test_a_sum_that_is_no_number_is_the_one_quiet_nan(device):
    grad = torch.tensor([math.inf, -math.inf], device=device).reshape(1, 1, 2, 1)
    idx = torch.zeros(1, 1, 2, dtype=torch.int32, device=device)
    assert ops._group_points_backward(grad, idx, 1).view(torch.int32).tolist() == [[[0x7FC00000]]]


@pytest.mark.parametrize("plan", ["counted", "sorted"])
@pytest.mark.parametrize(("rows", "k"), [(1, 8), (50, 40), (3000, 8), (40_000, 3), (200_000, 3)])
def test_every_way_to_list_slots_gives_the_same_gradient(device, plan, rows, k):
    """Rows in one tile and in several, more than can be counted, and lists of many chunks."""
    g = torch.Generator().manual_seed(rows)
    idx = torch.randint(-1, rows + 1, (2, 700, k), generator=g, dtype=torch.int32)
    idx[:, ::3, 0] = rows // 2
    grad = torch.randn(2, 700, k, 4, generator=g)
    expected = ops._group_points_backward(grad, idx, rows)
    with forced(inverse_index=plan):
        for dtype in (torch.int32, torch.int64):
            got = ops._group_points_backward(grad.to(device), idx.to(device, dtype), rows)
            assert_same_bits(got, expected)


def test_group_points_is_gather_points_of_the_flat_list(device):
    features, idx = (t.to(device) for t in case())
    assert_same_bits(ops.group_points(features, idx).flatten(1, 2),
                     ops.gather_points(features, idx.flatten(1)))  # fmt: skip


@pytest.mark.parametrize("index", [-1, 20, 2**31 - 1, -(2**31)])
def test_an_index_outside_gives_a_zero_row_and_no_gradient(device, index):
    features = case()[0].to(device).requires_grad_()
    idx = torch.full((2, 4, 2), index, dtype=torch.int32, device=device)
    idx[:, 1] = 19
    out = ops.group_points(features, idx)
    assert (out[:, [0, 2, 3]] == 0).all() and (out[:, 1] == features[:, 19:]).all()
    out.sum().backward()
    assert features.grad[:, :19].abs().sum() == 0 and (features.grad[:, 19] == 2).all()


@pytest.mark.parametrize(
    "shape", [(0, 5, 4, 3, 2), (2, 0, 4, 3, 2), (2, 5, 0, 3, 2), (2, 5, 4, 0, 2), (2, 5, 4, 3, 0)]
)
@pytest.mark.parametrize("channels_first", [False, True])
def test_every_size_may_be_zero(device, shape, channels_first):
    b, n, m, k, c = shape
    features = torch.ones((b, c, n) if channels_first else (b, n, c), device=device)
    features.requires_grad_()
    idx = torch.zeros(b, m, k, dtype=torch.int32, device=device)
    out = ops.group_points(features, idx, channels_first=channels_first)
    assert out.shape == ((b, c, m, k) if channels_first else (b, m, k, c))
    weight = torch.ones(b, m, 3, device=device, requires_grad=True)
    mean = ops.three_interpolate(
        features, idx[..., :1].expand(b, m, 3) if k else weight.int() * 0, weight,
        channels_first=channels_first,
    )  # fmt: skip
    assert mean.shape == ((b, c, m) if channels_first else (b, m, c))
    (out.sum() + mean.sum()).backward()
    assert (features.grad.shape, weight.grad.shape) == (features.shape, weight.shape)
    points, query = torch.ones(b, n, 3), torch.zeros(b, m, 3)
    call = {"grad_dist2": torch.ones(b, m, k), "points": points, "query": query, "idx": idx.cpu()}
    got = ops._neighbor_distance_backward(**{name: t.to(device) for name, t in call.items()})
    assert_same_bits(got, reference.neighbor_distance_backward(**call))


@pytest.mark.parametrize("local_index", [False, True])
def test_packed_group_points_equals_each_cloud_apart(device, local_index):
    call = grouping.packed_group(20, local_index=local_index)
    actual = ops.group_points(
        **{k: v.to(device) if torch.is_tensor(v) else v for k, v in call.items()}
    )
    for queries, rows in [((0, 15), (0, 20)), ((15, 17), (20, 20)), ((17, 30), (20, 40))]:
        idx = call["idx"][slice(*queries)] - (0 if local_index else rows[0])
        alone = reference.group_points(call["features"][slice(*rows)][None], idx[None])[0]
        assert_same_bits(actual[slice(*queries)], alone)


def test_offsets_are_never_trusted(device):
    call = grouping.packed_group(5)
    for batch_offsets in ([-5, 3, 900, 2], [9, 9, 0, 0]):
        for query_batch_offsets in ([-2, 40, 3, 99], [5, 4, 3, 2]):
            call["batch_offsets"], call["query_batch_offsets"] = (
                torch.tensor(batch_offsets),
                torch.tensor(query_batch_offsets),
            )
            for local_index in (False, True):
                call["local_index"] = local_index
                out = ops.group_points(
                    **{k: v.to(device) if torch.is_tensor(v) else v for k, v in call.items()}
                )
                assert out.isfinite().all()


def test_neighbor_rows_turns_the_repeats_of_a_ball_into_zero_rows(device):
    idx = torch.tensor([[[3, 4, 3], [0, 0, 0]]], dtype=torch.int32, device=device)
    count = torch.tensor([[2, 0]], dtype=torch.int32, device=device)
    rows = ops.neighbor_rows(idx, 5, count=count)
    assert rows.tolist() == [[[3, 4, -1], [-1, -1, -1]]]
    out = ops.group_points(torch.ones(1, 5, 2, device=device), rows)
    assert out[..., 0].tolist() == [[[1, 1, 0], [0, 0, 0]]]


def test_a_wide_index_does_not_wrap(device):
    idx = torch.tensor([[[2**32, 2**32 + 1, 1]]], device=device)
    assert ops.neighbor_rows(idx, 5).tolist() == [[[-1, -1, 1]]]
    assert ops.group_points(torch.ones(1, 5, 1, device=device), idx).flatten().tolist() == [0, 0, 1]
