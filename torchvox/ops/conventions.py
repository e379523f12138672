# SPDX-License-Identifier: Apache-2.0
"""Conventions: the options of an op that repeat another library bit for bit, under that library's
name. Each op's table lies beside the op; "torchvox" is the op as it is."""

from typing import Any, Mapping

Options = Mapping[str, Any]


def options_of(op: str, table: Mapping[str, Options], convention: str) -> Options:
    """The options of `op` under `convention`. Raises ValueError for a name that the table lacks."""
    if convention not in table:
        names = ", ".join(repr(name) for name in table)
        raise ValueError(f"{op}: convention must be one of {names}, got {convention!r}")
    return table[convention]
