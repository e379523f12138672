# SPDX-License-Identifier: Apache-2.0
"""torchvox import: checkpoints of other implementations, with a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchvox._util.errors import TorchvoxError, WrongUseError
from torchvox._util.yaml import read_yaml
from torchvox.cli.commands import write_json
from torchvox.cli.options import (
    Json,
    argument,
    check_model,
    check_outputs,
    command,
    option,
    option_class,
)
from torchvox.cli.work import console, table_of

if TYPE_CHECKING:
    from torchvox.models.importing import Declared

YAML_PURPOSE = "to read values of the configuration"


@option_class
class ImportOptions:
    checkpoint: Path = argument(
        ...,
        "A checkpoint of OpenPCDet, CenterPoint (det3d), mmdetection3d, "
        "yanx27/Pointnet_Pointnet2_pytorch or erikwijmans/Pointnet2_PyTorch.",
        metavar="CHECKPOINT",
    )
    output: Path | None = option(
        None, "Model file for torchvox export; without it, only reports.", "--output", "-o"
    )
    source: str | None = option(
        None,
        "openpcdet, det3d, mmdet3d, mmdet3d_0 (before 1.0), yanx27 or pn2.",
        show_default="by the names of the tensors",
    )
    config: Path | None = option(
        None,
        "YAML with configuration values of the detector that the tensors do not determine and "
        "that differ from the published network.",
    )
    values: list[str] | None = option(
        None, "Such a value, e.g. encoder.legacy=true. Repeatable.", "--set", metavar="NAME=VALUE"
    )
    original: Path | None = option(
        None,
        "Configuration that the model was trained with: .yaml of OpenPCDet, or .py of "
        "mmdetection3d with all values in place (its checkpoints contain it already).",
    )
    verify: bool = option(
        False,
        "Compare with the original network, rewritten in plain torch (needs torchvox's source "
        "tree).",
    )
    json: Json = None


@command
def import_checkpoint(args: ImportOptions) -> None:
    """Import a checkpoint: converts every tensor and runs the model; compares it on request.

    Examples:
        torchvox import CHECKPOINT --verify -o model.pt
        torchvox import CHECKPOINT --original config.yaml -o model.pt
    """
    from torchvox.models import checkpoints
    from torchvox.models.importing import LAYOUTS, parity, smoke
    from torchvox.models.importing import import_checkpoint as convert

    checkpoint, source, output = args.checkpoint, args.source, args.output
    names = [each.name for each in LAYOUTS]
    if source not in (None, *names):
        raise WrongUseError(f"--source must be one of {', '.join(names)}, got {source!r}")
    outputs = {"--output": output, "--json": args.json}
    check_outputs([checkpoint, args.config, args.original], outputs)
    check_model(checkpoint)
    settings = _settings(args.config, args.values or [])
    imported = convert(checkpoint, source, settings, _declared(args.original))
    report = parity(imported) if args.verify else smoke(imported)
    rows = report.rows()
    title = f"{'parity' if args.verify else 'import'} report of {checkpoint.name}"
    console().print(table_of(title, ("what", "value"), rows))
    write_json(args.json, dict(rows))
    trouble = report.trouble()
    if trouble is not None:
        compared = "compared with the original, " * args.verify
        raise TorchvoxError(f"{checkpoint} is not written: {compared}{trouble}")
    if output is not None:
        checkpoints.save(imported.model, output)
        console().print(f"wrote {output}", soft_wrap=True, markup=False)


def _declared(original: Path | None) -> Declared | None:
    from torchvox.models.importing import mmdet3d_config, openpcdet_config

    if original is None:
        return None
    if original.suffix != ".py":
        return openpcdet_config(_yaml(original, "--original"))
    try:
        declared = mmdet3d_config(original.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUseError(f"--original {original}: {error}") from None
    if not declared.settings:
        raise WrongUseError(
            f"--original {original} has no plain values of a detector: give the whole "
            "configuration, with all values in place"
        )
    return declared


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
    """Values by dotted names; those of --set override the file."""
    from torchvox.models.importing.settings import flat

    settings: dict[str, Any] = {}
    if config is not None:
        settings |= flat(_yaml(config, "--config"))
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise WrongUseError(f"--set takes NAME=VALUE, got {value!r}")
        try:
            settings |= flat({name: read_yaml(text, YAML_PURPOSE)})
        except ValueError as error:
            raise WrongUseError(f"--set {value}: {error}") from None
    return settings
