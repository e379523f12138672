# SPDX-License-Identifier: Apache-2.0
"""torchvox view: one or two clouds as an offline page or a picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

import torchvox
from torchvox._util.errors import TorchvoxError, WrongUseError
from torchvox._util.extras import require
from torchvox.cli import options
from torchvox.cli.info import CLASSES
from torchvox.cli.notes import note, open_noted
from torchvox.cli.options import argument, option, option_class
from torchvox.cli.work import console
from torchvox.data.folder import read_boxes
from torchvox.filter import suggest_voxel_size
from torchvox.filter.selection import MergedReader
from torchvox.io import PointReader, PointTable, find_clouds, is_recording
from torchvox.io.las import class_title
from torchvox.io.roles import column_named, is_whole, with_colors
from torchvox.io.table import COLORS, color_depth, colors_8
from torchvox.io.writers import write_whole
from torchvox.viz import save, style
from torchvox.viz.comparison import comparison_picture
from torchvox.viz.viewer import NONE, Pane, Scale, spread, viewer_page

Color = Literal["rgb", "height", "intensity", "classification", "label", "level", "count"]
MAX_POINTS = {".html": 1_000_000, ".png": 20_000_000}  # of all panes
NAMES: dict[str, tuple[str, ...]] = {  # of the columns that hold a quantity
    "intensity": ("intensity",),
    "label": CLASSES[::-1],
    "classification": CLASSES,
    "level": ("level",),
    "count": ("count", "num_points"),
}
MAPS: dict[str, str] = {"intensity": style.INTENSITY, "level": style.ORDER, "count": style.DENSITY}
_BRIGHT = [
    *((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178)),
    *((213, 94, 0), (204, 121, 167), (148, 203, 84), (178, 140, 255), (255, 139, 139)),
]
MOST_NAMED = 40  # classes in a legend
LABELS = np.array([_BRIGHT, np.array(_BRIGHT) * 0.55]).reshape(-1, 3).astype(np.uint8)  # in turn


@dataclass
class Layer:
    """Points of a file. columns: [N], by what they show. lost: points that are not finite."""

    reader: PointReader
    xyz: np.ndarray
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    lost: int = 0

    @property
    def caption(self) -> str:
        return f"{self.reader.name}: {len(self.xyz):,} of {self.reader.count:,} points"


@option_class
class ViewOptions(options.ScanOptions):
    cloud: Path = argument(..., "A point-cloud file, or a folder of them as one.", metavar="A")
    other: Path | None = argument(None, "Another, to show beside it.", metavar="B")
    layout: options.Layout = None
    color: Color | None = option(None, "Attribute to color by.", show_default="rgb, else height")
    max_points: int | None = option(
        None,
        "Maximum points, both panes together.",
        min=1,
        show_default="1,000,000; 20,000,000 of a .png",
    )
    voxel_size: float | None = option(
        None, "Voxel size of B, for the caption and the histogram.", "--voxel"
    )
    boxes: Path | None = option(
        None,
        "Boxes to draw in an .html page: a .json of torchvox detect, or a .csv or .json file with "
        "class,x,y,z,l,w,h,yaw.",
    )
    output: Path = option(Path("view.html"), "An .html page, or a .png picture.", "--output", "-o")


@options.command
def view(args: ViewOptions) -> None:
    """Show one or two point clouds, as an interactive page that works offline or as a picture.

    Examples:
        torchvox view tile.laz -o tile.html
        torchvox view tile.laz --color classification
        torchvox view scan.bin --layout kitti --boxes boxes.json
        torchvox view tile.laz small.laz --voxel 0.5
    """
    output, suffix, voxel_size = args.output, args.output.suffix.lower(), args.voxel_size
    if suffix not in MAX_POINTS:
        raise WrongUseError(f"{output}: views are written as .html or .png")
    panes = [args.cloud] if args.other is None else [args.cloud, args.other]
    recorded = any(map(is_recording, panes))
    parts = [_files(path, args, recorded) for path in panes]
    files = [path for paths in parts for path in paths]
    options.check_outputs([*files, args.boxes], {"--output": output})
    if args.boxes is not None and suffix != ".html":
        raise WrongUseError(
            "--boxes are drawn in an .html page; torchvox detect --pictures draws .png"
        )
    if voxel_size is not None and not 0 < voxel_size < float("inf"):
        raise WrongUseError(f"--voxel must be positive, got {voxel_size:g}")
    boxes = () if args.boxes is None else read_boxes(args.boxes)[:2]
    if suffix == ".png":
        require("matplotlib", "to draw pictures")
    read = options.cloud_reader(files, args.layout, open_noted)
    readers = [_joined(*pair, read) for pair in zip(panes, parts, strict=True)]
    color: Color = args.color or ("rgb" if _has(readers[0], "rgb") else "height")
    if not any(_has(reader, color) for reader in readers):
        names = " or ".join(NAMES.get(color, COLORS))
        raise WrongUseError(f"--color {color}: no column {names} in {args.cloud}")
    limit = args.max_points or MAX_POINTS[suffix]
    limits = _shares([reader.count for reader in readers], limit)
    layers = [_load(*pair, color) for pair in zip(readers, limits, strict=True)]
    if not sum(len(layer.xyz) for layer in layers):
        raise TorchvoxError(f"{args.cloud} has no finite point to show")
    facts = []
    if len(readers) == 2 and readers[0].count > readers[1].count > 0:
        facts.append(f"{readers[0].count / readers[1].count:,.1f}x fewer points")
    if voxel_size:
        facts.append(f"voxel size {voxel_size:g} {readers[0].schema.unit}")
    title = " and ".join(reader.name for reader in readers)
    if boxes:
        facts.append(f"{len(boxes[0])} boxes")
    _write(layers, color, title, facts, args, boxes)
    points = sum(len(layer.xyz) for layer in layers)
    console().print(f"{title}: {points:,} points; wrote {output}", soft_wrap=True, markup=False)


def _write(
    layers: list[Layer],
    color: Color,
    title: str,
    facts: list[str],
    args: ViewOptions,
    boxes: tuple[np.ndarray, list[str]] | tuple[()],
) -> None:
    """Write the page or the picture. facts: for the line below the title. boxes: and their
    classes."""
    values, unit = [_values(layer, color) for layer in layers], layers[0].reader.schema.unit
    scale, label = None, f"z  [{unit}]" if color == "height" else color
    if values[0].ndim == 1:
        scale = Scale.of(label, np.concatenate(values), MAPS.get(color, style.HEIGHT))
    classes = _classes(layers, color)
    panes = [Pane(layer.caption, layer.xyz, v) for layer, v in zip(layers, values, strict=True)]
    if args.output.suffix.lower() == ".html":
        caption, (drawn, names) = " · ".join([title, *facts]), boxes or (None, ())
        page = viewer_page(panes, caption, scale, drawn, names, classes)
        write_whole(args.output, lambda buffer: buffer.write(page))
        return
    counts, size = _counts(layers, args.voxel_size)
    if size != args.voxel_size:
        facts = [*facts, f"histogram at {size:g} {unit}, where A has as many voxels"]
    look = " · ".join(facts), scale, counts, unit, classes
    save(comparison_picture(panes, title, *look), args.output)


def _files(path: Path, args: ViewOptions, recorded: bool) -> list[Path]:
    """The files of a pane. recorded: whether there is a recording, which takes the options."""
    if is_recording(path) or not recorded:
        return args.clouds([path]) if path.exists() or not path.suffix else [path]
    return find_clouds([path])


def _joined(path: Path, files: list[Path], read: Callable[[Path], PointReader]) -> PointReader:
    """The reader of a file, or of all clouds of a folder."""
    if len(files) == 1:
        return read(files[0])
    reader = MergedReader([read(file) for file in files])
    reader.name = f"{path.resolve().name} ({reader.name})"
    return reader


def _classes(layers: list[Layer], color: Color) -> dict[str, np.ndarray]:
    """The classes that are shown, with their colors [3]; none with other colors."""
    columns = [layer.columns[color] for layer in layers if color in layer.columns]
    if color not in CLASSES or not columns:
        return {}
    source = layers[0].reader.schema.source
    known, codes = _codes(np.concatenate(columns))
    found = np.unique(codes[known]).tolist()
    colors = {class_title(source, code): LABELS[code % len(LABELS)] for code in found[:MOST_NAMED]}
    more = {f"{len(found) - MOST_NAMED} more": NONE} if len(found) > MOST_NAMED else {}
    return colors | more | ({} if known.all() else {"no class": NONE})


def _codes(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which points [N] have a class, and the classes as int64, 0 for the others."""
    known = np.abs(column.astype(np.float64)) < 2**53
    return known, np.where(known, column, 0).astype(np.int64)


def _columns(reader: PointReader, color: Color) -> list[str]:
    """The columns that a color is made of; empty if the file has none."""
    schema = reader.schema.by_value()
    if color == "rgb":
        colored, _ = with_colors(schema.attributes)
        if not set(COLORS) <= colored.keys():
            return []
        return [name for name in schema.attributes if name in COLORS or name not in colored]
    one_value = [name for name, type_ in schema.columns.items() if not type_.shape]
    name = column_named(one_value, *NAMES.get(color, ()))
    return [] if name is None else [name]


def _has(reader: PointReader, color: Color) -> bool:
    return color == "height" or bool(_columns(reader, color))


def _colored(chunk: PointTable) -> PointTable:
    """The points, with colors as integers red, green, blue. Raises WrongUseError for others."""
    colored = with_colors(chunk.attributes)[0]
    for name in COLORS:
        values = colored[name]
        if not (is_whole(values) and (values >= 0).all() and (values < 65536).all()):
            raise WrongUseError(f"--color rgb: {name} must be whole numbers from 0 to 65535")
        colored[name] = values.astype(np.uint16)
    return replace(chunk, attributes=colored)


def _shares(counts: list[int], limit: int) -> list[int]:
    """Points to show of each cloud: half of the limit, and what the other one leaves."""
    half = limit // len(counts)
    return [min(n, max(half, limit - (sum(counts) - n))) for n in counts]


def _load(reader: PointReader, limit: int, color: Color) -> Layer:
    """At most `limit` points: a share of each chunk, spread in Morton order."""
    both: tuple[Color, ...] = (color, "count")
    roles = {role: names for role in both if (names := _columns(reader, role))}
    parts, seen, lost, depth = [], 0, 0, 8
    for chunk in reader.chunks(columns={name for names in roles.values() for name in names}):
        chunk = chunk.by_value()
        if color == "rgb" and roles.get(color):
            chunk = _colored(chunk)
            depth = max(depth, color_depth(chunk) or 8)
        good = np.flatnonzero(np.isfinite(chunk.world()).all(axis=1))
        lost += len(chunk) - len(good)
        quota = (seen + len(chunk)) * limit // reader.count - seen * limit // reader.count
        seen += len(chunk)
        chunk = chunk.rows(good)
        parts.append(chunk.rows(spread(chunk.world(), quota)))
    if depth == 16:
        note(f"{reader.name}: colors of 16 bits in the whole cloud, divided by 256")
    columns = {}
    if color == "rgb" and roles.pop(color, []) and parts:
        parts = [colors_8(part, depth) for part in parts]
        columns = {name: np.concatenate([p.attributes[name] for p in parts]) for name in COLORS}
    xyz = np.concatenate([part.world() for part in parts] or [np.zeros((0, 3))])
    columns |= {
        role: np.concatenate([p.attributes[name] for p in parts])
        for role, (name,) in roles.items()
        if parts
    }
    if len(xyz) + lost < reader.count:
        note(f"{reader.name}: {len(xyz):,} of {reader.count:,} points shown (--max-points)")
    if lost:
        note(f"{reader.name}: {lost:,} points are not finite and omitted")
    return Layer(reader, xyz, columns, lost)


def _values(layer: Layer, color: Color) -> np.ndarray:
    """[N] for a color map, or [N, 3] colors."""
    count, column = len(layer.xyz), layer.columns.get(color)
    if color == "height":
        return layer.xyz[:, 2]
    if color == "rgb" and count and _has(layer.reader, color):
        return np.stack([layer.columns[name] for name in COLORS], axis=1)
    if color in CLASSES and column is not None:
        known, codes = _codes(column)
        return np.where(known[:, None], LABELS[codes % len(LABELS)], NONE)
    if color in ("rgb", *CLASSES):
        return np.tile(NONE, (count, 1))
    return np.full(count, np.nan) if column is None else column.astype(np.float64)


def _counts(
    layers: list[Layer], voxel_size: float | None
) -> tuple[np.ndarray | None, float | None]:
    """Points per voxel [M], and the voxel size: the last cloud's own column, else those of A in
    voxels of that size, by default the one that gives as many voxels as B has points."""
    if (counts := layers[-1].columns.get("count")) is not None:
        return counts, voxel_size
    first, last = layers[0], layers[-1]
    if len(first.xyz) + first.lost < first.reader.count:
        return None, voxel_size  # counts of a part would mislead
    points = torch.from_numpy(first.xyz)
    if voxel_size is None:
        if len(layers) < 2 or not 0 < len(last.xyz) < len(first.xyz):
            return None, voxel_size
        voxel_size = suggest_voxel_size(points, len(last.xyz) / len(first.xyz))
    lower = torch.floor(points.amin(0) / voxel_size).long().tolist()
    voxels = torchvox.voxel_downsample(points, [voxel_size] * 3, lower=lower, trim=True)
    return voxels.num_points.numpy(), voxel_size
