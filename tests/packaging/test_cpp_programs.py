# SPDX-License-Identifier: Apache-2.0
"""Exported classifiers and detectors, and maps, run from C++ without Python as eager does."""

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from helpers import ROOT, assert_same_bits
from shipping import call, clean_env, cmake_example, once, saved_points
from torch import Tensor, nn

import torchvox
from torchvox import OccupancyMap, models, transform_points
from torchvox.cli import main
from torchvox.data import generate_drive
from torchvox.models import export
from torchvox.models.fuse import fuse_batch_norms

sys.path.append(str(ROOT / "tests" / "models"))
from detectors import fused, scan, small
from nets import minkunet

COLUMNS = 6  # of the classifiers


def classifier(preset: str) -> nn.Module:
    """Batch norms with statistics of their own, so that scores depend on the points."""
    torch.manual_seed(0)
    model = models.PointNet2Classifier(10, in_channels=COLUMNS, preset=preset)
    with torch.no_grad():
        model.train()(torch.rand(4, 600, COLUMNS) * 2 - 1)
    return model.eval()


def objects(model: nn.Module, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    points = torch.rand(len(lengths), max(2, *lengths), COLUMNS) * 2 - 1
    return points, torch.tensor(lengths)


class Runner(NamedTuple):
    program: str
    make: Callable[[str], nn.Module]
    fuse: Callable[[nn.Module], nn.Module]
    clouds: Callable[..., tuple[Tensor, Tensor]]  # of a model and lengths: points, lengths
    batches: list[tuple[int, ...]]
    line: str  # what it prints for a cloud
    numbers: Callable[[tuple], list[Tensor]]  # those in a line behind the points, of all outputs


CLASSIFIER = Runner(
    "classifier_runner", classifier, fuse_batch_norms, objects,
    [(1024, 1024), (0, 1, 700), (1,), (0,), (300, 0, 512, 1)],
    r"(\d+) points, class (\d+)", lambda outputs: [outputs[0].argmax(-1)],
)  # fmt: skip
SEGMENTER = CLASSIFIER._replace(
    make=lambda _: minkunet(in_channels=COLUMNS),
    numbers=lambda outputs: [outputs[0].sum(1).argmax(-1)],
)
DETECTOR = Runner(
    "detector_runner", small, fused, lambda model, lengths: scan(model, *lengths),
    [(5000,), (0, 1, 700), (40_000,), (0,), (1,), (300_000,)],
    r"(\d+) points, (\d+) boxes, (\d+) candidates", lambda outputs: [outputs[3], outputs[4]],
)  # fmt: skip
MODELS = {"yanx27": CLASSIFIER, "pn2": CLASSIFIER, "anchors": DETECTOR, "centers": DETECTOR}
MODELS |= {"minkunet": SEGMENTER, "anchors, voxels": DETECTOR, "centers, voxels": DETECTOR}


@pytest.fixture(scope="session")
def program(tmp_path_factory) -> Callable[[str], Path]:
    def build(name: str) -> Path:
        def make(folder: Path) -> None:
            cmake_example(name, folder, torchvox.cmake_prefix_path)

        return once(tmp_path_factory, name, make) / name

    return build


def outputs_in_cpp(program: Path, runner: Runner, model: Path, columns: int, batch) -> tuple:
    """The outputs of an exported model on a batch; what the program prints agrees with them."""
    points, lengths = batch
    points[torch.arange(points.size(1)) >= lengths[:, None]] = 0.0  # as the program pads them
    clouds = [cloud[:n] for cloud, n in zip(points, lengths.tolist(), strict=True)]
    paths, results = saved_points(model.parent, clouds), model.with_name("results.pt")
    printed = call(program, model, columns, results, *paths, env=clean_env()).stdout
    outputs = tuple(torch.load(results, weights_only=True))
    rows = torch.stack([lengths, *runner.numbers(outputs)], 1).tolist()
    assert runner is not DETECTOR or re.search(r"\n[\d.]+ ms per scan\n", printed)
    assert [[*map(int, row)] for row in re.findall(runner.line, printed)] == rows
    return outputs


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("fuse", [False, True], ids=["norms", "fused"])
@torch.inference_mode()
def test_a_script_gives_the_bits_of_eager(program, name, fuse, tmp_path):
    runner = MODELS[name]
    model = runner.make(name)
    model, path = runner.fuse(model) if fuse else model, tmp_path / "model.pt"
    export.export_model(model, path, "script")
    for lengths in runner.batches:
        batch, columns = runner.clouds(model, lengths), getattr(model, "columns", COLUMNS)
        outputs = outputs_in_cpp(program(runner.program), runner, path, columns, batch)
        expected = model(*batch)
        assert_same_bits(outputs, (expected,) if torch.is_tensor(expected) else expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pn2", "anchors", "centers"])
@torch.inference_mode()
def test_an_ahead_of_time_program_agrees_with_eager(program, name, tmp_path):
    runner = MODELS[name]
    model, path = runner.fuse(runner.make(name)), tmp_path / "model.pt2"
    export.export_model(model, path, "aoti")
    for lengths in runner.batches:
        batch, columns = runner.clouds(model, lengths), getattr(model, "columns", COLUMNS)
        outputs = outputs_in_cpp(program(runner.program), runner, path, columns, batch)
        if runner is CLASSIFIER:
            torch.testing.assert_close(outputs[0], model(*batch), rtol=1e-5, atol=1e-5)
        else:
            agreement = export._compare_boxes(model(*batch), outputs)
            assert agreement.difference < 1e-3 and agreement.strays <= 0.02, lengths


CONFIG = """
task: detect
data: {kind: world, sensor: vlp16, reach: 20, train_size: 8, val_size: 4}
model:
  kind: center_pointpillars
  args:
    point_cloud_range: [0.0, -12.8, -3.0, 25.6, 12.8, 1.0]
    pillar_size: [0.4, 0.4, 4.0]
    backbone: {layers: [1], strides: [2], channels: [16]}
    neck: {strides: [1], channels: [16]}
    head: {tasks: [[Car], [Pedestrian, Cyclist]], shared: 8, width: 8, velocity: false}
train: {epochs: 2, batch_size: 4, lr: 1.0e-2, device: cpu, precision: 32-true}
"""


def test_from_training_to_cpp(program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(CONFIG)
    config = "own.yaml", "model.args.detections.score=0.0"
    scored = "--device", "cpu", "--json", "scores.json"
    assert main(["train", *config, "-o", "run"]) == 0
    assert main(["eval", "run/best.ckpt", *scored]) == 0
    eager = json.loads((tmp_path / "scores.json").read_text())
    assert main(["export", "run/model.pt", "--no-fuse", "-o", "program.pt"]) == 0
    assert main(["eval", "program.pt", "--config", *config, *scored]) == 0
    exported = json.loads((tmp_path / "scores.json").read_text())
    assert {**exported, "seconds": 0} == {**eager, "seconds": 0}
    arguments = ["run/model.pt", "program.pt", "--runner", str(program("detector_runner"))]
    monkeypatch.setattr(sys, "argv", ["detector_from_cpp.py", *arguments])
    runpy.run_path(str(ROOT / "examples" / "detector_from_cpp.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(r"^[1-9]\d* boxes from C\+\+, the bits of the model$", printed, re.MULTILINE)


@pytest.mark.slow
def test_a_map_is_that_of_the_class(program, tmp_path, device):
    drive = generate_drive(scans=3, azimuths=90)
    scans = [torch.zeros(0, 4), *[scan.points[:, :4].contiguous() for scan in drive]]
    poses = torch.stack([drive[0].pose, *[scan.pose for scan in drive]]).double()
    np.savetxt(tmp_path / "poses.txt", poses.reshape(4, 12), fmt="%.17g")
    grid, rows = OccupancyMap(0.1), []
    for points, pose in zip(scans, poses, strict=True):
        moved = (grid.query(transform_points(points, pose[None])).label == 0).sum()
        counts = grid.integrate(points, pose=pose)[0]
        rows.append([int(n) for n in (counts[0], counts[6], counts[10], moved)])
    files = [tmp_path / "poses.txt", tmp_path / "map.pt", *saved_points(tmp_path, scans)]
    printed = call(program("map_runner"), device, "0.1", "4", *files, env=clean_env()).stdout
    line = r"(\d+) rays, (\d+) visits, (\d+) regions, (\d+) points"
    assert [[*map(int, row)] for row in re.findall(line, printed)] == rows
    assert rows[-1][2] > 4096 and rows[-1][3] > 0  # it grew
    keys, logodds = torch.load(tmp_path / "map.pt", weights_only=True)
    regions = grid.read()
    assert torch.equal(keys, regions.keys) and torch.equal(logodds, regions.logodds)


class Pair(nn.Module):
    def forward(self, points: Tensor, num_points: Tensor):
        return points, num_points


MAP = ("map_runner", "cpu 0.1 4 poses.txt results.pt cloud0.bin", "12 numbers for each of 1 scans")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runner", "arguments", "words", "poses"),
    [
        ("classifier_runner", "missing.pt 6 results.pt cloud0.bin", "missing.pt", None),
        ("classifier_runner", "junk.pt 6 results.pt cloud0.bin", "", None),
        ("classifier_runner", "model.pt 4 results.pt cloud0.bin", "", None),
        ("detector_runner", "pair.pt 6 results.pt cloud0.bin", "gives 2 outputs, not boxes", None),
        *((*MAP, poses) for poses in ("1 0 0 0 0 1 0 0 0 0 1", "1 0 0 0 0 1 0 x 0 0 1 0", None)),
    ],
)
def test_what_goes_wrong_is_said_in_a_sentence(program, runner, arguments, words, poses, tmp_path):
    saved_points(tmp_path, [torch.rand(60, COLUMNS)])
    (tmp_path / "junk.pt").write_bytes(b"junk")
    torch.jit.script(Pair()).save(str(tmp_path / "pair.pt"))
    if "model.pt" in arguments:
        export.export_model(classifier("pn2"), tmp_path / "model.pt", "script")
    if poses is not None:
        (tmp_path / "poses.txt").write_text(poses)
    program = program(runner)
    done = call(program, *arguments.split(), cwd=tmp_path, env=clean_env(), ok=False)
    assert done.returncode == 1 and done.stdout.startswith(f"{runner}: ") and words in done.stdout
    assert not re.search("frame #|Traceback|Exception raised", done.stdout), done.stdout
    assert len(done.stdout.splitlines()) < 4, done.stdout
    assert not (tmp_path / "results.pt").exists()
