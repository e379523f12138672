# SPDX-License-Identifier: Apache-2.0
"""Numbers that the commands print and write, exactly."""

from pathlib import Path

import numpy as np
import pytest
import torch

import torchvox
from torchvox.models.detection.running import Detections

pytest.importorskip("typer", reason="the extra cli is not installed")

from torchvox.cli.detect import as_json
from torchvox.cli.work import pillar_counts


def test_boxes_are_written_with_six_digits_of_the_score_and_five_of_the_rest():
    box = [1.123456, -2.5, 0.25, 3.75, 1.5, 1.0, -0.785398, 0.123456, -9.0]
    scores = np.array([0.87654321, 0.5], np.float32)
    found = Detections(
        np.array([box, box], np.float32), scores, np.array([1, 0]), ("car", "van"), overflow=3
    )
    one = {"box": [1.12346, -2.5, 0.25, 3.75, 1.5, 1.0, -0.7854], "velocity": [0.12346, -9.0]}
    assert as_json(Path("in") / "a.bin", 7, found) == {
        "file": "a.bin",
        "points": 7,
        "boxes": [
            {"class": "van", "score": 0.876543, **one},
            {"class": "car", "score": 0.5, **one},
        ],
        "overflow": 3,
    }


def test_the_density_of_a_pillar_is_the_sum_over_its_voxels():
    heights = [0.5, 1.5, 1.6, 2.5, 2.6, 2.7, 0.5, 9.0]
    points = torch.tensor([[0.5, 1.5, z] for z in heights])
    points[6, 0] = 1.5
    voxels = torchvox.voxelize(points, [1.0] * 3, [0, 0, 0, 2, 3, 3], 1, -1, reduce="mean")
    assert pillar_counts(voxels, (2, 3)).tolist() == [[0, 0], [6, 1], [0, 0]]
