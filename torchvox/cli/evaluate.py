# SPDX-License-Identifier: Apache-2.0
"""torchvox eval: how good a trained model is."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from itertools import product
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
    from torchvox.train.config import Config
    from torchvox.viz import Panel

CLOUDS, WRONG = 48, 16  # clouds in the picture, and how many of them may be wrong
DETECTION = ("map", "map_strict")
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
    """Evaluate a trained model on held-back data: accuracy and IoU, over all and per class; of
    detectors average precision."""
    from torchvox.train import evaluate as evaluate_all
    from torchvox.train import load_checkpoint
    from torchvox.train.builders import build_data
    from torchvox.train.config import change_config
    from torchvox.train.detecting import evaluate_detector
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
    if config.task == "detect" and pictures is not None:
        raise WrongUseError("--pictures are of classes, not of boxes: torchvox detect --plot")
    names = list(METRICS) if config.task != "detect" else [*DETECTION, *_precisions(config)]
    if wrong := [metric for metric, _ in gates if metric not in names]:
        raise WrongUseError(f"--at-least {wrong[0]}: the metrics are {', '.join(names)}")
    data = build_data(config, split)
    start = time.perf_counter()
    if config.task == "detect":
        found = evaluate_detector(trained.model, data, trained.labels.classes)
        seconds = time.perf_counter() - start
        title = f"{checkpoint}, {len(data)} scans of {config.data.kind} ({split}), {seconds:.1f} s"
        _report_detections(title, found, trained.labels.classes)
        if results is not None:
            content = {k: None if math.isnan(v) else v for k, v in found.items()}
            write_text(results, json.dumps({**content, "seconds": seconds}) + "\n")
        return _check_gates(gates, found)
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
    _check_gates(gates, found)


def _check_gates(gates: list[tuple[str, float]], found: dict[str, float]) -> None:
    for metric, least in gates:
        if not found[metric] >= least:
            raise TorchvoxError(f"{metric} {found[metric]:.4f} is below {least}")


def _precisions(config: Config) -> list[str]:
    from torchvox.train.builders import labels_of

    levels = product(("3d", "bev"), ("strict", "loose"), labels_of(config).classes)
    return ["/".join(parts) for parts in levels]


def _report_detections(title: str, found: dict[str, float], classes: Sequence[str]) -> None:
    table = Table(expand=False)
    table.add_column("class", style="bold cyan")
    columns = ["3d/strict", "3d/loose", "bev/strict", "bev/loose"]
    for column in (*columns, "precision", "recall", "flipped"):
        table.add_column(column, justify="right")
    for name in classes:
        keys = [f"{column}/{name}" for column in columns]
        keys += [f"3d/loose/{name}/{part}" for part in ("precision", "recall", "flipped")]
        shares = ["-" if math.isnan(found[k]) else f"{100 * found[k]:.1f}" for k in keys]
        table.add_row(name, *shares)
    out = console()
    out.print(title, soft_wrap=True, markup=False, style="bold")
    out.print(table)
    out.print(f"map {found['map']:.4f}, map_strict {found['map_strict']:.4f}", soft_wrap=True)


def _gate(text: str) -> tuple[str, float]:
    metric, _, value = text.partition("=")
    names = *METRICS, *DETECTION
    if metric not in names and metric.count("/") != 2:
        raise WrongUseError(f"--at-least {text}: the metrics are {', '.join(names)}")
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
