# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, and what they mean together."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from torchvox._errors import WrongUseError, check_box
from torchvox._extras import require
from torchvox.cli.notes import read_noted
from torchvox.io import Grid, PointCloud, cloud_stem, grid_around, grid_names, load_grid
from torchvox.io.cloud import origin_of_range
from torchvox.io.layouts import layout_choices, parse_layout

OUTPUT_FOLDER = Path("torchvox_out")
NAMED = (".pcd", ".las", ".laz", ".ply")  # formats that name their columns


class DeviceChoice(str, Enum):
    """Where the ops run."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


Inputs = Annotated[
    list[Path], typer.Argument(metavar="PATH...", help="Point-cloud files, or folders of them.")
]
Layout = Annotated[
    str | None,
    typer.Option(
        help="Columns of .bin files: kitti, nuscenes, xyz, xyzrgb, or a list such as x,y,z,_,ring.",
        show_default=False,
    ),
]
Device = Annotated[
    DeviceChoice, typer.Option(help="auto takes the GPU when there is one; cuda insists on it.")
]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Run the code of one's own that the checkpoint names.")
]
GridName = Annotated[
    str | None,
    typer.Option(
        "--grid",
        help=f"A named grid, {', '.join(grid_names())}, or a .yaml file.",
        show_default=False,
    ),
]
VoxelSize = Annotated[
    str | None,
    typer.Option(
        "--voxel-size",
        "--voxel",
        metavar="V | X,Y,Z",
        help="Voxel size, in the unit of the coordinates.",
        show_default=False,
    ),
]
Range = Annotated[
    str | None,
    typer.Option(
        "--range",
        metavar="X0,Y0,Z0,X1,Y1,Z1",
        help="Range, in the coordinates of the files. Without it or --grid, derived from the data.",
        show_default=False,
    ),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", help="A file for one input (its suffix says the format), else a folder."
    ),
]


class Command(TyperCommand):
    """A command that refuses `-` as a file, and whole numbers beyond 64 bits, in any option."""

    def invoke(self, context: Any) -> Any:
        for parameter in self.params:
            option, value = parameter.opts[0], context.params.get(parameter.name or "")
            if isinstance(value, Path) and str(value) == "-":
                raise WrongUseError(f"{option} - is not stdin or stdout: give the name of a file")
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise WrongUseError(f"{option} must fit into 64 bits, got {value}")
        return super().invoke(context)


def numbers(text: str, option: str, *counts: int) -> tuple[float, ...]:
    """Parse "0.2" or "0.2,0.2,4"; counts are the lengths allowed. Raises WrongUseError."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise WrongUseError(f"{option} must be numbers with commas between, got {text!r}") from None
    if len(values) not in counts:
        wanted = " or ".join(map(str, counts))
        raise WrongUseError(f"{option} takes {wanted} numbers, got {len(values)} in {text!r}")
    return values


def box(text: str, option: str) -> tuple[float, ...]:
    """The six numbers of "x0,y0,z0,x1,y1,z1", none of them NaN, none falling. Raises
    WrongUseError."""
    values = numbers(text, option, 6)
    check_box(values, option)
    return values


def cloud_reader(
    files: list[Path], layout: str | None, read: Callable[..., Any] = read_noted
) -> Callable[[Path], Any]:
    """`read` for these inputs. Of many, those that name their columns go without --layout.

    Raises WrongUseError for a layout that is wrong for all of them.
    """
    if layout is None:
        if all(path.suffix.lower() == ".bin" for path in files):
            raise WrongUseError(
                f"{files[0]}: a .bin file does not say its columns: give --layout, "
                f"{layout_choices()}"
            )
        return read
    parse_layout(layout)
    able = [path for path in files if path.suffix.lower() not in NAMED]
    if not able:
        raise WrongUseError(f"{files[0]}: this format names its columns, leave --layout out")
    takers = set([path for path in able if not _holds_columns(path)] or able)
    return lambda path: read(path, layout if path in takers else None)


def _holds_columns(path: Path) -> bool:
    """Whether a .npz names its columns."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "columns.npy" in archive.namelist()
    except Exception:  # a damaged one, or no .npz: its reader says what is wrong
        return False


@dataclass(frozen=True)
class GridChoice:
    """What gives a cloud its grid: a fixed one in the files' coordinates, or one derived from the
    points. voxel_size: of derived ones, None for one that fits."""

    fixed: Grid | None
    voxel_size: tuple[float, ...] | None = None

    def read(self, path: Path, layout: str | None = None) -> PointCloud:
        """`read_noted`; clouds in a fixed grid share their origin, whatever their own place."""
        if self.fixed is None:
            return read_noted(path, layout)
        return read_noted(path, layout, origin=origin_of_range(self.fixed.point_cloud_range))

    def __call__(self, cloud: PointCloud) -> Grid:
        """The grid in the coordinates of `cloud.points`."""
        if self.fixed is None:
            return grid_around(cloud, self.voxel_size)
        return self.fixed.moved(-cloud.base)


def grid_chooser(
    name: str | None, voxel_size: str | None, point_cloud_range: str | None
) -> GridChoice:
    """The grid that the options say: a named one, a given one, or one derived from the points.

    --voxel-size and --range refine a named grid; without --grid and --range the range comes from
    the data, and Grid.chosen says so. Raises WrongUseError for wrong options, before any cloud.
    """
    size = None
    if voxel_size is not None:
        size = numbers(voxel_size, "--voxel-size", 1, 3)
        size = size * 3 if len(size) == 1 else size
    limits = None if point_cloud_range is None else numbers(point_cloud_range, "--range", 6)
    if name is not None:
        grid = load_grid(name)
        wanted = {"voxel_size": size, "point_cloud_range": limits}
        changed: dict[str, Any] = {k: v for k, v in wanted.items() if v is not None}
        chosen = grid.chosen + (", changed" if changed else "")
        return GridChoice(replace(grid, **changed, chosen=chosen))
    if limits is None:
        Grid("derived", size or (1.0,) * 3, (0, 0, 0, 1, 1, 1))  # refuses a wrong size
        return GridChoice(None, size)
    if size is None:
        raise WrongUseError("--range needs --voxel-size, or --grid for the voxel size")
    return GridChoice(Grid("given", size, limits))


def check_model(path: Path) -> None:
    """Raises WrongUseError for what is neither a file nor the name of a model."""
    from torchvox.models import list_models  # which the commands without models do not load

    if not path.is_file() and (path.exists() or str(path) not in list_models()):
        what = "is no file" if path.exists() else "does not exist"
        raise WrongUseError(f"the model {path} {what}")


def check_outputs(
    inputs: Iterable[Path | None], outputs: Mapping[str, Path | Iterable[Path] | None]
) -> None:
    """Raises WrongUseError for an output that is an input or another output, by whatever name, and
    for one that is there and is no file to replace. outputs: options -> their files."""
    taken: dict[object, str] = {}
    for source in filter(None, inputs):
        taken |= dict.fromkeys(_identities(source), f"the file that it is made from, {source}")
    places: dict[Path, str] = {}
    for option, paths in outputs.items():
        for path in [paths] if isinstance(paths, Path) else paths or ():
            if path.exists() and not path.is_file():
                what = "a folder" if path.is_dir() else "no regular file"
                raise WrongUseError(f"{option} must be a file, got {path}, {what}")
            name, keys = f"{option} {path}", _identities(path)
            if other := next((taken[key] for key in keys if key in taken), None):
                raise WrongUseError(f"{name} would replace {other}: give another name")
            taken |= dict.fromkeys(keys, name)
            places[Path(os.path.realpath(path))] = name
    for place, name in places.items():
        if folder := next((places[parent] for parent in place.parents if parent in places), None):
            raise WrongUseError(f"{name} would lie in {folder}: give another name")


def _identities(path: Path) -> list[object]:
    """What any two names of one file have in common: its resolved path, and its number."""
    keys: list[object] = [os.path.realpath(path)]
    if path.exists():
        keys.append((path.stat().st_dev, path.stat().st_ino))
    return keys


def output_paths(
    inputs: list[Path], output: Path, kind: str, formats: tuple[str, ...], file_format: str | None
) -> list[Path]:
    """One output path per input: `output` itself for a file, else <output>/<stem>.<kind>.<format>.

    kind: "" leaves it out of the name. formats: suffixes, as ".npz". file_format: what --format
    says, as "npz"; None is the first of the formats, "" keeps that of each input.
    Raises WrongUseError for an unknown format, another one than the suffix of `output`, one file
    for many inputs, or two inputs that would write the same file; MissingExtraError for a .png
    without matplotlib.
    """
    default = formats[0] if file_format is None else "." + file_format.lower().lstrip(".")
    if file_format and default not in formats:
        raise WrongUseError(f"--format must be one of {', '.join(f[1:] for f in formats)}")
    suffix = output.suffix.lower()
    one = suffix != "" and not output.is_dir()
    if (suffix if one else default) == ".png":
        require("matplotlib", "to draw pictures")
    if one:
        if suffix not in formats:
            raise WrongUseError(f"{output}: {kind or 'points'} are written as {', '.join(formats)}")
        if file_format and suffix != default:
            raise WrongUseError(f"--format {file_format} and --output {output} contradict")
        if len(inputs) > 1:
            raise WrongUseError(f"{output} is one file, but there are {len(inputs)} inputs")
        paths = [output]
    else:
        if output.exists() and not output.is_dir():
            raise WrongUseError(f"--output must be a folder or {', '.join(formats)}, got {output}")
        middle = f".{kind}" if kind else ""
        paths = [
            output
            / f"{cloud_stem(path)}{middle}{path.suffix.lower() if file_format == '' else default}"
            for path in inputs
        ]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise WrongUseError(f"two inputs would both write {twice}: run them one by one")
    check_outputs(inputs, {"--output": paths})
    return paths
