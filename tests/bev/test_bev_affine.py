# SPDX-License-Identifier: Apache-2.0
"""bev_affine maps pixels to meters, consistently with where the rasters put points."""

import pytest
import torch
from bev_cases import ORIENTATIONS, RANGE, SIZE, call

import torchvox
from torchvox.reference import bev as reference


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


def test_grid_is_the_default():
    exact = float(torch.tensor(12.0) / torch.tensor(20.0))  # 0.6, divided in float32
    expected = [[0.5, 0, -7.75], [0, exact, -5.7], [0, 0, 1]]
    torch.testing.assert_close(torchvox.bev_affine(RANGE, SIZE), torch.tensor(expected).double())


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
