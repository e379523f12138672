# SPDX-License-Identifier: Apache-2.0
"""The role of a column, by its name and, where the name is not enough, by its values."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import numpy as np

from torchvox._util.errors import short

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COLORS = ("red", "green", "blue")
# Spellings of the three colors, as plain names; the last are fractions from 0 to 1.
COLOR_NAMES = (COLORS, ("r", "g", "b"), ("diffusered", "diffusegreen", "diffuseblue"))
COLOR_FRACTIONS = ("rf", "gf", "bf")
COLOR_ARRAYS = ("rgb", "color", "colors")  # [N, 3]
# A float column under such a name holds classes or numbers of things, if its values are whole.
_CLASSES = re.compile(
    r"return|flag|ind(ex|ices)|idx|label|class|category|instance|segment|semantic|cluster|ring|ids?$"
)


@functools.lru_cache(1024)
def plain_name(name: str) -> str:
    """The form in which names are compared: no case, blanks, `_` or CloudCompare's `scalar_`."""
    name = name.casefold()
    plain = re.sub(r"[\W_]+", "", re.sub(r"^scalar[\s_]+", "", name))
    return plain or name


def column_named(columns: Iterable[str], *names: str) -> str | None:
    """The column of the first of the names that any column has; None without one."""
    by_name: dict[str, str] = {}
    for column in columns:
        by_name.setdefault(plain_name(column), column)
    return next((by_name[key] for name in names if (key := plain_name(name)) in by_name), None)


def coordinate_names(columns: Iterable[str]) -> list[str] | None:
    """The columns x, y, z in lower case, else in upper case; None without them."""
    names = set(columns)
    axes = [axis if axis in names else axis.upper() for axis in "xyz"]
    return axes if names.issuperset(axes) else None


def distinct_names(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names with a number behind each repeated one, and a sentence about repeated ones."""
    distinct, repeated = [], []
    all_names, numbers = set(names), dict.fromkeys(names, 0)
    for name in names:
        new, numbers[name] = name, numbers[name] + 1
        while numbers[name] > 1 and (new := f"{name}_{numbers[name]}") in all_names:
            numbers[name] += 1
        distinct.append(new)
        if new != name:
            repeated.append(new)
    problem = f"it has columns of the same name: they are read as {short(', '.join(repeated))}"
    return distinct, [problem] if repeated else []


def names_classes(name: str) -> bool:
    """Whether a column of this name, if it holds whole numbers, holds classes or numbers of things,
    which have no mean."""
    return _CLASSES.search(plain_name(name)) is not None


def is_whole(values: np.ndarray) -> bool:
    """Whether all values that are numbers are whole."""
    finite = values[np.isfinite(values)]
    return bool(np.array_equal(finite, np.rint(finite)))


def with_colors(columns: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[str]]:
    """The columns with colors named red, green, blue, and sentences about what was converted.

    columns: name -> [N] or [N, k]. Colors go by three names of COLOR_NAMES or COLOR_FRACTIONS in
    any case, or are one array [N, 3] of COLOR_ARRAYS. Fractions from 0 to 1 become 0 to 255: those
    of COLOR_FRACTIONS, and arrays of floats that are not all whole. Others stay as they are.
    """
    if set(COLORS) <= columns.keys():
        return columns, []
    for spelling in (*COLOR_NAMES, COLOR_FRACTIONS):
        names = [column_named(columns, name) for name in spelling]
        if all(name is not None and columns[name].ndim == 1 for name in names):
            three = [columns[name] for name in names if name is not None]
            return _replaced(columns, names, three, spelling is COLOR_FRACTIONS)
    name = column_named(columns, *COLOR_ARRAYS)
    if name is None or columns[name].shape[1:] != (3,):
        return columns, []
    return _replaced(columns, [name], list(columns[name].T), not is_whole(columns[name]))


def _replaced(
    columns: dict[str, np.ndarray], names: list[str | None], three: list[np.ndarray], scaled: bool
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The columns with those of `names` replaced by the colors, in place of the first."""
    problems: list[str] = []
    if set(COLORS) & columns.keys() - set(names):  # only some of them
        return columns, problems
    if scaled:
        listing = ", ".join(name or "" for name in names)
        if not all((values >= 0).all() and (values <= 1).all() for values in three):
            return columns, [f"its {listing} are not from 0 to 1, so they are not read as colors"]
        three = [np.rint(255 * values.astype(np.float64)).astype(np.uint16) for values in three]
        problems = [f"its {listing} from 0 to 1 are read as colors from 0 to 255"]
    kept: dict[str, np.ndarray] = {}
    for name, values in columns.items():
        if name == names[0]:
            kept |= dict(zip(COLORS, three, strict=True))
        elif name not in names:
            kept[name] = values
    return kept, problems
