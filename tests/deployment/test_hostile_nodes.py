# SPDX-License-Identifier: Apache-2.0
"""Nodes whose inputs no exporter writes: they are refused, or give what the op gives."""

import pytest
import torch
from helpers import assert_same_bits
from test_nodes import NODES, answer, node_model, onnx, opened, run

VAST = {"point_cloud_range": [0.0, 0.0, 0.0, 2.0**24, 2.0**24, 1.0], "voxel_size": [1.0] * 3}


@pytest.mark.parametrize(
    ("op", "changes", "words"),
    [
        (  # which is not used, and yet decides the type of the output
            "sparse_conv", {"inverse_schedule": torch.zeros(1).half()},
            "SparseConv: inverse_schedule must be int32",
        ),
        (  # cells that need no memory, more than an int64 has bytes
            "pillar_encode", {"weight": lambda t: t[:0], "bias": lambda t: t[:0],
                              "batch_size": 1 << 14, **VAST},
            r"PillarEncode: weight must be \[O >= 1, D\], D = 10, got \[0, 10\]",
        ),
        (
            "merge_sweeps", {"poses": lambda t: t.half()},
            "MergeSweeps: poses must be float32 or float64, got float16",
        ),
        (
            "query_and_group", {name: lambda t: t[0] for name in ("points", "query", "features")},
            r"QueryAndGroup: points must be \[B, N, D >= 1\], got",
        ),
    ],
)  # fmt: skip
def test_what_only_a_hostile_file_has_is_refused(op, changes, words, tmp_path):
    call = NODES[op].call(40, 0)
    call |= {name: new(call[name]) if callable(new) else new for name, new in changes.items()}
    model, feeds = node_model(op, call)
    with pytest.raises(Exception, match=words):
        answer(opened(model, tmp_path), feeds)


@pytest.mark.parametrize(
    ("op", "argument", "call"),
    [
        ("segment_reduce", "index", {"src": torch.ones(3, 2), "offsets": torch.tensor([0, 2, 3])}),
        ("merge_sweeps", "order", {"points": torch.ones(2, 3, 3), "poses": torch.zeros(2, 3, 4)}),
        ("sparse_subm_map", "indices", {"indices": torch.zeros(3, 4).int(), "batch_size": 1,
                                        "spatial_shape": [4, 4, 4], "kernel_size": [3, 3, 3]}),
    ],
)  # fmt: skip
def test_an_empty_tensor_is_given(op, argument, call, tmp_path):
    """One that a graph makes has no memory."""
    call.setdefault(argument, torch.zeros(3, dtype=torch.int32))
    model, feeds = node_model(op, call)
    name = next(key for key, value in feeds.items() if value is call[argument])
    node, helper = model.graph.node[0], onnx.helper
    node.input[list(node.input).index(name)] = "empty"
    model.graph.initializer.append(helper.make_tensor("zero", onnx.TensorProto.INT64, [1], [0]))
    model.graph.node.insert(0, helper.make_node("Slice", [name, "zero", "zero"], ["empty"]))
    expected = run(NODES[op], {**call, argument: call[argument][:0]})
    assert_same_bits(answer(opened(model, tmp_path), feeds), expected, op)
