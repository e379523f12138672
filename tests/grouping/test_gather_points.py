# SPDX-License-Identifier: Apache-2.0
"""gather_points: rows by index, zeros where there is no such row, and its backward."""

import numpy as np
import pytest
import torch
from helpers import assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

from torchvox import reference

ops = torch.ops.torchvox
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def case(b=3, n=20, m=33, c=5, dtype=torch.float32, seed=0):
    rng = np.random.default_rng(seed)
    features = torch.from_numpy(rng.normal(size=(b, n, c))).to(dtype)
    idx = torch.from_numpy(rng.integers(-2, n + 2, (b, m)).astype(np.int32))
    return features, idx


@pytest.mark.one_of("c")
@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("c", [0, 1, 3, 4, 8, 33])
def test_forward_equals_the_reference(device, c, dtype, channels_first):
    features, idx = case(c=c, dtype=dtype)
    if channels_first:
        features = features.transpose(1, 2).contiguous()
    expected = reference.gather_points(features, idx, channels_first=channels_first)
    actual = ops.gather_points(features.to(device), idx.to(device), channels_first=channels_first)
    assert_same_bits(actual, expected)
    assert actual.is_contiguous()


@pytest.mark.parametrize("index", [-1, -2, 20, 21, 2**31 - 1, -(2**31)])
def test_an_index_outside_gives_a_zero_row_and_no_gradient(device, index):
    features, _ = case()
    features = features.clone().to(device).requires_grad_()
    idx = torch.full((3, 4), index, dtype=torch.int32, device=device)
    idx[:, 2] = 19
    out = ops.gather_points(features, idx)
    assert (out[:, [0, 1, 3]] == 0).all() and torch.equal(out[:, 2], features[:, 19])
    out.sum().backward()
    assert features.grad[:, :19].abs().sum() == 0 and (features.grad[:, 19] == 1).all()


@pytest.mark.parametrize("index", [2**32, 2**32 + 5, -(2**32), 2**62])
def test_a_wide_index_does_not_wrap(device, index):
    features, _ = case()
    out = ops.gather_points(features.to(device), torch.full((3, 4), index, device=device))
    assert (out == 0).all()


def backward(device, features, idx, grad, channels_first=False):
    features = features.clone().to(device).requires_grad_()
    out = ops.gather_points(features, idx.to(device), channels_first=channels_first)
    (result,) = torch.autograd.grad(out, features, grad.to(device))
    return result


@pytest.mark.one_of("m")
@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("n", "m"), [(20, 33), (3, 1000), (1, 513), (700, 40)])
def test_gradient_equals_the_reference(device, n, m, dtype, channels_first):
    features, idx = case(n=n, m=m, dtype=dtype, seed=m)
    grad = torch.from_numpy(np.random.default_rng(1).normal(size=(3, m, 5))).to(dtype)
    if channels_first:
        features, grad = features.transpose(1, 2).contiguous(), grad.transpose(1, 2).contiguous()
    expected = reference.gather_points_backward(grad, idx, n, channels_first=channels_first)
    actual = backward(device, features, idx, grad, channels_first)
    assert_same_bits(actual, expected)


@pytest.mark.parametrize("m", [255, 256, 257, 511, 512, 513, 70_000])
def test_one_row_hit_by_every_slot_sums_in_runs_of_256(device, m):
    features, _ = case(b=1, n=4, c=2)
    grad = torch.from_numpy(np.random.default_rng(m).normal(size=(1, m, 2)).astype(np.float32))
    idx = torch.full((1, m), 2, dtype=torch.int32)
    expected = reference.gather_points_backward(grad, idx, 4)
    assert_same_bits(backward(device, features, idx, grad), expected)


def test_runs_are_counted_within_a_row_not_over_all_slots(device):
    grad = torch.ones(1, 1024, 1)
    grad[0, 0] = 2.0**24  # row 0 has the even slots: its first run holds slots 0 .. 510
    idx = (torch.arange(1024) % 2)[None]
    actual = backward(device, torch.zeros(1, 2, 1), idx, grad)
    assert actual.flatten().tolist() == [2.0**24 + 256, 512]


def test_half_gradients_are_summed_in_float32(device):
    grad = torch.full((1, 4097, 1), 1.0, dtype=torch.float16)
    grad[0, 0] = 2048.0  # half sums stick at 2048
    actual = backward(device, torch.zeros(1, 1, 1).half(), torch.zeros(1, 4097).int(), grad)
    assert actual.item() == 6144


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    b=st.integers(0, 3), n=st.integers(0, 9), c=st.integers(0, 5),
    slots=st.lists(st.integers(-2, 10), max_size=12), channels_first=st.booleans(),
)  # fmt: skip
def test_any_small_gather(device, b, n, c, slots, channels_first):
    features = torch.randn((b, c, n) if channels_first else (b, n, c))
    idx = torch.tensor([slots] * b, dtype=torch.int64).reshape(b, len(slots))
    expected = reference.gather_points(features, idx, channels_first=channels_first)
    actual = ops.gather_points(features.to(device), idx.to(device), channels_first=channels_first)
    assert_same_bits(actual, expected)
    back = reference.gather_points_backward(expected, idx, n, channels_first=channels_first)
    actual = ops._gather_points_backward(actual, idx.to(device), n, channels_first=channels_first)
    assert_same_bits(actual, back)


def test_values_are_copied_bit_for_bit(device):
    features = torch.tensor([[[float("nan")], [-0.0], [float("-inf")], [1e-45]]])
    idx = torch.tensor([[3, 2, 1, 0]])
    actual = ops.gather_points(features.to(device), idx.to(device))
    assert_same_bits(actual, features[:, [3, 2, 1, 0]])
