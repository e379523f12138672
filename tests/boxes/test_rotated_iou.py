# SPDX-License-Identifier: Apache-2.0
"""rotated_iou against polygons clipped in float64, and where boxes touch, coincide or vanish."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from box_cases import box, exact_iou, random_pairs
from helpers import ROOT, assert_same_bits

import torchvox

SETS = {
    "near": {},
    "far": {"offset": 1e5},
    "millimeters": {"scale": 1e-3, "sizes": (5e-4, 2e-3)},
    "thin": {"sizes": (0.01, 8.0)},
}
# What the page promises for float32, up to 10 times as long as wide.
PROMISE = float(
    re.search(r"Float32 results are within (\S+) of", (ROOT / "docs/boxes.md").read_text())[1]
)
each_set = pytest.mark.parametrize("name", SETS)


def iou(a, b, device="cpu", **options) -> float:
    pair = [torch.tensor([v], device=device) for v in (a, b)]
    return float(torchvox.rotated_iou(*pair, paired=True, **options))


@each_set
@pytest.mark.parametrize("mode", ["bev", "3d"])
def test_pairs_agree_with_clipping_in_float64(name, mode, device):
    a, b = random_pairs(2000, seed=1, **SETS[name])
    exact = exact_iou(a, b, mode == "3d")
    got = torchvox.rotated_iou(a.to(device), b.to(device), mode=mode, paired=True).cpu()
    assert np.abs(got.numpy() - exact).max() < PROMISE
    got = torchvox.rotated_iou(a.double(), b.double(), mode=mode, paired=True)
    assert np.abs(got.numpy() - exact).max() < 1e-13


@pytest.mark.parametrize("yaw", [0.0, 1e-7, 1e-4, math.pi / 2, math.pi, 1.57, 100.0])
def test_boxes_that_are_nearly_parallel_or_upright_agree_too(yaw, device):
    a, b = random_pairs(2000, seed=2)
    b[:, 6] = a[:, 6] + yaw
    got = torchvox.rotated_iou(a.to(device), b.to(device), paired=True).cpu()
    assert np.abs(got.numpy() - exact_iou(a, b)).max() < PROMISE
    a[:, 6], b[:, 6] = 0.0, yaw
    got = torchvox.rotated_iou(a.to(device), b.to(device), paired=True).cpu()
    assert np.abs(got.numpy() - exact_iou(a, b)).max() < PROMISE


@pytest.mark.parametrize("aspect", [5, 100, 1e4])
def test_thin_boxes_side_by_side_lose_what_their_angles_round_away(aspect, device):
    a, b = random_pairs(2000, seed=9, scale=3 / aspect, sizes=(0.7, 1.0))
    for boxes in (a, b):
        boxes[:, 3] *= 10
        boxes[:, 4] *= 10 / aspect
    b[:, 6] = a[:, 6] + torch.linspace(-1, 1, 2000) / aspect
    exact = exact_iou(a, b)
    got = torchvox.rotated_iou(a.to(device), b.to(device), paired=True).cpu()
    assert np.abs(got.numpy() - exact).max() < PROMISE * max(1, aspect / 10)
    got = torchvox.rotated_iou(a.double(), b.double(), paired=True)
    assert np.abs(got.numpy() - exact).max() < max(1e-13, 4e-16 * aspect)


@pytest.mark.parametrize("mode", ["bev", "3d"])
def test_a_box_and_itself_turned_by_half_or_a_quarter_of_a_turn(mode, device):
    """What a detector gives twice; float32 is furthest off there."""
    a, _ = random_pairs(4000, seed=10)
    a[:, 4] = a[:, 3] * torch.linspace(0.1, 1, 4000)
    worst = [2.09616947, -2.42776561, -0.742031693, 8.03518105, 9.00787926, 0.625841022, 5.07291698]
    a[0] = torch.tensor(worst)  # 1.03e-6, the most among 10^8 pairs
    b = a.clone()
    b[::2, [3, 4]] = b[::2, [4, 3]]
    b[::2, 6] += math.pi / 2
    b[1::2, 6] += math.pi * torch.linspace(-1, 1, 2000).sign()
    got = torchvox.rotated_iou(a.to(device), b.to(device), mode=mode, paired=True).cpu()
    assert np.abs(got.numpy() - exact_iou(a, b, mode == "3d")).max() < PROMISE


# Just above the least area or volume.
LEAST = {"bev": {"scale": 3e-15, "sizes": (1.1e-15, 5e-15)},
         "3d": {"scale": 3e-10, "sizes": (1.1e-10, 5e-10)}}  # fmt: skip


@pytest.mark.parametrize("mode", LEAST)
def test_the_smallest_boxes_are_measured_as_others_are(mode, device):
    a, b = random_pairs(2000, seed=11, **LEAST[mode])
    b[::2, 6] = a[::2, 6] + torch.linspace(-1e-3, 1e-3, 1000)
    exact = exact_iou(a, b, mode == "3d")
    for dtype, most in ((torch.float32, PROMISE), (torch.float64, 1e-13)):
        pair = [t.detach().to(device, dtype).requires_grad_() for t in (a, b)]
        got = torchvox.rotated_iou(*pair, mode=mode, paired=True)
        assert np.abs(got.detach().cpu().numpy() - exact).max() < most
        got.sum().backward()
        assert all(t.grad.isfinite().all() for t in pair)


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


@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e14), (torch.float32, 1e38)])
def test_an_angle_may_be_large(dtype, most, device):
    a, b = (t.to(dtype) for t in random_pairs(500, seed=12))
    a[:, 6] *= most / 8
    got = torchvox.rotated_iou(a.to(device), b.to(device), paired=True).cpu()
    limit = PROMISE if dtype == torch.float32 else 1e-13
    assert np.abs(got.numpy() - exact_iou(a, b)).max() < limit


def test_a_float64_angle_beyond_2_to_the_50_counts_as_none(device):
    a = torch.tensor([box(yaw=2.0**50 + 2)], dtype=torch.float64, device=device)
    b = torch.tensor([box()], dtype=torch.float64, device=device)
    turned = torch.tensor([box(yaw=2.0**50)], dtype=torch.float64, device=device)
    assert float(torchvox.rotated_iou(a, b)) == pytest.approx(1, abs=1e-15)
    assert torchvox.rotated_iou(turned, b) < 0.9


@each_set
def test_the_order_of_a_pair_changes_no_bit(name, device):
    a, b = (t.to(device) for t in random_pairs(500, seed=3, **SETS[name]))
    for mode in ("bev", "3d"):
        forward = torchvox.rotated_iou(a, b, mode=mode)
        assert_same_bits(forward, torchvox.rotated_iou(b, a, mode=mode).mT.contiguous())
        assert forward.min() >= 0 and forward.max() <= 1
        pairs = torchvox.rotated_iou(a, b, mode=mode, paired=True)
        assert_same_bits(pairs, forward.diagonal().contiguous())


@each_set
def test_a_box_overlaps_itself_by_exactly_one(name, device):
    a, _ = random_pairs(500, seed=4, **SETS[name])
    for mode in ("bev", "3d"):
        assert (torchvox.rotated_iou(a.to(device), a.to(device), mode=mode, paired=True) == 1).all()


def test_axis_aligned_boxes_have_the_rational_value():
    rng = np.random.default_rng(5)
    numbers = rng.integers(-40, 40, (300, 2, 2)), rng.integers(1, 60, (300, 2, 2))
    for (p, q), (r, s) in zip(*numbers, strict=True):
        shared = Fraction(1)
        for axis in range(2):
            high = min(Fraction(2 * p[axis] + r[axis]), Fraction(2 * q[axis] + s[axis]))
            low = max(Fraction(2 * p[axis] - r[axis]), Fraction(2 * q[axis] - s[axis]))
            shared *= max(Fraction(0), (high - low) / 2)
        union = Fraction(int(r[0] * r[1] + s[0] * s[1])) - shared
        a, b = box(*map(float, p), *map(float, r)), box(*map(float, q), *map(float, s))
        assert iou(a, b) == pytest.approx(float(shared / union), abs=1e-7)
        assert (iou(a, b) == 0) == (shared == 0)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (box(), box(x=4.0), 0.0),  # side by side
        (box(), box(x=4.0, y=2.0), 0.0),  # a corner
        (box(), box(x=3.0, yaw=math.pi / 2), 0.0),  # touching at right angles
        (box(), box(l=2.0, w=1.0), 0.25),  # contained
        (box(), box(l=2.0, w=1.0, yaw=0.3), 0.25),
        (box(), box(x=1.0, y=0.5, l=2.0, w=1.0), 0.25),  # contained in a corner
        (box(l=2.0, w=2.0), box(l=2.0, w=2.0, yaw=math.pi / 2), 1.0),
        (box(l=2.0, w=2.0), box(l=2.0, w=2.0, yaw=math.pi / 4), 2**0.5 / 2),  # an octagon
        (box(), box(yaw=math.pi / 2), 1 / 3),  # a cross
        (box(), box(yaw=math.pi), 1.0),
        (box(), box(l=2.0, w=4.0, yaw=-math.pi / 2), 1.0),  # the same rectangle
        (box(), box(l=0.0), 0.0),
        (box(), box(w=-2.0), 0.0),
        (box(l=-4.0, w=-2.0), box(l=-4.0, w=-2.0), 0.0),  # OpenPCDet#1065
        (box(l=0.0), box(l=0.0), 0.0),
        (box(), box(x=math.nan), 0.0),
        (box(), box(yaw=math.inf), 0.0),
        (box(l=math.inf), box(l=math.inf), 0.0),
        (box(x=1e30), box(x=-1e30), 0.0),
        (box(l=1e15, w=1e15), box(), 0.0),  # 8e-30
        (box(l=1e-3, w=1e-3), box(l=1e-3, w=1e-3, x=5e-4), 1 / 3),
    ],
)
def test_degenerate_pairs(a, b, expected, device):
    for first, second in ((a, b), (b, a)):
        assert iou(first, second, device) == pytest.approx(expected, abs=5e-7)
        if expected == 0 and a[3] < 1e10:
            assert iou(first, second, device) == 0


def test_volumes_need_a_shared_height(device):
    assert iou(box(), box(z=1.5), device, mode="3d") == 0
    assert iou(box(), box(z=0.75), device, mode="3d") == pytest.approx(1 / 3)
    assert iou(box(), box(z=10.0), device) == 1
    for bad in (box(h=0.0), box(h=-1.5), box(z=math.nan), box(h=math.inf)):
        assert iou(bad, bad, device, mode="3d") == 0
        assert iou(bad, bad, device) == 1  # from above, z and h are not read


def test_boxes_far_away_overlap_as_those_at_the_origin():  # mmdetection3d#1597
    a, b = random_pairs(500, seed=6)
    a[:, :2], b[:, :2] = (a[:, :2] * 8).round() / 8, (b[:, :2] * 8).round() / 8
    near = torchvox.rotated_iou(a, b)
    a[:, :2] += 131072
    b[:, :2] += 131072
    assert_same_bits(torchvox.rotated_iou(a, b), near)


def test_a_tile_of_the_kernel_more_or_less_changes_nothing(device):
    a, b = (t.to(device) for t in random_pairs(300, seed=7))
    whole = torchvox.rotated_iou(a, b)
    for n, m in ((1, 300), (63, 64), (65, 129), (300, 1)):
        assert_same_bits(torchvox.rotated_iou(a[:n], b[:m]), whole[:n, :m].contiguous())
    batch = torchvox.rotated_iou(torch.stack([a, b]), torch.stack([b, a]))
    assert_same_bits(batch, torch.stack([whole, torchvox.rotated_iou(b, a)]))


def test_identical_boxes_and_boxes_apart_get_no_gradient(device):
    a = torch.tensor([box(), box(), box(l=-1.0)], device=device, requires_grad=True)
    b = torch.tensor([box(), box(x=9.0), box()], device=device, requires_grad=True)
    torchvox.rotated_iou(a, b, paired=True).sum().backward()
    assert (a.grad == 0).all() and (b.grad == 0).all()


@pytest.mark.parametrize("mode", ["bev", "3d"])
def test_parts_and_overlaps_are_those_of_the_iou(mode, device):
    a, b = (t.double().to(device) for t in random_pairs(500, seed=13))
    columns = [3, 4, 5] if mode == "3d" else [3, 4]
    size_a, size_b = a[:, columns].prod(1), b[:, columns].prod(1)
    iou, iof, shared = (
        torchvox.rotated_iou(a, b, mode=mode, paired=True, metric=m)
        for m in ("iou", "iof", "overlap")
    )
    torch.testing.assert_close(shared, iou * (size_a + size_b) / (1 + iou), rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(iof, shared / size_a, rtol=1e-13, atol=0)
    assert ((iof == 0) == (iou == 0)).all() and (iof <= 1).all()
    swapped = torchvox.rotated_iou(b, a, mode=mode, metric="overlap").mT.contiguous()
    assert_same_bits(torchvox.rotated_iou(a, b, mode=mode, metric="overlap"), swapped)


@pytest.mark.parametrize("metric", ["iof", "overlap"])
def test_identical_boxes_are_whole_and_get_the_mean_of_both_slopes(metric, device):
    """One that gains a size shares none of it, one that loses it loses it all."""
    for mode, size in (("bev", 8.0), ("3d", 12.0)):
        a, b = (torch.tensor([box(1.0, 2.0, yaw=0.3)], device=device) for _ in range(2))
        a.requires_grad_(), b.requires_grad_()
        value = torchvox.rotated_iou(a, b, mode=mode, metric=metric)
        assert value.item() == (1 if metric == "iof" else size)
        value.backward()
        half = torch.tensor([0, 0, 0, size / 8, size / 4, size / 3 if mode == "3d" else 0, 0])
        of_b = half if metric == "overlap" else half / size
        of_a = half if metric == "overlap" else -half / size
        torch.testing.assert_close(a.grad[0].cpu(), of_a)
        torch.testing.assert_close(b.grad[0].cpu(), of_b)


@pytest.mark.parametrize("metric", ["iof", "overlap"])
def test_boxes_without_area_share_nothing(metric, device):
    none = [box(l=0.0), box(w=-2.0), box(x=math.nan), box(l=1e-20, w=1e-20)]
    a, b = torch.tensor([none, [box()] * 4], device=device).requires_grad_()
    value = torchvox.rotated_iou(a, b, paired=True, metric=metric)
    swapped = torchvox.rotated_iou(b, a, paired=True, metric=metric)
    gradient = torch.autograd.grad((value + swapped).sum(), (a, b))
    assert all((t == 0).all() for t in (value, swapped, *gradient))


def test_a_box_slides_onto_its_target(device):
    target = torch.tensor([box(1.0, 2.0, 4.0, 1.8, 0.4)], device=device)
    guess = torch.tensor([box(0.2, 1.5, 3.0, 2.2, 0.1, z=0.3)], device=device, requires_grad=True)
    optimizer = torch.optim.Adam([guess], lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        (1 - torchvox.rotated_iou(guess, target, mode="3d", paired=True)).sum().backward()
        optimizer.step()
    assert torchvox.rotated_iou(guess, target, mode="3d", paired=True) > 0.9


def test_a_matrix_sums_the_gradients_of_its_pairs():
    a, b = (t.double().requires_grad_() for t in random_pairs(70, seed=8))
    weight = torch.randn(70, 70, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    got = torch.autograd.grad((torchvox.rotated_iou(a, b) * weight).sum(), (a, b))
    rows, columns = a.repeat_interleave(70, 0), b.repeat(70, 1)
    pairs = torchvox.rotated_iou(rows, columns, paired=True)
    torch.testing.assert_close(got, torch.autograd.grad((pairs * weight.flatten()).sum(), (a, b)))
