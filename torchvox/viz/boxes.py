# SPDX-License-Identifier: Apache-2.0
"""Boxes over a scan, from above."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from torchvox._extras import require
from torchvox.viz import style
from torchvox.viz.pictures import Range, plan_figure_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = (
    "#ffb454",
    "#5ccfe6",
    "#bae67e",
    "#ff7a6b",
    "#d4a5ff",
    "#f6f193",
    "#73d0ff",
    "#ff9ec7",
    "#95e6cb",
    "#c9b18f",
)
KNOWN = "#f4f7fb"  # boxes to compare with
MOST_SCORES = 60  # with more boxes the scores would hide the scan


def boxes_picture(
    xyz: np.ndarray,
    boxes: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[str],
    point_cloud_range: Range,
    *,
    scores: np.ndarray | None = None,
    known: np.ndarray | None = None,
    colors: Sequence[str] = COLORS,
    title: str = "Detections",
    note: str = "",
) -> Figure:
    """A scan from above with boxes: xyz [N, 3]; boxes [K, >= 7] (x, y, z, l, w, h, yaw) with labels
    [K], numbers of classes; scores [K]; known: boxes to compare with, [G, >= 7], dashed; colors of
    the classes.

    A line goes from the middle of a box through its front.
    """
    collections = require("matplotlib.collections", "to draw pictures")
    figure = style.new_figure(*plan_figure_size(point_cloud_range))
    ax = figure.add_subplot()
    low, high = np.reshape(point_cloud_range, (2, 3))
    x, y, z = xyz[((xyz >= low) & (xyz < high)).all(1)].T
    ax.scatter(
        x,
        y,
        s=0.8,
        c=z,
        cmap=style.color_map(style.HEIGHT),
        alpha=0.75,
        linewidths=0,
        rasterized=True,
    )

    def draw(rows: np.ndarray, color: str, dashes: str, name: str) -> None:
        lines = [*outlines(rows), *headings(rows)]
        ax.add_collection(
            collections.LineCollection(
                lines, colors=color, linewidths=1.3, linestyles=dashes, label=name
            )
        )

    if known is not None and len(known):
        draw(known, KNOWN, "dashed", "known")
    for label, name in enumerate(classes):
        mine = boxes[labels == label]
        if len(mine):
            draw(mine, colors[label % len(colors)], "solid", f"{name} ({len(mine)})")
    if scores is not None and len(boxes) <= MOST_SCORES:
        for row, score, label in zip(boxes, scores, labels, strict=True):
            ax.text(
                row[0],
                row[1] + 0.5 * float(np.hypot(row[3], row[4])),
                f"{score:.2f}",
                color=colors[int(label) % len(colors)],
                fontsize=6.5,
                ha="center",
                clip_on=True,
            )
    style.plan_axes(ax, point_cloud_range, "m", title, note)
    if len(boxes) or (known is not None and len(known)):
        legend = ax.legend(
            loc="upper right", fontsize=8, facecolor=style.PAPER, edgecolor=style.GRID
        )
        for text in legend.get_texts():
            text.set_color(style.INK)
    return figure


def corners(boxes: np.ndarray) -> np.ndarray:
    """[K, 4, 2], front left first, counterclockwise."""
    along = np.stack([np.cos(boxes[:, 6]), np.sin(boxes[:, 6])], 1)[:, None]
    across = np.stack([-along[..., 1], along[..., 0]], -1)
    signs = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]]) / 2
    length, width = (signs[:, i] * boxes[:, 3 + i, None] for i in range(2))
    return boxes[:, None, :2] + length[..., None] * along + width[..., None] * across


def outlines(boxes: np.ndarray) -> np.ndarray:
    """Closed lines [K, 5, 2] around the boxes."""
    four = corners(boxes)
    return np.concatenate([four, four[:, :1]], 1)


def headings(boxes: np.ndarray) -> np.ndarray:
    """Lines [K, 2, 2] from the middle of a box to somewhat before its front."""
    along = np.stack([np.cos(boxes[:, 6]), np.sin(boxes[:, 6])], 1)
    reach = (0.5 * boxes[:, 3] + 0.4)[:, None]
    return np.stack([boxes[:, :2], boxes[:, :2] + reach * along], 1)
