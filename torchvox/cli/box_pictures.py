# SPDX-License-Identifier: Apache-2.0
"""Pictures of an evaluation of boxes: precision and recall, and the worst scans from above."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchvox import viz
from torchvox.viz.pictures import Range
from torchvox.viz.predictions import RIGHT, WRONG

if TYPE_CHECKING:
    from torchvox.data.generated import Generated
    from torchvox.train.detecting import Detected

NOTE, LEVELS = "3D overlap: solid loose, dashed strict", ("3d/loose", "3d/strict")
STEP = 10  # meters
SCANS = 4
KINDS = {"hit": RIGHT, "false alarm": WRONG, "missed": "#f6f193"}


def pictures_of(
    result: Detected, data: Generated, classes: Sequence[str], point_cloud_range: Range
) -> Iterator[tuple[str, Any]]:
    """Names of files and figures: curves, recall by distance, the scans with most errors."""
    places, (_, curves, hits, truth) = np.arange(2.5, 101, 2.5), result.details
    lines = {name: [(places, curves[f"{key}/{name}"]) for key in LEVELS] for name in classes}
    axes = {"xlabel": "recall  [%]", "ylabel": "precision  [%]"}
    yield "precision_recall", viz.shares_picture(lines, "Precision over recall", NOTE, **axes)
    marks = [np.concatenate(truth[key]) for key in LEVELS]
    labels, boxes = (np.concatenate([one[k] for one in result.truth]) for k in ("labels", "boxes"))
    place = (np.hypot(boxes[:, 0], boxes[:, 1]) // STEP).astype(np.int64)
    for i, name in enumerate(classes):
        lines[name] = [_recall(mark[labels == i], place[labels == i]) for mark in marks]
    axes = {"xlabel": "distance  [m]", "ylabel": "recall  [%]"}
    yield "recall_by_range", viz.shares_picture(lines, "Recall by distance", NOTE, **axes)
    pairs = list(zip(hits[LEVELS[0]], truth[LEVELS[0]], strict=True))
    errors = [int((hit == 0).sum() + (match == 0).sum()) for hit, match in pairs]
    for i in np.argsort(errors, kind="stable")[: -1 - SCANS : -1].tolist():
        hit, match = pairs[i]
        actual, mine = (side[i]["boxes"][:, :7] for side in (result.truth, result.found))
        groups = mine[hit == 1], mine[hit == 0], actual[match == 0]
        counts = [len(group) for group in groups]
        note = ", ".join(f"{kind}: {n}" for kind, n in zip(KINDS, counts, strict=True))
        yield (
            f"scan_{i}",
            viz.boxes_picture(
                data.batch([i])["points"][0, :, :3].numpy(),
                np.concatenate(groups),
                np.repeat(np.arange(3), counts),
                list(KINDS),
                point_cloud_range,
                known=actual,
                colors=list(KINDS.values()),
                title=f"Scan {i}",
                note=note,
            ),
        )


def _recall(marks: np.ndarray, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Middles of distance ranges, and the share of the valid boxes in each that are detected."""
    count = 1 + place.max(initial=0)
    hits, valid = (np.bincount(place[marks >= least], minlength=count) for least in (1, 0))
    share = np.where(valid > 0, hits / np.maximum(valid, 1), np.nan)
    return STEP * (np.arange(count) + 0.5), share
