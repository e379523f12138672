# SPDX-License-Identifier: Apache-2.0
"""Models as ONNX files: the outputs of the model, and no others."""

import networks
import pytest
import torch
from detectors import small

import torchvox.onnx
from torchvox import models
from torchvox._util.errors import WrongUseError
from torchvox.models import export

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


# A name of networks.MODELS, and a batch. A batch of "tasks" that is free would have an empty scan,
# all of whose scores tie: any rounding chooses other boxes.
QUICK = (("centers", None), ("anchors, voxels", 2), ("part segmenter, pn2", None))
SLOW = (
    *(("anchors", None), ("anchors, dynamic", None), ("anchors, visibility", None), ("tasks", 2)),
    *(("centers, two layers", 2), ("centers, voxels", 1), ("centers, rows", 2)),
    *((name, None) for name in networks.POINT_NETS if name != QUICK[-1][0]),
    *((name, batch) for name, batch in zip(networks.U_NETS, (1, 2), strict=True)),
)
# Nodes whose outputs are no values of their inputs.
LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Shape", "PillarEncode", "SparseConv")


def extremes_of_inputs(graph):
    """Nodes that would make a rule of the extreme of inputs, where hosts treat NaN unlike torch."""
    values = [*graph.input, *graph.value_info]
    floats = {one.name for one in values if one.type.tensor_type.elem_type == 1}
    raw, found = {one.name for one in graph.input} & floats, []
    for node in graph.node:
        if node.op_type not in LAYERS and raw.intersection(node.input):
            raw.update(floats.intersection(node.output))
            if node.op_type in ("ReduceMax", "ReduceMin", "Clip", "Max", "Min"):
                found.append(node.name)
    return found


@pytest.mark.parametrize(
    ("name", "batch"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_a_model_gives_its_outputs_and_no_others(name, batch, tmp_path):
    model, path = networks.fast(name), tmp_path / "model.onnx"
    if name == "centers, voxels":  # cells of its scan of one point tie at the cap of boxes
        model.decoder.post = 300
    export.export_model(model, path, "onnx", batch)
    points = 4000 if networks.detects(model) else None
    found = export.compare(model, export.load_program(path, "onnx"), points, batch)
    assert found.strays == 0 and found.difference <= 1e-5 * max(1.0, found.greatest)
    written = onnx.load(path)
    assert {one.domain: one.version for one in written.opset_import} == {"": 20, "ai.torchvox": 1}
    onnx.checker.check_model(written)
    assert not extremes_of_inputs(written.graph)
    # ONNX Runtime captures at most 32, and heads have three times as many tasks as these.
    assert max(len(one.input) for one in written.graph.node if one.op_type == "Concat") <= 10


@pytest.mark.parametrize("name", ["anchors", "centers"])
def test_layers_of_halves_are_halves_and_maps_keep_their_order(name, tmp_path):
    export.export_model(networks.fast(name, torch.float16), tmp_path / "model.onnx", "onnx")
    written = onnx.load(tmp_path / "model.onnx")
    facts = {one.key: one.value for one in written.metadata_props}
    assert facts["torchvox.dtype"] == "float16"
    graph = written.graph
    weights = {one.name: one.data_type for one in graph.initializer}
    layers = [one for one in graph.node if one.op_type in LAYERS]
    types = [weights[name] for one in layers for name in one.input if name in weights]
    assert len(types) > 10 and set(types) == {onnx.TensorProto.FLOAT16}
    assert sum(one.op_type == "Transpose" for one in graph.node) == 1  # of the canvas


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


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: small("centers").bfloat16(), "weights must be float32 or float16 in ONNX"),
        (lambda: small("centers, two layers"), r"use a fixed batch: --batch 1 \(batch=1\)$"),
    ],
)
def test_what_a_file_cannot_hold_is_refused(model, words, tmp_path):
    with pytest.raises(WrongUseError, match=words):
        export.export_model(model(), tmp_path / "model.onnx", "onnx")
    assert not list(tmp_path.iterdir())


class Call(torch.nn.Module):
    """A module of one call."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, points):
        return self.call(points)


@pytest.mark.parametrize(
    ("call", "points", "words"),
    [
        (lambda p: torchvox.knn(p, p, 2), torch.rand(2, 9, 3), "torchvox.knn"),
        (
            lambda p: torchvox.furthest_point_sample(p, 2),
            torch.rand(2, 9, 3).double(),
            "furthest_point_sample: points must be float32 or float16 in ONNX, got float64",
        ),
    ],
)
def test_what_has_no_node_is_refused(call, points, words, tmp_path):
    with pytest.raises(Exception, match=words):
        torchvox.onnx.export(Call(call), (points,), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
