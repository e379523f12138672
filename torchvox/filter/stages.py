# SPDX-License-Identifier: Apache-2.0
"""What stages of Ray Data share: names of outputs, errors that stay in their rows."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from torchvox._util.errors import TorchvoxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Row = dict[str, Any]


def digest_of(*values: object) -> str:
    """12 hexadecimal digits that name an output by all that it depends on, values for JSON."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def try_row(row: Row, work: Callable[[], Row], failed: Row) -> Row:
    """The row with the fields that `work` returns, or with those of `failed` and its `error`."""
    try:
        return {**row, **work(), "error": ""}
    except (TorchvoxError, OSError) as error:
        return {**row, **failed, "error": str(error)}


def raise_row_errors(rows: Iterable[Row]) -> list[Row]:
    """The rows as a list. Raises TorchvoxError with the first error of a row."""
    rows = list(rows)
    for row in rows:
        if row.get("error"):
            raise TorchvoxError(row["error"])
    return rows
