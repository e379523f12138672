# SPDX-License-Identifier: Apache-2.0
"""Pictures of what a model predicts: clouds, the confusion matrix, curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchvox._util.extras import require
from torchvox.viz import style
from torchvox.viz.boxes import COLORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RIGHT, WRONG = "#7ddc9a", "#ff7a6b"
COLUMNS = 8  # clouds per row
YAW, PITCH = np.deg2rad(-55.0), np.deg2rad(24.0)
LABEL_COLORS = "tab20"


@dataclass(frozen=True)
class Panel:
    """One cloud: xyz [N, 3], z up; labels [N] int that color it, or None for its height; a title,
    and whether the prediction is right (None: unknown)."""

    xyz: np.ndarray
    title: str
    labels: np.ndarray | None = None
    right: bool | None = None


def clouds_picture(panels: Sequence[Panel], title: str, columns: int = COLUMNS) -> Figure:
    """Clouds side by side, seen from above one corner, each under its title."""
    rows = -(-len(panels) // columns)
    figure = style.new_figure(1.55 * columns, 1.75 * rows + 0.6)
    figure.suptitle(title, x=0.012, ha="left", fontsize=14, fontweight="bold", **style.FONT)
    colors = require("matplotlib", "to draw pictures").colormaps
    for i, panel in enumerate(panels):
        ax = figure.add_subplot(rows, columns, i + 1)
        across, up, depth = _view(panel.xyz)
        order = np.argsort(depth)
        if panel.labels is None:
            values = {"c": panel.xyz[order, 2], "cmap": style.color_map(style.HEIGHT)}
        else:
            values = {"c": colors[LABEL_COLORS](panel.labels[order] % 20)}
        size = np.clip(1500 / max(len(order), 1), 0.4, 4.0)
        ax.scatter(across[order], up[order], s=size, linewidths=0, **values)
        ax.set_aspect("equal")
        ax.set_facecolor(style.PAPER)
        ax.set_axis_off()
        color = {True: RIGHT, False: WRONG, None: style.INK}[panel.right]
        ax.set_title(panel.title, fontsize=8, color=color, pad=2)
    return figure


def confusion_picture(matrix: np.ndarray, names: Sequence[str], title: str, note: str) -> Figure:
    """Confusion matrix [C, C] of counts, rows the truth, as shares of each row."""
    total = matrix.sum(1, keepdims=True)
    share = np.where(matrix > 0, matrix / np.maximum(total, 1), np.nan)  # zeros stay dark
    side = 2.6 + 0.34 * len(names)
    figure = style.new_figure(side + 1.0, side)
    ax = figure.add_subplot()
    style.panel(ax)
    image = ax.imshow(100 * share, cmap=style.color_map(style.DENSITY), vmin=0, vmax=100)
    for i, j in zip(*np.nonzero(matrix), strict=True):
        percent = 100 * share[i, j]
        words, color = f"{percent:.0f}", style.PAPER if percent > 60 else style.INK
        look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6.5, "color": color}
        ax.text(j, i, words if percent >= 0.5 else "<1", **look)
    ax.set_xticks(range(len(names)), names, rotation=90)
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(length=0)
    ax.set_xlabel("predicted", color=style.FAINT, fontsize=9)
    ax.set_ylabel("truth", color=style.FAINT, fontsize=9)
    ax.set_title(f"{title}\n", loc="left", fontsize=13, fontweight="bold", **style.FONT)
    ax.text(0, 1.01, note, transform=ax.transAxes, fontsize=9, color=style.FAINT, va="bottom")
    style.color_bar(ax, image, "share of the class  [%]")
    return figure


def shares_picture(
    lines: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray]]], title: str, note: str, **axes: str
) -> Figure:
    """Curves of shares. lines: name -> its curves, x [N] and y [N] in 0..1, in one color, the first
    solid and the others dashed; NaN leaves gaps. axes: xlabel and ylabel."""
    figure = style.new_figure(style.WIDTH, 0.62 * style.WIDTH)
    ax = figure.add_subplot()
    for (name, mine), color in zip(lines.items(), COLORS * len(lines), strict=False):
        for i, (x, y) in enumerate(mine):
            look: dict[str, Any] = {"linestyle": "dashed"} if i else {"label": name}
            ax.plot(x, 100 * y, color=color, linewidth=1.6, marker=".", markersize=4, **look)
    style.plan_axes(ax, (0, 0, 0, ax.get_xlim()[1], 102, 0), "", title, note)
    ax.set(aspect="auto", **axes)
    ax.grid(color=style.GRID, linewidth=0.6)
    style.legend(ax)
    return figure


def _view(xyz: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coordinates across, up and towards the viewer, in a parallel projection."""
    x = np.cos(YAW) * xyz[:, 0] - np.sin(YAW) * xyz[:, 1]
    away = np.sin(YAW) * xyz[:, 0] + np.cos(YAW) * xyz[:, 1]
    up = np.cos(PITCH) * xyz[:, 2] + np.sin(PITCH) * away
    return x, up, np.sin(PITCH) * xyz[:, 2] - np.cos(PITCH) * away
