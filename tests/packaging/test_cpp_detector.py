# SPDX-License-Identifier: Apache-2.0
"""An exported detector finds boxes from C++ without Python, as eager does."""

import json
import re
import runpy
import subprocess
import sys

import pytest
import shipping
import torch
from helpers import ROOT, assert_same_bits
from shipping import call, clean_env, saved_points

from torchvox import models
from torchvox.cli import main
from torchvox.models import export

sys.path.append(str(ROOT / "tests" / "models"))
from detectors import fused, scan, small

BATCHES = [(5000,), (0, 1, 700), (40_000,), (0,), (1,), (300_000,)]


@pytest.fixture(scope="session")
def runner(tmp_path_factory):
    return shipping.runner(tmp_path_factory, "detector_runner")


def batch(model, lengths):
    """Scans, and what the program makes of them: points padded with zeros, num_points."""
    points, count = scan(model, *lengths)
    past = torch.arange(points.size(1)) >= count[:, None]
    points[past] = 0.0
    return [cloud[:n] for cloud, n in zip(points, count.tolist(), strict=True)], points, count


def run(runner, folder, program, columns, scans):
    paths = saved_points(folder, scans)
    said = call(runner, program, columns, folder / "outputs.pt", *paths, env=clean_env()).stdout
    outputs = tuple(torch.load(folder / "outputs.pt", weights_only=True))
    found = re.findall(r"(\d+) points, (\d+) boxes, (\d+) candidates", said)
    expected = [
        (str(len(cloud)), str(int(count)), str(int(over)))
        for cloud, count, over in zip(scans, outputs[3], outputs[4], strict=True)
    ]
    assert found == expected
    return outputs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["anchors", "centers"])
@pytest.mark.parametrize("merge", [False, True], ids=["norms", "merged"])
@torch.inference_mode()
def test_a_scripted_detector_gives_the_bits_of_eager(runner, name, merge, tmp_path):
    model = small(name)
    model = fused(model) if merge else model
    export.export_model(model, tmp_path / "model.pt", "script")
    for lengths in BATCHES:
        scans, points, count = batch(model, lengths)
        outputs = run(runner, tmp_path, tmp_path / "model.pt", model.columns, scans)
        assert_same_bits(outputs, model(points, count), str(lengths))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["anchors", "centers"])
@torch.inference_mode()
def test_an_aoti_detector_finds_the_boxes_of_eager(runner, name, tmp_path):
    model = fused(small(name))
    export.export_model(model, tmp_path / "model.pt2", "aoti")
    for lengths in BATCHES:
        scans, points, count = batch(model, lengths)
        outputs = run(runner, tmp_path, tmp_path / "model.pt2", model.columns, scans)
        found = models.export._compare_boxes(model(points, count), outputs)
        assert found.difference < 1e-3 and found.strays <= 0.02, lengths


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


def test_from_training_to_cpp(runner, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(CONFIG)
    given = "own.yaml", "model.args.detections.score=0.0"
    scored = "--device", "cpu", "--json", "found.json"
    assert main(["train", *given, "-o", "run"]) == 0
    assert main(["eval", "run/best.ckpt", *scored]) == 0
    eager = json.loads((tmp_path / "found.json").read_text())
    assert main(["export", "run/model.pt", "--no-fuse", "-o", "program.pt"]) == 0
    assert main(["eval", "program.pt", "--config", *given, *scored]) == 0
    program = json.loads((tmp_path / "found.json").read_text())
    assert {**program, "seconds": 0} == {**eager, "seconds": 0}
    example = "detector_from_cpp.py"
    monkeypatch.setattr(
        sys, "argv", [example, "run/model.pt", "program.pt", "--runner", str(runner)]
    )
    runpy.run_path(str(ROOT / "examples" / example), run_name="__main__")
    said = capsys.readouterr().out
    assert re.search(r"^[1-9]\d* boxes from C\+\+, the bits of the model$", said, re.MULTILINE)


class Pair(torch.nn.Module):
    def forward(self, points: torch.Tensor, num_points: torch.Tensor):
        return points, num_points


@pytest.mark.slow
def test_a_program_that_is_no_detector_is_refused(runner, tmp_path):
    torch.jit.script(Pair()).save(str(tmp_path / "model.pt"))
    (tmp_path / "scan.bin").write_bytes(bytes(64))
    done = subprocess.run(
        [runner, tmp_path / "model.pt", "4", tmp_path / "outputs.pt", tmp_path / "scan.bin"],
        env=clean_env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "it gives 2 outputs, not boxes" in done.stderr
    assert not (tmp_path / "outputs.pt").exists()
