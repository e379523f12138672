# SPDX-License-Identifier: Apache-2.0
"""Nodes of the domain ai.torchvox from ops: one rule for all of them, that of csrc/bind/bind.h.

A node has an op's tensors as inputs, its other arguments as attributes, and all of its outputs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torchvox._util.errors import TorchvoxError
from torchvox._util.extras import require

DOMAIN, VERSION = "ai.torchvox", 1

# Types of the outputs: F float32, I int32, B int8, U uint8, W that of the last input of floats. The
# library has the same table (csrc/bind/bind.cpp).
OUTPUTS = {
    "voxel_map": "IIIII",
    "voxelize": "FIIII",
    "voxel_csr": "II",
    "voxel_scatter": "WI",
    "pillar_encode": "W",
    "pillar_scatter": "W",
    "anchor_decode_nms": "FFIII",
    "center_decode_nms": "FFIII",
    "furthest_point_sample": "IF",
    "gather_points": "W",
    "interpolate_features": "W",
    "segment_reduce": "WI",
    "unique_cells": "IIIIII",
    "ball_query": "FII",
    "query_and_group": "WII",
    "group_mlp_max": "W",
    "sparse_subm_map": "II",
    "sparse_conv_map": "IIII",
    "sparse_schedule": "I",
    "sparse_conv": "W",
    "ray_visibility": "UBI",
    "merge_sweeps": "FII",
    "crop_points": "FII",
    "unpack_points": "F",
}
CANVASES = ("pillar_encode", "pillar_scatter")  # whose channels are the last axis of the node's
# Arguments that may be float64. Others must not: attributes beside them are float32.
WIDE = ("origins", "poses", "times", "knots", "age", "shift", "scale")


class Node(NamedTuple):
    """A call of an op by the rule. inputs: the tensors; attributes: by name, None is not among
    them."""

    inputs: list[Any]
    attributes: dict[str, Any]


def node_name(op: str) -> str:
    """VoxelMap of voxel_map."""
    return "".join(word.capitalize() for word in op.split("_"))


def bound(
    schema: torch.FunctionSchema, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """All arguments of a call by name, in the order of the schema."""
    values = {}
    for i, argument in enumerate(schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        values[argument.name] = args[i] if i < len(args) else kwargs.get(argument.name, default)
    return values


def node_of(schema: torch.FunctionSchema, values: Mapping[str, Any]) -> Node:
    """The node of a call of an op with these values of its arguments.

    Raises TorchvoxError for a size that is not a number when the model is exported, and for points,
    features or weights of float64.
    """
    inputs: list[Any] = []
    attributes: dict[str, Any] = {}
    names: list[str] = []
    counts: list[int] = []
    for argument in schema.arguments:
        value, kind = values[argument.name], str(argument.type)
        if value is None:
            continue
        if "Tensor" not in kind:
            attributes[argument.name] = _attribute(schema.name, argument.name, kind, value)
            continue
        members = value if "List" in kind else [value]
        if argument.name not in WIDE and any(_is_double(one) for one in members):
            raise TorchvoxError(
                f"{schema.name.removeprefix('torchvox::')}: {argument.name} must be float32 or "
                "float16 in ONNX, got float64: attributes are float32"
            )
        inputs.extend(members)
        if kind.startswith("Optional"):
            names.append(argument.name)
        if "List" in kind:
            counts.append(len(value))
    return Node(inputs, {**attributes, "given": ",".join(names), "counts": counts})


def _is_double(tensor: Any) -> bool:
    return str(tensor.dtype) in ("torch.float64", "DOUBLE")


def _attribute(op: str, name: str, kind: str, value: Any) -> Any:
    """As ONNX has it: numbers, words and lists of numbers."""
    if "str" in kind and not isinstance(value, str):
        return ",".join(value)
    if isinstance(value, (list, tuple)):
        convert = float if "float" in kind else int
        return [convert(one) for one in value]
    if not isinstance(value, (bool, int, float, str)):
        raise TorchvoxError(
            f"{op.removeprefix('torchvox::')}: {name} must be a number when the model is exported, "
            "got a size that is free; use a fixed batch"
        )
    return float(value) if "float" in kind else value if isinstance(value, str) else int(value)


def _translation(op: str) -> Callable[..., Any]:
    """What writes the node of an op for torch.onnx.export."""
    evaluator = require("onnxscript.evaluator", "to export to ONNX")
    ir = require("onnxscript.ir", "to export to ONNX")
    schema = getattr(torch.ops.torchvox, op).default._schema
    letters = OUTPUTS[op]
    data = ir.DataType
    types = {"F": data.FLOAT, "I": data.INT32, "B": data.INT8, "U": data.UINT8}

    def add(name: str, inputs: list[Any], attributes: dict[str, Any], domain: str = "") -> Any:
        written = ir.convenience.convert_attributes(
            {k: v for k, v in attributes.items() if v != []}
        )
        written += [ir.AttrInt64s(k, []) for k, v in attributes.items() if v == []]
        several = len(letters) if domain else 1
        version = VERSION if domain else None
        node = ir.Node(domain, name, inputs, written, num_outputs=several, version=version)
        evaluator.default().nodes.append(node)
        return node.outputs

    def translate(*args: Any, **kwargs: Any) -> Any:
        values = bound(schema, args, kwargs)
        wanted = values.pop("out_dtype", None)
        more = _free_batch(values) if op == "pillar_encode" else []
        inputs, attributes = node_of(schema, {"out_dtype": None, **values})
        attributes["given"] += "counts" if more else ""
        first, *others = add(node_name(op), [*inputs, *more], attributes, DOMAIN)
        floats = [one.dtype for one in inputs if one.dtype.is_floating_point()]
        for value, letter in zip((first, *others), letters, strict=True):
            value.dtype = floats[-1] if letter == "W" else types[letter]
        dtype = first.dtype
        if op in CANVASES:
            (first,) = add("Transpose", [first], {"perm": [0, 3, 1, 2]})
        if wanted is None:
            wanted = values["points"].dtype if op == "voxelize" else dtype
        if wanted != dtype:
            first.dtype = dtype
            (first,) = add("Cast", [first], {"to": int(wanted)})
        return (first, *others) if others else first

    translate.__name__ = f"torchvox_{op}"
    return translate


def _free_batch(values: dict[str, Any]) -> list[Any]:
    """What pillar_encode needs where its batch is no number: the counts of the voxel map as one
    more input. Raises TorchvoxError where no voxel map made the indices."""
    if isinstance(values["batch_size"], int):
        return []
    source = values["indices"].producer()
    if source is None or source.op_type != "VoxelMap":
        raise TorchvoxError(
            "pillar_encode: indices must come from voxel_map where the batch is free; use a fixed "
            "batch"
        )
    values["batch_size"] = None
    return [source.outputs[4]]


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The translations of torchvox's ops, for torch.onnx.export(custom_translation_table=)."""
    return {getattr(torch.ops.torchvox, op).default: _translation(op) for op in OUTPUTS}
