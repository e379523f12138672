# SPDX-License-Identifier: Apache-2.0
"""Pictures of an evaluation of boxes: precision and recall, and the worst scans from above."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchvox import viz
from torchvox.viz.predictions import RIGHT, WRONG

if TYPE_CHECKING:
    from torchvox.train.detecting import Detected

LEVELS = ("loose", "strict")
NOTE = "3D overlap: solid loose, dashed strict"
STEP = 10  # meters
SCANS = 4
KINDS = {"hit": RIGHT, "false alarm": WRONG, "missed": "#f6f193"}


def pictures_of(
    told: Detected, data: Any, classes: Sequence[str], point_cloud_range: Sequence[float]
) -> Iterator[tuple[str, Any]]:
    """Names of files and figures: curves, recall by range, the scans with most errors."""
    recalls = np.arange(2.5, 101, 2.5)
    curves = {
        name: [(recalls, told.details.curves[f"3d/{level}/{name}"]) for level in LEVELS]
        for name in classes
    }
    axes = "recall  [%]", "precision  [%]"
    yield "precision_recall", viz.shares_picture(curves, axes, "Precision over recall", NOTE)
    labels = np.concatenate([scene["labels"] for scene in told.truth])
    recall = {
        name: [_recall_by_range(told, labels == i, f"3d/{level}") for level in LEVELS]
        for i, name in enumerate(classes)
    }
    axes = "distance  [m]", "recall  [%]"
    yield "recall_by_range", viz.shares_picture(recall, axes, "Recall by distance", NOTE)
    marks = told.details.found["3d/loose"], told.details.truth["3d/loose"]
    errors = [sum(int((mark[i] == 0).sum()) for mark in marks) for i in range(len(data))]
    for i in np.argsort(errors, kind="stable")[: -1 - SCANS : -1].tolist():
        yield f"scan_{i}", _scan(told, data, i, point_cloud_range)


def _recall_by_range(told: Detected, mine: np.ndarray, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Middles of ranges, and the shares of the valid boxes in them that are found."""
    boxes = np.concatenate([scene["boxes"] for scene in told.truth])
    mark = np.concatenate(told.details.truth[key])
    place = (np.hypot(boxes[:, 0], boxes[:, 1]) // STEP).astype(np.int64)
    count = int(place.max(initial=0)) + 1
    hits, valid = (np.bincount(place[mine & (mark >= m)], minlength=count) for m in (1, 0))
    share = np.where(valid > 0, hits / np.maximum(valid, 1), np.nan)
    return STEP * (np.arange(count) + 0.5), share


def _scan(told: Detected, data: Any, i: int, point_cloud_range: Sequence[float]) -> Any:
    found, truth = told.found[i]["boxes"][:, :7], told.truth[i]["boxes"]
    marks = told.details.found["3d/loose"][i], told.details.truth["3d/loose"][i]
    groups = found[marks[0] == 1], found[marks[0] == 0], truth[marks[1] == 0]
    return viz.boxes_picture(
        data.batch([i])["points"][0, :, :3].numpy(),
        np.concatenate(groups),
        np.repeat(np.arange(len(groups)), [len(group) for group in groups]),
        list(KINDS),
        tuple(point_cloud_range),
        known=truth,
        colors=list(KINDS.values()),
        title=f"Scan {i}",
        note=", ".join(f"{n}: {len(g)}" for n, g in zip(KINDS, groups, strict=True)),
    )
