# SPDX-License-Identifier: Apache-2.0
"""Errors of the Python layer: each message is one sentence for the person who reads it."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path


class TorchvoxError(Exception):
    """A failure that one sentence explains; exit code 1 on the command line."""


class CloudFileError(TorchvoxError, ValueError):
    """A point-cloud file is missing, damaged, or not what its name says."""


class WrongUseError(TorchvoxError, ValueError):
    """The request itself is invalid; exit code 2 on the command line."""


class InterruptedWorkError(TorchvoxError):
    """An interrupt, with how to continue; exit code 130 on the command line."""


class MissingExtraError(TorchvoxError, ImportError):
    """An optional package is not installed; the message has the command that installs it."""


def printable(text: str, keep: str = "") -> str:
    """The text with ? for each control character, except those of `keep`."""
    return "".join(c if c.isprintable() or c in keep else "?" for c in text)


def short(value: object) -> str:
    """A value as one line of at most 200 characters: text from a file may be long or hostile."""
    text = printable(" ".join(str(value).split()))
    return text if len(text) <= 200 else f"{text[:200]} ..."


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a CloudFileError that names its file, or `path` if it names none."""
    try:
        yield
    except OSError as error:
        reason = short(error.strerror or error)
        raise CloudFileError(f"{error.filename or path}: {reason}") from error


@contextlib.contextmanager
def explained(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever fails while a file is read into a CloudFileError. kind: the expected format."""
    try:
        with file_errors(path):
            yield
    except TorchvoxError:
        raise
    except BaseException as error:  # a damaged file can fail anywhere inside a parser
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # lazrs panics with a BaseException
        reason = short((str(error) or type(error).__name__).splitlines()[0])
        raise CloudFileError(f"{path} is not a readable {kind}: {reason}") from error


def check_box(box: Sequence[float], what: str) -> None:
    """Raise WrongUseError unless the six numbers x0, y0, z0, x1, y1, z1 are a box, finite or not.
    what: the argument or option that the error names."""
    axes = list(zip(box[:3], box[3:], strict=False))
    if len(box) != 6 or not all(a <= b and a < math.inf and b > -math.inf for a, b in axes):
        rule = "must be x0,y0,z0,x1,y1,z1 with no lower bound above its upper bound"
        raise WrongUseError(f"{what} {rule}, got {','.join(f'{v:g}' for v in box)}")


def expect(good: bool, rule: str, got: object) -> None:
    """Raise ValueError unless an argument is good. rule: its name and what it must be."""
    if not good:
        raise ValueError(f"{rule}, got {got!r}")
