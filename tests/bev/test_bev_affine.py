# SPDX-License-Identifier: Apache-2.0
"""bev_affine maps pixels to meters, consistently with where the rasters put points."""

import pytest
import torch
from bev_cases import ORIENTATIONS, RANGE, SIZE, call

import torchvox


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


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_the_inverse_gives_pixels(orientation):
    affine = torchvox.bev_affine(RANGE, SIZE, orientation=orientation)
    assert affine.dtype == torch.float64 and affine.shape == (3, 3)
    corner = torch.tensor([RANGE[0], RANGE[1], 1.0], dtype=torch.float64)
    col, row, one = torch.linalg.solve(affine, corner).tolist()
    expected = {"grid": (-0.5, -0.5), "image": (19.5, 31.5), "north_up": (-0.5, 19.5)}
    assert (col, row, one) == pytest.approx((*expected[orientation], 1.0))


def test_grid_is_the_default():
    expected = [[0.5, 0, -7.75], [0, float(torch.tensor(0.6)), -5.7], [0, 0, 1]]
    result = torchvox.bev_affine(RANGE, SIZE)
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float64))
    assert result[1, 1].item() == float(torch.tensor(12.0) / torch.tensor(20.0))


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
