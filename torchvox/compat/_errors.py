# SPDX-License-Identifier: Apache-2.0
"""Errors of the adapters, and how an adapter refuses what it has nothing for."""

from typing import NoReturn

from torchvox._errors import TorchvoxError


class NotCoveredError(TorchvoxError, NotImplementedError):
    """A name or a value of a peer that torchvox has nothing for."""


class CompatOrderError(TorchvoxError, ImportError):
    """`install` came after the peer's module had been imported."""


class CompatWarning(UserWarning):
    """A result that differs from the peer's by choice where that may surprise; once a process."""


def refuse(what: str) -> NoReturn:
    """what: the function and the value of its argument, `QueryAndGroup: uniform_sample=True`."""
    raise NotCoveredError(f"{what} is not covered by torchvox.compat, see docs/switching.md")
