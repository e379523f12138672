# SPDX-License-Identifier: Apache-2.0
"""A detector on scans: foreign programs, damaged files, columns."""

import numpy as np
import pytest
import torch
from torch import nn

from torchvox.io import PointCloud
from torchvox.models.checkpoints import CheckpointError
from torchvox.models.detection.running import load_runner

CPU, NAN = torch.device("cpu"), float("nan")
SCAN = PointCloud(np.zeros((5, 4), np.float32), ("x", "y", "z", "intensity"))


class Program(nn.Module):
    """Three boxes of class 1, or other outputs."""

    def __init__(self, columns, **outputs):
        super().__init__()
        self.classes = ["car", "van"]
        self.columns = columns
        self.point_cloud_range = [0.0, -10.0, -3.0, 20.0, 10.0, 1.0]
        self.boxes = outputs.get("boxes", torch.ones(1, 5, 7))
        self.scores = outputs.get("scores", torch.tensor([[0.2, 0.9, 0.5, 0.0, 0.0]]))
        self.labels = outputs.get("labels", torch.ones(1, 5, dtype=torch.int32))
        self.count = outputs.get("count", torch.tensor([3]))

    def forward(self, points, num_points):
        return self.boxes, self.scores, self.labels, self.count, torch.zeros(1)


@pytest.fixture
def program(tmp_path):
    def write(columns=4, **outputs):
        torch.jit.script(Program(columns, **outputs)).save(str(tmp_path / "program.pt"))
        return tmp_path / "program.pt"

    return write


def test_a_program_gives_boxes_by_falling_score_down_to_the_least(program):
    found = load_runner(program(), CPU)(SCAN)
    assert found.scores.tolist() == pytest.approx([0.9, 0.5, 0.2])
    assert found.labels.tolist() == [1, 1, 1] and found.classes == ("car", "van")
    for score, kept in ((0.5, 2), (0.5000001, 1), (0.4999999, 2), (float(found.scores[0]), 1)):
        assert found.above(score).scores.tolist() == found.scores[:kept].tolist()


@pytest.mark.parametrize("columns", [2, 6])
def test_a_program_of_columns_that_no_scan_has_is_refused_at_once(program, columns):
    with pytest.raises(CheckpointError, match=f"sees {columns} columns, where 3 to 5 are known"):
        load_runner(program(columns), CPU)


@pytest.mark.parametrize(
    "outputs",
    [
        {"boxes": torch.full((1, 5, 7), NAN)},
        {"boxes": torch.ones(1, 5, 5)},
        {"boxes": torch.ones(5, 7)},
        {"scores": torch.full((1, 5), float("inf"))},
        {"labels": torch.full((1, 5), 2)},
        {"labels": torch.full((1, 5), -1)},
        {"count": torch.tensor([6])},
        {"count": torch.tensor([-1])},
    ],
    ids=["nan", "columns", "rank", "score", "label", "negative label", "count", "negative count"],
)
def test_outputs_that_are_not_detections_are_refused(program, outputs):
    with pytest.raises(CheckpointError, match="must give boxes"):
        load_runner(program(**outputs), CPU)(SCAN)


@pytest.mark.parametrize("part", [b"PK\x01\x02", b"PK\x05\x06", b"PK\x03\x04"])
def test_a_damaged_program_is_an_error_that_names_it(program, part):
    path = program()
    damaged = bytearray(path.read_bytes())
    at = damaged.rfind(part)
    damaged[at : at + 30] = bytes(30)
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"program\.pt cannot be read"):
        load_runner(path, CPU)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="is not a file"):
        load_runner(tmp_path, CPU)
