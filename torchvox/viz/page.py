# SPDX-License-Identifier: Apache-2.0
"""One HTML file that shows clouds or a map, offline: page.html, filled."""

from __future__ import annotations

import base64
import html
import json
import zlib
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torchvox.viz import style

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Of matplotlib's color maps from DARKEST up, in equal steps.
STOPS = {
    style.HEIGHT: "433e8539558c2f6b8e277f8e20928c21a68538b97760ca6093d741cae11ffde725",
    style.INTENSITY: "440f76641a80832681a3307ec43c75e24d66f56b5cfc9065feb67cfdda9cfcfdbf",
    style.DENSITY: "6a176e87216ba32c61bf3952d74b3fea632af68013fca108fac42af2e661fcffa4",
    style.ORDER: "b6308bc6417dd45270e06363ea7457f3874afa9b3dfdb130fdc827f8e125f0f921",
}


class Section(NamedTuple):
    """A pane. arrays: indices [N, 3] int32, cells from their least corner; of a map units [N]
    int16, of a cloud colors [N, 3] uint8; path [S, 3] float32, from the middle; edges [L, 2, 3]
    float32, lines from the middle, tints [L, 2, 3] uint8, their colors."""

    title: str
    arrays: Mapping[str, np.ndarray]


def page(caption: str, sections: Sequence[Section], facts: Mapping[str, object]) -> bytes:
    """The page, in UTF-8. caption: HTML above the panes, which share a camera.

    facts: size of a cell, middle and extent of all panes, edges, the least and most pixels of a
    point; of a map also what its form shows.
    """
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    stops = color_stops(style.HEIGHT).tolist()
    return (
        Template(template)
        .substitute(
            caption=caption,
            sections="\n".join(map(_section, sections)),
            facts=json.dumps({**facts, "stops": stops}),
        )
        .encode()
    )


def _section(section: Section) -> str:
    scripts = ""
    for name, array in section.arrays.items():
        data = base64.b64encode(zlib.compress(array.tobytes())).decode()
        scripts += f'<script type="text/plain" data-name="{name}">{data}</script>'
    shown = f'<div class="pane"><canvas></canvas><svg></svg></div>{scripts}'
    return f"<section><h2>{html.escape(section.title)}</h2>{shown}</section>"


def color_stops(name: str) -> np.ndarray:
    """[11, 3] uint8, colors of a map of style at equal steps."""
    return np.frombuffer(bytes.fromhex(STOPS[name]), np.uint8).reshape(-1, 3)
