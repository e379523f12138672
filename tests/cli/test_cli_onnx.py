# SPDX-License-Identifier: Apache-2.0
"""ONNX files on the command line: export, detect, eval, and parity with any artefact."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from torchvox.data import generate_scan
from torchvox.models import PointNet2Classifier, PointNet2PartSegmenter, checkpoints
from torchvox.onnx import Program

for module in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(module, reason="the extra onnx is not installed")

MODEL = "center_world_small"
KITTI = ("--layout", "kitti", "--device", "cpu")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An ONNX file of the command, and what it printed."""
    from torchvox.cli import main

    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    assert main(["export", MODEL, "--format", "onnx", "-o", str(path)]) == 0
    return path


@pytest.fixture
def scans(tmp_path):
    folder = tmp_path / "scans"
    folder.mkdir()
    for name in "abc":
        points = generate_scan(seed=ord(name)).points[:, :4]
        points[: ord(name) : 7, 2] = np.nan
        points.astype(np.float32).tofile(folder / f"{name}.bin")
    return folder


def test_export_says_in_the_file_what_it_compared(exported):
    facts = Program(exported).facts
    parity = json.loads(facts["parity"])
    assert parity["strays"] == 0 < parity["difference"] < 1e-4 * parity["greatest"]
    assert parity["boxes"] > 0 and facts["dtype"] == "float32"


def test_detect_finds_the_boxes_of_the_model(torchvox_cli, exported, scans):
    boxes = []
    for model, output in ((MODEL, "one.json"), (exported, "two.json")):
        torchvox_cli("detect", scans / "a.bin", *KITTI, "-m", model, "-o", output).ok("a.bin")
        boxes.append(json.loads(Path(output).read_text())["boxes"])
    assert len(boxes[0]) == len(boxes[1]) > 5
    for mine, other in zip(*boxes, strict=True):
        assert mine.pop("class") == other.pop("class")
        assert other == pytest.approx(mine, abs=1e-4)


def test_eval_measures_what_the_model_measures(torchvox_cli, exported, tmp_path):
    pytest.importorskip("lightning", reason="the extra train is not installed")
    scores = []
    for model in (MODEL, exported):
        data = ("--config", MODEL, "data.val_size=6", "--device", "cpu", "--json", "scores.json")
        torchvox_cli("eval", model, *data).ok("6 scans of world")
        scores.append(json.loads((tmp_path / "scores.json").read_text()))
    assert scores[1]["map"] > 0.5
    assert {**scores[0], "seconds": 0} == pytest.approx({**scores[1], "seconds": 0}, abs=1e-4)


def test_parity_of_a_detector(torchvox_cli, exported, scans, tmp_path):
    result = torchvox_cli("parity", MODEL, exported, scans, *KITTI, "--json", "parity.json")
    result.ok("unmatched boxes", "they agree; worst scan: ")
    facts = json.loads((tmp_path / "parity.json").read_text())
    assert facts["scans"] == 3 and facts["boxes"] > 20 and facts["strays"] == 0 and facts["holds"]
    assert 0 < facts["difference"] <= facts["limit"] < 1e-3 and not facts["same_bits"]
    assert facts["dtype"] == "float32" and facts["device"] == "cpu" and facts["tf32"] is False
    assert facts["host"] == "ONNX Runtime" and len(facts["weights_sha256"]) == 64
    assert facts["seconds_model"] > 0 and facts["versions"].keys() == {
        "torchvox", "torch", "onnxruntime",
    }  # fmt: skip


def test_parity_tells_another_model_apart(torchvox_cli, detector_file, exported, scans, tmp_path):
    other = checkpoints.load(detector_file)
    torchvox_cli("export", "model.pt", "-o", "program.pt").ok()
    other.head.cls.bias.data += 1
    checkpoints.save(other, tmp_path / "other.pt")
    files = (*scans.glob("*.bin"), *KITTI, "--score", "0")
    torchvox_cli("parity", "model.pt", "program.pt", *files).ok("they agree")
    result = torchvox_cli("parity", "other.pt", "program.pt", *files, "--json", "p.json")
    result.assert_one_sentence(1, "program.pt differs from other.pt", "where", "most in ")
    assert json.loads((tmp_path / "p.json").read_text())["holds"] is False
    foreign = torchvox_cli("parity", "model.pt", exported, *files)
    foreign.assert_one_sentence(1, "point_cloud_range of the artefact must be")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("model.pt", "program.pt", "scans", "--score", "1"), 1, "nothing was compared"),
        (("missing.pt", "program.pt", "scans"), 2, "the model missing.pt does not exist"),
        (("model.pt", "missing.onnx", "scans"), 2, "the model missing.onnx does not exist"),
        (("model.pt", "program.pt", "nowhere"), 2, "nowhere does not exist"),
        (("model.pt", "program.pt2", "scans"), 2, "give --trust-code"),
        (("model.pt", "program.pt", "scans", "--json", "model.pt"), 2, "model.pt"),
    ],
)
def test_wrong_use_of_parity(torchvox_cli, detector_file, scans, arguments, code, words):
    torchvox_cli("export", "model.pt", "-o", "program.pt").ok()
    if "program.pt2" in arguments:
        torchvox_cli("export", "model.pt", "--format", "export", "-o", "program.pt2").ok()
    torchvox_cli("parity", *arguments, "--layout", "kitti").assert_one_sentence(code, words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--batch", "0"), "greater than or equal to 1"),
     (("--dtype", "bfloat16"), "float32 or float16"),
     (("--no-merge", "--batch", "1", "--format", "script"), "in the format onnx alone")],
)  # fmt: skip
def test_wrong_use_of_export(torchvox_cli, detector_file, arguments, words):
    result = torchvox_cli("export", "model.pt", "--format", "onnx", *arguments)
    assert result.code == 2 and words in result.err


def test_export_says_that_no_box_was_compared(torchvox_cli, detector_file):
    model = checkpoints.load(detector_file)
    model.head.cls.bias.data *= float("nan")
    checkpoints.save(model, detector_file)
    torchvox_cli("export", "model.pt").ok("not compared, for the model has no box")


LEVELS = [
    {"points": 16, "radii": [0.4], "neighbors": [4], "channels": [[8]]},
    {"points": None, "radii": [], "neighbors": [], "channels": [[16]]},
]


@pytest.mark.parametrize(
    ("network", "kind"),
    [(PointNet2Classifier, "script"), (PointNet2PartSegmenter, "export"),
     (PointNet2PartSegmenter, "onnx")],
)  # fmt: skip
def test_parity_of_scores(torchvox_cli, scans, tmp_path, network, kind):
    more = {"head": [16]} if network is PointNet2Classifier else {"propagation": [[16], [16]]}
    model = network(10, in_channels=6, levels=LEVELS, **more).eval()
    checkpoints.save(model, tmp_path / "model.pt")
    program = "program.onnx" if kind == "onnx" else "program.pt2"
    torchvox_cli("export", "model.pt", "--format", kind, "--no-fuse", "-o", program).ok()
    arguments = ("parity", "model.pt", program, scans, *KITTI, "--trust-code")
    result = torchvox_cli(*arguments).ok("they agree")
    assert kind == "onnx" or re.search(r"same bits\W+yes\W", result.out)
