# SPDX-License-Identifier: Apache-2.0
"""Tables and the one comparison that the tests of the filter for tables and files share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from helpers import assert_same_points as same

from torchvox.filter import downsample
from torchvox.filter.policy import rules_of
from torchvox.io import PointTable
from torchvox.reference.filter_table import filter_table

INTS = [f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)]
FLOATS = ["f2", "f4", "f8"]
KINDS = ["?", *INTS, *FLOATS]


def check(table: PointTable, size=1.0, **options) -> PointTable:
    """`downsample` gives the table and the rows of the oracle."""
    options = {**options}
    device, policy = options.pop("device", "cpu"), options.pop("policy", None)
    keep, none = options.get("keep", "centroid"), options.get("no_data", {})
    rules = rules_of(table.columns, keep, policy)
    expected, rows = filter_table(table, np.broadcast_to(size, 3).tolist(), rules, **options)
    options |= {"no_data": {name: np.asarray(values) for name, values in none.items()}}
    options.pop("exact", None)
    result, trace = downsample(table, size, policy=policy, device=device, trace=True, **options)
    same(result, expected)
    assert trace.tolist() == rows
    return result


def coordinates(n: int, kind: str = "int32", seed: int = 0) -> PointTable:
    """Clusters in cells of 1, with points on faces; some are not finite."""
    rng = np.random.default_rng(seed)
    xyz = rng.integers(-3, 4, (n, 3)) + rng.choice([0, 0.25, 0.5, 0.001], (n, 3))
    if kind == "int32":
        steps = np.rint((xyz + 5) * 1000).astype(np.int32)
        return PointTable(steps, {}, np.full(3, 0.001), np.array([-5.0, -5.0, -5.0]))
    xyz[rng.random(n) < 0.05, rng.integers(3)] = rng.choice([np.nan, np.inf, -np.inf])
    return PointTable(xyz.astype(kind))


def cloud(n: int, kind: str = "int32", seed: int = 0) -> PointTable:
    """Points with columns for every default rule."""
    rng = np.random.default_rng(seed + 1)
    table = coordinates(n, kind, seed)
    normals = rng.normal(0, 1, (n, 3)).astype(np.float32)
    columns = {
        "intensity": rng.integers(0, 2**16, n).astype(np.uint16),
        "gps_time": rng.uniform(2e8, 3e8, n),
        "classification": rng.choice([2, 5, 6], n).astype(np.uint8),
        "return_number": rng.integers(0, 5, n).astype(np.uint8),
        "ny": normals[:, 1],
        "nx": normals[:, 0],
        "nz": normals[:, 2],
        "distance": np.where(rng.random(n) < 0.3, np.nan, rng.normal(0, 100, n)),
        "feature": rng.normal(0, 1, (n, 3)).astype(np.float16),
        "flag": rng.random(n) < 0.5,
        "label": rng.integers(-3, 3, n) * 2**40,
    }
    return replace(table, attributes=columns)
