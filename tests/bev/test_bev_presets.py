# SPDX-License-Identifier: Apache-2.0
"""The presets are the published encodings, recomputed here with plain NumPy."""

import math

import numpy as np
import pytest
import torch
from bev_cases import call

import torchvox

NAMES = {
    "mv3d": (704, 800, 8),
    "complex_yolo": (608, 608, 3),
    "pixor": (800, 700, 36),
    "birdnet": (700, 700, 3),
    "second": (400, 352, 12),
}


def street(n=4000, seed=0):
    """Points ahead of the car, clustered so that cells hold several of them."""
    rng = np.random.default_rng(seed)
    centers = rng.uniform([0, -20, -2.5], [50, 20, 1.5], (150, 3))
    xyz = centers[rng.integers(0, 150, n)] + rng.normal(size=(n, 3)) * 0.15
    return torch.from_numpy(np.hstack([xyz, rng.random((n, 1))]).astype(np.float32))


def cells(points, bounds, size):
    """(ix, iy) -> [n, 4] points, in input order; the rule of the contract in float32."""
    lo, hi = np.float32(bounds[:3]), np.float32(bounds[3:])
    res = (hi[:2] - lo[:2]) / np.float32(size)
    grouped = {}
    for p in points.numpy():
        if (lo <= p[:3]).all() and (p[:3] < hi).all():
            ix, iy = np.floor((p[:2] - lo[:2]) / res)
            if ix < size[0] and iy < size[1]:
                grouped.setdefault((int(ix), int(iy)), []).append(p)
    return {cell: np.array(members) for cell, members in grouped.items()}


def top(p):
    return p[p[:, 2].argmax()]


def slice_values(p, z0, z1, k, value):
    dz = np.float32((np.float32(z1) - np.float32(z0)) / np.float32(k))
    which = np.minimum(np.floor((p[:, 2] - np.float32(z0)) / dz), k - 1)
    return [value(p[which == j]) if (which == j).any() else 0.0 for j in range(k)]


def mean(v):
    return np.float32(v.astype(np.float64).mean())


def density(n):
    return min(1.0, math.log(n + 1) / math.log(64))


def highest(p):
    return p[:, 2].max()


PIXELS = {  # what each published network sees in a cell
    "mv3d": lambda p: [*slice_values(p, -2.0, 0.4, 6, highest), top(p)[3], density(len(p))],
    "complex_yolo": lambda p: [density(len(p)), (highest(p) + 2.73) / 4.0, top(p)[3]],
    "pixor": lambda p: [*slice_values(p, -2.5, 1.0, 35, lambda _: 1.0), mean(p[:, 3])],
    "birdnet": lambda p: [highest(p), mean(p[:, 3]), len(p)],
    "second": lambda p: [*slice_values(p, -3.0, 1.0, 10, highest), top(p)[3], len(p)],
}


@pytest.mark.parametrize("name", NAMES)
def test_pixels_against_numpy(device, name):
    preset = torchvox.bev_preset(name)
    points = street()
    (image,), _ = call(device, "bev_rasterize", points, **preset)
    expected = np.zeros_like(image.numpy())
    assert expected.shape == (NAMES[name][2], *NAMES[name][:2])
    nx, ny = preset["size"]
    for (ix, iy), members in cells(points, preset["point_cloud_range"], preset["size"]).items():
        forward_up = preset["orientation"] == "image"
        row, col = (nx - 1 - ix, ny - 1 - iy) if forward_up else (iy, ix)
        expected[:, row, col] = PIXELS[name](members)
    np.testing.assert_allclose(image.numpy(), expected, rtol=2e-6, atol=2e-6)


def test_a_preset_is_a_fresh_dictionary():
    preset = torchvox.bev_preset("pixor")
    preset["channels"].append("count")
    preset["size"][0] = 1
    assert torchvox.bev_preset("pixor")["size"] == [700, 800]
    assert torchvox.bev_preset("pixor")["channels"] == ["occupancy:35", "intensity_mean"]


def test_an_unknown_preset_is_refused():
    with pytest.raises(ValueError, match=r"^bev_preset: name must be .*mv3d.*, got 'mv4d'$"):
        torchvox.bev_preset("mv4d")


def test_a_point_at_each_corner_stays_in_its_corner(device):
    # `row = nx - ix` and `row = -x` wrap or leave the image in common code.
    preset = torchvox.bev_preset("mv3d")
    points = torch.tensor([[0.01, -39.99, 0, 1], [70.39, 39.99, 0, 1]])
    (image,), _ = call(device, "bev_rasterize", points, **preset)
    assert image[7].nonzero().tolist() == [[0, 0], [703, 799]]
