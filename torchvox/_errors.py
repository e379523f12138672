# SPDX-License-Identifier: Apache-2.0
"""Errors of the Python layer: each message is one sentence for the person who reads it."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path


class TorchvoxError(Exception):
    """A failure that one sentence explains; the command line turns it into exit code 1."""


class CloudFileError(TorchvoxError, ValueError):
    """A point-cloud file is missing, damaged, or not what its name says."""


class WrongUseError(TorchvoxError, ValueError):
    """The request itself makes no sense; the command line turns it into exit code 2."""


class InterruptedWorkError(TorchvoxError):
    """An interrupt, and how to go on; the command line turns it into exit code 130."""


class MissingExtraError(TorchvoxError, ImportError):
    """An optional package is not installed; the message holds the command that installs it."""


def printable(text: str, keep: str = "") -> str:
    """The text with ? for each character that a terminal might obey, but for those of `keep`."""
    return "".join(c if c.isprintable() or c in keep else "?" for c in text)


def short(value: object) -> str:
    """On one line, cut: what comes from a file may be long and may hold anything."""
    text = printable(" ".join(str(value).split()))
    return text if len(text) <= 200 else f"{text[:200]} ..."


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """An OSError as a CloudFileError that names its file, `path` where it does not say."""
    try:
        yield
    except OSError as error:
        raise CloudFileError(f"{error.filename or path}: {error.strerror or error}") from error


@contextlib.contextmanager
def explained(path: Path, kind: str) -> Iterator[None]:
    """Whatever fails while a file is read, as a CloudFileError. kind: what the file should be."""
    try:
        with file_errors(path):
            yield
    except TorchvoxError:
        raise
    except BaseException as error:  # a damaged file can fail anywhere inside a parser
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # what lazrs raises when it panics is no Exception
        reason = short((str(error) or type(error).__name__).splitlines()[0])
        raise CloudFileError(f"{path} is not a readable {kind}: {reason}") from error


def check_box(box: Sequence[float], what: str) -> None:
    """Raises WrongUseError unless the six numbers x0, y0, z0, x1, y1, z1 are a box; it may reach to
    infinity. what: the argument or option that the error names."""
    axes = list(zip(box[:3], box[3:], strict=False))
    if len(box) != 6 or not all(a <= b and a < math.inf and b > -math.inf for a, b in axes):
        rule = "must be x0,y0,z0,x1,y1,z1 with no lower bound above its upper bound"
        raise WrongUseError(f"{what} {rule}, got {','.join(f'{v:g}' for v in box)}")


def expect(good: bool, rule: str, got: object) -> None:
    """Raises ValueError unless an argument is good. rule: whose it is and what it must be."""
    if not good:
        raise ValueError(f"{rule}, got {got!r}")
