# SPDX-License-Identifier: Apache-2.0
"""The look of every picture: dark ground, light type, one color map per quantity.

No pyplot: figures belong to the caller, no global state, no display needed.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from torchvox._util.extras import require
from torchvox.io.writers import atomic_path

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

PAPER, PANEL, INK, FAINT, GRID = "#0b0f17", "#05070c", "#e8edf4", "#8b98a9", "#1d2634"
HEIGHT, INTENSITY, DENSITY, ORDER = "viridis", "magma", "inferno", "plasma"
DARKEST = {HEIGHT: 0.18, INTENSITY: 0.22, DENSITY: 0.3, ORDER: 0.42}  # share of the map to skip
DPI = 160
WIDTH = 9.6  # inches
FONT: dict[str, Any] = {"family": "sans-serif", "color": INK}


def new_figure(width: float = WIDTH, height: float = WIDTH) -> Figure:
    """An empty figure, sizes in inches."""
    figure = require("matplotlib.figure", "to draw pictures").Figure(
        figsize=(width, height), dpi=DPI, facecolor=PAPER, layout="constrained"
    )
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
    return figure


def color_map(name: str, reverse: bool = False) -> Colormap:
    """A matplotlib color map without its darkest part, which would vanish on the dark ground."""
    colormaps = require("matplotlib", "to draw pictures").colormaps
    colors = require("matplotlib.colors", "to draw pictures")
    whole = colormaps[name]
    darkest = DARKEST.get(name, 0.0)
    ends = (1.0, darkest) if reverse else (darkest, 1.0)
    cut = colors.ListedColormap(whole(np.linspace(*ends, 256)), f"{name}_lit")
    return cut.with_extremes(bad=PANEL)


def plan_axes(
    ax: Axes, point_cloud_range: tuple[float, ...], unit: str, title: str, note: str
) -> None:
    """Set up axes for a plan view of a range (x0, y0, z0, x1, y1, z1), with equal aspect."""
    panel(ax)
    ax.set_xlim(point_cloud_range[0], point_cloud_range[3])
    ax.set_ylim(point_cloud_range[1], point_cloud_range[4])
    ax.set_aspect("equal")
    ax.ticklabel_format(useOffset=False, style="plain")  # whole coordinates, as the file has them
    ax.set_xlabel(f"x  [{unit}]", color=FAINT, fontsize=9)
    ax.set_ylabel(f"y  [{unit}]", color=FAINT, fontsize=9)
    ax.tick_params(length=3, width=0.6)
    ax.set_title(title, loc="left", fontsize=13, fontweight="bold", pad=22, **FONT)
    look: dict[str, Any] = {"fontsize": 9, "color": FAINT, "ha": "left", "va": "bottom"}
    # the box lifts the note above the axes by points, whatever their size
    look["bbox"] = {"facecolor": "none", "edgecolor": "none", "pad": 5}
    ax.text(0, 1, note, transform=ax.transAxes, **look)


def panel(ax: Axes) -> None:
    """Give axes the dark panel, faint ticks and a faint frame."""
    ax.set_facecolor(PANEL)
    ax.tick_params(colors=FAINT, labelsize=8, which="both")
    for spine in ax.spines.values():
        spine.set_color(GRID)


def legend(ax: Axes, loc: str = "best") -> None:
    """Add a legend in light type."""
    ax.legend(fontsize=8, labelcolor=INK, facecolor=PAPER, edgecolor=GRID, loc=loc)


def whole_numbers(axis: Axis) -> None:
    """Print ticks as whole numbers, and no number at minor ticks."""
    ticker = require("matplotlib.ticker", "to draw pictures")
    axis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def color_bar(
    ax: Axes | list[Axes],
    image: ScalarMappable,
    label: str,
    extend: str = "neither",
    log: bool = False,
) -> None:
    """A slim color bar, with its quantity and unit, beside the axes."""
    figure = (ax[0] if isinstance(ax, list) else ax).figure
    bar = figure.colorbar(image, ax=ax, fraction=0.035, pad=0.015, aspect=38, extend=extend)
    bar.set_label(label, color=FAINT, fontsize=9)
    bar.ax.tick_params(colors=FAINT, labelsize=8, length=3, width=0.6)
    bar.outline.set_edgecolor(GRID)
    if log:
        ticker = require("matplotlib.ticker", "to draw pictures")
        low, high = image.get_clim()
        if high < 100 * low:  # at least two ticks need numbers
            bar.ax.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        bar.ax.yaxis.set_minor_locator(ticker.NullLocator())
        whole_numbers(bar.ax.yaxis)


def save(figure: Figure, path: str | Path) -> None:
    """Write the figure as .png, atomically."""
    with atomic_path(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # in a file name
        figure.savefig(temporary, format="png", facecolor=figure.get_facecolor())
