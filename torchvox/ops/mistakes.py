# SPDX-License-Identifier: Apache-2.0
"""Arguments of a wrong type, named in one sentence.

torch's own error is a RuntimeError that quotes the schema and prints the argument. It accepts None
as a tensor without a shape, and where Python code runs first the error is about an attribute.
"""

import functools
import inspect
import reprlib
import types
import typing
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, Callable, Dict, Optional, Tuple, TypeVar, Union

import numpy as np
import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])

# The name of a type, and the types that torch accepts for it.
KNOWN: Dict[type, Tuple[str, Tuple[type, ...]]] = {
    Tensor: ("a torch.Tensor", (Tensor,)),
    int: ("an int", (Integral, torch.SymInt)),
    float: ("a float", (Real, torch.SymInt, torch.SymFloat)),
    bool: ("a bool", (Integral, np.bool_, torch.SymBool)),
    str: ("a str", (str,)),
    torch.dtype: ("a torch.dtype", (torch.dtype,)),
    torch.device: ("a torch.device", (torch.device, str, int)),
    torch.Generator: ("a torch.Generator", (torch.Generator,)),
}
UNIONS = (Union, types.UnionType)
PLURALS = {Tensor: "tensors", int: "ints", float: "floats", str: "strs"}


def naming_mistakes(function: F) -> F:
    """Wraps `function`: after a failure the error names an argument of a wrong type.

    Arguments are checked only after the call has failed, so that a call costs one more Python call
    and no check. TorchScript compiles `function` itself.
    """

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        try:
            return function(*args, **kwargs)
        except Exception:
            if torch.compiler.is_compiling():  # the search cannot be traced
                raise
            mistake = _mistake(function, args, kwargs)
            if mistake is None:
                raise
            raise TypeError(mistake) from None

    call.__prepare_scriptable__ = lambda: function  # type: ignore[attr-defined]
    return typing.cast(F, call)


def _mistake(
    function: Callable[..., object], args: Tuple[object, ...], kwargs: Dict[str, object]
) -> Optional[str]:
    """The sentence about the first argument whose type is not the annotated one."""
    op = function.__qualname__.rpartition("<locals>.")[2]
    try:
        arguments = inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError:  # an argument is missing, or there is none of that name: Python says which
        return None
    kinds = typing.get_type_hints(function)
    for name, value in arguments.items():
        if name in kinds and not _fits(value, kinds[name]):
            return f"{op}: {name} must be {_called(kinds[name])}, got {_got(value, kinds[name])}"
    return None


def _fits(value: object, kind: object) -> bool:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in UNIONS:
        return any(_fits(value, one) for one in inner)
    if isinstance(kind, type) and kind in KNOWN:
        if isinstance(value, Tensor) and kind in (int, float, bool):
            return value.numel() == 1
        return isinstance(value, KNOWN[kind][1])
    if isinstance(origin, type) and issubclass(origin, Iterable):
        if isinstance(value, Tensor) or not isinstance(value, Iterable):
            return False
        return all(_fits(one, inner[0]) for one in value)
    return kind is Any or not isinstance(kind, type) or isinstance(value, kind)


def _called(kind: object) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in UNIONS:
        return " or ".join(_called(one) for one in inner)
    if isinstance(kind, type) and kind in KNOWN:
        return KNOWN[kind][0]
    if origin is not None:
        return f"a list of {PLURALS.get(inner[0], str(inner[0]))}"
    return "None" if kind is type(None) else f"a {getattr(kind, '__name__', kind)}"


def _got(value: object, kind: object) -> str:
    """The value, or its type where it may be long, and the call that makes the right one."""
    wants_tensor = kind == Tensor or kind == Optional[Tensor]
    if isinstance(value, np.ndarray):
        makes = " (torch.from_numpy makes it one)" if wants_tensor else ""
        return f"a numpy.ndarray of {value.dtype}{makes}"
    if isinstance(value, Tensor):
        return f"a torch.Tensor of shape {list(value.shape)}"
    if isinstance(value, (list, tuple)) and wants_tensor:
        holds = any(isinstance(one, Tensor) for one in value)
        return f"a {type(value).__name__} " + (
            "of tensors" if holds else "(torch.tensor makes it one)"
        )
    if value is None or isinstance(value, (Real, str, list, tuple)):
        return reprlib.repr(value)
    return f"a {type(value).__module__}.{type(value).__qualname__}".replace("a builtins.", "a ")
