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

NOTE, LEVELS = "3D overlap: solid loose, dashed strict", ("3d/loose", "3d/strict")
STEP = 10  # meters
SCANS = 4
KINDS = {"hit": RIGHT, "false alarm": WRONG, "missed": "#f6f193"}


def pictures_of(
    told: Detected, data: Any, classes: Sequence[str], point_cloud_range: Any
) -> Iterator[tuple[str, Any]]:
    """Names of files and figures: curves, recall by distance, the scans with most errors."""
    all_recalls, (_, curves, found, truth) = np.arange(2.5, 101, 2.5), told.details
    lines = {c: [(all_recalls, curves[f"{key}/{c}"]) for key in LEVELS] for c in classes}
    axes = {"xlabel": "recall  [%]", "ylabel": "precision  [%]"}
    yield "precision_recall", viz.shares_picture(lines, "Precision over recall", NOTE, **axes)
    labels, boxes = (np.concatenate([one[k] for one in told.truth]) for k in ("labels", "boxes"))
    distance = np.hypot(boxes[:, 0], boxes[:, 1])
    lines = {
        name: [
            _recall(np.concatenate(truth[key])[labels == i], distance[labels == i])
            for key in LEVELS
        ]
        for i, name in enumerate(classes)
    }
    axes = {"xlabel": "distance  [m]", "ylabel": "recall  [%]"}
    yield "recall_by_range", viz.shares_picture(lines, "Recall by distance", NOTE, **axes)
    marks = list(zip(found[LEVELS[0]], truth[LEVELS[0]], strict=True))
    errors = [int((a == 0).sum() + (b == 0).sum()) for a, b in marks]
    for i in np.argsort(errors, kind="stable")[: -1 - SCANS : -1].tolist():
        known = told.truth[i]["boxes"]
        mine = told.found[i]["boxes"][:, :7]
        groups = mine[marks[i][0] == 1], mine[marks[i][0] == 0], known[marks[i][1] == 0]
        counts = [len(group) for group in groups]
        yield (
            f"scan_{i}",
            viz.boxes_picture(
                data.batch([i])["points"][0, :, :3].numpy(),
                np.concatenate(groups),
                np.repeat(np.arange(len(groups)), counts),
                list(KINDS),
                point_cloud_range,
                known=known,
                colors=list(KINDS.values()),
                title=f"Scan {i}",
                note=", ".join(
                    f"{kind}: {count}" for kind, count in zip(KINDS, counts, strict=True)
                ),
            ),
        )


def _recall(marks: np.ndarray, distance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Middles of ranges, and the shares of the valid boxes in them that are found."""
    place = (distance // STEP).astype(np.int64)
    hits, valid = (
        np.bincount(place[marks >= m], minlength=1 + place.max(initial=0)) for m in (1, 0)
    )
    share = np.where(valid > 0, hits / np.maximum(valid, 1), np.nan)
    return STEP * (np.arange(len(share)) + 0.5), share
