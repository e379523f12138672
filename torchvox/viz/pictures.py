# SPDX-License-Identifier: Apache-2.0
"""The pictures. Each takes NumPy arrays and returns a matplotlib figure; style.save writes it.

Images are [H, W] in the "grid" orientation of the BEV ops: row 0 at the smallest y, column 0 at the
smallest x. `point_cloud_range` is (x0, y0, z0, x1, y1, z1); NaN pixels are empty and stay dark.
ax: where to draw, in a figure of the caller; None makes a new figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torchvox._util.extras import require
from torchvox.viz import style

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Range = tuple[float, ...]


def bev_picture(
    image: np.ndarray,
    point_cloud_range: Range,
    title: str,
    note: str,
    label: str,
    *,
    unit: str = "m",
    colors: str = style.HEIGHT,
    log: bool = False,
    ax: Any = None,
) -> Figure:
    """Any bird's-eye image [H, W] with a color bar; colors span the 1st to 99th percentile,
    logarithmic ones 1 to the 99.9th."""
    ax = _axes(ax, point_cloud_range)
    scales = require("matplotlib.colors", "to draw pictures")
    values = image[np.isfinite(image)]
    low, high = np.percentile(values, (1, 99)) if len(values) else (0.0, 1.0)
    if log:
        low, high = 1.0, max(float(np.percentile(values, 99.9)) if len(values) else 1.0, 2.0)
    elif high <= low:
        low, high = low - 0.5, low + 0.5
    norm = (scales.LogNorm if log else scales.Normalize)(low, high)
    x0, y0, _, x1, y1, _ = point_cloud_range
    look = {"cmap": style.color_map(colors), "norm": norm, "interpolation": "nearest"}
    pixels = ax.imshow(image, origin="lower", extent=(x0, x1, y0, y1), **look)
    style.plan_axes(ax, point_cloud_range, unit, title, note)
    below, above = (values < low).any(), (values > high).any()
    extend = {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}
    style.color_bar(ax, pixels, label, extend[int(below), int(above)], log)
    return ax.figure


def raster_picture(image: np.ndarray, point_cloud_range: Range, **look: Any) -> Figure:
    """A bird's-eye image [H, W], north up, in the colors of `bev_picture`, which takes the same
    arguments: one pixel per cell, without axes."""
    (pixels,) = bev_picture(image, point_cloud_range, **look).axes[0].images
    figure = require("matplotlib.figure", "to draw pictures").Figure(image.shape[::-1], dpi=1)
    figure.figimage(pixels.to_rgba(image), origin="lower")
    return figure


def height_picture(
    height: np.ndarray, point_cloud_range: Range, *, note: str = "", unit: str = "m", **on: Any
) -> Figure:
    """Height of the highest point per cell, [H, W]."""
    title, label = "Height from above", f"z of the highest point  [{unit}]"
    return bev_picture(height, point_cloud_range, title, note, label, unit=unit, **on)


def intensity_picture(
    intensity: np.ndarray, point_cloud_range: Range, *, note: str = "", **on: Any
) -> Figure:
    """Intensity of the highest point per cell, [H, W]."""
    words = "Intensity from above", note, "intensity, as recorded"
    return bev_picture(intensity, point_cloud_range, *words, colors=style.INTENSITY, **on)


def density_picture(
    density: np.ndarray, point_cloud_range: Range, *, note: str = "", **on: Any
) -> Figure:
    """Points per pillar [H, W], in logarithmic colors."""
    words = "Voxel density", note, "points per pillar  (log)"
    image = np.where(density > 0, density, np.nan)
    return bev_picture(image, point_cloud_range, *words, colors=style.DENSITY, log=True, **on)


def samples_picture(
    xyz: np.ndarray,
    chosen: np.ndarray,
    point_cloud_range: Range,
    *,
    unit: str = "m",
    note: str = "",
    ax: Any = None,
) -> Figure:
    """Furthest point samples over the cloud: xyz [N, 3], chosen [S] indices in sampling order."""
    ax, scales = _axes(ax, point_cloud_range), require("matplotlib.colors", "to draw pictures")
    chosen = chosen[chosen >= 0]
    ax.scatter(xyz[:, 0], xyz[:, 1], s=0.5, c="#66748a", linewidths=0, rasterized=True)
    # late samples first, so that the early ones, which span the scene, lie on top
    order = np.arange(1, len(chosen) + 1)[::-1]
    x, y = xyz[chosen][::-1, :2].T
    look = {"s": np.clip(60 / np.sqrt(order), 2.0, 26), "linewidths": 0}
    look |= {"cmap": style.color_map(style.ORDER, reverse=True)}
    dots = ax.scatter(x, y, c=order, norm=scales.LogNorm(1, max(len(chosen), 2)), **look)
    style.plan_axes(ax, point_cloud_range, unit, "Furthest point samples", note)
    style.color_bar(ax, dots, "order of selection  (log)", log=True)
    return ax.figure


def map_picture(
    height: np.ndarray,
    free: np.ndarray,
    path: np.ndarray,
    point_cloud_range: Range,
    *,
    note: str = "",
    unit: str = "m",
) -> Figure:
    """An occupancy map from above. height: [H, W], of the highest occupied voxel, NaN without one.
    free: [H, W] bool, columns with free voxels only. path: [S, 2 or 3], of the sensor."""
    words = "Occupancy map", note, f"z of the highest occupied voxel  [{unit}]"
    figure = bev_picture(height, point_cloud_range, *words, unit=unit)
    ax = figure.axes[0]
    colors = require("matplotlib.colors", "to draw pictures")
    x0, y0, _, x1, y1, _ = point_cloud_range
    look = {"cmap": colors.ListedColormap([style.GRID]), "interpolation": "nearest"}
    ax.imshow(np.where(free, 1.0, np.nan), origin="lower", extent=(x0, x1, y0, y1), **look)
    ax.plot(path[:, 0], path[:, 1], color=style.INK, linewidth=1.6, solid_capstyle="round")
    return figure


def overview_picture(
    title: str,
    height: Mapping[str, Any],
    density: Mapping[str, Any],
    samples: Mapping[str, Any],
    intensity: Mapping[str, Any] | None = None,
) -> Figure:
    """The pictures of one cloud side by side; each mapping holds the arguments of its picture."""
    panels: list[Any] = [(height_picture, height), (density_picture, density)]
    panels.append((samples_picture, samples))
    if intensity is not None:
        panels.insert(1, (intensity_picture, intensity))
    width, tall = plan_figure_size(height["point_cloud_range"])
    columns = 1 if width > 2 * tall else 2  # wide strips are stacked
    rows = -(-len(panels) // columns)
    figure = style.new_figure(columns * width * 0.82, rows * tall * 0.82 + 0.5)
    figure.suptitle(title, x=0.012, ha="left", fontsize=17, fontweight="bold", **style.FONT)
    for i, (draw, arguments) in enumerate(panels, 1):
        draw(**arguments, ax=figure.add_subplot(rows, columns, i))
    return figure


def plan_figure_size(point_cloud_range: Range) -> tuple[float, float]:
    """(width, height) in inches of a figure for the range, with title and color bar."""
    x0, y0, _, x1, y1, _ = point_cloud_range
    aspect = (y1 - y0) / (x1 - x0)
    plot = style.WIDTH - 1.7
    if aspect <= 1.25:
        return style.WIDTH, max(3.2, plot * aspect + 1.2)
    return max(4.6, 1.25 * plot / aspect + 1.7), 1.25 * plot + 1.2


def _axes(ax: Axes | None, point_cloud_range: Range) -> Axes:
    if ax is not None:
        return ax
    return style.new_figure(*plan_figure_size(point_cloud_range)).add_subplot()
