# SPDX-License-Identifier: Apache-2.0
"""How commands declare their options, the options that several share, and what they mean."""

from __future__ import annotations

import itertools
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import Enum
from inspect import Parameter, Signature
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

from torchvox._util.errors import WrongUseError, check_box
from torchvox.cli.notes import read_noted
from torchvox.cli.outputs import check_outputs as check_outputs
from torchvox.cli.outputs import output_paths
from torchvox.io import (
    Grid,
    PointCloud,
    find_clouds,
    grid_around,
    grid_names,
    load_grid,
)
from torchvox.io.cloud import origin_of_range
from torchvox.io.layouts import layout_choices, parse_layout
from torchvox.io.readers import NAMED

T = TypeVar("T")
Parse = Callable[[str, str], object]  # of a text and the name of its option
OUTPUT = Path("torchvox_out")  # by default
# What an option takes, by its name or its type, where nothing says more.
METAVARS: dict[object, str] = {
    "layout": "NAME | COLUMNS", "json": "FILE | -",
    **dict.fromkeys(("grid", "config", "data_of"), "NAME | FILE"),
    **dict.fromkeys(("classes", "channels", "layers", "only"), "NAMES"),
    **dict.fromkeys(("file_format", "kind"), "FORMAT"),
    Path: "PATH", str: "NAME", int: "N", float: "X", bool: "",
}  # fmt: skip


Device = Annotated[
    Literal["auto", "cpu", "cuda"], "auto uses the GPU if there is one; cuda requires it."
]
Layout = Annotated[
    str | None,
    "Columns of .bin files: kitti, nuscenes, xyz, xyzrgb, or a list such as x,y,z,_,ring.",
]
Json = Annotated[
    Path | None, "Also write the results as JSON; - (or nothing) prints them instead of the text."
]
TrustCode = Annotated[bool, "Allow the checkpoint to load its custom model class (runs its code)."]


def option_class(kind: type[T]) -> type[T]:
    """A frozen dataclass whose fields are the options of a command."""
    return dataclass(frozen=True, kw_only=True)(kind)


class Declaration(NamedTuple):
    """What typer gets for a field, and what makes its value, of a text and the option's name."""

    make: Callable[..., object]
    names: tuple[str, ...]
    words: Mapping[str, object]
    parse: Parse | None


def declare(*names: str, parse: Parse | None = None, **words: object) -> Declaration:
    return Declaration(typer.Option, names, words, parse)


def option(default: Any, text: str, *names: str, parse: Parse | None = None, **words: Any) -> Any:
    """A field of a command's options. default: ... if required. text: its help. names: by default
    that of the field. words: further arguments of typer.Option."""
    start = MISSING if default is ... else default
    return field(
        default=start, metadata={"typer": declare(*names, parse=parse, help=text, **words)}
    )


def argument(default: Any, text: str, **words: Any) -> Any:
    """`option`, for a value that is given by its place."""
    start = MISSING if default is ... else default
    declaration = declare(help=text, **words)._replace(make=typer.Argument)
    return field(default=start, metadata={"typer": declaration})


def command(run: Callable[[Any], None]) -> Callable[..., None]:
    """A function for typer, with a keyword for each option. run: takes an `option_class`, whose
    fields are made by `option`, or have their help in Annotated and the rest in a table DECLARED.
    """
    (kind, _) = get_type_hints(run).values()
    types, parameters = get_type_hints(kind, include_extras=True), []
    own, parsers = kind.__annotations__, {}
    # Its own come in the help before those that several commands share.
    for each in sorted(fields(kind), key=lambda each: each.name not in own):
        type_, declared = types[each.name], each.metadata.get("typer")
        if get_origin(type_) is Annotated and isinstance(type_.__metadata__[0], str):
            type_, text = get_args(type_)
            declared = getattr(kind, "DECLARED", {}).get(each.name, declare())
            declared = declared._replace(words={"help": text, **declared.words})
        if declared is not None:
            make, names, words, parse = declared
            option = f"--{each.name.replace('_', '-')}"
            if type_ is bool:  # a switch, without its opposite
                names = names or (option,)
            plain = next((one for one in get_args(type_) if isinstance(one, type)), type_)
            if (metavar := METAVARS.get(each.name, METAVARS.get(plain))) is not None:
                words = {"metavar": metavar, **words}
            if parse is not None:
                type_, parsers[each.name] = str | None, (parse, [*names, option][0])
            type_ = Annotated[_choices(type_), make(*names, **words)]
        default = Parameter.empty if each.default is MISSING else each.default
        if each.name in parsers and isinstance(default, tuple):
            default = ",".join(f"{value:g}" for value in default)
        parameters.append(
            Parameter(each.name, Parameter.KEYWORD_ONLY, default=default, annotation=type_)
        )

    def call(**values: object) -> None:
        for name, value in values.items():
            if isinstance(value, Choice):
                values[name] = value.value
            elif value is not None and name in parsers:  # the default's text, too
                parse, option = parsers[name]
                values[name] = parse(value, option)
        run(kind(**values))

    call.__name__, call.__doc__, call.__module__ = run.__name__, run.__doc__, run.__module__
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return call


def _scans(text: str, option: str) -> slice:
    match = re.fullmatch(r"(\d*):(\d*)", text)
    if match is None:
        raise WrongUseError(f"{option} takes A:B, scans A to B - 1, either may lack; got {text!r}")
    first, end = (int(word) if word else None for word in match.groups())
    return slice(first, end)


@option_class
class ScanOptions:
    """Options that choose scans of recordings."""

    topic: str | None = option(None, "Topic of a recording, needed if it has several of clouds.")
    every: int | None = option(None, "Take each K-th scan of a recording.", min=1, metavar="K")
    scans: slice | None = option(
        None, "Take scans A to B - 1 of a recording.", metavar="A:B", parse=_scans
    )

    def clouds(self, paths: Iterable[Path], setups: bool = False) -> list[Path]:
        """`find_clouds` with these options. setups: an .e57 file stands for its scans."""
        numbers = self.scans
        if self.every is not None:
            ends = numbers or slice(None)
            numbers = slice(ends.start, ends.stop, self.every)
        files = find_clouds(paths, topic=self.topic, scans=numbers)
        if not setups:
            return files
        own = [[f] if f.suffix.lower() != ".e57" else find_clouds([f], scans=slice(None))
               for f in files]  # fmt: skip
        return [path for paths in own for path in paths]


@option_class
class FileOptions(ScanOptions):
    """Options of commands that write an output for each input file."""

    paths: list[Path] = argument(..., "Point-cloud files, or folders of them.", metavar="PATH...")
    layout: Layout = None
    output: Path = option(
        OUTPUT,
        "Output file for one input (the suffix sets the format), or a folder.",
        "--output",
        "-o",
    )

    def files(
        self, kind: str, formats: tuple[str, ...], file_format: str | None = None
    ) -> tuple[list[Path], list[Path]]:
        """The input files and their outputs (`output_paths`)."""
        files = self.clouds(self.paths)
        return files, output_paths(files, self.output, kind, formats, file_format)


@option_class
class CloudOptions(FileOptions):
    """`FileOptions` of commands that run an op on each cloud."""

    file_format: str | None = option(None, "npz, npy or png.", "--format")
    device: Device = "auto"


@option_class
class GridFields:
    """Options that choose a grid."""

    grid: str | None = option(None, f"A named grid ({', '.join(grid_names())}) or a .yaml file.")
    voxel_size: str | None = option(
        None, "Voxel size, in file units.", "--voxel", metavar="V | X,Y,Z"
    )
    point_cloud_range: str | None = option(
        None,
        "Box of the grid, in file coordinates. Without it or --grid, derived from the points.",
        "--bounds",
        metavar="X0,Y0,Z0,X1,Y1,Z1",
    )

    def grid_choice(self, name: str | None = None) -> GridChoice:
        """The grid of these options: a named one, an explicit one, or one derived from the points.

        --voxel and --bounds refine a named grid; without --grid and --bounds the range comes
        from the data, and Grid.chosen says so. Raises WrongUseError for wrong options, before any
        cloud is read. name: of the grid if the options name none.
        """
        name, size, limits = self.grid or name, None, None
        if self.voxel_size is not None:
            size = numbers(self.voxel_size, "--voxel", 1, 3)
            size = size * 3 if len(size) == 1 else size
        if self.point_cloud_range is not None:
            limits = numbers(self.point_cloud_range, "--bounds", 6)
        if name is not None:
            grid = load_grid(name)
            changes = {"voxel_size": size, "point_cloud_range": limits}
            changed: dict[str, Any] = {k: v for k, v in changes.items() if v is not None}
            chosen = grid.chosen + (", changed" if changed else "")
            return GridChoice(replace(grid, **changed, chosen=chosen))
        if limits is None:
            Grid("derived", size or (1.0,) * 3, (0, 0, 0, 1, 1, 1))  # raises for a wrong size
            return GridChoice(None, size)
        if size is None:
            raise WrongUseError("--bounds needs --voxel or --grid")
        return GridChoice(Grid("given", size, limits))


@option_class
class GridOptions(GridFields, CloudOptions):
    """`CloudOptions` of commands that sort points into a grid."""


class Choice(str, Enum):
    """A word of a Literal, which not every version of typer takes."""


def _choices(type_: Any) -> Any:
    """Literals, optional ones too, as enums; other types unchanged."""
    words = get_args(type_)
    if get_origin(type_) is Literal:
        return Choice("Choice", {word: word for word in words})  # type: ignore[call-overload]
    if words and get_origin(words[0]) is Literal:
        return _choices(words[0]) | None
    return type_


def numbers(text: str, option: str, *counts: int) -> tuple[float, ...]:
    """Parse "0.2" or "0.2,0.2,4"; counts are the lengths allowed. Raises WrongUseError."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise WrongUseError(
            f"{option} takes numbers separated by commas, without a unit; got {text!r}"
        ) from None
    if len(values) not in counts:
        lengths = " or ".join(map(str, counts))
        raise WrongUseError(f"{option} takes {lengths} numbers, got {len(values)} in {text!r}")
    return values


def name_and_value(text: str, option: str, takes: str = "NAME=VALUE") -> tuple[str, str]:
    """The two parts of "name=value", parted at the last =. Raises WrongUseError."""
    name, _, value = text.rpartition("=")
    if not (name and value):
        raise WrongUseError(f"{option} takes {takes}, got {text!r}")
    return name, value


def box(text: str, option: str) -> tuple[float, ...]:
    """The six numbers of "x0,y0,z0,x1,y1,z1": no NaN, each upper one at least the lower one.
    Raises WrongUseError."""
    values = numbers(text, option, 6)
    check_box(values, option)
    return values


def cloud_reader(
    files: list[Path], layout: str | None, read: Callable[..., Any] = read_noted
) -> Callable[[Path], Any]:
    """`read` for these inputs. Among many, files that name their columns ignore --layout.

    Raises WrongUseError for a layout that is wrong for all of them.
    """
    if layout is None:
        if all(path.suffix.lower() == ".bin" for path in files):
            raise WrongUseError(
                f"{files[0]}: a .bin file does not name its columns: give --layout, "
                f"{layout_choices()}"
            )
        return read
    parse_layout(layout)
    able = [path for path in files if path.suffix.lower() not in NAMED]
    if not able:
        raise WrongUseError(f"{files[0]}: this format already names its columns; remove --layout")

    def holds_columns(path: Path) -> bool:
        try:
            with zipfile.ZipFile(path) as archive:
                return "columns.npy" in archive.namelist()
        except Exception:  # damaged, or not a .npz: its reader says what is wrong
            return False

    takers = set(itertools.filterfalse(holds_columns, able)) or set(able)
    return lambda path: read(path, layout if path in takers else None)


@dataclass(frozen=True)
class GridChoice:
    """Gives a cloud its grid: a fixed one in file coordinates, or one derived from the points.
    voxel_size: of derived grids; None chooses one that fits."""

    fixed: Grid | None
    voxel_size: tuple[float, ...] | None = None

    def read(self, path: Path, layout: str | None = None) -> PointCloud:
        """`read_noted`; clouds in a fixed grid share its origin, wherever they are."""
        if self.fixed is None:
            return read_noted(path, layout)
        return read_noted(path, layout, origin=origin_of_range(self.fixed.point_cloud_range))

    def __call__(self, cloud: PointCloud) -> Grid:
        """The grid in the coordinates of `cloud.points`."""
        if self.fixed is None:
            return grid_around(cloud, self.voxel_size)
        return self.fixed.moved(-cloud.base)


def check_model(path: Path) -> None:
    """Raises WrongUseError unless the path is a file or the name of a model."""
    from torchvox.models import list_models  # not loaded by the commands without models

    if not path.is_file() and (path.exists() or str(path) not in list_models()):
        what = "is not a file" if path.exists() else "does not exist"
        raise WrongUseError(f"the model {path} {what}")
