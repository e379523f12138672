# SPDX-License-Identifier: Apache-2.0
"""YAML of any origin, read with a limit on the size of its expanded aliases."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import IO, Any

from torchvox._util.errors import short
from torchvox._util.extras import require

MOST_BYTES = 1 << 17  # of a file; PyYAML reads about 100 kB a second
MOST_CHARACTERS = 1_000_000  # of everything, every alias written out
LONGEST = 3000  # characters of one word or number

_repr = reprlib.Repr()


def read_yaml(source: IO[bytes] | str, purpose: str) -> Any:
    """The plain values of a YAML document. Raises ValueError with the reason."""
    yaml = require("yaml", purpose)
    text = source if isinstance(source, str) else source.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ValueError(f"it is longer than {MOST_BYTES} bytes")
    try:
        loader = yaml.SafeLoader(text if isinstance(text, str) else text.decode())
        node = loader.get_single_node()
        check_size(node)
        return None if node is None else loader.construct_document(node)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except Exception as error:  # a value that does not fit its tag can fail in many ways
        raise ValueError(short(error or type(error).__name__)) from None


def check_size(value: object) -> None:
    """Refuse values, or nodes of YAML, that are endless or large once aliases are written out."""
    try:
        size = _size(value, {})
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if size > MOST_CHARACTERS:
        raise ValueError(
            f"it has more than {MOST_CHARACTERS} characters with its aliases written out, or a "
            f"value of more than {LONGEST}"
        )


def shown(value: object) -> str:
    """A value for a message, cut to a short length."""
    return short(_repr.repr(value))


def _size(value: object, sizes: dict[int, float]) -> float:
    value = getattr(value, "value", value)  # a node holds its parts
    if isinstance(value, str | bytes):
        return 1 + len(value) if len(value) <= LONGEST else math.inf
    if not isinstance(value, Mapping | list | tuple):
        return 8
    if id(value) not in sizes:
        sizes[id(value)] = math.inf  # for a value that holds itself
        parts = value if not isinstance(value, Mapping) else [*value.keys(), *value.values()]
        sizes[id(value)] = 1 + sum(_size(part, sizes) for part in parts)
    return sizes[id(value)]
