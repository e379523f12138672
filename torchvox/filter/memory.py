# SPDX-License-Identifier: Apache-2.0
"""The filter for a table in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torchvox._util.errors import WrongUseError, short
from torchvox.filter.accumulator import VoxelAccumulator
from torchvox.filter.policy import rules_by_values
from torchvox.filter.states import square_distance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchvox.io import PointTable

ORIGINS = ("min", "min-half", "first", "first-half")


def origin_of(
    origin: Sequence[float] | str, voxel_size: Sequence[float], low: np.ndarray, first: np.ndarray
) -> tuple[float, ...]:
    """(x, y, z) of an origin that is numbers or one of ORIGINS.

    low, first: lowest coordinates and first point of the data; "-half" is half a voxel below.
    Raises WrongUseError for another word.
    """
    if not isinstance(origin, str):
        return tuple(float(v) for v in origin)
    if origin not in ORIGINS:
        raise WrongUseError(
            f"the origin must be three numbers or {', '.join(ORIGINS)}, got {short(origin)}"
        )
    point = low if origin.startswith("min") else first
    half = 0.5 if origin.endswith("half") else 0.0
    return tuple(float(p - half * v) for p, v in zip(point, voxel_size, strict=True))


def downsample(
    table: PointTable,
    voxel_size: float | Sequence[float],
    *,
    origin: Sequence[float] | str = (0.0, 0.0, 0.0),
    trace: bool = False,
    **options: Any,
) -> PointTable | tuple[PointTable, np.ndarray]:
    """One point per voxel, each attribute reduced by its rule.

    table: [N] points; those with coordinates that are not finite are dropped.
    voxel_size: one number or (x, y, z), in the unit of the table.
    origin: (x, y, z), or one of ORIGINS, taken from the data; it is part of the result.
    trace: also return the row of each point, [N] int32, -1 for none.
    options: keep, policy, no_data, layout, seed, levels, max_points, min_points and device of
        VoxelAccumulator.

    Points come in the order of their keys. With levels there is a column `level`.
    Deterministic; CPU and CUDA give the same bits.
    Raises WrongUseError for wrong options and for values that a rule cannot take.
    """
    size = [float(v) for v in np.broadcast_to(voxel_size, 3)]
    box = table.box
    if isinstance(origin, str):
        low = first = np.zeros(3)
        if box is not None:
            world = table.world()
            low, first = box[0], world[np.isfinite(world).all(axis=1)][0]
        origin = origin_of(origin, size, low, first)
    keep, policy = options.get("keep", "centroid"), options.get("policy")
    rules = rules_by_values(table.columns, keep, policy, lambda _: [table])
    options = {"origin": origin, "box": box, **options, "policy": rules}
    scores = None
    if keep == "nearest_centroid":
        means = VoxelAccumulator(table.schema.rows(slice(0, 0), ()), size, **means_only(options))
        means.update(table.rows(slice(None), ()))
        scores = centroid_scores(means)(table)
    with VoxelAccumulator(table.schema, size, **options) as cells:
        cells.update(table, scores=scores)
        ((result, keys, _, level),) = cells.finish()
        return (result, cells.rows_of(table, keys, level).cpu().numpy()) if trace else result


def means_only(options: dict[str, Any]) -> dict[str, Any]:
    """Options for the mean coordinates of the same cells."""
    return options | {"keep": "centroid", "policy": {}, "levels": 0, "min_points": 1}


def centroid_scores(cells: VoxelAccumulator) -> Callable[[PointTable], np.ndarray]:
    """A function that returns the squared distances [N] of points to the means of their voxels."""
    ((means, keys, _, level),) = cells.finish()
    world = means.world() if len(means) else np.zeros((1, 3))

    def scores(table: PointTable) -> np.ndarray:
        row = cells.rows_of(table, keys, level).cpu().numpy()
        return square_distance(cells.placed(table).world(), world[row])

    return scores
