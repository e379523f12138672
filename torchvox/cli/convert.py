# SPDX-License-Identifier: Apache-2.0
"""torchvox convert: points from one format to another, in chunks, with every column."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from torchvox._util.errors import WrongUseError, short
from torchvox.cli import options
from torchvox.cli.notes import note
from torchvox.cli.options import option, option_class
from torchvox.cli.selection import SelectionOptions, check_some, warn_that_none_is_kept
from torchvox.cli.work import amounts, for_each
from torchvox.filter.selection import (
    MergedReader,
    SelectedReader,
    Selection,
    check_alike,
    outliers_of,
)
from torchvox.io import PointReader, PointTable, create_points, open_points
from torchvox.io.las import WAVES
from torchvox.io.las_records import LasSource
from torchvox.io.table import COLORS, colors_8, flat, named

LAS = (".las", ".laz")
COLORS_8 = (".ply", ".pcd")  # their readers expect colors of 8 bits
NAMELESS = (".bin", ".npy", ".pts")
Depth = Literal["8", "16", "auto"]


def _steps(text: str, option: str) -> np.ndarray:
    return np.array(options.numbers(text, option, 1, 3))


def _outliers(text: str, option: str) -> tuple[int, float]:
    neighbors, deviations = options.numbers(text, option, 2)
    if not (1 <= neighbors <= 1000 and neighbors == int(neighbors) and 0 <= deviations < np.inf):
        rule = f"{option} takes a whole number from 1 to 1000 and one of at least 0"
        raise WrongUseError(f"{rule}, e.g. 8,2; got {text!r}")
    return int(neighbors), deviations


@option_class
class ConvertOptions(SelectionOptions):
    scale: np.ndarray | None = option(
        None, "Step of LAS coordinates.", metavar="S | X,Y,Z", parse=_steps
    )
    rgb_depth: Depth = option(
        "auto", "Bits of the input's colors, for .ply and .pcd, which hold 8; auto detects them."
    )
    policy: list[str] | None = option(
        None,
        "Drop a column, or scale it from 0..1 to 0..65535. Repeatable.",
        metavar="NAME=drop|scale",
    )
    outliers: tuple[int, float] | None = option(
        None,
        "Remove points whose mean distance to their K nearest neighbors is more than S standard "
        "deviations above the mean, e.g. 8,2. Holds all coordinates in memory.",
        metavar="K,S",
        parse=_outliers,
    )


@options.command
def convert(args: ConvertOptions) -> None:
    """Convert point clouds between formats, with all columns except those dropped by name.

    Examples:
        torchvox convert scan.pcd -o scan.ply
        torchvox convert scans/ --layout kitti --format laz -o laz/
        torchvox convert tiles/ --merge --where classification=2 -o ground.laz
        torchvox convert tile.laz --bounds 0,0,50,50 --outliers 8,2 -o part.laz
    """
    rules = _rules(args.policy or [])
    sources, targets = args.outputs("")
    files, inputs = list(sources), [path for paths in sources.values() for path in paths]
    options.check_outputs(inputs, {"--output": targets})
    if args.scale is not None and not all(target.suffix.lower() in LAS for target in targets):
        raise WrongUseError("--scale is for .las and .laz outputs")
    read = options.cloud_reader(inputs, args.layout, open_points)
    selection = Selection(args.bounds, args.where)

    def check(reader: PointReader) -> None:
        _check_rules(rules, reader)
        selection.columns(reader.schema)

    if rules or args.where:
        check_some(files, read, check)

    def work(source: Path, target: Path) -> str:
        readers = [read(path) for path in sources[source]]
        reader = readers[0]
        if len(readers) > 1:
            reader = MergedReader(readers, check_alike(readers, lattice=args.scale is None))
        for problem in reader.problems:
            note(problem if len(readers) > 1 else f"{source.name}: {problem}")
        if args.bounds or args.where or args.outliers:
            reader = SelectedReader(reader, selection)
            if args.outliers:
                places = (chunk.world() for chunk in reader.chunks(columns=()))
                xyz = np.concatenate([np.zeros((0, 3)), *places])
                reader.outliers = outliers_of(xyz, *args.outliers)
        return _convert(reader, target, args.scale, rules, args.rgb_depth)

    for_each(files, targets, work)


def _rules(policies: list[str]) -> dict[str, str]:
    """Name -> rule, for the columns that change."""
    takes = "NAME=drop or NAME=scale here"
    rules = dict(options.name_and_value(item, "--policy", takes) for item in policies)
    if wrong := [f"{name}={rule}" for name, rule in rules.items() if rule not in ("drop", "scale")]:
        raise WrongUseError(f"--policy takes {takes}, got {wrong[0]!r}")
    return rules


def _check_rules(rules: dict[str, str], reader: PointReader) -> None:
    if unknown := sorted(rules.keys() - reader.columns.keys()):
        rule = f"--policy: {reader.name} has no column {short(unknown[0])}"
        raise WrongUseError(f"{rule}: it has {short(', '.join(reader.columns) or 'none')}")


def _convert(
    reader: PointReader, target: Path, scale: np.ndarray | None, rules: dict[str, str], depth: Depth
) -> str:
    name, suffix = reader.name, target.suffix.lower()
    _check_rules(rules, reader)
    drop, scaled = ([n for n, rule in rules.items() if rule == r] for r in ("drop", "scale"))

    def taken(table: PointTable) -> PointTable:
        """The points as they are written, except for the depth of colors."""
        table = table if suffix in LAS else table.by_value()
        return scaled_columns(table, scaled) if scaled else table

    kept = [column for column in reader.columns if column not in drop]
    like = taken(reader.schema.rows(slice(0, 0), kept))
    like.path = reader.path
    bits = _color_bits(reader, like, suffix, depth) if set(COLORS) <= set(kept) else 0
    if bits:
        like = colors_8(like, bits)
        how = "kept as they are" if bits == 8 else "divided by 256"
        chosen = " in the whole cloud" if depth == "auto" else ""
        note(f"{name}: colors of {bits} bits{chosen}, {how} for {suffix}")
    if lost := _unheld(like, target):
        how = " ".join(f"--policy {_quoted(f'{column}=drop')}" for column in lost)
        columns = ", ".join(map(short, lost))
        raise WrongUseError(f"{target}: {suffix} cannot hold {columns}; to drop: {how}")
    _say_what_changes(reader, like, suffix, scale)
    offset = None
    if suffix in LAS and like.scale is None and reader.box is not None:
        offset = np.floor(reader.box[0])
    with create_points(target, like, scale=scale, offset=offset) as writer:
        for chunk in reader.chunks(columns=kept):
            chunk = taken(chunk)
            writer.append(colors_8(chunk, bits) if bits else chunk)
    for problem in writer.problems:
        note(f"{target.name}: {problem}")
    columns, dropped = f" with {short(', '.join(kept))}" * bool(kept), ", ".join(drop) or "none"
    points = f"{reader.count:,} points"
    if isinstance(reader, SelectedReader):
        points = f"{writer.count:,} of {points}"
        dropped += f"; left out: {amounts(reader.left_out)}"
        if reader.count and not writer.count:
            warn_that_none_is_kept(name, reader.selection, [reader.whole])
    return f"{name}: {points}{columns}; dropped: {dropped}; wrote {target}"


def _quoted(word: str) -> str:
    """A word quoted for a shell."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + word.encode("unicode_escape").decode().replace("'", "\\'") + "'"


def scaled_columns(table: PointTable, names: list[str]) -> PointTable:
    """The points, with these columns scaled from 0..1 to whole numbers from 0 to 65535."""
    attributes, steps = dict(table.attributes), dict(table.steps)
    for name in names:
        values = table.values(name).astype(np.float64)
        if not ((values >= 0) & (values <= 1)).all():
            raise WrongUseError(
                f"--policy {short(name)}=scale is for values from 0 to 1, got {values.min()} to "
                f"{values.max()}"
            )
        attributes[name] = np.rint(values * 65535).astype(np.uint16)
        steps.pop(name, None)
    return replace(table, attributes=attributes, steps=steps)


def _color_bits(reader: PointReader, like: PointTable, suffix: str, depth: Depth) -> int:
    """8 or 16: the bits of colors that must become 8; 0 if they need not change."""
    types = {like.columns[color] for color in COLORS}
    whole = all(type_.kind in "iu" for type_ in types)
    if suffix not in COLORS_8 or types == {np.dtype(np.uint8)} or not whole:
        return 0
    if depth != "auto":
        return int(depth)
    return (reader.color_depth or 16) if types == {reader.columns[c] for c in COLORS} else 16


def _unheld(like: PointTable, target: Path) -> list[str]:
    """The columns that a file of this format cannot hold, each tried alone."""
    lost = []
    with tempfile.TemporaryDirectory() as folder:
        for name in like.attributes:
            one = like.rows(slice(0, 0), [name])
            try:
                with create_points(Path(folder) / target.name, one):
                    pass
            except WrongUseError:
                lost.append(name)
    waves = [name for name in like.attributes if name in WAVES]
    if target.suffix.lower() in LAS and isinstance(like.source, LasSource) and waves != [*WAVES]:
        lost += waves  # waveforms go as a whole
    return lost


def _say_what_changes(
    reader: PointReader, like: PointTable, suffix: str, scale: np.ndarray | None
) -> None:
    changes = []
    steps = [name for name in like.attributes if name in reader.schema.steps.keys() - like.steps]
    if steps:
        nones = [name for name in steps if name in reader.no_data]
        also = f"; so does what means no value in {short(', '.join(nones))}" * bool(nones)
        changes.append(f"{short(', '.join(steps))} become stored * scale + offset{also}")
    angles = "scan_angle" in like.attributes and "scan_angle" not in like.steps
    if suffix in LAS and angles and not isinstance(like.source, LasSource):
        changes.append("scan_angle is read as degrees and rounded to steps of 0.006")
    if reader.crs and suffix not in (*LAS, ".npz"):
        changes.append("the coordinate reference system is not kept")
    if suffix in LAS and like.scale is None and scale is None:
        changes.append("coordinates are rounded to steps of 0.001 (--scale sets others)")
    order = list(flat(named(like)))
    same = suffix == ".bin" and isinstance(like.source, tuple) and set(like.source) == set(order)
    if suffix in NAMELESS and like.attributes and not same:
        changes.append(f"columns have no names, their order is {','.join(order)}")
    if suffix == ".bin" and (rounded := [n for n, t in like.columns.items() if t.base == "f8"]):
        changes.append(f"{', '.join(rounded)} are rounded to float32")
    for change in changes:
        note(f"{reader.name} -> {suffix}: {change}")
