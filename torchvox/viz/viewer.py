# SPDX-License-Identifier: Apache-2.0
"""The page of one or two clouds."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

import torchvox
from torchvox._util.errors import WrongUseError
from torchvox.viz import style
from torchvox.viz.boxes import COLORS, edges
from torchvox.viz.page import Section, color_stops, page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LIMIT = 200_000_000  # bytes of a page
STEPS = 1 << 16  # coordinates are rounded to this fraction of the extent
DOT = 2.0  # pixels of a point
NONE = np.array([0x8B, 0x98, 0xA9], np.uint8)  # color of points without a value


@dataclass
class Pane:
    """A cloud to show.

    caption: text above it. xyz: [N, 3] float32 or float64, finite.
    values: [N] for a color map, NaN if missing; or [N, 3] uint8 red, green, blue.
    """

    caption: str
    xyz: np.ndarray
    values: np.ndarray


@dataclass
class Scale:
    """What colors mean: a quantity with its unit, from low to high. colors: a map of style."""

    label: str
    low: float
    high: float
    colors: str = style.HEIGHT

    @classmethod
    def of(cls, label: str, values: np.ndarray, colors: str = style.HEIGHT) -> Scale:
        """From the 1st to the 99th percentile of the finite values."""
        finite = values[np.isfinite(values)]
        low, high = map(float, np.percentile(finite, (1, 99))) if len(finite) else (0.0, 1.0)
        return cls(label, low, max(high, low + 1e-6), colors)


def spread(xyz: np.ndarray, count: int) -> np.ndarray:
    """Rows [min(count, N)], ascending, of points evenly spaced in Morton order.

    xyz: [N, 3] float64, finite.
    """
    if count >= len(xyz):
        return np.arange(len(xyz))
    low = xyz.min(axis=0)
    size = max(float((xyz.max(axis=0) - low).max()) / STEPS, np.finfo(np.float64).tiny)
    points = torch.from_numpy(np.ascontiguousarray(xyz))
    keys = torchvox.voxel_keys(
        points, [size] * 3, origin=low.tolist(), lower=[0, 0, 0], bits=17
    ).keys
    order = keys.argsort(stable=True).numpy()
    return np.sort(order[(2 * np.arange(count) + 1) * len(xyz) // (2 * count)])


def viewer_page(
    panes: Sequence[Pane],
    caption: str,
    scale: Scale | None = None,
    boxes: np.ndarray | None = None,
    names: Sequence[str] = (),
    class_colors: Mapping[str, np.ndarray] | None = None,
) -> bytes:
    """The page, in UTF-8.

    panes: at least one has a point; two have linked cameras. caption: text above them. scale: of
    values that are not colors. boxes: [K, >= 7] x, y, z, l, w, h, yaw, drawn in each pane; names:
    their classes, K. class_colors: name -> color [3] uint8 of points, for the legend.
    Raises WrongUseError for a page above 200 MB.
    """
    everything = np.concatenate([pane.xyz for pane in panes])
    low, high = everything.min(axis=0), everything.max(axis=0)
    center, extent = (low + high) / 2, max(float((high - low).max()), 1e-9)
    step = float(2.0 ** np.floor(np.log2(extent / STEPS)))
    sections, lines, legend = [], {}, _legend(scale) if scale else ""
    if boxes is not None:
        classes = sorted(set(names))
        tints = [COLORS[classes.index(name) % len(COLORS)] for name in names]
        colors = np.array([list(bytes.fromhex(tint[1:])) for tint in tints], np.uint8)
        places = edges(boxes.astype(np.float64)) - center
        lines = {"edges": places.astype("<f4")}
        lines["tints"] = np.broadcast_to(colors.reshape(-1, 1, 1, 3), places.shape)
        for i, name in enumerate(classes):
            words = html.escape(f"{name} ({list(names).count(name)})")
            legend += f' · <span style="color:{COLORS[i % len(COLORS)]}">{words}</span>'
    for pane in panes:
        places = np.rint((pane.xyz - center) / step).astype("<i4")
        arrays = {"indices": places, "colors": _painted(pane.values, scale)}
        sections.append(Section(pane.caption, {**arrays, **lines}))
    heading = html.escape(caption) + legend
    for name, color in (class_colors or {}).items():
        heading += f' · <b style="color:#{color.tobytes().hex()}">■</b> {html.escape(name)}'
    look = {"size": step, "middle": [0.5] * 3, "extent": extent, "edges": (DOT, DOT)}
    content, points = page(heading, sections, look), len(everything)
    if len(content) > LIMIT:
        raise WrongUseError(
            f"a page of {points:,} points has {len(content) / 1e6:,.0f} MB, browsers take at most "
            f"{LIMIT / 1e6:,.0f}: --max-points {int(0.95 * points * LIMIT / len(content))} fits"
        )
    return content


def _painted(values: np.ndarray, scale: Scale | None) -> np.ndarray:
    """Colors [N, 3] uint8."""
    if scale is None or values.ndim == 2:
        return values
    stops = color_stops(scale.colors)
    place = (values - scale.low) / (scale.high - scale.low) * (len(stops) - 1)
    colors = [np.interp(place, np.arange(len(stops)), channel) for channel in stops.T]
    return np.where(np.isnan(values)[:, None], NONE, np.rint(np.transpose(colors))).astype(np.uint8)


def _legend(scale: Scale) -> str:
    colors = ",".join("#" + color.tobytes().hex() for color in color_stops(scale.colors))
    bar = f'<span class="scale" style="background:linear-gradient(90deg,{colors})"></span>'
    return f" · {html.escape(scale.label)} {scale.low:,.4g}{bar}{scale.high:,.4g}"
