# SPDX-License-Identifier: Apache-2.0
"""Errors of the Python layer: each message is one sentence for the person who reads it."""


class TorchvoxError(Exception):
    """A failure that one sentence explains; the command line turns it into exit code 1."""


class CloudFileError(TorchvoxError, ValueError):
    """A point-cloud file is missing, damaged, or not what its name says."""


class WrongUseError(TorchvoxError, ValueError):
    """The request itself makes no sense; the command line turns it into exit code 2."""


class MissingExtraError(TorchvoxError, ImportError):
    """An optional package is not installed; the message holds the command that installs it."""


def short(value: object) -> str:
    """On one line, cut: what comes from a file may be long and may hold anything."""
    text = "".join(c if c.isprintable() else "?" for c in " ".join(str(value).split()))
    return text if len(text) <= 200 else f"{text[:200]} ..."


def expect(good: bool, rule: str, got: object) -> None:
    """Raises ValueError unless an argument is good. rule: whose it is and what it must be."""
    if not good:
        raise ValueError(f"{rule}, got {got!r}")
