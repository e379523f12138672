# SPDX-License-Identifier: Apache-2.0
"""The rule of each attribute in a voxel: defaults by name, and the choices of the user."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchvox._util.errors import WrongUseError, short
from torchvox.io.las import WAVES
from torchvox.io.roles import is_whole, names_classes, plain_name
from torchvox.io.table import other_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torchvox.io import PointTable

KEEP = ("centroid", "center", "first", "nearest_center", "nearest_centroid", "random")
REAL_POINT = KEEP[2:]  # the kept point is one of the cloud
RULES = (
    *("mean", "sum", "min", "max", "first", "last", "majority", "unit_mean", "representative"),
    *("count", "drop"),
)
VALUE_RULES = ("mean", "sum", "min", "max", "unit_mean", "count")  # others keep what is stored
NORMALS = (("nx", "ny", "nz"), ("normal_x", "normal_y", "normal_z"))
_COLORS = ("red", "green", "blue", "nir", "infrared", "near_infrared")
_BY_NAME = {  # by plain names
    plain_name(name): rule
    for rule, names in {
        "mean": (*_COLORS, "intensity", "curvature"),
        "unit_mean": (name for three in NORMALS for name in three),
        "majority": ("classification", "label", "instance", "segment"),
        "min": ("gps_time", "t", "time", "timestamp"),
        "representative": (
            *("return_number", "number_of_returns", "synthetic", "key_point", "withheld"),
            *("overlap", "scan_direction", "scan_direction_flag", "edge_of_flight_line"),
            *("scan_angle", "scan_angle_rank", "scanner_channel", "scan_channel", "channel"),
            *("user_data", "point_source_id", "ring"),
        ),
    }.items()
    for name in names
}


def rules_of(
    columns: Mapping[str, np.dtype], keep: str, policy: Mapping[str, str] | None
) -> dict[str, str]:
    """The rule of each column.

    columns: name -> type, as PointTable.columns. keep: one of KEEP; if it names a real point,
    attributes come from that point. policy: name -> rule, for columns that differ.
    Floats whose name may mean classes come from a point: see `rules_by_values`.
    Raises WrongUseError for an unknown name or rule, or a rule that the column cannot have.
    """
    if keep not in KEEP:
        raise WrongUseError(f"keep must be one of {', '.join(KEEP)}, got {short(keep)}")
    policy = dict(policy or {})
    for name, rule in policy.items():
        if name not in columns:
            names = short(", ".join(columns) or "none")
            raise WrongUseError(f"policy: there is no column {short(name)}, there are {names}")
        if rule not in RULES:
            raise WrongUseError(
                f"policy: {name} must be one of {', '.join(RULES)}, got {short(rule)}"
            )
    rules = {}
    for name, type_ in columns.items():
        rule = policy.get(name) or _default(name, columns, keep)
        base = type_.base
        if rule != "drop" and (base.kind not in "biuf" or base.itemsize > 8):
            raise WrongUseError(f"policy: no rule takes {type_}, which {short(name)} has: drop it")
        if rule == "majority" and type_.shape:
            raise WrongUseError(f"policy: majority takes one value per point, {name} has {type_}")
        if rule == "unit_mean" and type_.base.kind != "f":
            raise WrongUseError(f"policy: unit_mean takes floats, {name} has {type_}")
        rules[name] = rule
    threes = [three for three in normals(columns) if all(rules[n] == "unit_mean" for n in three)]
    for name, rule in rules.items():
        if rule == "unit_mean" and not any(name in three for three in threes):
            names = " or ".join(map(", ".join, NORMALS))
            raise WrongUseError(f"policy: unit_mean takes {names} together, got {name} alone")
    return rules


def normals(columns: Iterable[str]) -> list[tuple[str, ...]]:
    """Triples of columns that are x, y and z of normals, by their plain names."""
    by_name: dict[str, list[str]] = {}
    for column in columns:
        by_name.setdefault(plain_name(column), []).append(column)
    axes = ([by_name.get(plain_name(name), []) for name in names] for names in NORMALS)
    return [three for columns_of in axes for three in zip(*columns_of, strict=False)]


def rules_by_values(
    columns: Mapping[str, np.dtype],
    keep: str,
    policy: Mapping[str, str] | None,
    chunks: Callable[[list[str]], Iterable[PointTable]],
) -> dict[str, str]:
    """The rules of `rules_of`, with majority for columns of floats whose name may mean classes and
    whose values are whole, mean for others. chunks: yields all points with these columns."""
    policy = dict(policy or {})
    rules = rules_of(columns, keep, policy)
    floats = [n for n in columns if columns[n].base.kind == "f" and n not in policy]
    undecided = [n for n in floats if names_classes(n) and rules[n] == "representative"]
    if keep in REAL_POINT or not undecided:
        return rules
    whole = undecided
    for table in chunks(undecided):
        whole = [name for name in whole if is_whole(table.values(name))]
        if not whole:
            break
    policy |= {name: "mean" for name in undecided if plain_name(name) not in _BY_NAME}
    policy |= {name: "representative" if columns[name].shape else "majority" for name in whole}
    return rules_of(columns, keep, policy)


def check_steps(table: PointTable, first: PointTable) -> None:
    """Raises WrongUseError if two tables store a column of the first in different steps."""
    if (name := other_steps(first, table)) is not None:
        steps = " and ".join(str(np.array(t.steps.get(name, ())).tolist()) for t in (table, first))
        raise WrongUseError(
            f"{table.path or 'the table'} and {first.path or 'the first'} store {short(name)} in "
            f"different steps (scale, offset) {steps}: drop it, --policy {short(name)}=drop"
        )


def _default(name: str, columns: Mapping[str, np.dtype], keep: str) -> str:
    type_ = columns[name]
    if keep in REAL_POINT:
        return "representative"
    if name in WAVES:
        return "drop"  # waveforms of several returns have no mean
    averaged = type_.base.kind == "f" and not names_classes(name)
    rule = _BY_NAME.get(plain_name(name), "mean" if averaged else "representative")
    if rule == "unit_mean":
        three = next((three for three in normals(columns) if name in three), ())
        fits = len(three) > 0 and all(columns[other].base.kind == "f" for other in three)
    else:
        fits = rule != "majority" or not type_.shape
    return rule if fits else "representative"
