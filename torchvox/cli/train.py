# SPDX-License-Identifier: Apache-2.0
"""torchvox train: a model from a configuration."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from torchvox._errors import InterruptedWorkError, WrongUseError
from torchvox.cli.options import check_outputs

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Changes, such as train.epochs=4."),
]


def train(
    config: Annotated[
        str | None,
        typer.Argument(help="A name such as pointnet2_cls_shapes_small, or a .yaml file."),
    ] = None,
    overrides: Overrides = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of the run; runs/<config> without it."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after the last epoch of the run in the folder.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the resolved configuration and leave.")
    ] = False,
    print_schema: Annotated[
        bool, typer.Option("--print-schema", help="Print the JSON schema of configurations.")
    ] = False,
) -> None:
    """Train a model: best.ckpt, last.ckpt, log.jsonl and config.yaml in the output folder."""
    from torchvox.train import Config, fit, load_config
    from torchvox.train.config import config_names
    from torchvox.train.logs import say
    from torchvox.train.runs import FILES, epochs_of

    if print_schema:
        return print(json.dumps(Config.model_json_schema(), indent=1))
    if config is None:
        raise WrongUseError(f"which configuration? There are {', '.join(config_names())}")
    resolved = load_config(config, overrides or [])
    if print_config:
        return print(resolved.text(), end="")
    folder = output or Path("runs") / Path(config).stem
    if resolved.train.init is not None and not resume:
        weights = Path(resolved.train.init)
        check_outputs([weights], {"--output": [folder / name for name in FILES]})
    try:
        found = fit(resolved, folder, resume=resume)
    except KeyboardInterrupt:
        if not (epochs := epochs_of(folder)):
            again = "before its first epoch was whole: begin again in another --output"
        else:
            command = shlex.join(
                ["torchvox", "train", config, *(overrides or []), "-o", str(folder), "--resume"]
            )
            again = f"after epoch {epochs} of {resolved.train.epochs}, go on by: {command}"
        raise InterruptedWorkError(f"interrupted {again}") from None
    shown = ", ".join(f"{name} {value:.4f}" for name, value in sorted(found.items()))
    say(f"wrote {folder}/best.ckpt; last epoch: {shown or 'of an earlier run'}")
