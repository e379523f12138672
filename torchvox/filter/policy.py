# SPDX-License-Identifier: Apache-2.0
"""What becomes of each attribute in a voxel: defaults by name, and what the user says instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchvox._errors import WrongUseError, short
from torchvox.io.las import WAVES

if TYPE_CHECKING:
    from collections.abc import Mapping

KEEP = ("centroid", "center", "first", "nearest_center", "nearest_centroid", "random")
REAL_POINT = KEEP[2:]  # the point that is kept is one of the cloud
RULES = (
    *("mean", "sum", "min", "max", "first", "last", "majority", "unit_mean", "representative"),
    *("count", "drop"),
)
NORMALS = (("nx", "ny", "nz"), ("normal_x", "normal_y", "normal_z"))
_BY_NAME = {
    **dict.fromkeys(("red", "green", "blue", "nir", "intensity", "curvature"), "mean"),
    **dict.fromkeys((name for three in NORMALS for name in three), "unit_mean"),
    **dict.fromkeys(("classification", "label", "instance", "segment"), "majority"),
    **dict.fromkeys(("gps_time", "t", "time", "timestamp"), "min"),
    **dict.fromkeys(
        (
            *(
                "return_number",
                "number_of_returns",
                "synthetic",
                "key_point",
                "withheld",
                "overlap",
            ),
            *("scan_direction_flag", "edge_of_flight_line", "scan_angle", "scan_angle_rank"),
            *("scanner_channel", "channel", "user_data", "point_source_id", "ring"),
        ),
        "representative",
    ),
    **dict.fromkeys(WAVES, "drop"),  # one return's wave form is not another's
}


def rules_of(
    columns: Mapping[str, np.dtype], keep: str, policy: Mapping[str, str] | None
) -> dict[str, str]:
    """The rule of each column.

    columns: name -> type, as PointTable.columns. keep: one of KEEP; with one that names a real
    point, attributes come from that point. policy: name -> rule, for columns that differ.
    Raises WrongUseError for an unknown name or rule, or one that the column cannot have.
    """
    if keep not in KEEP:
        raise WrongUseError(f"keep must be one of {', '.join(KEEP)}, got {short(keep)}")
    policy = dict(policy or {})
    for name, rule in policy.items():
        if name not in columns:
            shown = short(", ".join(columns) or "none")
            raise WrongUseError(f"policy: there is no column {short(name)}, there are {shown}")
        if rule not in RULES:
            raise WrongUseError(
                f"policy: {name} must be one of {', '.join(RULES)}, got {short(rule)}"
            )
    found = {}
    for name, type_ in columns.items():
        rule = policy.get(name) or _default(name, columns, keep)
        base = type_.base
        if rule != "drop" and (base.kind not in "biuf" or base.itemsize > 8):
            raise WrongUseError(f"policy: no rule takes {type_}, which {short(name)} has: drop it")
        if rule == "majority" and type_.shape:
            raise WrongUseError(f"policy: majority takes one value a point, {name} has {type_}")
        if rule == "unit_mean" and type_.base.kind != "f":
            raise WrongUseError(f"policy: unit_mean takes floats, {name} has {type_}")
        found[name] = rule
    for name in (name for name, rule in found.items() if rule == "unit_mean"):
        three = next((names for names in NORMALS if name in names), None)
        if three is None or any(found.get(other) != "unit_mean" for other in three):
            shown = " or ".join(", ".join(names) for names in NORMALS)
            raise WrongUseError(f"policy: unit_mean takes {shown} together, got {name} alone")
    return found


def _default(name: str, columns: Mapping[str, np.dtype], keep: str) -> str:
    type_ = columns[name]
    if keep in REAL_POINT:
        return "representative"
    rule = _BY_NAME.get(name.lower()) or ("mean" if type_.base.kind == "f" else "representative")
    if rule == "unit_mean":
        three = next((names for names in NORMALS if name in names), ())
        fits = len(three) > 0 and all(
            other in columns and columns[other].base.kind == "f" for other in three
        )
    else:
        fits = rule != "majority" or not type_.shape
    return rule if fits else "representative"
