# SPDX-License-Identifier: Apache-2.0
"""torchvox import: checkpoints of other implementations, with a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from torchvox._errors import TorchvoxError, WrongUseError
from torchvox._yaml import read_yaml
from torchvox.cli.options import check_model, check_outputs
from torchvox.cli.work import console
from torchvox.io.writers import write_text

if TYPE_CHECKING:
    from torchvox.models.importing import Declared

YAML_PURPOSE = "to read values of the configuration"


def import_checkpoint(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT",
            help="A file of OpenPCDet, mmdetection3d, yanx27/Pointnet_Pointnet2_pytorch or "
            "erikwijmans/Pointnet2_PyTorch.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The model, for torchvox export. None: report only."),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            help="openpcdet, mmdet3d, mmdet3d_0 (before 1.0), yanx27 or pn2; "
            "default: recognized by the names of the tensors.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML with values of the detector's configuration that no tensor tells and that "
            "are not those of the published network.",
            show_default=False,
        ),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="One such value, as encoder.legacy=true. Repeatable.", show_default=False
        ),
    ] = None,
    original: Annotated[
        Path | None,
        typer.Option(
            help="The configuration that the program was trained with: .yaml of OpenPCDet, .py of "
            "mmdetection3d with all values in place (checkpoints of the latter hold it already).",
            show_default=False,
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compare with the original network, rewritten in plain torch; needs the source "
            "tree of torchvox.",
        ),
    ] = False,
    report_file: Annotated[
        Path | None, typer.Option("--report", help="The report as JSON.", show_default=False)
    ] = None,
) -> None:
    """Convert a checkpoint, each tensor once, run the model, and compare it on request."""
    from torchvox.models import checkpoints
    from torchvox.models.importing import LAYOUTS, parity, smoke
    from torchvox.models.importing import import_checkpoint as convert

    names = [one.name for one in LAYOUTS]
    if layout not in (None, *names):
        raise WrongUseError(f"--layout must be one of {', '.join(names)}, got {layout!r}")
    outputs = {"--output": output, "--report": report_file}
    check_outputs([checkpoint, config, original], outputs)
    check_model(checkpoint)
    imported = convert(checkpoint, layout, _settings(config, values or []), _declared(original))
    report = parity(imported) if verify else smoke(imported)
    rows = report.rows()
    table = Table(
        title=escape(f"{'parity' if verify else 'import'} report of {checkpoint.name}"),
        title_justify="left",
        expand=False,
    )
    table.add_column("what", style="bold cyan")
    table.add_column("value")
    for name, value in rows:
        table.add_row(name, escape(value))
    console().print(table)
    if report_file is not None:
        write_text(report_file, json.dumps(dict(rows), indent=2) + "\n")
    trouble = report.trouble()
    if trouble is not None:
        beside = "beside the original, " * verify
        raise TorchvoxError(f"{checkpoint} is not written: {beside}{trouble}")
    if output is not None:
        checkpoints.save(imported.model, output)
        console().print(f"wrote {output}", soft_wrap=True, markup=False)


def _declared(original: Path | None) -> Declared | None:
    from torchvox.models.importing import mmdet3d_config, openpcdet_config

    if original is None:
        return None
    if original.suffix == ".py":
        try:
            declared = mmdet3d_config(original.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise WrongUseError(f"--original {original}: {error}") from None
        if not declared.settings:
            raise WrongUseError(
                f"--original {original} says nothing of a detector in plain values: give the whole "
                "configuration, with all values in place"
            )
        return declared
    return openpcdet_config(_yaml(original, "--original"))


def _yaml(path: Path, option: str) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = read_yaml(file, YAML_PURPOSE)
    except (OSError, ValueError) as error:
        raise WrongUseError(f"{option} {path}: {error}") from None
    if not isinstance(content, dict):
        raise WrongUseError(f"{option} {path} must hold keys and values")
    return content


def _settings(config: Path | None, values: list[str]) -> dict[str, Any]:
    """By dotted names; those given one by one win."""
    from torchvox.models.importing.settings import flat

    settings: dict[str, Any] = {}
    if config is not None:
        settings |= flat(_yaml(config, "--config"))
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise WrongUseError(f"--set must be name=value, got {value!r}")
        try:
            settings |= flat({name: read_yaml(text, YAML_PURPOSE)})
        except ValueError as error:
            raise WrongUseError(f"--set {value}: {error}") from None
    return settings
