# SPDX-License-Identifier: Apache-2.0
"""One or two clouds from above and from the side, and a histogram of points per voxel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import torchvox
from torchvox.viz import style

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torchvox.viz.viewer import Pane, Scale

CELLS = 420  # along the longest side of a view
COVER = (0.1, 99.9)  # percentiles along an axis that the views span at least


def comparison_picture(
    panes: Sequence[Pane],
    title: str,
    note: str = "",
    scale: Scale | None = None,
    counts: np.ndarray | None = None,
    unit: str = "m",
    class_colors: Mapping[str, np.ndarray] | None = None,
) -> Figure:
    """One column per cloud: from above, and from the side (south), on one color scale.

    panes: at least one has a point. scale: of values that are not colors.
    counts: [M] points of each voxel, for a histogram below. class_colors: as in `viewer_page`.
    """
    low, high = _bounds(np.concatenate([pane.xyz for pane in panes]))
    span = high - low
    wide = style.WIDTH * (1 if len(panes) == 1 else 1.6)
    inch = (wide - 1.7) / len(panes) / span[0]
    tall = [min(max(inch * span[axis], 0.7), 7.0) for axis in (1, 2)]
    rows = [*tall, 1.7] if counts is not None else tall
    figure = style.new_figure(wide, sum(rows) + 0.75 * len(rows) + 1.0)
    heading = f"{title}\n" if note else title
    figure.suptitle(heading, x=0.012, ha="left", fontsize=17, fontweight="bold", **style.FONT)
    figure.text(0.014, 1 - 0.62 / figure.get_figheight(), note, fontsize=10, color=style.FAINT)
    grid = figure.add_gridspec(len(rows), len(panes), height_ratios=rows)
    step = float(span.max()) / CELLS
    views = [[figure.add_subplot(grid[row, i]) for i in range(len(panes))] for row in (0, 1)]
    for axis, row in zip((1, 2), views, strict=True):
        for pane, ax in zip(panes, row, strict=True):
            pixels = view_image(pane, low, high, axis, step)
            place = low[0], high[0], low[axis], high[axis]
            image = ax.imshow(
                pixels, interpolation="nearest", origin="lower", extent=place, **_colors(scale)
            )
            bounds = (low[0], low[axis], 0, high[0], high[axis], 0)
            caption = pane.caption if axis == 1 else "from the side"
            style.plan_axes(ax, bounds, unit, "", caption)
            ax.set_ylabel(f"{'xyz'[axis]}  [{unit}]", color=style.FAINT, fontsize=9)
            ax.ticklabel_format(useOffset=False, style="plain")
    if scale is not None:
        style.color_bar([ax for row in views for ax in row], image, scale.label, "both")
    for name, color in (class_colors or {}).items():
        views[1][0].scatter([], [], marker="s", color=[color / 255], label=name)
    if class_colors:
        look = {"loc": "outside right upper", "facecolor": style.PAPER, "edgecolor": style.GRID}
        figure.legend(fontsize=8, labelcolor=style.INK, **look)
    if counts is not None:
        _histogram(figure.add_subplot(grid[2, :]), counts)
    return figure


def view_image(pane: Pane, low: np.ndarray, high: np.ndarray, axis: int, step: float) -> np.ndarray:
    """The frontmost points: [H, W] values, NaN without one, or [H, W, 3] colors from 0 to 1.

    axis: 1 from above, y up; 2 from the smallest y, z up. step: side of a cell.
    """
    size = [max(1, int(np.ceil((high[i] - low[i]) / step))) for i in (0, axis)]
    sight = (0, 1, 2) if axis == 1 else (0, 2, 1)
    sign = np.array([1, 1, 1 if axis == 1 else -1])
    ends = np.sort(np.stack([(v - low)[list(sight)] * sign for v in (low, high)]), axis=0)
    points = torch.from_numpy(((pane.xyz - low)[:, sight] * sign).astype(np.float32))
    index = torchvox.bev_max_height_with_index(points, [*ends[0], *ends[1]], size).top_index
    index = index[0].numpy()
    seen, colored = index >= 0, pane.values.ndim == 2
    image = np.full((*index.shape, 3) if colored else index.shape, np.nan)
    image[seen] = pane.values[index[seen]] / (255 if colored else 1)
    if colored:
        paper = [int(style.PANEL[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        image[~seen] = paper
    return image


def _bounds(xyz: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of nearly all points and a tenth beyond, within those of all: no lone far points."""
    inner = np.percentile(xyz, COVER, axis=0)
    margin = 0.1 * (inner[1] - inner[0])
    low = np.maximum(xyz.min(axis=0), inner[0] - margin)
    high = np.minimum(xyz.max(axis=0), inner[1] + margin)
    least = max(float((high - low).max()) / 100, 1e-3)  # a plane or a point fills a view too
    high = np.maximum(high, low + least)
    return low, high


def _colors(scale: Scale | None) -> dict[str, Any]:
    if scale is None:
        return {}
    return {"cmap": style.color_map(scale.colors), "vmin": scale.low, "vmax": scale.high}


def _histogram(ax: Axes, counts: np.ndarray) -> None:
    edges = np.unique(np.rint(np.geomspace(1, max(int(counts.max(initial=1)), 1) + 1, 40)))
    ax.hist(
        counts,
        bins=edges.tolist(),
        color=style.color_map(style.DENSITY)(0.62),
        edgecolor=style.PANEL,
    )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.6)
    for axis in (ax.xaxis, ax.yaxis):
        style.whole_numbers(axis)
    style.panel(ax)
    ax.set_xlabel("points per voxel", color=style.FAINT, fontsize=9)
    ax.set_ylabel("voxels", color=style.FAINT, fontsize=9)
    mean, most = counts.mean() if len(counts) else 0, counts.max(initial=0)
    text = f"{len(counts):,} voxels, {mean:,.1f} points per voxel on average, at most {most:,.0f}"
    ax.set_title(text, loc="left", fontsize=9, color=style.FAINT)
