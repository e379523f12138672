# SPDX-License-Identifier: Apache-2.0
"""An HTML file that shows one or two clouds, offline; it needs the extra view."""

from __future__ import annotations

import base64
import html
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import torchvox
from torchvox._util.errors import WrongUseError
from torchvox._util.extras import require
from torchvox.viz import style

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT = 200_000_000  # bytes of a page
STEPS = 1 << 16  # coordinates are rounded to this fraction of the extent
BACKGROUND = 0x05070C
NONE = np.array([0x8B, 0x98, 0xA9], np.uint8)  # color of points without a value
EYE = np.array([-0.38, -0.52, 0.42])  # in extents, from the center


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


def viewer_page(panes: Sequence[Pane], caption: str, scale: Scale | None = None) -> bytes:
    """The page, in UTF-8.

    panes: at least one has a point; two have linked cameras. caption: text above them. scale: of
    values that are not colors.
    Raises WrongUseError for a page above 200 MB, MissingExtraError without k3d.
    """
    k3d = require("k3d", "to write viewers")
    boxes = [(pane.xyz.min(axis=0), pane.xyz.max(axis=0)) for pane in panes if len(pane.xyz)]
    low, high = (f([b[i] for b in boxes], axis=0) for i, f in enumerate((np.min, np.max)))
    center, extent = (low + high) / 2, max(float((high - low).max()), 1e-9)
    source = (Path(str(k3d.__file__)).parent / "static" / "standalone.js").read_bytes()
    sections = ""
    for i, pane in enumerate(panes):
        data = _data(k3d, pane, scale, center, extent)
        sections += (
            f'<section><h2>{html.escape(pane.caption)}</h2><div class="pane"></div>'
            f'<script type="text/plain" id="data{i}">{data}</script></section>'
        )
    points = sum(len(pane.xyz) for pane in panes)
    eye = EYE * extent * (1.4 if len(panes) > 1 else 1)
    page = filled(
        "viewer.html",
        caption=html.escape(caption) + (_legend(scale) if scale else ""),
        sections=sections,
        library=base64.b64encode(zlib.compress(source)).decode(),
        camera=json.dumps([*eye, 0, 0, 0, 0, 0, 1]),
        points=points,
    )
    if len(page) > LIMIT:
        rest = len(page) - len(sections)
        fitting = int(0.95 * points * (LIMIT - rest) / len(sections))
        raise WrongUseError(
            f"a page of {points:,} points has {len(page) / 1e6:,.0f} MB, browsers take at most "
            f"{LIMIT / 1e6:,.0f}: --max-points {max(fitting, 0)} fits"
        )
    return page


def filled(name: str, **values: object) -> bytes:
    """A page in UTF-8: a template of this folder, filled with the values and what pages share."""
    template, style, common = (
        Path(__file__).with_name(file).read_text(encoding="utf-8")
        for file in (name, "page.css", "page.js")
    )
    return Template(template).substitute(values, style=style, common=common).encode()


def _data(k3d: Any, pane: Pane, scale: Scale | None, center: np.ndarray, extent: float) -> str:
    camera = {"camera_auto_fit": False, "camera_mode": "orbit", "camera_up_axis": "z"}
    hidden = {"grid_visible": False, "menu_visibility": False}
    plot = k3d.plot(background_color=BACKGROUND, axes_helper=0.6, **camera, **hidden)
    step = 2.0 ** np.floor(np.log2(extent / STEPS))  # a power of two compresses well
    places = np.rint((pane.xyz - center) / step) * step
    red, green, blue = _painted(pane.values, scale).astype(np.uint32).T
    colors = red << 16 | green << 8 | blue
    plot += k3d.points(places.astype(np.float32), colors, point_size=1.0, shader="dot")
    return base64.b64encode(plot.get_binary_snapshot(6)).decode()


def _painted(values: np.ndarray, scale: Scale | None) -> np.ndarray:
    """Colors [N, 3] uint8."""
    if scale is None or values.ndim == 2:
        return values
    colors = _color_map(scale.colors)
    place = (values - scale.low) / (scale.high - scale.low) * (len(colors) - 1)
    index = np.clip(np.nan_to_num(place), 0, len(colors) - 1).astype(np.int64)
    return np.where(np.isnan(values)[:, None], NONE, colors[index])


def _color_map(name: str) -> np.ndarray:
    """[256, 3] uint8, without the darkest part, as style.color_map."""
    maps = require("k3d.colormaps.matplotlib_color_maps", "to write viewers")
    stops = np.reshape(getattr(maps, name.capitalize()), (-1, 4))
    at = np.linspace(style.DARKEST[name], 1, 256)
    channels = [np.interp(at, stops[:, 0], stops[:, i]) for i in (1, 2, 3)]
    return np.rint(255 * np.stack(channels, axis=1)).astype(np.uint8)


def _legend(scale: Scale) -> str:
    colors = ",".join("#" + bytes(color).hex() for color in _color_map(scale.colors)[::15])
    bar = f'<span class="scale" style="background:linear-gradient(90deg,{colors})"></span>'
    return f" · {html.escape(scale.label)} {scale.low:,.4g}{bar}{scale.high:,.4g}"
