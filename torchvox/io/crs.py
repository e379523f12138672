# SPDX-License-Identifier: Apache-2.0
"""Facts of a coordinate reference system: name, EPSG codes and units, of WKT or GeoTIFF keys."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torchvox._util.errors import short
from torchvox.io.las_records import GEO_KEYS, VLR, LasSource, head_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchvox.io.table import PointTable

UNITS = {9001: "m", 9002: "ft", 9003: "US ft"}  # by EPSG code
LENGTHS = {1.0: "m", 0.3048: "ft", 0.3048006: "US ft"}  # by meters
PROJECTED, GEOGRAPHIC, UNIT, VERTICAL, VERTICAL_UNIT = 3072, 2048, 3076, 4096, 4099  # GeoTIFF keys
USER, MOST, DEEPEST = 32767, 1 << 20, 40  # a code of the user's; characters and depth of WKT
_WORDS = re.compile(r'(\w+)\s*\[|"((?:[^"]|"")*)"|(\])|([^\s,\[\]"]+)')
HORIZONTAL = ("PROJCS", "PROJCRS", "GEOGCS", "GEOGCRS", "GEODCRS")
LENGTH_NODES = (("UNIT",), ("LENGTHUNIT",), ("AXIS", "UNIT"), ("AXIS", "LENGTHUNIT"))
HEIGHTS = ("VERT_CS", "VERTCRS")


class Crs(NamedTuple):
    """name, epsg, unit: of the horizontal system; vertical_epsg, vertical_unit: of heights. None
    for what the file does not say."""

    name: str | None = None
    epsg: int | None = None
    unit: str | None = None
    vertical_epsg: int | None = None
    vertical_unit: str | None = None


def crs_of(table: PointTable) -> Crs:
    """The reference system of a table or of the schema of a reader: of its WKT, then its keys."""
    text, source = (table.crs or "")[:MOST], table.source
    whole = b""
    if isinstance(source, LasSource):
        whole = dict(head_records(source.head)[1]).get(GEO_KEYS, b"")
    rows = np.frombuffer(whole, "<u2", max(0, len(whole) - VLR) // 8 * 4, VLR if whole else 0)
    keys = {key: value for key, place, _, value in rows.reshape(-1, 4)[1:].tolist() if not place}
    codes = [keys.get(key, 0) for key in (PROJECTED, GEOGRAPHIC, VERTICAL)]
    projected, geographic, vertical = (code if 0 < code < USER else None for code in codes)
    unit, heights = UNITS.get(keys.get(UNIT, 0)), UNITS.get(keys.get(VERTICAL_UNIT, 0))
    by_keys = Crs(text or None, projected or geographic, unit, vertical, heights)
    return Crs(**(by_keys._asdict() | _of_wkt(text)))


def _of_wkt(text: str) -> dict[str, Any]:
    """The fields of Crs that a text has; none if it is not WKT."""
    facts: dict[str, Any] = {}
    for path, words in _nodes(text):
        if len(path) == 1 and words:
            facts["name"] = words[0]
        kind = next((key for key in path if key in (*HORIZONTAL, *HEIGHTS)), "")
        inside, side = path[path.index(kind) + 1 :] if kind else (), "vertical_" * (kind in HEIGHTS)
        name, value = (*words, "", "")[:2]
        if inside in (("AUTHORITY",), ("ID",)) and name == "EPSG":
            if re.fullmatch("[0-9]{1,9}", value):
                facts.setdefault(f"{side}epsg", int(value))
        elif inside in LENGTH_NODES and not kind.startswith("GEO"):  # whose units are angles
            size = float(value) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", value) else 0.0
            facts.setdefault(f"{side}unit", LENGTHS.get(round(size, 7), short(name)))
    return facts


def _nodes(text: str) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """(keywords from the root, own words) of every node, when it ends."""
    open_nodes: list[tuple[str, list[str]]] = []
    for keyword, quoted, end, plain in _WORDS.findall(text):
        if keyword and len(open_nodes) == DEEPEST:
            return
        if keyword:
            open_nodes.append((keyword.upper(), []))
        elif end and open_nodes:
            yield tuple(key for key, _ in open_nodes), open_nodes.pop()[1]
        elif open_nodes:
            open_nodes[-1][1].append(plain or quoted)
