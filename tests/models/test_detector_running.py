# SPDX-License-Identifier: Apache-2.0
"""A detector on scans: foreign programs, damaged files, columns."""

import os
import statistics
import time
import warnings
import zipfile

import numpy as np
import pytest
import torch
from torch import nn

from torchvox._util.errors import CloudFileError, WrongUseError
from torchvox.data import generate_scan
from torchvox.graphs import GraphRunner
from torchvox.io import PointCloud, PointTable
from torchvox.models import Detector, fuse_batch_norms, get_model, merge_heads
from torchvox.models.checkpoints import CheckpointError
from torchvox.models.detection.running import pack, unpack

CPU, NAN = torch.device("cpu"), float("nan")
SCAN = PointCloud(np.zeros((5, 4), np.float32), ("x", "y", "z", "intensity"))
SMALL = "center_world_small"


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
    boxes = Detector(program(), 0, CPU)(SCAN)
    assert boxes.scores.tolist() == pytest.approx([0.9, 0.5, 0.2])
    assert boxes.labels.tolist() == [1, 1, 1] and boxes.classes == ("car", "van")
    for score, kept in ((0.5, 2), (0.5000001, 1), (0.4999999, 2), (float(boxes.scores[0]), 1)):
        assert Detector(program(), score, CPU)(SCAN).scores.tolist() == boxes.scores[:kept].tolist()


@pytest.mark.parametrize("columns", [2, 6])
def test_a_program_of_columns_that_no_scan_has_is_refused_at_once(program, columns):
    with pytest.raises(CheckpointError, match=f"sees {columns} columns, where 3 to 5 are known"):
        Detector(program(columns), device=CPU)


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
        Detector(program(**outputs), 0, CPU)(SCAN)


@pytest.mark.parametrize("part", [b"PK\x01\x02", b"PK\x05\x06", b"PK\x03\x04"])
def test_a_damaged_program_is_an_error_that_names_it(program, part):
    path = program()
    damaged = bytearray(path.read_bytes())
    at = damaged.rfind(part)
    damaged[at : at + 30] = bytes(30)
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"program\.pt cannot be read"):
        Detector(path, device=CPU)


def test_a_folder_and_another_program_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "program.pt2", "w") as archive:
        archive.writestr("program/models/model.json", "{}")
    for path, words in ((tmp_path, "is not a file"), (tmp_path / "program.pt2", "--format export")):
        with pytest.raises(CheckpointError, match=words):
            Detector(path, device=CPU)


# ---- a scan in any form --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def street():
    return generate_scan(0)


@pytest.fixture(scope="module")
def small():
    return Detector(SMALL, device="cpu")


def test_every_form_of_a_scan_gives_the_same_named_boxes(small, street, tmp_path):
    points = street.points[:, :4]
    points.tofile(tmp_path / "a.bin")
    frozen = np.frombuffer(points.tobytes(), np.float32).reshape(-1, 4)  # cannot be written
    table = PointTable(points[:, :3], {"intensity": points[:, 3]})
    boxes = small(street)
    assert len(boxes) > 3 and boxes.scores.min() >= 0.3
    forms = (torch.from_numpy(points), frozen, points.astype(np.float64), table)
    for form in forms:
        assert list(small(form)) == list(boxes), type(form)
    assert list(small(str(tmp_path / "a.bin"), layout="kitti")) == list(boxes)
    first, label = boxes[0], int(boxes.labels[0])
    assert (first.class_name, first.score) == (small.classes[label], float(boxes.scores[0]))
    assert [first.x, first.y, first.z, first.l, first.w, first.h, first.yaw] == list(boxes.boxes[0])
    assert first.vx is None and boxes[-1] == list(boxes)[-1]
    assert boxes[1:3] == list(boxes)[1:3]


def test_a_network_in_memory_is_copied_and_gives_the_boxes_of_its_file(small, street):
    network = get_model(SMALL, weights="default").train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    detector = Detector(network, device="cpu")
    assert list(detector(street)) == list(small(street)) and network.training
    assert all(torch.equal(before[name], t) for name, t in network.state_dict().items())
    merged = merge_heads(fuse_batch_norms(network))
    assert list(Detector(merged, device="cpu")(street)) == list(small(street))
    with pytest.raises(CheckpointError, match="Linear is not a detector"):
        Detector(nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("scan", "error", "words"),
    [
        (np.zeros((1, 5, 4)), WrongUseError, r"\[N, 4\] of x, y, z, intensity, .* got \[1, 5, 4\]"),
        (torch.zeros(5, 3), WrongUseError, r"got \[5, 3\]"),
        (torch.zeros(5, 5), WrongUseError, r"got \[5, 5\]"),
        ([[0, 0, 0, 0]], WrongUseError, "got list"),
        (np.zeros((5, 4), "U1"), WrongUseError, "got <U1"),
        (PointTable(SCAN.points[:, :3]), WrongUseError, "the cloud has no intensity column"),
        (PointCloud(np.zeros((5, 3)), ("x", "y", "z")), WrongUseError, "has no intensity column"),
        (PointCloud(SCAN.points, SCAN.columns, np.ones(3)), CloudFileError, "not relative to the"),
    ],
)
def test_what_is_not_one_scan_of_its_columns_is_refused(small, scan, error, words):
    with pytest.raises(error, match=words):
        small(scan)


def test_scans_may_be_short_and_the_time_be_absent(small, program):
    for count in range(3):
        assert len(small(np.zeros((count, 4), np.float32))) == 0
    detector = Detector(program(columns=5), device=CPU)
    assert detector.points(torch.ones(3, 4)).tolist() == [[1, 1, 1, 1, 0]] * 3


@pytest.mark.parametrize(
    ("scale", "high", "warns"), [(1, 1.5, 0), (1, 255, 1), (1 / 255, 255, 0), (1 / 255, 1, 1)]
)
def test_intensities_of_another_range_are_warned_of_once(scale, high, warns):
    network, scan = Program(4), torch.zeros(3, 4)
    network.column_scale = torch.tensor([1, 1, 1, scale])
    detector, scan[1, 3], scan[2, 3] = Detector(network, device=CPU), high, NAN
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        detector(scan), detector(scan)
    assert len(caught) == warns and all(one.filename == __file__ for one in caught)


# ---- on a GPU ------------------------------------------------------------------------------------


def test_outputs_are_packed_in_one_tensor_and_unpacked_the_same():
    outputs = (torch.rand(1, 4, 9), torch.rand(1, 4), torch.tensor([[2, 0, -1, 1 << 30]]).int())
    outputs += (torch.tensor([3]).int(), torch.tensor([1 << 25]).int())
    *arrays, overflow = unpack(pack(outputs).numpy(), 4, 9)
    for array, output in zip(arrays, outputs, strict=False):
        np.testing.assert_array_equal(array, output[0, :3].numpy())
    assert overflow == 1 << 25


@pytest.mark.gpu
def test_a_gpu_gives_the_boxes_of_the_cpu(street, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    here, there = (Detector(SMALL, 0.5, device) for device in ("cpu", "cuda"))
    points = street.points[:, :4]
    scans = (street, points[:1], points[:0], torch.from_numpy(points).cuda(), points)
    for scan in scans:
        boxes, expected = there(scan), here(scan)
        assert [one.class_name for one in boxes] == [one.class_name for one in expected]
        np.testing.assert_allclose(boxes.boxes, expected.boxes, atol=1e-2)


@pytest.mark.gpu
@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="other tests use the GPU too")
def test_a_call_adds_at_most_60_us_to_the_time_of_its_graph(street):
    detector = Detector(SMALL, device="cuda")
    points = torch.from_numpy(street.points[:, :4]).cuda()
    network = get_model(SMALL, weights="default").cuda()
    graph = GraphRunner(merge_heads(fuse_batch_norms(network)))

    def alone():
        graph(points)
        torch.cuda.synchronize()

    times = ([], [])
    for _ in range(300):  # by turns, as the host has other work too
        for taken, call in zip(times, (alone, lambda: detector(points)), strict=True):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    assert statistics.median(times[1][50:]) - statistics.median(times[0][50:]) < 60e-6
