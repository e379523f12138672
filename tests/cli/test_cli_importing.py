# SPDX-License-Identifier: Apache-2.0
"""torchvox import of detectors."""

import json

import pytest
import torch
from upstream import openpcdet
from upstream.boxes import AnchorClass
from upstream.pillars import BackboneNeck, Grid

from torchvox.models import checkpoints
from torchvox.models.importing import verify


@pytest.fixture
def detector(tmp_path):
    """The checkpoint of a small OpenPCDet detector, and the settings that its import needs."""
    grid = Grid((1.0, 1.0, 4.0), (0.0, -16.0, -3.0, 32.0, 16.0, 1.0), 8, 500)
    backbone_neck = BackboneNeck((1, 1), (2, 2), (8, 16), (1, 2), (16, 16))
    van = AnchorClass("van", (4.5, 1.8, 2.0), -1.7)
    torch.manual_seed(0)
    network = openpcdet.SingleHead(4, grid, [van], backbone_neck, (16,))
    torch.save({"it": 1, "model_state": network.state_dict()}, tmp_path / "epoch_80.pth")
    (tmp_path / "net.yaml").write_text(
        "classes: [van]\n"
        "point_cloud_range: [0, -16, -3, 32, 16, 1]\n"
        "pillar_size: [1, 1, 4]\n"
        "max_points: 8\n"
        "max_pillars: [500, 500]\n"
        "head:\n  anchors: [{size: [4.5, 1.8, 2.0], bottom: -1.7}]\n"
    )
    return tmp_path / "epoch_80.pth"


def test_import_of_a_detector_reports_flags_and_boxes(torchvox_cli, detector, tmp_path):
    result = torchvox_cli(
        "import", detector, "--config", "net.yaml", "--set", "detections.score=0.4",
        "--verify", "-o", "model.pt", "--json", "report.json",
    )  # fmt: skip
    assert result.code == 0, result.err
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["tensors"] == "49 of 49 used, each once"
    assert report["flag detections.score"] == "0.4 (override)"
    assert report["flag max_points"] == "8 (override)"
    assert report["flag head.grid"] == "ends (assumed)"
    there, here, same = report["boxes there, here, the same"].split(", ")
    assert there == here == same
    assert "flag encoder.pad_semantics" in result.out
    model = checkpoints.load(tmp_path / "model.pt")
    assert model.config()["config"]["classes"] == ["van"]


def test_import_runs_the_model_and_compares_on_request_alone(
    torchvox_cli, detector, tmp_path, monkeypatch
):
    monkeypatch.setattr(verify, "UPSTREAM", tmp_path / "tests" / "upstream")  # as installed
    result = torchvox_cli("import", detector, "--config", "net.yaml", "-o", "model.pt").ok()
    assert "import report" in result.out and "49 of 49 used, each once" in result.out
    assert "boxes there" not in result.out and "│ boxes " in result.out
    compared = torchvox_cli("import", detector, "--config", "net.yaml", "--verify")
    compared.assert_one_sentence(2, "source tree")


@pytest.mark.parametrize("options", [(), ("--verify",)])
def test_a_model_that_gives_no_numbers_is_not_written(torchvox_cli, detector, tmp_path, options):
    content = torch.load(detector, weights_only=True)
    content["model_state"]["dense_head.conv_cls.bias"][0] = torch.nan
    torch.save(content, detector)
    result = torchvox_cli("import", detector, "--config", "net.yaml", "-o", "model.pt", *options)
    result.assert_one_sentence(1, "nan")
    assert not (tmp_path / "model.pt").exists()


def test_import_of_a_detector_says_what_must_be_given(torchvox_cli, detector):
    torchvox_cli("import", detector).assert_one_sentence(1, "classes must be given")
    unknown = torchvox_cli("import", detector, "--config", "net.yaml", "--set", "ordr=first")
    unknown.assert_one_sentence(1, "did you mean order")


def test_the_original_configuration_is_read(torchvox_cli, detector, tmp_path):
    (tmp_path / "pointpillar.yaml").write_text(
        "CLASS_NAMES: [van]\n"
        "DATA_CONFIG:\n"
        "  POINT_CLOUD_RANGE: [0, -16, -3, 32, 16, 1]\n"
        "  DATA_PROCESSOR:\n"
        "    - {NAME: transform_points_to_voxels, VOXEL_SIZE: [1, 1, 4], MAX_POINTS_PER_VOXEL: 8,\n"
        "       MAX_NUMBER_OF_VOXELS: {train: 500, test: 500}}\n"
        "MODEL:\n"
        "  VFE: {NAME: PillarVFE}\n"
        "  DENSE_HEAD:\n"
        "    ANCHOR_GENERATOR_CONFIG:\n"
        "      - {class_name: van, anchor_sizes: [[4.5, 1.8, 2.0]], anchor_rotations: [0, 1.57],\n"
        "         anchor_bottom_heights: [-1.7]}\n"
    )
    result = torchvox_cli(
        "import", detector, "--original", "pointpillar.yaml", "-o", "model.pt"
    ).ok("declared by its configuration")
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "other.yaml").write_text("a: 1\n")
    (tmp_path / "part.py").write_text("_base_ = ['x.py']\nlr = 0.1\n")
    for name, code, words in (
        ("no.yaml", 2, "--original"),
        ("no.py", 2, "--original"),
        ("bytes.yaml", 2, "--original"),
        ("bytes.py", 2, "--original"),
        ("part.py", 2, "has no plain values of a detector"),
        ("other.yaml", 1, "no MODEL with a DENSE_HEAD"),
    ):
        result = torchvox_cli("import", detector, "--original", name)
        result.assert_one_sentence(code, words)
