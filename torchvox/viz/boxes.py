# SPDX-License-Identifier: Apache-2.0
"""Boxes over a scan, from above."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchvox._util.extras import require
from torchvox.viz import style
from torchvox.viz.pictures import Range, plan_figure_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = (
    *("#ffb454", "#5ccfe6", "#bae67e", "#ff7a6b", "#d4a5ff"),
    *("#f6f193", "#73d0ff", "#ff9ec7", "#95e6cb", "#c9b18f"),
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
    """A scan from above with boxes.

    xyz: [N, 3]. boxes: [K, >= 7] x, y, z, l, w, h, yaw; labels: [K], their classes; scores: [K].
    known: [G, >= 7], boxes to compare with, dashed. colors: of the classes.
    A line goes from the middle of each box through its front.
    """
    figure = style.new_figure(*plan_figure_size(point_cloud_range))
    ax = figure.add_subplot()
    low, high = np.reshape(point_cloud_range, (2, 3))
    x, y, z = xyz[((xyz >= low) & (xyz < high)).all(1)].T
    look: dict[str, Any] = {"s": 0.8, "cmap": style.color_map(style.HEIGHT), "alpha": 0.75}
    ax.scatter(x, y, c=z, linewidths=0, rasterized=True, **look)
    groups = [] if known is None else [(known, KNOWN, "dashed", "labelled")]
    for label, name in enumerate(classes):
        mine = boxes[labels == label]
        groups.append((mine, colors[label % len(colors)], "solid", f"{name} ({len(mine)})"))
    for rows, color, dashes, name in groups:
        if len(rows):
            _draw(ax, rows, color, dashes, name)
    if scores is not None and len(boxes) <= MOST_SCORES:
        wide = float(high[0] - low[0]) / 40  # of a score; those at one place are above each other
        places = np.stack([boxes[:, 0], corners(boxes)[..., 1].max(1) + 0.3 * wide], 1)
        near = (np.abs(places[:, None] - places) < (wide, wide / 2)).all(2)
        places[:, 1] += 0.5 * wide * np.tril(near, -1).sum(1)
        for (x, y), score, label in zip(places.tolist(), scores, labels, strict=True):
            color = colors[int(label) % len(colors)]
            look = {"color": color, "fontsize": 6.5, "ha": "center", "clip_on": True}
            ax.text(x, y, f"{score:.2f}", **look)
    style.plan_axes(ax, point_cloud_range, "m", title, note)
    if any(len(rows) for rows, *_ in groups):
        style.legend(ax, loc="upper right")
    return figure


def _draw(ax: Axes, boxes: np.ndarray, color: str, dashes: str, name: str) -> None:
    collections = require("matplotlib.collections", "to draw pictures")
    look = {"colors": color, "linestyles": dashes, "linewidths": 1.3, "label": name}
    lines = [*corners(boxes)[:, [0, 1, 2, 3, 0]], *headings(boxes)]
    ax.add_collection(collections.LineCollection(lines, **look))


def corners(boxes: np.ndarray) -> np.ndarray:
    """Corners from above [K, 4, 2], front left first, counterclockwise."""
    along = np.stack([np.cos(boxes[:, 6]), np.sin(boxes[:, 6])], 1)[:, None]
    across = np.stack([-along[..., 1], along[..., 0]], -1)
    signs = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]]) / 2
    length, width = (signs[:, i] * boxes[:, 3 + i, None] for i in range(2))
    return boxes[:, None, :2] + length[..., None] * along + width[..., None] * across


def headings(boxes: np.ndarray) -> np.ndarray:
    """Lines [K, 2, 2] from the middle of each box to a point ahead of its front."""
    along = np.stack([np.cos(boxes[:, 6]), np.sin(boxes[:, 6])], 1)
    reach = (0.5 * boxes[:, 3] + 0.4)[:, None]
    return np.stack([boxes[:, :2], boxes[:, :2] + reach * along], 1)


def edges(boxes: np.ndarray) -> np.ndarray:
    """Lines [K, 13, 2, 3] of boxes in space: bottom, top, uprights, and one through the front."""
    flat, half = corners(boxes), boxes[:, None, 5:6] / 2
    z = np.broadcast_to(boxes[:, None, 2:3], (len(boxes), 4, 1))
    low, high = (np.concatenate([flat, z + side], 2) for side in (-half, half))
    rings = [np.stack([ring, np.roll(ring, -1, 1)], 2) for ring in (low, high)]
    front = np.concatenate([headings(boxes), z[:, :2]], 2)[:, None]
    return np.concatenate([*rings, np.stack([low, high], 2), front], 1)
