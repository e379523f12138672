# SPDX-License-Identifier: Apache-2.0
"""What Python adds to the rasters: the map from pixels to meters, and published encodings."""

import math

import pytest
import torch
from bev_cases import ORIENTATIONS, RANGE, SIZE, call

import torchvox
from torchvox.reference import bev as reference

NAMES = {
    "mv3d": (704, 800, 8),
    "complex_yolo": (608, 608, 3),
    "pixor": (800, 700, 36),
    "birdnet": (700, 700, 3),
    "second": (400, 352, 12),
}


# One cell of three points, by height and intensity, and what each published network sees in it.
CELL = torch.tensor([[10.03, 5.02, z, i] for z, i in ((-1.45, 0.2), (0.07, 0.4), (-0.93, 0.9))])
DENSITY = math.log(4) / math.log(64)
PIXELS = {
    "mv3d": [0, -1.45, -0.93, 0, 0, 0.07, 0.4, DENSITY],  # slices of 0.4 m from -2 m
    "complex_yolo": [DENSITY, (0.07 + 2.73) / 4.0, 0.4],
    "pixor": [*(float(i in (10, 15, 25)) for i in range(35)), 0.5],  # of 0.1 m from -2.5 m
    "birdnet": [0.07, 0.5, 3],
    "second": [0, 0, 0, -1.45, 0, -0.93, 0, 0.07, 0, 0, 0.4, 3],  # of 0.4 m from -3 m
}


@pytest.mark.parametrize("name", NAMES)
def test_pixels_by_hand(device, name):
    preset = torchvox.bev_preset(name)
    (image,), _ = call(device, "bev_rasterize", CELL, **preset)
    assert image.shape == (NAMES[name][2], *NAMES[name][:2])
    lower, upper = preset["point_cloud_range"][:2], preset["point_cloud_range"][3:5]
    share = [(v - a) / (b - a) for v, a, b in zip((10.03, 5.02), lower, upper, strict=True)]
    ix, iy = (int(s * n) for s, n in zip(share, preset["size"], strict=True))
    nx, ny = preset["size"]
    row, col = (nx - 1 - ix, ny - 1 - iy) if preset["orientation"] == "image" else (iy, ix)
    expected = torch.zeros_like(image)
    expected[:, row, col] = torch.tensor(PIXELS[name])
    torch.testing.assert_close(image, expected)


def test_a_preset_is_a_fresh_dictionary():
    preset = torchvox.bev_preset("pixor")
    preset["channels"].append("count")
    preset["size"][0] = 1
    assert torchvox.bev_preset("pixor")["size"] == [700, 800]
    assert torchvox.bev_preset("pixor")["channels"] == ["occupancy:35", "intensity_mean"]


def test_an_unknown_preset_is_refused():
    with pytest.raises(ValueError, match=r"^bev_preset: name must be .*mv3d.*, got 'mv4d'$"):
        torchvox.bev_preset("mv4d")


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_every_pixel_center_lands_in_its_pixel(device, orientation):
    rows, cols = (32, 20) if orientation == "image" else (20, 32)
    affine = torchvox.bev_affine(RANGE, SIZE, orientation=orientation)
    row, col = torch.meshgrid(torch.arange(rows), torch.arange(cols), indexing="ij")
    pixel = torch.stack([col, row, torch.ones_like(row)], -1).reshape(-1, 3).double()
    meters = pixel @ affine.T
    points = torch.cat([meters[:, :2], torch.zeros(len(meters), 1)], 1).float()
    _, top, _ = call(
        device, "bev_max_height_with_index", points, RANGE, SIZE, orientation=orientation
    )
    assert torch.equal(top.flatten(), torch.arange(rows * cols, dtype=torch.int32))


@pytest.mark.parametrize(
    ("orientation", "matrix"),
    [
        ("grid", [[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]]),
        ("image", [[0, -1, 2.5], [-1, 0, 1.5], [0, 0, 1]]),
        ("north_up", [[1, 0, 0.5], [0, -1, 1.5], [0, 0, 1]]),
    ],
)
def test_matrices_of_cells_of_a_meter(orientation, matrix):
    for function in (torchvox.bev_affine, reference.bev_affine):
        affine = function([0.0, 0.0, -1.0, 3.0, 2.0, 3.0], [3, 2], orientation=orientation)
        assert affine.dtype == torch.float64 and affine.tolist() == matrix


BAD = {
    "point_cloud_range": [RANGE[:5], [*RANGE[:3], -8.0, 6.0, 2.0]],
    "size": [[32, 0], [32]],
    "orientation": ["up"],
}


@pytest.mark.parametrize(("argument", "value"), [(a, v) for a in BAD for v in BAD[a]])
def test_wrong_arguments_are_refused(argument, value):
    call = {"point_cloud_range": RANGE, "size": SIZE, argument: value}
    with pytest.raises(ValueError, match=rf"^bev_affine: {argument} must .*got"):
        torchvox.bev_affine(**call)
