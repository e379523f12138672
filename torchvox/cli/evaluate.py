# SPDX-License-Identifier: Apache-2.0
"""torchvox eval: how good a trained model is."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table

from torchvox._errors import TorchvoxError, WrongUseError
from torchvox._extras import require
from torchvox.cli.options import Device, DeviceChoice, TrustCode, check_file
from torchvox.cli.train import Overrides
from torchvox.cli.work import console, use_device
from torchvox.io.writers import write_text

if TYPE_CHECKING:
    from torchvox.train.checkpoint import Checkpoint
    from torchvox.viz import Panel

CLOUDS, WRONG = 48, 16  # clouds in the picture, and how many of them may be wrong
METRICS = {  # of torchvox.train.metrics.scores, with their names in print
    "accuracy": "accuracy",
    "mean_accuracy": "mean over classes",
    "miou": "mean IoU",
}


def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="best.ckpt of torchvox train.")],
    overrides: Overrides = None,
    split: Annotated[str, typer.Option(help="train or val.")] = "val",
    pictures: Annotated[
        Path | None,
        typer.Option(help="Folder for clouds with predictions and the confusion matrix."),
    ] = None,
    at_least: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC=VALUE",
            help="Fail unless this is reached, such as accuracy=0.95; may be repeated.",
        ),
    ] = None,
    results: Annotated[
        Path | None, typer.Option("--json", help="File for the numbers and the confusion matrix.")
    ] = None,
    trust_code: TrustCode = False,
    device: Device = DeviceChoice.auto,
) -> None:
    """Evaluate a trained model on held-back data: accuracy and IoU, over all and per class."""
    from torchvox.train import evaluate as evaluate_all
    from torchvox.train import load_checkpoint
    from torchvox.train.builders import build_data
    from torchvox.train.config import change_config
    from torchvox.train.metrics import class_scores, scores

    if split not in ("train", "val"):
        raise WrongUseError(f"--split must be train or val, got {split!r}")
    gates = [_gate(text) for text in at_least or []]
    check_file(results, "--json")
    if pictures is not None:
        require("matplotlib", "to draw pictures")
    where = use_device(device)
    trained = load_checkpoint(checkpoint, where, trust_code)
    config = change_config(trained.config, overrides or [])
    data = build_data(config, split)
    start = time.perf_counter()
    matrix = evaluate_all(trained, data, config.train.val_batch_size)
    seconds = time.perf_counter() - start
    found = scores(matrix)
    per_class = class_scores(matrix, trained.labels.classes)
    title = f"{checkpoint}, {len(data)} samples of {config.data.kind} ({split}), {seconds:.1f} s"
    _report(title, found, per_class)
    if results is not None:
        content = {**found, "samples": len(data), "seconds": seconds, "matrix": matrix.tolist()}
        write_text(results, json.dumps(content) + "\n")
    if pictures is not None:
        _draw(pictures, trained, data, matrix.numpy(), found)
    for metric, least in gates:
        if not found[metric] >= least:
            raise TorchvoxError(f"{metric} {found[metric]:.4f} is below {least}")


def _gate(text: str) -> tuple[str, float]:
    metric, _, value = text.partition("=")
    if metric not in METRICS:
        raise WrongUseError(f"--at-least {text}: the metrics are {', '.join(METRICS)}")
    try:
        least = float(value)
    except ValueError:
        least = math.nan
    if math.isnan(least):
        raise WrongUseError(f"--at-least {text}: {value!r} is no number")
    return metric, least


def _report(title: str, found: dict[str, float], per_class: list[tuple]) -> None:
    table = Table(expand=False)
    table.add_column("class", style="bold cyan")
    for column in ("count", "found %", "IoU %"):
        table.add_column(column, justify="right")
    for name, count, recall, iou in per_class:
        shares = ["-" if math.isnan(v) else f"{100 * v:.1f}" for v in (recall, iou)]
        table.add_row(name, f"{count:,}", *shares)
    out = console()
    out.print(title, soft_wrap=True, markup=False, style="bold")
    out.print(table)
    out.print(_summary(found), soft_wrap=True)


def _summary(found: dict[str, float]) -> str:
    return ", ".join(f"{METRICS[name]} {100 * value:.2f} %" for name, value in found.items())


def _draw(
    folder: Path, trained: Checkpoint, data: Any, matrix: np.ndarray, found: dict[str, float]
) -> None:
    from torchvox import viz

    if trained.config.task == "classify":
        panels = _judged(trained, data)
    else:
        panels = _labeled(trained, data)
    summary = _summary(found)
    clouds = viz.clouds_picture(panels, f"Predictions on held-back clouds: {summary}")
    note = f"{matrix.sum():,} labels: {summary}"
    names = trained.labels.classes
    confusion = viz.confusion_picture(matrix, names, "Confusion matrix", note)
    out = console()
    for name, figure in (("predictions", clouds), ("confusion", confusion)):
        viz.save(figure, folder / f"{name}.png")
        out.print(f"wrote {folder / name}.png", soft_wrap=True, markup=False)


def _judged(trained: Checkpoint, data: Any) -> list[Panel]:
    """Clouds with their predicted classes: the first right ones, then wrong ones with the truth."""
    from torchvox.train.evaluation import predictions
    from torchvox.viz import Panel

    names = trained.labels.classes
    kept: dict[bool, list[Panel]] = {True: [], False: []}
    for batch, predicted in predictions(trained, data, range(len(data)), 32):
        for points, truth, guess in zip(batch["points"], batch["label"], predicted, strict=True):
            hit = bool(truth == guess)
            if len(kept[hit]) < CLOUDS:
                title = names[int(guess)] + ("" if hit else f"\n(truth: {names[int(truth)]})")
                kept[hit].append(Panel(points[:, :3].cpu().numpy(), title, None, hit))
    right = kept[True]
    wrong = kept[False][: max(WRONG, CLOUDS - len(right))]
    return right[: CLOUDS - len(wrong)] + wrong


def _labeled(trained: Checkpoint, data: Any) -> list[Panel]:
    """Clouds colored by the predicted labels of their points."""
    from torchvox.train.builders import TASKS
    from torchvox.train.evaluation import predictions
    from torchvox.viz import Panel

    panels = []
    # Neighboring numbers are blocks of one room, which look alike.
    step = max(1, len(data) // CLOUDS) if trained.config.task == "segment" else 1
    samples = range(0, min(len(data), CLOUDS * step), step)
    for batch, predicted in predictions(trained, data, samples, 16):
        shares = (batch[TASKS[trained.config.task].target] == predicted).float().mean(1)
        for i, guess in enumerate(predicted.cpu().numpy()):
            title = f"{100 * float(shares[i]):.0f} % right"
            if trained.config.task == "parts":
                title = f"{trained.labels.categories[int(batch['label'][i])]}, {title}"
            panels.append(Panel(batch["points"][i, :, :3].cpu().numpy(), title, guess))
    return panels
