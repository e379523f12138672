# SPDX-License-Identifier: Apache-2.0
"""rotated_iou against polygons clipped in float64, and where boxes touch, coincide or vanish."""

import math
import re

import numpy as np
import pytest
import torch
from box_cases import box, exact_iou, random_pairs
from helpers import ROOT, assert_same_bits

import torchvox

# What the page promises for float32, up to 10 times as long as wide.
PROMISE = float(
    re.search(r"Float32 results are within (\S+) of", (ROOT / "docs/boxes.md").read_text())[1]
)


BAD_HEIGHTS = (box(h=0.0), box(h=-1.5), box(z=math.nan), box(h=math.inf))


def iou(a, b, device="cpu", **options) -> float:
    pair = [torch.tensor([v], device=device) for v in (a, b)]
    return float(torchvox.rotated_iou(*pair, paired=True, **options))


SETS = {
    "near": {},
    "far": {"offset": 1e5},
    "millimeters": {"scale": 1e-3, "sizes": (5e-4, 2e-3)},
    "thin": {"sizes": (0.01, 8.0)},
}
# Just above the least area or volume.
LEAST = {"bev": {"scale": 3e-15, "sizes": (1.1e-15, 5e-15)},
         "3d": {"scale": 3e-10, "sizes": (1.1e-10, 5e-10)}}  # fmt: skip


def parallel(yaw: float, upright: bool = False):
    a, b = random_pairs(2000, seed=2)
    a[:, 6] *= not upright
    b[:, 6] = a[:, 6] + yaw
    return a, b


def side_by_side(aspect: float):
    a, b = random_pairs(2000, seed=9, scale=3 / aspect, sizes=(0.7, 1.0))
    for boxes in (a, b):
        boxes[:, 3] *= 10
        boxes[:, 4] *= 10 / aspect
    b[:, 6] = a[:, 6] + torch.linspace(-1, 1, 2000) / aspect
    return a, b


def turned():
    """Boxes and themselves, turned by half or a quarter of a turn: what a detector gives twice."""
    a, _ = random_pairs(4000, seed=10)
    a[:, 4] = a[:, 3] * torch.linspace(0.1, 1, 4000)
    worst = [2.09616947, -2.42776561, -0.742031693, 8.03518105, 9.00787926, 0.625841022, 5.07291698]
    a[0] = torch.tensor(worst)  # 1.03e-6, the most among 10^8 pairs
    b = a.clone()
    b[::2, [3, 4]] = b[::2, [4, 3]]
    b[::2, 6] += math.pi / 2
    b[1::2, 6] += math.pi * torch.linspace(-1, 1, 2000).sign()
    return a, b


def smallest(mode: str):
    a, b = random_pairs(2000, seed=11, **LEAST[mode])
    b[::2, 6] = a[::2, 6] + torch.linspace(-1e-3, 1e-3, 1000)
    return a, b


def spun(most: float):
    a, b = random_pairs(500, seed=12)
    a[:, 6] *= most / 8
    return a, b


# Pairs; the modes; the largest error in float32 and in float64.
BOTH, YAWS = ("bev", "3d"), (0.0, 1e-7, 1e-4, math.pi / 2, math.pi, 1.57, 100.0)
PAIRS = {
    **{name: (random_pairs(2000, 1, **kind), BOTH, PROMISE, 1e-13) for name, kind in SETS.items()},
    **{f"turned by {yaw}": (parallel(yaw), BOTH, PROMISE, 1e-13) for yaw in YAWS},
    **{f"upright by {yaw}": (parallel(yaw, True), BOTH, PROMISE, 1e-13) for yaw in YAWS},
    # Thin boxes side by side lose what their angles round away.
    **{
        f"side by side, {aspect}": (
            side_by_side(aspect), ("bev",),
            PROMISE * max(1, aspect / 10), max(1e-13, 4e-16 * aspect),
        )
        for aspect in (5, 100, 1e4)
    },
    "half and quarter turns": (turned(), BOTH, PROMISE, 1e-13),
    **{f"smallest, {mode}": (smallest(mode), (mode,), PROMISE, 1e-13) for mode in LEAST},
    "large angles": (spun(1e14), ("bev",), 1.0, 1e-13),
    "larger angles": (spun(1e38), ("bev",), PROMISE, 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_agree_with_clipping_in_float64(name, device):
    (a, b), modes, *limits = PAIRS[name]
    for mode in modes:
        exact = exact_iou(a, b, mode == "3d")
        for dtype, most in zip((torch.float32, torch.float64), limits, strict=True):
            pair = [t.detach().to(device, dtype).requires_grad_() for t in (a, b)]
            got = torchvox.rotated_iou(*pair, mode=mode, paired=True)
            assert np.abs(got.detach().cpu().numpy() - exact).max() < most
            assert all(g.isfinite().all() for g in torch.autograd.grad(got.sum(), pair))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", LEAST)
def test_smaller_boxes_overlap_nothing(mode, dtype, device):
    """Their products would be subnormal: overlaps of anything, gradients of infinity or NaN."""
    a, b = random_pairs(2000, seed=11, scale=0.01, sizes=(0.3, 0.9))
    a, b = (t.to(device, dtype) for t in (a, b))
    for size in (1e-10 if mode == "3d" else 1e-15, 1e-20, 1e-23, 1e-34):
        a[:, :6], b[:, :6] = a[:, :6] * (size / a[:, 3:4]), b[:, :6] * (size / b[:, 3:4])
        a[:, 4], b[:, 4] = a[:, 4].clamp(max=size / 2), b[:, 4].clamp(max=size / 2)
        a[:, 5], b[:, 5] = a[:, 5].clamp(max=size), b[:, 5].clamp(max=size)
        pair = [t.clone().requires_grad_() for t in (a, b)]
        got = torchvox.rotated_iou(*pair, mode=mode, paired=True)
        got.sum().backward()
        assert (got == 0).all() and all((t.grad == 0).all() for t in pair)


def test_a_float64_angle_beyond_2_to_the_50_counts_as_none(device):
    a = torch.tensor([box(yaw=2.0**50 + 2)], dtype=torch.float64, device=device)
    b = torch.tensor([box()], dtype=torch.float64, device=device)
    turned = torch.tensor([box(yaw=2.0**50)], dtype=torch.float64, device=device)
    assert float(torchvox.rotated_iou(a, b)) == pytest.approx(1, abs=1e-15)
    assert torchvox.rotated_iou(turned, b) < 0.9


@pytest.mark.parametrize("name", SETS)
def test_the_order_of_a_pair_changes_no_bit_and_a_box_overlaps_itself_by_one(name, device):
    a, b = (t.to(device) for t in random_pairs(500, seed=3, **SETS[name]))
    for mode in ("bev", "3d"):
        forward = torchvox.rotated_iou(a, b, mode=mode)
        assert_same_bits(forward, torchvox.rotated_iou(b, a, mode=mode).mT.contiguous())
        assert forward.min() >= 0 and forward.max() <= 1
        pairs = torchvox.rotated_iou(a, b, mode=mode, paired=True)
        assert_same_bits(pairs, forward.diagonal().contiguous())
        assert (torchvox.rotated_iou(a, a, mode=mode, paired=True) == 1).all()


@pytest.mark.parametrize(
    ("a", "b", "mode", "expected"),
    [
        (box(), box(x=4.0), "bev", 0.0),  # side by side
        (box(), box(x=4.0, y=2.0), "bev", 0.0),  # a corner
        (box(), box(x=3.0, yaw=math.pi / 2), "bev", 0.0),  # touching at right angles
        (box(), box(l=2.0, w=1.0), "bev", 0.25),  # contained
        (box(), box(l=2.0, w=1.0, yaw=0.3), "bev", 0.25),
        (box(), box(x=1.0, y=0.5, l=2.0, w=1.0), "bev", 0.25),  # contained in a corner
        (box(l=2.0, w=2.0), box(l=2.0, w=2.0, yaw=math.pi / 2), "bev", 1.0),
        (box(l=2.0, w=2.0), box(l=2.0, w=2.0, yaw=math.pi / 4), "bev", 2**0.5 / 2),  # an octagon
        (box(), box(yaw=math.pi / 2), "bev", 1 / 3),  # a cross
        (box(), box(yaw=math.pi), "bev", 1.0),
        (box(), box(l=2.0, w=4.0, yaw=-math.pi / 2), "bev", 1.0),  # the same rectangle
        (box(), box(x=2.0), "bev", 1 / 3),  # half of each
        (box(), box(l=0.0), "bev", 0.0),
        (box(), box(w=-2.0), "bev", 0.0),
        (box(l=-4.0, w=-2.0), box(l=-4.0, w=-2.0), "bev", 0.0),  # OpenPCDet#1065
        (box(l=0.0), box(l=0.0), "bev", 0.0),
        (box(), box(x=math.nan), "bev", 0.0),
        (box(), box(yaw=math.inf), "bev", 0.0),
        (box(l=math.inf), box(l=math.inf), "bev", 0.0),
        (box(x=1e30), box(x=-1e30), "bev", 0.0),
        (box(l=1e15, w=1e15), box(), "bev", 0.0),  # 8e-30
        (box(l=1e-3, w=1e-3), box(l=1e-3, w=1e-3, x=5e-4), "bev", 1 / 3),
        (box(), box(z=1.5), "3d", 0.0),  # volumes need a shared height
        (box(), box(z=0.75), "3d", 1 / 3),
        *((bad, bad, "3d", 0.0) for bad in BAD_HEIGHTS),
        *((bad, bad, "bev", 1.0) for bad in BAD_HEIGHTS),  # from above, z and h are not read
        (box(), box(z=10.0), "bev", 1.0),
    ],
)
def test_degenerate_pairs(a, b, mode, expected, device):
    for first, second in ((a, b), (b, a)):
        value = iou(first, second, device, mode=mode)
        assert value == pytest.approx(expected, abs=5e-7)
        assert expected > 0 or a[3] > 1e10 or value == 0


def test_boxes_far_away_overlap_as_those_at_the_origin():  # mmdetection3d#1597
    a, b = random_pairs(500, seed=6)
    a[:, :2], b[:, :2] = (a[:, :2] * 8).round() / 8, (b[:, :2] * 8).round() / 8
    near = torchvox.rotated_iou(a, b)
    a[:, :2] += 131072
    b[:, :2] += 131072
    assert_same_bits(torchvox.rotated_iou(a, b), near)


@pytest.mark.parametrize("metric", ["iou", "iof", "overlap"])
def test_identical_boxes_are_whole_and_get_the_mean_of_both_slopes(metric, device):
    """One that gains a size shares none of it, one that loses it loses it all."""
    for mode, size in (("bev", 8.0), ("3d", 12.0)):
        a, b = (torch.tensor([box(1.0, 2.0, yaw=0.3)], device=device) for _ in range(2))
        a.requires_grad_(), b.requires_grad_()
        value = torchvox.rotated_iou(a, b, mode=mode, metric=metric)
        assert value.item() == (size if metric == "overlap" else 1)
        value.backward()
        half = torch.tensor([0, 0, 0, size / 8, size / 4, size / 3 if mode == "3d" else 0, 0])
        of_a, of_b = {
            "iou": (half * 0, half * 0), "iof": (-half / size, half / size), "overlap": (half, half)
        }[metric]  # fmt: skip
        torch.testing.assert_close(a.grad[0].cpu(), of_a)
        torch.testing.assert_close(b.grad[0].cpu(), of_b)


@pytest.mark.parametrize("metric", ["iou", "iof", "overlap"])
def test_boxes_without_area_or_apart_share_nothing_and_have_no_gradient(metric, device):
    none = [box(l=0.0), box(w=-2.0), box(x=math.nan), box(l=1e-20, w=1e-20), box(x=9.0)]
    a, b = torch.tensor([none, [box()] * 5], device=device).requires_grad_()
    value = torchvox.rotated_iou(a, b, paired=True, metric=metric)
    swapped = torchvox.rotated_iou(b, a, paired=True, metric=metric)
    gradient = torch.autograd.grad((value + swapped).sum(), (a, b))
    assert all((t == 0).all() for t in (value, swapped, *gradient))
