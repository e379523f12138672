# SPDX-License-Identifier: Apache-2.0
"""torchvox train: a model from a configuration."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from torchvox._util.errors import InterruptedWorkError, WrongUseError
from torchvox.cli.options import argument, check_outputs, command, option, option_class

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE...", help="Changes to the configuration, e.g. train.epochs=4."
    ),
]


@option_class
class TrainOptions:
    config: str | None = argument(
        None,
        "A name such as pointnet2_cls_shapes_small, or a .yaml file; without it, lists the names.",
        metavar="CONFIG",
    )
    overrides: Overrides = None
    output: Path | None = option(
        None, "Folder of the run.", "--output", "-o", show_default="runs/CONFIG"
    )
    resume: bool = option(False, "Resume the run in the folder after its last epoch.")
    print_config: bool = option(False, "Print the resolved configuration and exit.")
    print_schema: bool = option(False, "Print the JSON schema of configurations and exit.")


@command
def train(args: TrainOptions) -> None:
    """Train a model: writes best.ckpt, last.ckpt, log.jsonl and config.yaml.

    Examples:
        torchvox train
        torchvox train pointnet2_cls_shapes_small
        torchvox train mine.yaml train.epochs=40 -o runs/mine
        torchvox train mine.yaml -o runs/mine --resume
    """
    from torchvox.train import Config, fit, load_config
    from torchvox.train.config import config_names
    from torchvox.train.logs import say
    from torchvox.train.runs import FILES, epochs_of

    if args.print_schema:
        return print(json.dumps(Config.model_json_schema(), indent=1))
    config, overrides = args.config, args.overrides or []
    if config is None:
        raise WrongUseError(f"which configuration? There are {', '.join(config_names())}")
    resolved = load_config(config, overrides)
    if args.print_config:
        return print(resolved.text(), end="")
    folder = args.output or Path("runs") / Path(config).stem
    if resolved.train.init is not None and not args.resume:
        weights = Path(resolved.train.init)
        check_outputs([weights], {"--output": [folder / name for name in FILES]})
    try:
        metrics = fit(resolved, folder, resume=args.resume)
    except KeyboardInterrupt:
        if not (epochs := epochs_of(folder)):
            again = "before its first epoch ended: start again in another --output"
        else:
            words = ["torchvox", "train", config, *overrides, "-o", str(folder), "--resume"]
            total = resolved.train.epochs
            again = f"after epoch {epochs} of {total}, resume with: {shlex.join(words)}"
        raise InterruptedWorkError(f"interrupted {again}") from None
    values = ", ".join(f"{n} {value:.4f}" for n, value in sorted(metrics.items()) if "/" not in n)
    more = " (torchvox eval shows them by class)" if any("/" in name for name in metrics) else ""
    say(f"wrote {folder}/best.ckpt; last epoch: {values or 'of an earlier run'}{more}")
