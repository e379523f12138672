# SPDX-License-Identifier: Apache-2.0
"""Detectors as ONNX files: the boxes of the model, and no others."""

import pytest
import torch

import torchvox.onnx
from torchvox import models
from torchvox.models import export

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


def test_a_detector_gives_its_boxes_and_no_others(tmp_path):
    model = models.fuse_batch_norms(models.get_model("center_world_small"))
    path = tmp_path / "model.onnx"
    export.export_model(model, path, "onnx")
    found = export.compare(model, export.load_program(path, "onnx"), 4000)
    assert found.strays == 0 and found.difference <= 1e-5 * max(1.0, found.greatest)
    written = onnx.load(path)
    assert {one.domain: one.version for one in written.opset_import} == {"": 20, "ai.torchvox": 1}
    facts = {one.key: one.value for one in written.metadata_props}
    assert facts["torchvox.task"] == "detect" and '"car"' in facts["torchvox.classes"]
    onnx.checker.check_model(written)
    for name in ("ReduceMax", "ReduceMin", "Clip"):
        assert name not in {node.op_type for node in written.graph.node}


def test_an_op_without_a_node_and_float64_points_are_refused(tmp_path):
    class Sampled(torch.nn.Module):
        def forward(self, xyz):
            return torchvox.furthest_point_sample(xyz, 4)

    for points, words in ((torch.rand(2, 9, 3), "furthest_point_sample"),
                          (torch.rand(2, 9, 3).double(), "input 0 must be float32 or")):  # fmt: skip
        with pytest.raises(Exception, match=words):
            torchvox.onnx.export(Sampled(), (points,), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
