# SPDX-License-Identifier: Apache-2.0
"""What a sparse U-Net promises beside what every network does: sizes, and which points count."""

import pytest
import torch
from helpers import assert_same_bits
from nets import CLASSES, minkunet

from torchvox.models import MinkUNet

GRID = {"voxel_size": [0.1] * 3, "point_cloud_range": [0.0, -8.0, -3.0, 16.0, 8.0, 1.0]}


@pytest.mark.parametrize(
    ("preset", "columns", "millions"),
    [("minkunet18", 4, 21.7), ("minkunet34", 4, 37.9), ("spunet", 6, 39.2)],
)
def test_presets_have_as_many_parameters_as_the_networks_of_their_sources(
    preset, columns, millions
):
    model = MinkUNet(19, in_channels=columns, preset=preset, **GRID)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == millions


@torch.no_grad()
def test_points_of_a_voxel_share_scores_and_dropped_points_have_none_and_no_influence():
    model = minkunet()
    points = torch.rand(1, 300, 4) * 1.8 - 0.9
    points[0, 1] = points[0, 0]
    points[0, 2, 0], points[0, 3, 3], points[0, 4, 1] = 1.1, float("inf"), float("nan")
    scores = model(points)[0]
    assert scores.shape == (300, CLASSES) and torch.equal(scores[0], scores[1])
    assert (scores[2:5] == 0).all() and (scores[5:] != 0).any(1).all()
    without = torch.cat([points[:, :2], points[:, 5:]], 1)
    assert_same_bits(model(without)[0], torch.cat([scores[:2], scores[5:]]))
    with pytest.raises(ValueError, match=r"points must be \[B, N, 4\], got \[1, 300, 3\]"):
        model(points[..., :3])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"preset": "unet"}, "preset must be one of minkunet18, minkunet34, spunet, got 'unet'"),
        ({"in_channels": 2}, "at least 3, got 2"),
        ({"blocks": [2]}, "a value for each of channels but one, got"),
        ({"stems": [3]}, "did you mean stem"),
        ({"stem": [4]}, "kernel_size must be odd, got 4"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        MinkUNet(CLASSES, **GRID, **options)
