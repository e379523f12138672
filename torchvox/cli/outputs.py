# SPDX-License-Identifier: Apache-2.0
"""Names of the files that commands write, and why some may not be written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from torchvox._util.errors import WrongUseError
from torchvox._util.extras import require
from torchvox.cli.commands import STDOUT
from torchvox.io import cloud_stem

READ_ONLY = {"": ".pcd", ".feather": ".pcd", ".e57": ".ply"}  # "": scans of recordings
KINDS = {"": "points", "bev": "bird's-eye views"}  # words for kinds of outputs, where they differ


def check_outputs(
    inputs: Iterable[Path | None], outputs: Mapping[str, Path | Iterable[Path] | None]
) -> None:
    """Raises WrongUseError for an output that is an input or another output, under any name, and
    for one that exists and is not a regular file. outputs: options -> their files."""
    taken: dict[object, str] = {}
    for source in filter(None, inputs):
        taken |= dict.fromkeys(_identities(source), f"the file that it is made from, {source}")
    places: dict[Path, str] = {}
    for option, paths in outputs.items():
        for path in [paths] if isinstance(paths, Path) else paths or ():
            if path == STDOUT:
                continue
            if path.exists() and not path.is_file():
                what = "a folder" if path.is_dir() else "not a regular file"
                raise WrongUseError(f"{option} must be a file, got {path}, {what}")
            name, keys = f"{option} {path}", _identities(path)
            if other := next((taken[key] for key in keys if key in taken), None):
                raise WrongUseError(f"{name} would replace {other}: give another name")
            if option == "--json" and path.exists() and path.suffix.lower() != ".json":
                rest = "give it a .json file, or put it last to print"  # this may be an input
                raise WrongUseError(f"{name} would replace a file that is not .json: {rest}")
            taken |= dict.fromkeys(keys, name)
            places[Path(os.path.realpath(path))] = name
    for place, name in places.items():
        if folder := next((places[parent] for parent in place.parents if parent in places), None):
            raise WrongUseError(f"{name} would lie in {folder}: give another name")


def _identities(path: Path) -> list[object]:
    """What all names of one file share: its resolved path and, if it exists, its inode."""
    keys: list[object] = [os.path.realpath(path)]
    if path.exists():
        keys.append((path.stat().st_dev, path.stat().st_ino))
    return keys


def output_paths(
    inputs: list[Path], output: Path, kind: str, formats: tuple[str, ...], file_format: str | None
) -> list[Path]:
    """One output path per input: `output` itself for a file, else <output>/<stem>.<kind>.<format>.

    kind: omitted from the name if "". formats: suffixes, e.g. ".npz". file_format: the value of
    --format, e.g. "npz"; None is the first of the formats, "" keeps that of each input.
    Raises WrongUseError for an unknown format, one that conflicts with the suffix of `output`, one
    file for many inputs, and two inputs that would write the same file; MissingExtraError for a
    .png without matplotlib.
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
            what, suffixes = KINDS.get(kind, kind), ", ".join(formats)
            raise WrongUseError(f"{output}: {what} are written as {suffixes}")
        if file_format and suffix != default:
            raise WrongUseError(f"--format {file_format} conflicts with --output {output}")
        if len(inputs) > 1:
            raise WrongUseError(f"{output} is one file, but there are {len(inputs)} inputs")
        paths = [output]
    else:
        if output.exists() and not output.is_dir():
            raise WrongUseError(f"--output must be a folder or {', '.join(formats)}, got {output}")
        middle = f".{kind}" if kind else ""
        own = [path.suffix.lower() for path in inputs]
        own = [READ_ONLY.get(suffix, suffix) for suffix in own]
        endings = own if file_format == "" else [default] * len(inputs)
        stems = map(cloud_stem, inputs)
        paths = [output / f"{stem}{middle}{end}" for stem, end in zip(stems, endings, strict=True)]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise WrongUseError(f"two inputs would both write {twice}: run them one by one")
    check_outputs(inputs, {"--output": paths})
    return paths
