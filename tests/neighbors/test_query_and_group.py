# SPDX-License-Identifier: Apache-2.0
"""query_and_group has the bits of its parts, forward and backward."""

import pytest
import torch
from helpers import assert_same_bits, cube, forced, lattice
from search_cases import spoilt

ops = torch.ops.torchvox
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
RADII, KS = [0.1, 0.2, 0.4], [4, 8, 16]


def case(n=200, m=30, c=6, seed=0, dtype=torch.float32, coordinates=torch.float32):
    points, query = cube(n, batch=2, seed=seed), cube(m, batch=2, seed=seed + 1)
    features = torch.randn(2, n, c, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return points.to(coordinates), query.to(coordinates), features


def unfused(points, query, features, radii, ks, use_xyz=True, normalize_xyz=False):
    """The same from the other ops: one ball query per radius, gathers, torch's arithmetic."""
    balls = [ops.ball_query(points, query, *ball) for ball in zip(radii, ks, strict=True)]
    idx = torch.cat([ball[1] for ball in balls], -1)
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


EIGHT = [0.05 * i for i in range(1, 9)]
NORMAL, ALONE = {"normalize_xyz": True}, {"use_xyz": False}
CASES = {
    "one radius": (case(), [0.2], [3], {}),
    "three radii": (case(), RADII, KS, NORMAL),
    "eight radii": (case(), EIGHT, [3 + i for i in range(8)], NORMAL),
    "radii in any order": (
        (spoilt(1500, batch=2), spoilt(40, seed=1, batch=2), None),
        [0.1, 1.5, 0.3, 2.5], [5, 33, 0, 70], {},
    ),
    "ties": (
        (lattice(1500, batch=2), lattice(40, seed=1, batch=2), None),
        [0.1, 1.5, 2.5], [5, 33, 70], {},
    ),
    # All slots name one point, whose chunks are counted off for each of the two sums.
    "one point": (case(n=1, m=700), [9.0], [3], NORMAL),
    **{
        f"{c} channels of {dtype}": (case(c=c, dtype=dtype), RADII, KS, {})
        for dtype in FLOATS
        for c in (0, 1, 3, 29, 64, 300)
    },
    **{
        f"{name} of {dtype}": (case(dtype=dtype), RADII, KS, options)
        for dtype in FLOATS
        for name, options in (("normalized", NORMAL), ("features", ALONE))
    },
    **{
        f"coordinates of {dtype}, {name}": (
            (*case(coordinates=dtype)[:2], None), RADII, KS, options
        )
        for dtype in FLOATS
        for name, options in (("plain", {}), ("normalized", NORMAL))
    },
}  # fmt: skip


def outputs_and_gradients(function, device, tensors, leaves, *args, **options) -> tuple:
    """The groups, and the gradients of the tensors whose numbers are `leaves`."""
    call = [
        None if t is None else t.to(device, copy=True).requires_grad_(i in leaves)
        for i, t in enumerate(tensors)
    ]
    out = function(*call, *args, **options)
    out = out if torch.is_tensor(out) else out[0]
    seed = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(out)
    return out.detach(), *torch.autograd.grad(out, [call[i] for i in leaves], seed)


@pytest.mark.parametrize("kernel", ["scan", "cells"])
@pytest.mark.parametrize("name", CASES)
def test_it_has_the_bits_and_gradients_of_its_parts(device, name, kernel):
    tensors, *args, options = CASES[name]
    differentiable = {0: options.get("use_xyz", True), 2: tensors[2] is not None}
    for leaves in ([0, 2], [0], [2]):
        leaves = [i for i in leaves if differentiable[i]]
        if leaves:
            call = (device, tensors, leaves, *args)
            with forced(ball_kernel=kernel):
                actual = outputs_and_gradients(ops.query_and_group, *call, **options)
            assert_same_bits(actual, outputs_and_gradients(unfused, *call, **options))


@pytest.mark.parametrize(
    ("n", "group", "idx"),
    [(4, [-8, -8, -8, 0, 1], [0, 0]), (0, [-9, -9, -9, 0, 0], [0, 0])],
    ids=["points", "none: differences from zero"],
)
def test_an_empty_ball_holds_point_0_and_counts_0(device, n, group, idx):
    points, features = torch.ones(1, n, 3), torch.arange(2.0 * n).view(1, n, 2)
    query = torch.full((1, 1, 3), 9.0)
    grouped, index, count = ops.query_and_group(
        points.to(device), query.to(device), features.to(device), [1.0], [2]
    )
    assert grouped[0, 0].tolist() == [group] * 2
    assert index.tolist() == [[idx]] and count.tolist() == [[[0]]]


def test_the_gradient_of_a_query_is_minus_the_sum_over_its_slots_in_chunks(device):
    points, query, _ = case(n=900, m=3)
    leaf = query.to(device).requires_grad_()
    out = ops.query_and_group(points.to(device), leaf, None, [2.0], [700])[0]  # three chunks
    seed = torch.randn(2, 3, 700, 3, generator=torch.Generator().manual_seed(5))
    (grad,) = torch.autograd.grad(out, leaf, seed.to(device))
    total = torch.zeros(2, 3, 3)
    for chunk in seed.split(256, 2):
        partial = torch.zeros(2, 3, 3)
        for slot in chunk.unbind(2):
            partial = partial + slot
        total = total + partial
    assert_same_bits(grad.cpu(), -total)
