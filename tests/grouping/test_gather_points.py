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


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_both_index_types(device, dtype):
    features, idx = case()
    actual = ops.gather_points(features.to(device), idx.to(dtype).to(device))
    assert_same_bits(actual, reference.gather_points(features, idx))


def test_values_are_copied_bit_for_bit(device):
    features = torch.tensor([[[float("nan")], [-0.0], [float("-inf")], [1e-45]]])
    idx = torch.tensor([[3, 2, 1, 0]])
    actual = ops.gather_points(features.to(device), idx.to(device))
    assert_same_bits(actual, features[:, [3, 2, 1, 0]])


@pytest.mark.parametrize("shape", [(0, 5, 4, 2), (2, 0, 4, 2), (2, 5, 0, 2), (2, 5, 4, 0)])
@pytest.mark.parametrize("channels_first", [False, True])
def test_every_size_may_be_zero(device, shape, channels_first):
    b, n, m, c = shape
    features = torch.ones((b, c, n) if channels_first else (b, n, c), device=device)
    features.requires_grad_()
    idx = torch.zeros(b, m, dtype=torch.int32, device=device)
    out = ops.gather_points(features, idx, channels_first=channels_first)
    assert out.shape == ((b, c, m) if channels_first else (b, m, c))
    assert (out == 0).all() or n > 0
    out.sum().backward()
    assert features.grad.shape == features.shape


@pytest.mark.parametrize("channels_first", [False, True])
def test_strides_do_not_matter(device, channels_first):
    features, idx = case(c=6)
    if channels_first:
        features = features.transpose(1, 2)
    expected = reference.gather_points(features, idx, channels_first=channels_first)
    views = [
        features.to(device).transpose(0, 2).contiguous().transpose(0, 2),
        features.to(device).transpose(1, 2).contiguous().transpose(1, 2),
        torch.stack([features, features], -1).to(device)[..., 1],
    ]
    wide_idx = torch.stack([idx, idx], -1).to(device)[..., 0]
    for view in views:
        out = ops.gather_points(view, wide_idx, channels_first=channels_first)
        assert_same_bits(out, expected)


def test_padded_samples_feed_straight_on(device):
    points = torch.ones(1, 3, 3, device=device)
    idx, _ = ops.furthest_point_sample(points, 5)
    out = ops.gather_points(points, idx)
    assert out[0, :, 0].tolist() == [1, 1, 1, 0, 0]


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


@pytest.mark.parametrize("channels_first", [False, True])
def test_gradients_may_be_expanded_or_strided(device, channels_first):
    features, idx = case()
    if channels_first:
        features = features.transpose(1, 2).contiguous()
    shape = (3, 5, 33) if channels_first else (3, 33, 5)
    for grad in (torch.ones(()).expand(shape), torch.randn(*shape, 2)[..., 0]):
        expected = reference.gather_points_backward(
            grad.contiguous(), idx, 20, channels_first=channels_first
        )
        assert_same_bits(backward(device, features, idx, grad, channels_first), expected)


@pytest.mark.parametrize("channels_first", [False, True])
def test_gradcheck(device, channels_first):
    features, idx = case(b=2, n=4, m=7, c=2, dtype=torch.float64)
    if channels_first:
        features = features.transpose(1, 2).contiguous()
    idx = idx.to(device)
    features = features.clone().to(device).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda f: ops.gather_points(f, idx, channels_first=channels_first), (features,)
    )


def test_every_run_gives_the_same_gradient(device):
    features, idx = case(b=2, n=5, m=3000)
    grad = torch.randn(2, 3000, 5)
    first = backward(device, features, idx, grad)
    for _ in range(5 if str(device) == "cpu" else 50):
        assert_same_bits(backward(device, features, idx, grad), first)


@pytest.mark.parametrize("channels_first", [False, True])
def test_second_derivatives_are_exact(device, channels_first):
    features, idx = case(b=2, n=4, m=7, c=2, dtype=torch.float64)
    if channels_first:
        features = features.transpose(1, 2).contiguous()
    idx = idx.to(device)
    features = features.clone().to(device).requires_grad_()
    assert torch.autograd.gradgradcheck(
        lambda f: ops.gather_points(f, idx, channels_first=channels_first), (features,)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_keeps_the_dtype_of_features(device, dtype):
    features, idx = case()
    with torch.autocast(torch.device(device).type, dtype=dtype):
        out = ops.gather_points(features.to(device), idx.to(device))
    assert_same_bits(out, reference.gather_points(features, idx))


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


def refused(error, argument):
    return pytest.raises(error, match=rf"^gather_points: {argument}\b.*, got ")


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.bool])
def test_indices_of_another_type_are_refused(device, dtype):
    idx = torch.ones(2, 4, device=device).to(dtype)
    with refused(TypeError, "idx"):
        ops.gather_points(torch.ones(2, 5, 3, device=device), idx)


def test_shapes_that_do_not_fit_are_refused(device):
    def call(features, idx):
        return ops.gather_points(
            torch.ones(features, device=device), torch.zeros(idx, dtype=torch.int32, device=device)
        )

    for features in ((5, 3), (2, 5, 3, 1)):
        with refused(ValueError, "features"):
            call(features, (2, 4))
    for idx in ((4,), (3, 4), (2, 4, 1)):
        with refused(ValueError, "idx"):
            call((2, 5, 3), idx)


@pytest.mark.gpu
def test_all_tensors_share_one_device():
    with refused(RuntimeError, "idx"):
        ops.gather_points(torch.ones(2, 5, 3).cuda(), torch.zeros(2, 4, dtype=torch.int32))


@pytest.mark.gpu
@pytest.mark.slow
def test_outputs_of_more_than_two_billion_elements():
    features = torch.arange(8.0).reshape(1, 2, 4).half().cuda()
    idx = (torch.arange(2**29 + 8, device="cuda", dtype=torch.int32) % 2)[None]
    out = ops.gather_points(features, idx)
    assert out.numel() > 2**31
    assert out[0, -1].tolist() == [4, 5, 6, 7] and out[0, -2].tolist() == [0, 1, 2, 3]
    assert out[0, :, 3].sum(dtype=torch.float64).item() == (3 + 7) * (2**28 + 4)
