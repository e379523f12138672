# SPDX-License-Identifier: Apache-2.0
"""Changes of one argument of a call: an op takes them, or refuses them by name. surface.txt lists
what each argument takes."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from samples import Call, OpInfo, is_tensor_list, map_tensors, on, run
from torch import Tensor

FLOAT_DTYPES = (Tensor.half, Tensor.float, Tensor.double)
DTYPES = (*FLOAT_DTYPES, Tensor.short, Tensor.int, Tensor.long, Tensor.bool)
SHAPES = {
    "[None]": lambda t: t[None],
    "[0]": lambda t: t.new_zeros(t.shape[1:]),
    "[1:]": lambda t: t[1:],
    "[:0]": lambda t: t[:0],
    "[:, 1:]": lambda t: t[:, 1:] if t.dim() > 2 else t,
    "[..., 1:]": lambda t: t[..., 1:],
    "[..., :0]": lambda t: t[..., :0],
}
LISTS = {"one fewer": lambda tensors: tensors[1:], "doubled": lambda tensors: 2 * tensors}
FLOATS = [float(word) for word in ("nan", "inf", "-inf")] + [-1.0, 0.0]
INTS = [-2, -1, 0, 1 << 31]
VALUES = {
    "str": ["no such word"],
    "List[str]": [["no such word"]],
    "float": FLOATS,
    "int": INTS,
    "ScalarType": [torch.int16, torch.int32, torch.uint8, torch.bool, torch.complex64],
}


class Change(NamedTuple):
    argument: str
    what: str
    value: Any
    error: type  # of a refusal


def changes(op: OpInfo, call: Call) -> Iterator[Change]:
    for argument in op.overload._schema.arguments:
        name, valid = argument.name, call.get(argument.name)
        kind = re.sub(r"Optional\[(.*)\]", r"\1", str(argument.real_type))
        values = VALUES.get(kind, [])
        if kind in ("List[float]", "List[int]"):
            count, each = len(valid or [1] * 3), FLOATS if kind == "List[float]" else INTS
            values = [[], each[-1:] * 99, *([number] * count for number in each)]
        for value in values:
            error = TypeError if kind == "ScalarType" else ValueError
            yield Change(name, str(value).replace("torch.", ""), value, error)
        tensors = [t for t in (valid if isinstance(valid, list) else [valid]) if torch.is_tensor(t)]
        for change in DTYPES:
            if any(change(t).dtype != t.dtype for t in tensors):
                value = map_tensors({name: valid}, change)[name]
                yield Change(name, change.__name__, value, TypeError)
        for what, change in SHAPES.items():
            if any(change(t).shape != t.shape for t in tensors):
                yield Change(name, what, map_tensors({name: valid}, change)[name], ValueError)
        for what, change in LISTS.items() if is_tensor_list(valid) else ():
            yield Change(name, what, change(valid), ValueError)


def refusal(op: OpInfo, change: Change, device: str) -> str | None:
    """The sentence, or None for a change that the op takes, or that no memory holds."""
    try:
        run(op, on(device, {**op.call(40, 0), change.argument: change.value}))
    except (TypeError, ValueError) as error:
        assert type(error) is change.error, error
        return str(error)
    except RuntimeError as error:
        assert "overflow" in str(error), error
    return None


def taken(op: OpInfo) -> dict[str, list[str]]:
    """What each argument of an op takes."""
    found: dict[str, list[str]] = {}
    for change in changes(op, op.call(40, 0)):
        if refusal(op, change, "meta") is None:
            found.setdefault(change.argument, []).append(change.what)
    return found
