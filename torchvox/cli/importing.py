# SPDX-License-Identifier: Apache-2.0
"""torchvox import: checkpoints of other implementations, with a parity report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from torchvox._errors import TorchvoxError, WrongUseError
from torchvox.cli.work import console

TOLERANCE = 1e-3  # of an output, above which an import is not what the reference computes


def import_checkpoint(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT",
            help="A file of yanx27/Pointnet_Pointnet2_pytorch or erikwijmans/Pointnet2_PyTorch.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The model, for torchvox export. None: report only."),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(help="yanx27 or pn2; without it the tensors' names tell.", show_default=False),
    ] = None,
) -> None:
    """Convert a PointNet++ checkpoint, each tensor once, and compare it with its reference."""
    from torchvox.models import checkpoints
    from torchvox.models.importing import import_checkpoint as convert
    from torchvox.models.importing import parity

    if layout not in (None, "yanx27", "pn2"):
        raise WrongUseError(f"--layout must be yanx27 or pn2, got {layout!r}")
    imported = convert(checkpoint, layout)
    report = parity(imported)
    table = Table(
        title=escape(f"parity report of {checkpoint.name}"), title_justify="left", expand=False
    )
    table.add_column("what", style="bold cyan")
    table.add_column("value")
    for name, value in report.rows():
        table.add_row(name, escape(value))
    console().print(table)
    if not report.worst() <= TOLERANCE * max(1.0, report.output):  # NaN fails too
        raise TorchvoxError(
            f"{checkpoint} is not written: its outputs differ from the reference's by "
            f"{report.worst():.3g} of {report.output:.3g}"
        )
    if output is not None:
        checkpoints.save(imported.model, output)
        console().print(f"wrote {output}", soft_wrap=True, markup=False)
