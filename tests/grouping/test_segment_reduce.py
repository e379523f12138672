# SPDX-License-Identifier: Apache-2.0
"""segment_reduce: reductions over CSR segments, of rows or by index, and their gradients."""

import pytest
import torch
from helpers import assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

import torchvox
from torchvox import reference

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


def check(device, src, offsets, reduce, index=None):
    """The result of the op, which has the bits of the reference."""
    expected = reference.segment_reduce(src, offsets, reduce, index=index)
    there = None if index is None else index.to(device)
    actual = ops.segment_reduce(src.to(device), offsets.to(device), reduce, index=there)
    assert_same_bits(actual, expected)
    return actual


@each_reduction
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("channels", [1, 3, 16, 72, 264])
def test_every_dtype_and_width(device, channels, dtype, reduce):
    offsets = torch.tensor([0, 0, 7, 40, 41, 130])
    check(device, values(130, channels, dtype), offsets, reduce)
    index = torch.arange(-20, 160).flip(0)
    check(device, values(130, channels, dtype), offsets, reduce, index)


@each_reduction
@pytest.mark.parametrize("channels", [1, 5, 8, 160])
@pytest.mark.parametrize("ends", [[1023], [1024], [700, 2800, 2801, 5000], [4096, 37_000], [9] * 9])
def test_long_segments_among_short_ones(device, ends, channels, reduce):
    """Chunks of 1024 that begin anywhere, 32 of them and more, and rests of every kind."""
    if device == "cpu" and channels > 8:
        pytest.skip("a walk of its own on the GPU only")
    offsets = torch.tensor([*range(0, ends[0] // 4, 5), *ends], dtype=torch.int32)
    check(device, values(ends[-1] + 3, channels), offsets, reduce)


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
    check(device, src, offsets, reduce, index if wide else index.int())
    check(device, src, offsets, reduce)
    leaf = src.clone().to(device).requires_grad_()
    for given_index in (None, index.to(device)):
        out, _ = ops.segment_reduce(leaf, offsets.to(device), reduce, index=given_index)
        assert torch.autograd.grad(out.sum(), leaf)[0].shape == src.shape


def test_overlapping_chunks_of_segments_in_disorder(device):
    """Four segments have chunks in the same 1024 entries, and each its own sums."""
    offsets = torch.tensor([0, 3000, 500, 3600, 700, 3900, 1024, 4000])
    check(device, values(4000, 4), offsets, "sum")


@each_reduction
def test_no_rows_that_an_index_could_name(device, reduce):
    check(device, values(0, 4), torch.tensor([0, 2, 3]), reduce, torch.tensor([0, -1, 5]))


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


def plain_gradient(src, offsets, reduce, index, grad):
    """Entry by entry, in float64."""
    out = torch.zeros_like(src)
    for s in range(len(offsets) - 1):
        entries = range(int(offsets[s]), int(offsets[s + 1]))
        rows = [e if index is None else int(index[e]) for e in entries]
        rows = [n for n in rows if 0 <= n < len(src)]
        for c in range(src.size(1) if rows else 0):
            if reduce in ("sum", "mean"):
                for n in rows:
                    out[n, c] += grad[s, c] / (len(rows) if reduce == "mean" else 1)
            else:
                sign = 1 if reduce == "max" else -1
                best = min(rows, key=lambda n: (-sign * float(src[n, c]), n))
                out[best, c] += grad[s, c]
    return out


@each_reduction
@pytest.mark.parametrize("indexed", [False, True])
def test_gradients_of_rows_that_repeat_and_tie(device, indexed, reduce):
    g = torch.Generator().manual_seed(5)
    src = torch.randint(-3, 4, (40, 3), generator=g).double()
    index = torch.randint(-1, 41, (90,), generator=g) if indexed else None
    if indexed:
        index[60:70] = 7  # one row many times, in two segments
    entries = 90 if indexed else 40
    offsets = torch.tensor([2, 2, 5, entries // 3, 64 if indexed else 30, entries - 3])
    grad = torch.randint(-8, 9, (5, 3), generator=g).double()
    leaf = src.clone().to(device).requires_grad_()
    there = index.to(device) if indexed else None
    out, _ = torchvox.segment_reduce(leaf, offsets.to(device), reduce, index=there)
    (actual,) = torch.autograd.grad(out, leaf, grad.to(device))
    torch.testing.assert_close(actual.cpu(), plain_gradient(src, offsets, reduce, index, grad))


@each_reduction
def test_a_padded_neighbor_list(device, reduce):
    """[M, k] with -1: the reduction over the gathered neighbors that are there."""
    src = torch.randn(50, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    idx = torch.randint(-1, 50, (20, 6), generator=torch.Generator().manual_seed(2))
    idx[:, 0] = 3
    offsets = 6 * torch.arange(21)
    out, _ = torchvox.segment_reduce(
        src.to(device), offsets.to(device), reduce, index=idx.flatten().to(device)
    )
    fill = {"max": -torch.inf, "min": torch.inf}.get(reduce, 0.0)
    near = torch.where(idx[..., None] >= 0, src[idx.clamp(min=0)], fill)
    want = {"max": near.amax(1), "min": near.amin(1), "sum": near.sum(1)}
    want["mean"] = want["sum"] / (idx >= 0).sum(1, keepdim=True)
    torch.testing.assert_close(out.cpu(), want[reduce])


@pytest.mark.parametrize("shape", [(30,), (30, 2, 3), (30, 0, 3)])
def test_rows_of_any_shape(device, shape):
    src = torch.randn(shape, device=device)
    offsets = torch.tensor([0, 4, 30], device=device)
    out, arg = torchvox.segment_reduce(src, offsets, "max")
    assert out.shape == arg.shape == (2, *shape[1:])
    torch.testing.assert_close(out, torch.stack([src[:4].amax(0), src[4:].amax(0)]))
    assert torchvox.segment_reduce(src, offsets)[1].shape == (0,)
