# SPDX-License-Identifier: Apache-2.0
"""Errors of the adapters, and how an adapter refuses what it does not cover."""

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from torchvox._util.errors import TorchvoxError


class NotCoveredError(TorchvoxError, NotImplementedError):
    """A name or a value of a peer that torchvox does not cover."""


class CompatOrderError(TorchvoxError, ImportError):
    """`install` came after the peer's module had been imported."""


class CompatWarning(UserWarning):
    """A result differs from the peer's by choice in a surprising way; shown once per process."""


def refuse(what: str) -> NoReturn:
    """Raise NotCoveredError. what: the function and its argument's value, "nms: offset=1"."""
    raise NotCoveredError(f"{what} is not covered by torchvox.compat, see docs/switching.md")


@functools.cache
def stub(module: str, name: str, why: str = "") -> type:
    """A class in place of a name that is not covered: codebases subclass such names and annotate
    with them. module: the peer's. why: what is wrong with the peer's own module, if it exists."""
    peer = module.partition(".")[0]
    remedy = why or f"install {peer} (it is used for this name only)"

    def refused(*_: object, **__: object) -> NoReturn:
        raise NotCoveredError(
            f"{module}.{name} is not covered by torchvox.compat: {remedy}, see docs/switching.md"
        )

    return type(name, (), {"__new__": refused, "__module__": module, "__doc__": remedy})


def stubs(module: str, names: str) -> Callable[[str], Any]:
    """`__getattr__` of an adapter that is imported by its own name: stubs for NOT_COVERED."""

    def __getattr__(name: str) -> Any:
        if name in names.split():
            return stub(module, name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__
