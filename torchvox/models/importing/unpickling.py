# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of training programs, which name their own classes beside the tensors."""

import zipfile
from pathlib import Path
from typing import Any, Dict, List, Union

import torch

from torchvox.models.checkpoints import CheckpointError, read


class Opaque:
    """Stand-in for an object of a class that is not loaded, such as a logger. Its state is
    dropped."""

    def __new__(cls, *args: object) -> "Opaque":
        return super().__new__(cls)

    def __init__(self, *args: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def _dict(*args: object) -> Dict[Any, Any]:
    """An empty dict in place of collections.defaultdict, whatever its factory."""
    return {}


def read_foreign(path: Union[str, Path]) -> Any:
    """The content of a file by torch, on the CPU, through torch's restricted unpickler alone.
    Objects of classes that it does not know come back as `Opaque`: their code is neither imported
    nor run. Functions of torch, and modules of the operating system, stay refused.

    Raises CheckpointError when the file cannot be read so.
    """
    try:
        return read(path)
    except CheckpointError:
        names = _unknown(path)
        if not names:
            raise
    plain = {"collections.defaultdict": _dict}
    stand_ins: List[Any] = [(plain.get(name, Opaque), name) for name in names]
    with torch.serialization.safe_globals(stand_ins):
        return read(path)


def _unknown(path: Union[str, Path]) -> List[str]:
    """Classes in a file that torch does not allow; none if the file is not an archive."""
    if not zipfile.is_zipfile(path):
        return []
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # the error of reading the file is reported
        return []
    return [name for name in names if not name.startswith(("torch.", "numpy."))]
