# SPDX-License-Identifier: Apache-2.0
"""States as folders: one file with the bytes of each column, and state.json about them."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchvox._util.errors import CloudFileError, TorchvoxError, short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from torchvox.filter.states import State

ABOUT = "state.json"
BLOCK = 1 << 20  # rows or bytes that are read at once


def write_columns(states: Iterable[State], folder: Path) -> dict[str, str]:
    """Write columns of one state after the other to a new folder; returns the hash of each file."""
    folder.mkdir()
    hashes: dict[str, Any] = {}
    for state in states:
        for i, table in enumerate(state):
            for name, column in table.items():
                values = column.cpu().contiguous().numpy().reshape(-1)
                with (folder / f"{name}.{i}").open("ab") as file:
                    file.write(values)
                hashes.setdefault(f"{name}.{i}", hashlib.sha256()).update(values)
    return {name: value.hexdigest() for name, value in hashes.items()}


def map_columns(folder: Path, like: State) -> State:
    """The state that `write_columns` wrote, mapped from its files. like: the state without rows.

    Raises OSError or ValueError for a damaged folder.
    """
    state = []
    for i, table in enumerate(like):
        columns = {}
        for name, column in table.items():
            path, kind = folder / f"{name}.{i}", column.numpy().dtype
            values = np.memmap(path, kind, "c") if path.stat().st_size else np.zeros(0, kind)
            columns[name] = torch.from_numpy(values.reshape(-1, *column.shape[1:]))
        if len({len(column) for column in columns.values()}) != 1:
            raise ValueError("its columns have different lengths")
        state.append(columns)
    return state


def write_state(states: Iterable[State], folder: Path, about: dict[str, Any]) -> None:
    """Write a new folder with the columns of states and `about`: job, points, not_finite."""
    about = {**about, "files": write_columns(states, folder)}
    (folder / ABOUT).write_text(json.dumps({**about, "digest": _digest(about)}))


def read_about(
    folder: Path, like: State, key_bits: int, check_job: Callable[[Any, Path], None]
) -> dict[str, Any]:
    """The `about` of a folder that `write_state` wrote, after a check of the whole folder.

    Raises CloudFileError for damage, and what check_job raises.
    """
    try:
        with (folder / ABOUT).open("rb") as file:
            about = json.loads(file.read(16 * BLOCK))
        digest = about.pop("digest", None)
        _expect(digest is not None, "has no digest, like those of earlier versions: save it again")
        _expect(digest == _digest(about), f"has a changed {ABOUT}")
        points, not_finite = about["points"], about["not_finite"]
        good = all(type(count) is int and count >= 0 for count in (points, not_finite))
        _expect(good, f"counts {short(points)} and {short(not_finite)} points")
        check_job(about["job"], folder)
        for i, table in enumerate(map_columns(folder, like)):
            for name in (f"{column}.{i}" for column in table):
                _expect(_file_hash(folder / name) == about["files"][name], f"has a changed {name}")
            counts = table["count"] if i else table["sums"][:, 0]
            for at in range(0, len(counts), BLOCK):
                keys = table["key"][max(at - 1, 0) : at + BLOCK]  # votes have equal ones
                inside = int(keys[0]) >= 0 and int(keys[-1]) < 1 << key_bits
                _expect(inside and bool((keys.diff() >= (i == 0)).all()), "has keys in disorder")
                _expect(int(counts[at : at + BLOCK].min()) > 0, "has a count below 1")
            total = int(counts.sum())
            _expect(i > 0 or total == points - not_finite, f"has voxels of {total} points")
    except TorchvoxError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise CloudFileError(f"{folder} is not a saved state of a filter: {short(error)}") from None
    return about


def _expect(good: bool, what: str) -> None:
    if not good:
        raise ValueError(f"it {what}")


def _digest(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
