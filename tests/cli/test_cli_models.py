# SPDX-License-Identifier: Apache-2.0
"""torchvox import and torchvox export."""

import pytest
import torch

from torchvox.models import checkpoints
from torchvox.reference import pointnet2_yanx27


@pytest.fixture
def checkpoint(tmp_path):
    torch.manual_seed(0)
    network = pointnet2_yanx27.Classifier(10, 6, "ssg")
    torch.save({"epoch": 1, "model_state_dict": network.state_dict()}, tmp_path / "best.pth")
    return tmp_path / "best.pth"


def test_import_reports_parity_and_writes_a_model(torchvox_cli, checkpoint, tmp_path):
    result = torchvox_cli("import", checkpoint, "-o", "model.pt")
    assert result.code == 0, result.err
    for words in ("79 of 79 used, each once", "flag closed", "distances expanded, as published"):
        assert words in result.out
    model = checkpoints.load(tmp_path / "model.pt")
    assert model.config()["preset"] == "yanx27" and model.in_channels == 6


@pytest.mark.parametrize("kind", ["script", "export"])
def test_export_writes_a_program_with_the_bits_of_the_model(torchvox_cli, checkpoint, kind):
    torchvox_cli("import", checkpoint, "-o", "model.pt")
    result = torchvox_cli("export", "model.pt", "--format", kind, "-o", "program.pt")
    assert result.code == 0, result.err
    assert "points, lengths -> scores; the bits of the model" in result.out


def test_export_with_half_weights(torchvox_cli, checkpoint):
    torchvox_cli("import", checkpoint, "-o", "model.pt")
    result = torchvox_cli("export", "model.pt", "--dtype", "bfloat16")
    assert result.code == 0, result.err
    assert "wrote model.script.pt" in result.out


def test_a_checkpoint_with_a_tensor_too_few_is_refused(torchvox_cli, checkpoint, tmp_path):
    content = torch.load(checkpoint, weights_only=True)
    del content["model_state_dict"]["fc1.bias"]
    torch.save(content, checkpoint)
    result = torchvox_cli("import", checkpoint, "-o", "model.pt")
    result.assert_one_sentence(1, "has no fc1.bias")
    assert not (tmp_path / "model.pt").exists()


def test_wrong_use_is_one_sentence(torchvox_cli, checkpoint):
    torchvox_cli("import", checkpoint, "--layout", "kitti").assert_one_sentence(2, "--layout")
    torchvox_cli("export", checkpoint, "--format", "onnx").assert_one_sentence(2, "--format")
    torchvox_cli("export", checkpoint, "--dtype", "int8").assert_one_sentence(2, "--dtype")
    torchvox_cli("export", checkpoint).assert_one_sentence(1, "no checkpoint of torchvox.models")
