# SPDX-License-Identifier: Apache-2.0
"""query_and_group has the bits of its parts, forward and backward."""

import pytest
import torch
from ball_cases import NAN, ops, spoilt
from helpers import assert_same_bits, cube, forced, lattice

from torchvox import reference

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
RADII, KS = [0.1, 0.2, 0.4], [4, 8, 16]


def case(n=200, m=30, c=6, seed=0, dtype=torch.float32):
    points, query = cube(n, batch=2, seed=seed), cube(m, batch=2, seed=seed + 1)
    features = torch.randn(2, n, c, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return points, query, features


def unfused(points, query, features, radii, ks, use_xyz=True, normalize_xyz=False):
    """The same from the other ops: a ball query a radius, gathers, torch's arithmetic."""
    idx = [ops.ball_query(points, query, radius, k)[1] for radius, k in zip(radii, ks, strict=True)]
    idx = torch.cat(idx, -1)
    flat, parts = idx.flatten(1), []
    if use_xyz:
        neighbors = ops.gather_points(points, flat).view(*idx.shape, -1)
        relative = neighbors - query[:, :, None]
        if normalize_xyz:
            wide = relative if relative.dtype == torch.float64 else relative.float()
            divisor = torch.tensor(radii, dtype=wide.dtype).repeat_interleave(torch.tensor(ks))
            relative = (wide / divisor[:, None].to(wide.device)).to(relative.dtype)
        parts.append(relative)
    if features is not None:
        parts.append(ops.gather_points(features, flat).view(*idx.shape, -1))
    return torch.cat([part.to(parts[-1].dtype) for part in parts], -1)


@pytest.mark.parametrize("kernel", ["scan", "cells"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("radii", [[0.2], RADII, [0.05 * i for i in range(1, 9)]])
def test_it_equals_its_parts_bit_for_bit(device, radii, normalize, kernel):
    points, query, features = (t.to(device) for t in case())
    ks = [3 + i for i in range(len(radii))]
    expected = unfused(points, query, features, radii, ks, normalize_xyz=normalize)
    with forced(ball_kernel=kernel):
        grouped, _, count = ops.query_and_group(
            points, query, features, radii, ks, normalize_xyz=normalize
        )
    assert_same_bits(grouped, expected)
    assert count.shape == (2, 30, len(radii))


@pytest.mark.parametrize("kernel", ["scan", "cells"])
@pytest.mark.parametrize("make", [spoilt, lattice], ids=["spoilt", "lattice"])
def test_several_radii_in_one_scan_are_those_of_single_queries(device, make, kernel):
    points, query = make(1500, batch=2).to(device), make(40, seed=1, batch=2).to(device)
    radii, ks = [0.1, 1.5, 0.3, 2.5], [5, 33, 0, 70]
    with forced(ball_kernel=kernel):
        _, idx, count = ops.query_and_group(points, query, None, radii, ks)
    begin = 0
    for r, (radius, k) in enumerate(zip(radii, ks, strict=True)):
        _, alone, hits = ops.ball_query(points, query, radius, k)
        assert_same_bits(idx[:, :, begin : begin + k], alone)
        assert_same_bits(count[:, :, r], hits)
        begin += k


@pytest.mark.parametrize("channels", [0, 1, 3, 29, 64, 300])
@pytest.mark.parametrize("dtype", FLOATS)
def test_any_number_of_channels_in_any_dtype(device, dtype, channels):
    points, query, features = (t.to(device) for t in case(c=channels, dtype=dtype))
    grouped = ops.query_and_group(points, query, features, RADII, KS)[0]
    assert_same_bits(grouped, unfused(points, query, features, RADII, KS))
    assert grouped.dtype == dtype


@pytest.mark.parametrize("dtype", FLOATS)
def test_coordinates_in_any_dtype_without_features(device, dtype):
    points, query, _ = (t.to(device) for t in case())
    points, query = points.to(dtype), query.to(dtype)
    for normalize in (False, True):
        grouped = ops.query_and_group(points, query, None, RADII, KS, normalize_xyz=normalize)[0]
        assert_same_bits(grouped, unfused(points, query, None, RADII, KS, normalize_xyz=normalize))


def test_an_empty_ball_holds_point_0_and_counts_0(device):
    points, features = torch.ones(1, 4, 3), torch.arange(8.0).view(1, 4, 2)
    query = torch.full((1, 1, 3), 9.0)
    grouped, idx, count = ops.query_and_group(
        points.to(device), query.to(device), features.to(device), [1.0], [2]
    )
    assert grouped[0, 0].tolist() == [[-8, -8, -8, 0, 1]] * 2
    assert idx.tolist() == [[[0, 0]]] and count.tolist() == [[[0]]]


def test_without_points_a_slot_is_the_difference_from_zero(device):
    query = torch.full((1, 1, 3), 2.0, device=device)
    points, features = torch.ones(1, 0, 3, device=device), torch.ones(1, 0, 2, device=device)
    grouped = ops.query_and_group(points, query, features, [1.0], [1])[0]
    assert grouped[0, 0].tolist() == [[-2, -2, -2, 0, 0]]


def test_far_from_the_origin_differences_are_exact(device):
    points = cube(300, batch=1) + 1e4
    query = points[:, ::30]
    grouped, idx, _ = ops.query_and_group(points.to(device), query.to(device), None, [0.3], [9])
    exact = points[0, idx[0].cpu().long()].double() - query[0, :, None].double()
    assert torch.equal(grouped[0].cpu().double(), exact)


def gradients(device, tensors, wanted, radii, ks, function, seed_dtype=None, **options):
    leaves = [
        None if t is None else t.to(device).clone().requires_grad_(i in wanted)
        for i, t in enumerate(tensors)
    ]
    out = function(*leaves, radii, ks, **options)
    out = out[0] if isinstance(out, tuple) else out
    seed = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(out)
    return torch.autograd.grad(out, [leaves[i] for i in wanted], seed)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_of_points_and_features_are_those_of_the_parts(device, dtype, normalize):
    tensors = case(c=5, dtype=dtype)
    for wanted in ([0, 2], [2], [0]):
        got, expected = (
            gradients(device, tensors, wanted, RADII, KS, f, normalize_xyz=normalize)
            for f in (ops.query_and_group, unfused)
        )
        for g, e in zip(got, expected, strict=True):
            assert_same_bits(g, e)


def test_the_gradient_of_a_query_is_minus_the_sum_over_its_slots_in_chunks(device):
    points, query, _ = case(n=900, m=3)
    radii, ks = [2.0], [700]  # every point: three chunks
    (grad,) = gradients(device, (points, query, None), [1], radii, ks, ops.query_and_group)
    seed = torch.randn(2, 3, 700, 3, generator=torch.Generator().manual_seed(5))
    total = torch.zeros(2, 3, 3)
    for begin in range(0, 700, 256):
        chunk = torch.zeros(2, 3, 3)
        for slot in range(begin, min(begin + 256, 700)):
            chunk = chunk + seed[:, :, slot]
        total = total + chunk
    assert_same_bits(grad.cpu(), -total)


def test_padded_queries_and_nan_points_agree_with_the_reference(device):
    points, query, features = case()
    points[0, 0], points[1, 120:] = NAN, NAN
    lengths, query_lengths = torch.tensor([200, 120]), torch.tensor([30, 11])
    expected = reference.query_and_group(
        points, query, features, RADII, KS, lengths=lengths, query_lengths=query_lengths
    )
    got = ops.query_and_group(
        *(t.to(device) for t in (points, query, features)), RADII, KS,
        lengths=lengths.to(device), query_lengths=query_lengths.to(device),
    )  # fmt: skip
    assert_same_bits(got, expected)


@pytest.mark.gpu
def test_slots_are_listed_once_for_points_and_features():
    from torch.profiler import ProfilerActivity, profile

    points, query = cube(300, batch=2).cuda(), cube(40, seed=1, batch=2).cuda()
    features = cube(300, 5, batch=2, seed=2).cuda()
    leaves = [t.requires_grad_() for t in (points, query, features)]
    grouped = ops.query_and_group(*leaves, [0.3, 0.5], [8, 16], normalize_xyz=True)[0]
    seeds = torch.ones_like(grouped)

    def step():
        torch.autograd.grad(grouped, leaves, seeds, retain_graph=True)

    step()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as record:
        step()
        torch.cuda.synchronize()
    names = [event.name for event in record.events()]
    assert sum("place_kernel" in name for name in names) == 1


def test_long_lists_of_slots_serve_points_and_features(device):
    """All slots name one point, whose chunks are counted off for each of the two sums."""
    points, features = torch.zeros(1, 1, 3), cube(1, 5, seed=2)
    query = cube(700, seed=1, scale=0.01)
    found = []
    for wanted in ((0, 1, 2), (0,), (2,)):
        leaves = [
            t.to(device).requires_grad_(i in wanted)
            for i, t in enumerate((points.clone(), query.clone(), features.clone()))
        ]
        grouped = ops.query_and_group(*leaves, [0.5], [3], normalize_xyz=True)[0]
        seeds = (torch.arange(grouped.numel(), device=device) % 7).reshape(grouped.shape).float()
        grads = torch.autograd.grad(grouped, [leaves[i] for i in wanted], seeds)
        found.append(dict(zip(wanted, grads, strict=True)))
    assert_same_bits(found[0][0], found[1][0])
    assert_same_bits(found[0][2], found[2][2])


@pytest.mark.parametrize("dtype", FLOATS)
def test_features_alone(device, dtype):
    points, query, features = (t.to(device) for t in case(dtype=dtype))
    grouped = ops.query_and_group(points, query, features, RADII, KS, use_xyz=False)[0]
    assert_same_bits(grouped, unfused(points, query, features, RADII, KS, use_xyz=False))


def test_features_alone_give_the_coordinates_no_gradient(device):
    points, query, features = (t.to(device).requires_grad_() for t in case())
    out = ops.query_and_group(points, query, features, RADII, KS, use_xyz=False)[0]
    out.sum().backward()
    assert points.grad is None and query.grad is None and features.grad is not None
