# SPDX-License-Identifier: Apache-2.0
"""torchvox view: one or two clouds as an offline page or a picture."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

import torchvox
from torchvox._errors import TorchvoxError, WrongUseError
from torchvox._extras import require
from torchvox.cli import options
from torchvox.cli.notes import note, open_noted
from torchvox.cli.work import console, milliseconds
from torchvox.filter import suggest_voxel_size
from torchvox.io import PointReader, PointTable
from torchvox.io.roles import column_named, is_whole, with_colors
from torchvox.io.table import COLORS, color_depth, colors_8
from torchvox.io.writers import write_whole
from torchvox.viz import save, style
from torchvox.viz.comparison import comparison_picture
from torchvox.viz.viewer import NONE, Pane, Scale, spread, viewer_page

MAX_POINTS = {".html": 1_000_000, ".png": 20_000_000}  # of all panes
NAMES = {  # of the columns that hold a quantity
    "intensity": ("intensity",),
    "label": ("label", "classification"),
    "level": ("level",),
    "count": ("count", "num_points"),
}
MAPS = {"intensity": style.INTENSITY, "level": style.ORDER, "count": style.DENSITY}
LABELS = np.array(  # colors of classes, in turn
    [
        *((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178)),
        *((213, 94, 0), (204, 121, 167), (148, 203, 84), (178, 140, 255), (255, 139, 139)),
    ],
    np.uint8,
)


class Color(Enum):
    """What the colors show."""

    rgb = "rgb"
    height = "height"
    intensity = "intensity"
    label = "label"
    level = "level"
    count = "count"


@dataclass
class Shown:
    """Points of a file. columns: [N], by what they show. lost: points that are not finite."""

    reader: PointReader
    xyz: np.ndarray
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    lost: int = 0


def view(
    cloud: Annotated[Path, typer.Argument(metavar="A", help="A point-cloud file.")],
    other: Annotated[
        Path | None, typer.Argument(metavar="[B]", help="Another, shown beside it.")
    ] = None,
    layout: options.Layout = None,
    color: Annotated[
        Color | None, typer.Option("--color", help="What colors show.", show_default="rgb, height")
    ] = None,
    max_points: Annotated[
        int | None,
        typer.Option(
            min=1, help="Of all panes together.", show_default="1,000,000; 20,000,000 of .png"
        ),
    ] = None,
    voxel_size: Annotated[
        float | None,
        typer.Option(
            "--voxel-size",
            "--voxel",
            help="That of B, for the caption and the histogram.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="An .html page, or a .png picture.")
    ] = Path("view.html"),
) -> None:
    """Show one or two point clouds: a page to turn them in, offline, or a picture."""
    suffix = output.suffix.lower()
    if suffix not in MAX_POINTS:
        raise WrongUseError(f"{output}: views are written as .html or .png")
    files = [cloud] if other is None else [cloud, other]
    options.check_outputs(files, {"--output": output})
    if voxel_size is not None and not 0 < voxel_size < float("inf"):
        raise WrongUseError(f"--voxel-size must be positive, got {voxel_size:g}")
    if suffix == ".html":
        require("k3d", "to write viewers")
    else:
        require("matplotlib", "to draw pictures")
    start = time.perf_counter()
    read = options.cloud_reader(files, layout, open_noted)
    readers = [read(path) for path in files]
    chosen = color or (Color.rgb if _holds(readers[0], Color.rgb) else Color.height)
    if not any(_holds(reader, chosen) for reader in readers):
        wanted = " or ".join(NAMES.get(chosen.value, COLORS))
        raise WrongUseError(f"--color {chosen.value}: no column {wanted} in {files[0]}")
    limits = _shares([reader.count for reader in readers], max_points or MAX_POINTS[suffix])
    shown = [_load(*pair, chosen) for pair in zip(readers, limits, strict=True)]
    if not sum(len(each.xyz) for each in shown):
        raise TorchvoxError(f"{files[0]} has no finite point to show")
    values = [_values(each, chosen) for each in shown]
    panes = [Pane(_caption(each), each.xyz, v) for each, v in zip(shown, values, strict=True)]
    unit = readers[0].schema.unit
    scale = None if values[0].ndim == 2 else _scale(chosen, values, unit)
    facts = [f"voxel size {voxel_size:g} {unit}"] if voxel_size else []
    if len(readers) == 2 and readers[0].count > readers[1].count > 0:
        facts.insert(0, f"{readers[0].count / readers[1].count:,.1f}x fewer points")
    facts.append(f"read in {milliseconds(1e3 * (time.perf_counter() - start))}")
    title = " and ".join(reader.path.name for reader in readers)
    if suffix == ".html":
        page = viewer_page(panes, " · ".join([title, *facts]), scale)
        write_whole(output, lambda buffer: buffer.write(page))
    else:
        counts, size = _counts(shown, voxel_size)
        if size != voxel_size:
            facts.append(f"histogram at {size:g} {unit}, where A has as many voxels")
        figure = comparison_picture(panes, title, " · ".join(facts), scale, counts, unit)
        save(figure, output)
    line = f"{title}: {sum(len(pane.xyz) for pane in panes):,} points; wrote {output}"
    console().print(line, soft_wrap=True, markup=False)


def _columns(reader: PointReader, color: Color) -> list[str]:
    """The columns that give a color, empty where the file has none."""
    schema = reader.schema.by_value()
    if color is Color.rgb:
        colored, _ = with_colors(schema.attributes)
        if not set(COLORS) <= colored.keys():
            return []
        return [name for name in schema.attributes if name in COLORS or name not in colored]
    one_value = [name for name, type_ in schema.columns.items() if not type_.shape]
    name = column_named(one_value, *NAMES.get(color.value, ()))
    return [] if name is None else [name]


def _holds(reader: PointReader, color: Color) -> bool:
    return color is Color.height or bool(_columns(reader, color))


def _colored(chunk: PointTable) -> PointTable:
    """The points with integer colors red, green, blue. Raises WrongUseError for others."""
    colored = with_colors(chunk.attributes)[0]
    for name in COLORS:
        values = colored[name]
        if not (is_whole(values) and (values >= 0).all() and (values < 65536).all()):
            raise WrongUseError(f"--color rgb: {name} is no color: it must be whole, 0 to 65535")
        colored[name] = values.astype(np.uint16)
    return replace(chunk, attributes=colored)


def _shares(counts: list[int], limit: int) -> list[int]:
    """Points of each cloud: half of the limit, and what the other one leaves."""
    half = limit // len(counts)
    return [min(n, max(half, limit - (sum(counts) - n))) for n in counts]


def _load(reader: PointReader, limit: int, color: Color) -> Shown:
    """At most `limit` points, of each chunk its share, spread in Morton order."""
    roles = {role: names for role in (color, Color.count) if (names := _columns(reader, role))}
    wanted = {name for names in roles.values() for name in names}
    parts, seen, lost, depth = [], 0, 0, 8
    for chunk in reader.chunks(columns=wanted):
        chunk = chunk.by_value()
        if color is Color.rgb and roles.get(color):
            chunk = _colored(chunk)
            depth = max(depth, color_depth(chunk) or 8)
        good = np.flatnonzero(np.isfinite(chunk.world()).all(axis=1))
        lost += len(chunk) - len(good)
        quota = (seen + len(chunk)) * limit // reader.count - seen * limit // reader.count
        seen += len(chunk)
        chunk = chunk.rows(good)
        parts.append(chunk.rows(spread(chunk.world(), quota)))
    if depth == 16:
        note(f"{reader.path.name}: colors of 16 bits in the whole cloud, divided by 256")
    columns = {}
    if color is Color.rgb and roles.pop(color, []) and parts:
        parts = [colors_8(part, depth) for part in parts]
        columns = {name: np.concatenate([p.attributes[name] for p in parts]) for name in COLORS}
    xyz = np.concatenate([part.world() for part in parts] or [np.zeros((0, 3))])
    columns |= {
        role.value: np.concatenate([p.attributes[name] for p in parts])
        for role, (name,) in roles.items()
        if parts
    }
    if len(xyz) + lost < reader.count:
        note(f"{reader.path.name}: {len(xyz):,} of {reader.count:,} points shown (--max-points)")
    if lost:
        note(f"{reader.path.name}: {lost:,} points are not finite and left out")
    return Shown(reader, xyz, columns, lost)


def _caption(shown: Shown) -> str:
    return f"{shown.reader.path.name}: {len(shown.xyz):,} of {shown.reader.count:,} points"


def _values(shown: Shown, color: Color) -> np.ndarray:
    if color is Color.height:
        return shown.xyz[:, 2]
    if color is Color.rgb:
        if not _holds(shown.reader, color) or not len(shown.xyz):
            return np.tile(NONE, (len(shown.xyz), 1))
        return np.stack([shown.columns[name] for name in COLORS], axis=1)
    found = shown.columns.get(color.value)
    if color is Color.label:
        if found is None:
            return np.tile(NONE, (len(shown.xyz), 1))
        return LABELS[np.nan_to_num(found).astype(np.int64) % len(LABELS)]
    return np.full(len(shown.xyz), np.nan) if found is None else found.astype(np.float64)


def _scale(color: Color, values: list[np.ndarray], unit: str) -> Scale:
    """From the first to the 99th percentile of all panes."""
    known = np.concatenate(values)
    known = known[np.isfinite(known)]
    low, high = map(float, np.percentile(known, (1, 99))) if len(known) else (0.0, 1.0)
    label = f"z  [{unit}]" if color is Color.height else color.value
    return Scale(label, low, max(high, low + 1e-6), MAPS.get(color.value, style.HEIGHT))


def _counts(shown: list[Shown], voxel_size: float | None) -> tuple[np.ndarray | None, float | None]:
    """Points a voxel [M]: the last cloud's own column, else those of A in voxels of the size given,
    or of that which gives as many voxels as B has points. Returns the size, too."""
    if (counts := shown[-1].columns.get("count")) is not None:
        return counts, voxel_size
    first, last = shown[0], shown[-1]
    if len(first.xyz) + first.lost < first.reader.count:
        return None, voxel_size  # of a part they would mislead
    points = torch.from_numpy(first.xyz)
    if voxel_size is None:
        if len(shown) < 2 or not 0 < len(last.xyz) < len(first.xyz):
            return None, voxel_size
        voxel_size = suggest_voxel_size(points, len(last.xyz) / len(first.xyz))
    lower = torch.floor(points.amin(0) / voxel_size).long().tolist()
    found = torchvox.voxel_downsample(points, [voxel_size] * 3, lower=lower, trim=True)
    return found.num_points.numpy(), voxel_size
