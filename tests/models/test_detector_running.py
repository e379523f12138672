# SPDX-License-Identifier: Apache-2.0
"""A detector on scans: programs of anyone, damaged files, columns."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from torchvox.io import PointCloud
from torchvox.models.checkpoints import CheckpointError
from torchvox.models.detection.running import load_runner

CPU = torch.device("cpu")
SCAN = PointCloud(np.zeros((5, 4), np.float32), ("x", "y", "z", "intensity"))


class Program(nn.Module):
    """Three boxes of class 1; `fault` says what is wrong with them."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.classes = ["car", "van"]
        self.columns = 4
        self.point_cloud_range = [0.0, -10.0, -3.0, 20.0, 10.0, 1.0]
        self.fault = fault

    def forward(
        self, points: Tensor, num_points: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        boxes = torch.ones(1, 5, 7)
        scores = torch.tensor([[0.2, 0.9, 0.5, 0.0, 0.0]])
        labels, count = torch.ones(1, 5, dtype=torch.int32), torch.full([1], 3)
        if self.fault == "box":
            boxes[0, 1, 6] = float("nan")
        if self.fault == "score":
            scores[0, 1] = float("inf")
        if self.fault == "label":
            labels = labels + 1
        if self.fault == "negative label":
            labels = labels - 2
        if self.fault == "count":
            count = count + 3
        if self.fault == "negative count":
            count = count - 4
        if self.fault == "columns":
            boxes = boxes[:, :, :5]
        if self.fault == "rank":
            boxes = boxes[0]
        return boxes, scores, labels, count, torch.zeros(1)


@pytest.fixture
def program(tmp_path):
    def write(fault: str = "") -> str:
        torch.jit.script(Program(fault)).save(str(tmp_path / "program.pt"))
        return tmp_path / "program.pt"

    return write


def test_a_program_of_anyone_gives_boxes_by_falling_score(program):
    found = load_runner(program(), CPU)(SCAN)
    assert found.scores.tolist() == pytest.approx([0.9, 0.5, 0.2])
    assert found.labels.tolist() == [1, 1, 1] and found.classes == ("car", "van")


def test_a_box_with_just_the_least_score_is_kept(program):
    found = load_runner(program(), CPU)(SCAN)
    for score, kept in ((0.5, 2), (0.5000001, 1), (0.4999999, 2), (float(found.scores[0]), 1)):
        assert found.above(score).scores.tolist() == found.scores[:kept].tolist()


@pytest.mark.parametrize("columns", [2, 6])
def test_a_program_of_columns_that_no_scan_has_is_refused_at_once(tmp_path, columns):
    program = Program("")
    program.columns = columns
    torch.jit.script(program).save(str(tmp_path / "program.pt"))
    with pytest.raises(CheckpointError, match=f"sees {columns} columns, where 3 to 5 are known"):
        load_runner(tmp_path / "program.pt", CPU)


@pytest.mark.parametrize(
    "fault",
    ["box", "score", "label", "negative label", "count", "negative count", "columns", "rank"],
)
def test_what_is_no_detection_is_refused(program, fault):
    with pytest.raises(CheckpointError, match="must give boxes"):
        load_runner(program(fault), CPU)(SCAN)


@pytest.mark.parametrize("part", [b"PK\x01\x02", b"PK\x05\x06", b"PK\x03\x04"])
def test_a_damaged_program_is_an_error_that_names_it(program, part):
    path = program()
    damaged = bytearray(path.read_bytes())
    at = damaged.rfind(part)
    damaged[at : at + 30] = bytes(30)
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"program\.pt cannot be read"):
        load_runner(path, CPU)


def test_a_folder_is_no_detector(tmp_path):
    with pytest.raises(CheckpointError, match="is no file"):
        load_runner(tmp_path, CPU)
