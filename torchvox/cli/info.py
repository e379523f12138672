# SPDX-License-Identifier: Apache-2.0
"""torchvox info: what is in a file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from rich.markup import escape
from rich.table import Table

from torchvox._util.errors import short
from torchvox.cli import options
from torchvox.cli.commands import write_json
from torchvox.cli.options import argument, option, option_class
from torchvox.cli.recordings import recording_facts, recording_lines
from torchvox.cli.work import attempt_each, console, table_of
from torchvox.filter import suggest_voxel_size, voxels_by_level
from torchvox.io import PointReader, PointTable, find_clouds, grid_around, is_recording, open_points
from torchvox.io.crs import crs_of
from torchvox.io.las import class_title
from torchvox.io.las_records import LasSource
from torchvox.io.recording import ScanReader
from torchvox.io.roles import column_named
from torchvox.io.table import flat, named
from torchvox.mapping import MapContents, files, read_graph
from torchvox.mapping.contents import UNOBSERVED
from torchvox.mapping.job import is_graph
from torchvox.mapping.regions import INDEX_LAYERS

MEDIAN_POINTS = 10_000_000  # with at most these the values are kept, for medians and a range
CLASSES = ("classification", "label")
MOST_CODES = 256  # classes or returns that are counted
REPORT_SCHEMA = 1
LEVELS = 7  # rows of the table of voxel sizes, from a quarter of the suggested size up


@option_class
class InfoOptions(options.ScanOptions):
    paths: list[Path] = argument(
        ..., "Point clouds, maps, recordings, or folders.", metavar="PATH..."
    )
    layout: options.Layout = None
    header: bool = option(False, "Show the header only.")
    voxel_sizes: bool = option(False, "Count the voxels for a range of voxel sizes.")
    json: options.Json = None


@options.command
def info(args: InfoOptions) -> None:
    """Show format, columns, bounds and statistics of point clouds, and the contents of maps and
    recordings.

    Examples:
        torchvox info tile.laz
        torchvox info scan.bin --layout kitti --voxel-sizes
        torchvox info tiles/ --json facts.json
        torchvox info drive.mcap
    """
    paths, recordings = _found(args)
    clouds = [path for path in paths if not (path in recordings or _is_map(path))]
    read = options.cloud_reader(clouds, args.layout, open_points) if clouds else open_points
    report: list[dict[str, Any]] = []
    options.check_outputs(paths, {"--json": args.json})

    def line(at: int) -> str | None:
        path = paths[at]
        if path in recordings:
            report.append(recording_facts(path, args.topic, args.header))
            text = recording_lines(report[-1])
            return text if len(paths) == 1 else f"{path.name}\n{text}"
        if path not in clouds:
            facts = _graph_facts(path) if is_graph(path) else _map_facts(path, files.read(path))
            report.append({"path": str(path), **dict(facts)})
            return _described(path, facts, len(paths) > 1)
        reader = read(path)
        whole = len(paths) == 1 or args.json is not None
        statistics = _statistics(reader) if whole and not args.header else None
        report.append(_json(reader, statistics))
        if len(paths) > 1:
            return _line(reader, args.header, args.voxel_sizes)
        _describe(reader, statistics, args.voxel_sizes)
        return None

    failed = attempt_each(paths, line)
    write_json(args.json, {"schema": REPORT_SCHEMA, "files": report})
    if failed:
        raise typer.Exit(1)


def _found(args: InfoOptions) -> tuple[list[Path], set[Path]]:
    """The inputs, and which of them are recordings: these are described whole, unless options
    choose their scans."""
    clouds = (path for path in args.paths if path.suffix.lower() != ".e57")
    recordings = {path for path in clouds if is_recording(path)}
    if not recordings or not (args.every is None and args.scans is None):
        return args.clouds(args.paths), set()
    each = ([path] if path in recordings else find_clouds([path]) for path in args.paths)
    return [path for paths in each for path in paths], recordings


def _describe(reader: PointReader, statistics: Statistics | None, voxel_sizes: bool) -> None:
    out = console()
    for name, text in _facts(reader):
        out.print(f"{name:<10}{escape(text)}", soft_wrap=True)
    if statistics is None:
        return
    columns, finite, counts = statistics
    heads = ("column", "min", "median", "max", "not finite")
    rows: list[Iterable[str]] = [(short(name), *c.cells()) for name, c in columns.items()]
    out.print(table_of(str(reader.path), heads, rows, right=heads[1:]))
    for name, codes in counts.items():
        source = reader.schema.source if name in CLASSES else None
        rows = [
            (class_title(source, code), f"{n:,}", f"{100 * n / reader.count:.1f} %")
            for code, n in sorted(codes.items())
        ]
        out.print(table_of("", (short(name), "points", "share"), rows, right=("points", "share")))
    lost = reader.count - finite
    out.print(f"finite    {finite:,} of {reader.count:,} points: {lost:,} are not finite")
    if reader.count > MEDIAN_POINTS:
        out.print(f"medians   are omitted above {MEDIAN_POINTS:,} points")
    if reader.color_depth:
        out.print(f"colors    {reader.color_depth} bits")
    if finite and reader.count <= MEDIAN_POINTS:
        cloud = reader.cloud()
        grid = grid_around(cloud)
        if cloud.origin.any():
            shift = ", ".join(f"{v:,.4f}" for v in cloud.origin)
            out.print(f"origin    {shift}: subtracted from the points in float32", soft_wrap=True)
        bounds = grid.moved(cloud.base).limits
        size = f"--voxel={grid.voxel_size[0]:g}"
        out.print(f"derived   --bounds={bounds} {size}", soft_wrap=True)
    if voxel_sizes:
        out.print(_size_table(reader))


def _facts(reader: PointReader) -> list[tuple[str, str]]:
    """What the header says."""
    schema, box = reader.schema, reader.header_box
    columns = ", ".join(f"{short(name)} {_type(t)}" for name, t in reader.columns.items())
    facts = [
        ("format", _format(reader)),
        ("points", f"{reader.count:,}"),
        ("size", f"{reader.size:,} bytes"),
        ("columns", f"x y z {_type(schema.xyz.dtype)}{', ' if columns else ''}{columns}"),
        ("unit", schema.unit),
    ]
    if box is not None:
        facts.append(("box", _extent(*box)))
    if schema.scale is not None and schema.offset is not None:
        scale, offset = (" ".join(f"{v:g}" for v in a) for a in (schema.scale, schema.offset))
        facts.append(("scale", f"{scale}, offset {offset}"))
    for name, pair in schema.steps.items():
        scale, offset = (" ".join(f"{v:g}" for v in a) for a in pair)
        facts.append(("steps", f"{short(name)} {scale}, offset {offset}"))
    crs = crs_of(schema)
    code, heights = (f", EPSG:{n}" if n else "" for n in (crs.epsg, crs.vertical_epsg))
    if crs.name or code:
        facts.append(("crs", f"{short(crs.name or 'not named')}{code}"))
    if heights or crs.vertical_unit:
        facts.append(("heights", f"in {crs.vertical_unit or 'an unknown unit'}{heights}"))
    return facts + [("problem", problem) for problem in reader.problems]


def _format(reader: PointReader) -> str:
    source, kind = reader.schema.source, reader.path.suffix[1:].upper()
    if isinstance(source, LasSource):
        head, points = source.head, source.point_format
        return f"{kind} {head[24]}.{head[25]}, point format {points.id}"
    if isinstance(reader, ScanReader):
        return reader.format
    return f"{kind}, {source.format}" if hasattr(source, "format") else kind


def _json(reader: PointReader, statistics: Statistics | None) -> dict[str, Any]:
    """All facts, for JSON; None for what is unknown or not finite."""
    schema, box = reader.schema, reader.header_box if statistics is None else reader.box
    types = {name: _type(type_) for name, type_ in reader.columns.items()}
    places = {"box": box, "scale": schema.scale, "offset": schema.offset}
    facts: dict[str, Any] = {
        **{"path": str(reader.path), "format": _format(reader), "points": reader.count},
        **{"bytes": reader.size, "problems": reader.problems},
        **{"columns": dict.fromkeys("xyz", _type(schema.xyz.dtype)) | types, "unit": schema.unit},
        **{name: None if place is None else place.tolist() for name, place in places.items()},
        "crs": crs_of(schema)._asdict(),
    }
    if statistics is not None:
        columns, facts["finite_points"], counts = statistics
        facts["statistics"] = {name: column.facts() for name, column in columns.items()}
        facts["counts"] = {
            n: {f"{c:.15g}": k for c, k in codes.items()} for n, codes in counts.items()
        }
    return facts


def _type(type_: np.dtype) -> str:
    return f"{type_.base}{list(type_.shape) if type_.shape else ''}"


@dataclass
class Column:
    """Statistics of one column, and its values if they are few."""

    low: float = math.inf
    high: float = -math.inf
    missing: int = 0
    values: list[np.ndarray] = field(default_factory=list)

    def add(self, values: np.ndarray, keep: bool) -> None:
        finite = values[np.isfinite(values)]
        self.missing += len(values) - len(finite)
        if len(finite):
            self.low = min(self.low, float(finite.min()))
            self.high = max(self.high, float(finite.max()))
        if keep:
            self.values.append(finite)

    def facts(self) -> dict[str, float | None]:
        """Minimum, median and maximum, None for what is unknown, and how many are not finite."""
        values = np.concatenate(self.values or [np.zeros(0)]).astype(np.float64)
        median = float(np.median(values)) if len(values) else math.nan
        numbers = {"min": self.low, "median": median, "max": self.high, "not_finite": self.missing}
        return {name: n if math.isfinite(n) else None for name, n in numbers.items()}

    def cells(self) -> list[str]:
        """The facts in print; a dash for what is unknown."""
        *numbers, missing = self.facts().values()
        return [*("-" if n is None else f"{n:,.3f}" for n in numbers), f"{missing:,}"]


# Of each column; the number of finite points; points by class and by return.
Statistics = tuple[dict[str, Column], int, dict[str, Counter[float]]]


def _statistics(reader: PointReader) -> Statistics:
    columns, finite = {name: Column() for name in flat(named(reader.schema))}, 0
    coded = column_named(columns, *CLASSES), column_named(columns, "return_number")
    counts = {name: Counter[float]() for name in coded if name}
    for chunk in reader.chunks():
        for name, values in flat(named(chunk)).items():
            columns[name].add(values, reader.count <= MEDIAN_POINTS)
            if name in counts:
                codes, numbers = np.unique(values[np.isfinite(values)], return_counts=True)
                counts[name].update(dict(zip(codes.tolist(), numbers.tolist(), strict=True)))
                if len(counts[name]) > MOST_CODES:
                    del counts[name]
        finite += int(np.isfinite(chunk.world()).all(axis=1).sum())
    return columns, finite, {name: codes for name, codes in counts.items() if codes}


def _points(reader: PointReader) -> torch.Tensor:
    chunks: list[PointTable] = [reader.schema, *reader.chunks(columns=())]
    points = torch.from_numpy(np.concatenate([chunk.world() for chunk in chunks]))
    return points[points.isfinite().all(1)]


def _tenth(points: torch.Tensor) -> float | None:
    """The voxel size that keeps a tenth of the points; None if all are in one place."""
    extent = float((points.amax(0) - points.amin(0)).max()) if len(points) else 0.0
    return suggest_voxel_size(points) if 0 < extent < math.inf else None


def _size_table(reader: PointReader) -> Table | str:
    points = _points(reader)
    if (size := _tenth(points)) is None:
        return "voxel sizes are not suggested: the points have no finite extent"
    extent = float((points.amax(0) - points.amin(0)).max())
    finest = max(size / 4, extent / 2**19)  # fits in 21 bits at every level
    unit = reader.schema.unit
    heads = (f"voxel size, {unit}", "voxels", "reduction", "points per voxel")
    rows = []
    for level, voxels in enumerate(voxels_by_level(points, finest, LEVELS)):
        ratio = len(points) / voxels
        reduction = f"{100 - 100 / ratio:.1f} %"
        rows.append((f"{finest * 2**level:g}", f"{voxels:,}", reduction, f"{ratio:,.1f}"))
    return table_of(f"{size:g} {unit} gives a tenth of the points", heads, rows, right=heads)


def _line(reader: PointReader, header: bool, voxel_sizes: bool) -> str:
    box = reader.header_box if header else reader.box
    spans = zip("xyz", *box, strict=True) if box is not None else ()
    bounds = "  ".join(f"{axis} {low:.1f}..{high:.1f}" for axis, low, high in spans)
    columns = ",".join(("x", "y", "z", *map(short, reader.columns)))
    line = f"{reader.path.name}  {reader.count:,} points  {columns}  {bounds}"
    if voxel_sizes and not header:
        size = _tenth(_points(reader))
        line += f"  a tenth at {size:g} {reader.schema.unit}" if size else "  no extent"
    return line


# ---- maps and scan graphs ------------------------------------------------------------------------


def _is_map(path: Path) -> bool:
    """Whether this is a map, by its content, or a scan graph, by its name."""
    return is_graph(path) or files.is_map(path)


def _described(path: Path, facts: list[tuple[str, str]], brief: bool) -> str:
    """One line per fact, or one for all."""
    if brief:
        return f"{path.name}  " + "  ".join(f"{name} {text}" for name, text in facts[1:])
    return "\n".join(f"{name:<12}{text}" for name, text in facts)


def _map_facts(path: Path, contents: MapContents) -> list[tuple[str, str]]:
    logodds = contents.layers["logodds"]
    regions, cells = np.nonzero(logodds != UNOBSERVED)
    occupied = int((logodds >= 0).sum())
    extent = "nothing observed"
    if len(cells):
        voxels = contents.voxels(regions, cells)
        corners = np.array([voxels.min(axis=0), voxels.max(axis=0) + 1]) * contents.voxel_size
        extent = _extent(*(np.array(contents.origin) + corners))
    facts = [
        ("format", f"occupancy map, {path.suffix[1:].upper()}, {path.stat().st_size:,} bytes"),
        ("voxel size", f"{contents.voxel_size:g} m"),
        ("origin", " ".join(f"{v:.12g}" for v in contents.origin)),
        ("extent", extent),
        ("regions", f"{len(contents.keys):,} of 8 x 8 x 8 voxels"),
        ("voxels", f"{occupied:,} occupied, {len(cells) - occupied:,} free"),
        ("layers", ", ".join(name for name in contents.layers if name not in INDEX_LAYERS)),
    ]
    if "sample_count" in contents.layers:
        counts = contents.layers["sample_count"]
        facts.append(("samples", f"{counts.sum():,} in {(counts > 0).sum():,} voxels"))
    hit, miss, lowest, highest = (f"{share:.3g}" for share in contents.sensor)
    model = f"hit {hit}, miss {miss}, from {lowest} to {highest}, {contents.rule}"
    return [*facts, ("preset", f"{contents.preset or 'custom'}: {model}")]


def _graph_facts(path: Path) -> list[tuple[str, str]]:
    scans = read_graph(path)
    counts = [len(scan.points) for scan in scans]
    facts = [
        ("format", f"OctoMap scan graph, {path.stat().st_size:,} bytes"),
        ("scans", f"{len(scans):,}"),
        ("points", f"{sum(counts):,}"),
    ]
    if scans:
        places = np.array([scan.pose[:, 3] for scan in scans])
        facts.append(("sensor", _extent(places.min(axis=0), places.max(axis=0))))
        ends = np.concatenate([s.points @ s.pose[:, :3].T + s.pose[:, 3] for s in scans])
        if len(ends := ends[np.isfinite(ends).all(axis=1)]):
            facts.append(("extent", _extent(ends.min(axis=0), ends.max(axis=0))))
    return facts


def _extent(low: np.ndarray, high: np.ndarray) -> str:
    spans = zip("xyz", low, high, strict=True)
    return ", ".join(f"{axis} {a:,.3f} to {b:,.3f}" for axis, a, b in spans)
