# SPDX-License-Identifier: Apache-2.0
"""Detectors as ONNX files: the boxes of the model, and no others."""

import pytest
import torch
from detectors import small

import torchvox.onnx
from torchvox import models
from torchvox.models import export

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


# A batch of "tasks" that is free would have an empty scan, all of whose scores tie: any rounding
# chooses other boxes.
@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("centers", None),
        ("anchors", None),
        pytest.param("anchors, dynamic", None, marks=pytest.mark.slow),
        pytest.param("tasks", 2, marks=pytest.mark.slow),
    ],
)
def test_a_detector_gives_its_boxes_and_no_others(name, batch, tmp_path):
    model, path = models.fuse_batch_norms(small(name)), tmp_path / "model.onnx"
    export.export_model(model, path, "onnx", batch)
    found = export.compare(model, export.load_program(path, "onnx"), 4000, batch)
    assert found.strays == 0 and found.difference <= 1e-5 * max(1.0, found.greatest)
    written = onnx.load(path)
    assert {one.domain: one.version for one in written.opset_import} == {"": 20, "ai.torchvox": 1}
    onnx.checker.check_model(written)
    for rule in ("ReduceMax", "ReduceMin", "Clip"):
        assert rule not in {node.op_type for node in written.graph.node}


@pytest.mark.parametrize("batch", [None, 1])
def test_a_file_says_what_a_detector_needs(batch, tmp_path):
    own = models.get_model("center_world_small", "default")
    export.export_model(models.fuse_batch_norms(own), tmp_path / "model.onnx", "onnx", batch)
    detector = models.Detector(tmp_path / "model.onnx", device="cpu")
    assert detector.classes == tuple(own.classes) and detector.columns == own.columns
    scan = detector.points(torchvox.data.generate_scan())
    for column in range(own.columns):
        for k, bad in enumerate((float("nan"), float("inf"), -float("inf"))):
            scan[k::97, column] = bad
        expected = models.Detector("center_world_small", device="cpu")(scan)
        found = detector(scan)
        assert len(found) == len(expected) > 5 and (found.labels == expected.labels).all()
        torch.testing.assert_close(found.boxes, expected.boxes, rtol=1e-5, atol=1e-4)


def test_what_a_file_cannot_hold_is_refused(tmp_path):
    merged = models.merge_heads(models.fuse_batch_norms(small("centers")))
    with pytest.raises(Exception, match="export the file that the model was merged from"):
        export.export_model(merged, tmp_path / "model.onnx", "onnx")
    (tmp_path / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(Exception, match="cannot be run by ONNX Runtime"):
        models.Detector(tmp_path / "model.onnx", device="cpu")


def test_an_op_without_a_node_and_float64_points_are_refused(tmp_path):
    class Sampled(torch.nn.Module):
        def forward(self, xyz):
            return torchvox.furthest_point_sample(xyz, 4)

    for points, words in ((torch.rand(2, 9, 3), "furthest_point_sample"),
                          (torch.rand(2, 9, 3).double(), "input 0 must be")):  # fmt: skip
        with pytest.raises(Exception, match=words):
            torchvox.onnx.export(Sampled(), (points,), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
