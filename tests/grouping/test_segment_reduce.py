# SPDX-License-Identifier: Apache-2.0
"""segment_reduce: reductions over CSR segments, of rows or by index, and their gradients."""

import pytest
import torch
from helpers import assert_same_bits, check_op
from hypothesis import given, settings
from hypothesis import strategies as st

import torchvox

ops = torch.ops.torchvox
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
REDUCTIONS = ["sum", "mean", "max", "min"]
each_reduction = pytest.mark.parametrize("reduce", REDUCTIONS)


def values(n, channels, dtype=torch.float32, seed=0):
    """Ties, both zeros and a NaN among them."""
    found = torch.randn(n, channels, generator=torch.Generator().manual_seed(seed)) * 4
    found[::7] = found[::7].round()
    found[3::50] = float("nan")
    return found.to(dtype)


@each_reduction
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("channels", [1, 3, 16, 72, 264])
def test_every_dtype_and_width(device, channels, dtype, reduce):
    src, offsets = values(130, channels, dtype), torch.tensor([0, 0, 7, 40, 41, 130])
    for index in (None, torch.arange(-20, 160).flip(0)):
        check_op("segment_reduce", device, src, offsets, reduce, index=index)


@each_reduction
@pytest.mark.parametrize("channels", [1, 5, 8, 160])
@pytest.mark.parametrize("ends", [[1023], [1024], [700, 2800, 2801, 5000], [4096, 37_000], [9] * 9])
def test_long_segments_among_short_ones(device, ends, channels, reduce):
    """Chunks of 1024 that begin anywhere, 32 of them and more, and rests of every kind."""
    if device == "cpu" and channels > 8:
        pytest.skip("a walk of its own on the GPU only")
    offsets = torch.tensor([*range(0, ends[0] // 4, 5), *ends], dtype=torch.int32)
    check_op("segment_reduce", device, values(ends[-1] + 3, channels), offsets, reduce)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_offsets_and_index_are_clamped(device, data):
    n, entries = data.draw(st.integers(0, 30)), data.draw(st.sampled_from([0, 1, 50, 1500]))
    bounds = st.integers(-5, entries + 5) | st.sampled_from([-(2**62), 2**62])
    offsets = torch.tensor(data.draw(st.lists(bounds, min_size=1, max_size=12)))
    wide = data.draw(st.booleans())
    index = torch.randint(-1, n + 1, (entries,), generator=torch.Generator().manual_seed(n))
    index[::11] = 2**40 if wide else -(2**31)
    src = values(n, data.draw(st.sampled_from([0, 1, 4])))
    reduce = data.draw(st.sampled_from(REDUCTIONS))
    check_op("segment_reduce", device, src, offsets, reduce, index=index if wide else index.int())
    check_op("segment_reduce", device, src, offsets, reduce)
    leaf = src.clone().to(device).requires_grad_()
    for given_index in (None, index.to(device)):
        out, _ = ops.segment_reduce(leaf, offsets.to(device), reduce, index=given_index)
        assert torch.autograd.grad(out.sum(), leaf)[0].shape == src.shape


def test_overlapping_chunks_of_segments_in_disorder(device):
    """Four segments have chunks in the same 1024 entries, and each its own sums."""
    offsets = torch.tensor([0, 3000, 500, 3600, 700, 3900, 1024, 4000])
    check_op("segment_reduce", device, values(4000, 4), offsets, "sum")


@each_reduction
def test_no_rows_that_an_index_could_name(device, reduce):
    check_op(
        "segment_reduce",
        device,
        values(0, 4),
        torch.tensor([0, 2, 3]),
        reduce,
        index=torch.tensor([0, -1, 5]),
    )


@pytest.mark.gpu
@each_reduction
@pytest.mark.parametrize("channels", [1, 4])
def test_more_chunks_than_blocks_look_for(channels, reduce):
    """Three million entries, in segments of none, of a few and of up to a million."""
    g = torch.Generator().manual_seed(4)
    lengths = torch.randint(-9, 15, (200_000,), generator=g).clamp(min=0)
    lengths[::40_000] = torch.tensor([1_000_000, 3, 500_000, 1500, 70_000])
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    src = torch.randn(int(offsets[-1]) + 5, channels, generator=g)
    expected = ops.segment_reduce(src, offsets, reduce)
    assert_same_bits(ops.segment_reduce(src.cuda(), offsets.cuda(), reduce), expected)


@pytest.mark.parametrize("shape", [(30,), (30, 2, 3), (30, 0, 3)])
def test_rows_of_any_shape(device, shape):
    src = torch.randn(shape, device=device)
    offsets = torch.tensor([0, 4, 30], device=device)
    out, arg = torchvox.segment_reduce(src, offsets, "max")
    assert out.shape == arg.shape == (2, *shape[1:])
    torch.testing.assert_close(out, torch.stack([src[:4].amax(0), src[4:].amax(0)]))
    assert torchvox.segment_reduce(src, offsets)[1].shape == (0,)
