# SPDX-License-Identifier: Apache-2.0
"""A node of ai.torchvox in ONNX Runtime gives the bits of its op, or one sentence."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers import assert_same_bits
from samples import OPS, on, run, sample_inputs

import torchvox.onnx
from torchvox.onnx.translate import CANVASES, DOMAIN, OUTPUTS, WIDE, bound, node_name, node_of

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
NODES = {op.name: op for op in OPS if op.name in OUTPUTS}
TYPES = {
    **{torch.float32: 1, torch.uint8: 2, torch.int8: 3, torch.int32: 6, torch.int64: 7},
    **{torch.bool: 9, torch.float16: 10, torch.float64: 11},
}


def schema(op):
    return getattr(torch.ops.torchvox, op).default._schema


def node_model(op, call):
    """A model of one node, for inputs of any shapes, and its inputs by name."""
    values = bound(schema(op), (), call)
    inputs, attributes = node_of(schema(op), {**values, "out_dtype": None})
    feeds = {f"i{k}": tensor for k, tensor in enumerate(inputs)}
    outs = [f"o{k}" for k in range(len(OUTPUTS[op]))]
    helper = onnx.helper
    node = helper.make_node(node_name(op), list(feeds), outs, domain=DOMAIN)
    for name, value in attributes.items():
        kind = onnx.AttributeProto.INTS if value == [] else None
        node.attribute.append(helper.make_attribute(name, value, attr_type=kind))
    floats = [TYPES[one.dtype] for one in inputs if one.is_floating_point()]
    types = {"F": 1, "U": 2, "B": 3, "I": 6, "W": floats[-1] if floats else 1}
    graph = helper.make_graph(
        [node],
        op,
        [helper.make_tensor_value_info(k, TYPES[v.dtype], None) for k, v in feeds.items()],
        [
            helper.make_tensor_value_info(k, types[letter], None)
            for k, letter in zip(outs, OUTPUTS[op], strict=True)
        ],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds


def opened(model, tmp_path, threads=1, device="cpu", graph=False):
    onnx.save(model, tmp_path / "node.onnx")
    if device == "cuda":
        return torchvox.onnx.CudaSession(tmp_path / "node.onnx", graph=graph)
    return torchvox.onnx.session(tmp_path / "node.onnx", threads=threads)


def answer(session, feeds):
    if isinstance(session, torchvox.onnx.CudaSession):
        return session(*feeds.values())
    outs = session.run(None, {name: one.contiguous().numpy() for name, one in feeds.items()})
    return tuple(torch.from_numpy(out) for out in outs)


def fits(call):
    """Whether the tensors of a call have types that nodes take."""
    for name, value in call.items():
        members = value if isinstance(value, (list, tuple)) else [value]
        for one in filter(torch.is_tensor, members):
            double = one.dtype == torch.float64 and name not in WIDE
            long = one.dtype == torch.int64 and name == "cells"
            if one.dtype not in TYPES or double or long:
                return False
    return True


def cases():
    for op in (op for op in OPS if op.name in OUTPUTS):
        for sample, make in sample_inputs(op).items():
            if fits(make()):
                yield pytest.param(op, make, id=f"{op}-{sample}")


def expected_of(op, call):
    first, *others = run(op, call)
    if op.name in CANVASES:  # they leave with their channels last
        first = first.permute(0, 2, 3, 1).contiguous()
    return (first, *others)


@pytest.mark.parametrize(("op", "make"), list(cases()))
def test_a_node_has_the_bits_of_its_op(op, make, device, tmp_path):
    call = on(device, make())
    model, feeds = node_model(op.name, call)
    expected = expected_of(op, call)

    def check(session, where):
        first, *others = answer(session, feeds)  # another type of the first one is a Cast behind it
        assert_same_bits((first.to(expected[0].dtype), *others), expected, where)

    for threads in (1, 2) if device == "cpu" else (1,):
        session = opened(model, tmp_path, threads, device)
        check(session, f"{threads} threads")
    if device == "cpu":  # on a GPU each thread costs libraries their start: see the detector's test
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: check(session, "at once"), range(4)))


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
@pytest.mark.parametrize("op", OUTPUTS)
def test_a_node_in_a_graph_follows_its_inputs(op, device, tmp_path):
    calls = [on(device, NODES[op].call(40, seed)) for seed in (0, 1, 0)]
    session = opened(node_model(op, calls[0])[0], tmp_path, device=device, graph=True)
    for i, call in enumerate(calls):
        first, *others = answer(session, node_model(op, call)[1])
        expected = expected_of(NODES[op], call)
        assert_same_bits((first.to(expected[0].dtype), *others), expected, f"call {i}")


class Program(torch.nn.Module):
    """A module of one call of an op, whose tensors are the inputs."""

    def __init__(self, op, call):
        super().__init__()
        self.op, self.call = op, call

    def forward(self, *tensors):
        rest, call = iter(tensors), {}
        for name, value in self.call.items():
            if isinstance(value, (list, tuple)) and torch.is_tensor(value[0]):
                call[name] = [next(rest) for _ in value]
            else:
                call[name] = next(rest) if torch.is_tensor(value) else value
        return self.op(**call)


CASTS = {"voxelize": torch.float16, "pillar_encode": torch.float16}
QUICK = ("voxelize", "pillar_scatter", "merge_sweeps", "unpack_points")


@pytest.mark.parametrize(
    "op", [pytest.param(op, marks=() if op in QUICK else pytest.mark.slow) for op in OUTPUTS]
)
def test_an_exported_call_has_the_bits_of_its_op(op, tmp_path):
    call = NODES[op].call(40, 0)
    if op in CASTS:
        call["out_dtype"] = CASTS[op]
    inputs, _ = node_of(schema(op), {**bound(schema(op), (), call), "out_dtype": None})
    order = [argument.name for argument in schema(op).arguments if argument.name in call]
    module = Program(getattr(torch.ops.torchvox, op), {name: call[name] for name in order})
    torchvox.onnx.export(module, tuple(inputs), tmp_path / "node.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "node.onnx"))
    session = torchvox.onnx.session(tmp_path / "node.onnx")
    feeds = {one.name: t for one, t in zip(session.get_inputs(), inputs, strict=True)}
    assert_same_bits(answer(session, feeds), run(NODES[op], call), op)


@pytest.mark.parametrize(
    ("op", "attribute", "value", "words"),
    [
        ("voxel_map", "order", "up", "VoxelMap: order must be a word of this version, got 'up'"),
        ("voxel_map", "max_points", -2, r"VoxelMap: max_points must be in \[-1, 2\^31\), got -2"),
        ("voxel_map", "finite", None, "VoxelMap: the attribute finite is missing"),
        ("voxel_map", "max_points", 1.5, "VoxelMap: the attribute max_points is missing or of"),
        ("voxel_map", "voxel_size", [1.0], r"VoxelMap: voxel_size must be \(x, y, z\), got 1"),
        ("voxel_map", "given", "", "VoxelMap: inputs must be 1, got 2"),
        ("center_decode_nms", "counts", [1], "CenterDecodeNms: counts must have a number"),
        ("center_decode_nms", "counts", [1, -1, 1, 1, 1, 1], "counts must be >= 0"),
        ("pillar_encode", "center_axes", 2, r"PillarEncode: weight must be \[O >= 1, D\], D = 9"),
        ("anchor_decode_nms", "nms_threshold", [0.1] * 5, "AnchorDecodeNms: nms_threshold must"),
        ("pillar_scatter", "size", [0, 4], r"PillarScatter: size must be \(nx, ny\), both in"),
        ("furthest_point_sample", "tie_block", 3, "tie_block must be a power of two"),
        ("query_and_group", "ks", [4], "QueryAndGroup: ks must be one number a radius, got 1"),
        ("group_mlp_max", "counts", [1, 3], "GroupMlpMax: biases must be one tensor a weight"),
        ("unique_cells", "bits", 64, "UniqueCells: bits must be 1 to 63, got 64"),
        ("sparse_subm_map", "kernel_size", [3, 3, 2], "SparseSubmMap: kernel_size must be odd"),
        ("sparse_subm_map", "spatial_shape", [1 << 24] * 3, r"at most 2\^36 cells"),
        ("sparse_conv_map", "kernel_size", [5, 5, 6], "kernel_size must have at most 125 offsets"),
        ("sparse_conv_map", "stride", [1, 0, 1], r"stride must be in \[1, 2\^31\), got \[1, 0, 1"),
        ("crop_points", "drop_boxes", [0.0] * 5, "drop_boxes must be six bounds a box, of 32"),
        ("unpack_points", "types", "f4,f9", "UnpackPoints: types must be of 1 to 64 fields"),
        ("unpack_points", "point_step", 2, "offsets must leave every field within point_step"),
    ],
)  # fmt: skip
def test_a_hostile_attribute_ends_in_a_sentence(op, attribute, value, words, tmp_path):
    model, feeds = node_model(op, NODES[op].call(40, 0))
    node = model.graph.node[0]
    kept = [one for one in node.attribute if one.name != attribute]
    del node.attribute[:]
    node.attribute.extend(kept)
    if value is not None:
        node.attribute.append(onnx.helper.make_attribute(attribute, value))
    with pytest.raises(Exception, match=words):
        answer(opened(model, tmp_path), feeds)


def changed(tensor):
    """The tensor with another type, rank or size."""
    yield tensor.int() if tensor.is_floating_point() else tensor.float()
    yield tensor.unsqueeze(0)
    for axis, size in enumerate(tensor.shape):
        for other in (size - 1, size + 1, 0):
            yield tensor.index_select(axis, torch.arange(max(other, 0)) % max(size, 1))


@pytest.mark.parametrize("op", OUTPUTS)
def test_a_node_refuses_what_its_op_refuses(op, tmp_path):
    call = NODES[op].call(40, 0)
    session = opened(node_model(op, call)[0], tmp_path)
    for name, value in call.items():
        first, *others = value if isinstance(value, (list, tuple)) else [value]
        for one in changed(first) if torch.is_tensor(first) else ():
            other = call | {name: [one, *others] if isinstance(value, (list, tuple)) else one}
            model, feeds = node_model(op, other)
            try:
                expected = run(NODES[op], other)
            except (TypeError, ValueError, RuntimeError):
                with pytest.raises(Exception, match=f"{node_name(op)}: "):
                    own = session if one.dtype == first.dtype else opened(model, tmp_path)
                    pytest.fail(f"{name} {one.shape} must be refused, gives {answer(own, feeds)}")
            else:
                outs = answer(session, feeds)
                assert [out.shape for out in outs[1:]] == [out.shape for out in expected[1:]], name
