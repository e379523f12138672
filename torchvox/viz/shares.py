# SPDX-License-Identifier: Apache-2.0
"""Shares as lines: precision over recall, recall over distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchvox.viz import style
from torchvox.viz.boxes import COLORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def shares_picture(
    lines: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray]]],
    axes: tuple[str, str],
    title: str,
    note: str = "",
) -> Figure:
    """A color for each name, with one line or more of x [N] and y [N], shares in 0..1, the first
    solid, the others dashed. axes: their labels. NaN leaves gaps."""
    figure = style.new_figure(style.WIDTH, 0.62 * style.WIDTH)
    ax = figure.add_subplot()
    for (name, mine), color in zip(lines.items(), COLORS * len(lines), strict=False):
        for i, (x, y) in enumerate(mine):
            look: dict[str, Any] = {"linestyle": "dashed"} if i else {"label": name}
            ax.plot(x, 100 * y, color=color, linewidth=1.6, marker=".", markersize=4, **look)
    right, top = ax.get_xlim()[1], 102.0
    style.plan_axes(ax, (0, 0, 0, right, top, 0), "", title, note)
    ax.set(aspect="auto", xlabel=axes[0], ylabel=axes[1])
    ax.grid(color=style.GRID, linewidth=0.6)
    ax.legend(fontsize=8, labelcolor=style.INK, facecolor=style.PAPER, edgecolor=style.GRID)
    return figure
