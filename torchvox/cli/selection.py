# SPDX-License-Identifier: Apache-2.0
"""Options of commands that write some of the points of files, or of all files in one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from pathlib import Path

from torchvox._util.errors import TorchvoxError, WrongUseError, check_box
from torchvox.cli import options
from torchvox.cli.options import option, option_class
from torchvox.cli.work import note, warn_of_none
from torchvox.filter.selection import Selection
from torchvox.io import PointReader
from torchvox.io.table import union_box
from torchvox.io.where import parse_where
from torchvox.io.writers import POINT_SUFFIXES, point_writer


def _bounds(text: str, option: str) -> tuple[float, ...]:
    values = options.numbers(text, option, 4, 6)
    if len(values) == 4:
        values = (*values[:2], -math.inf, *values[2:], math.inf)
    check_box(values, option)
    return values


def _where(text: str, option: str) -> str:
    parse_where(text, option)
    return text


@option_class
class SelectionOptions(options.FileOptions):
    merge: bool = option(False, "Merge all inputs into one file.")
    bounds: tuple[float, ...] | None = option(
        None,
        "Read only points inside this box, in file coordinates; four numbers take all heights.",
        metavar="X0,Y0[,Z0],X1,Y1[,Z1]",
        parse=_bounds,
    )
    where: str | None = option(
        None,
        "Read only points that meet these conditions, e.g. 'classification=2,9 and intensity>100' "
        "or return_number=1..2.",
        metavar="CONDITIONS",
        parse=_where,
    )
    file_format: str = option(
        "", "Format of the files in the output folder.", "--format", show_default="the input's"
    )

    def outputs(self, kind: str) -> tuple[dict[Path, list[Path]], list[Path]]:
        """The inputs of each output, by the first of them, and the outputs. kind: in the names of
        outputs. Raises WrongUseError, also for what a format cannot hold."""
        inputs = self.clouds(self.paths)
        sources = {path: [path] for path in inputs}
        if self.merge:
            if (output := self.output).suffix == "" or output.is_dir():
                raise WrongUseError(f"--merge writes one file: --output must name it, got {output}")
            sources = {inputs[0]: inputs}
        words = self.output, kind, POINT_SUFFIXES, self.file_format
        targets = options.output_paths(list(sources), *words)
        for target in targets:
            point_writer(target)
        return sources, targets


def check_some(
    files: list[Path], read: Callable[[Path], PointReader], check: Callable[[PointReader], None]
) -> None:
    """Raises the WrongUseError of `check` if many files can be read and none passes it. Opens files
    until one does; a single one is left to its own reader."""
    wrong: WrongUseError | None = None
    for path in files if len(files) > 1 else ():
        with contextlib.suppress(TorchvoxError, OSError):  # reported in its turn
            reader = read(path)
            try:
                return check(reader)
            except WrongUseError as error:
                wrong = wrong or error
    if wrong is not None:
        raise wrong


def warn_that_none_is_kept(name: str, chosen: Selection, readers: Iterable[PointReader]) -> None:
    """A note on stderr that no point of these files is kept, and why."""
    if chosen.where is not None:
        also = "--bounds and " * (chosen.bounds is not None)
        note(f"torchvox: warning: {name}: no point is kept by {also}--where {chosen.where!r}")
    elif chosen.bounds is not None:
        warn_of_none(name, union_box(reader.box for reader in readers), chosen.bounds)
