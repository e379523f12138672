# SPDX-License-Identifier: Apache-2.0
"""torchvox eval: how good a trained model is."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from torchvox._configs import unknown_key
from torchvox._errors import TorchvoxError, WrongUseError
from torchvox._extras import require
from torchvox.cli.options import Device, DeviceChoice, TrustCode, check_outputs
from torchvox.cli.train import Overrides
from torchvox.cli.work import console, use_device
from torchvox.io.writers import write_text

if TYPE_CHECKING:
    import torch

    from torchvox.train.builders import Labels
    from torchvox.train.checkpoint import Checkpoint
    from torchvox.train.config import Config
    from torchvox.viz import Panel

CLOUDS, WRONG = 48, 16  # clouds in the picture, and how many of them may be wrong
PICTURES = ("predictions", "confusion", "precision_recall", "recall_by_range")
BATCH = 8  # scans that a detector sees at a time
METRICS = {  # of torchvox.train.metrics.scores, with their names in print
    "accuracy": "accuracy",
    "mean_accuracy": "mean over classes",
    "miou": "mean IoU",
}


def evaluate(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="best.ckpt of torchvox train, or a name such as center_world_small; with --config "
            "any detector's file."
        ),
    ],
    overrides: Overrides = None,
    data_of: Annotated[
        str | None, typer.Option("--config", help="Says the data, for model.pt and programs.")
    ] = None,
    split: Annotated[str, typer.Option(help="train or val.")] = "val",
    pictures: Annotated[
        Path | None,
        typer.Option(help="Folder for clouds, curves, the confusion matrix or the worst scans."),
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Folder for boxes, as the data set wants its results.")
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
    if split not in ("train", "val"):
        raise WrongUseError(f"--split must be train or val, got {split!r}")
    gates = [_gate(text) for text in at_least or []]
    drawn = [] if pictures is None else [pictures / f"{name}.png" for name in PICTURES]
    inputs = [checkpoint, Path(data_of or checkpoint)]
    check_outputs(inputs, {"--json": results, "--pictures": drawn})
    from torchvox.models.detection.running import load_form
    from torchvox.train import evaluate as evaluate_all
    from torchvox.train import load_checkpoint, load_config
    from torchvox.train.builders import build_data, labels_of
    from torchvox.train.config import change_config
    from torchvox.train.metrics import class_scores, scores

    if pictures is not None:
        require("matplotlib", "to draw pictures")
    where = use_device(device)
    if data_of is None:
        trained = load_checkpoint(checkpoint, where, trust_code)
        config = change_config(trained.config, overrides or [])
    else:
        config = load_config(data_of, overrides or [])
    if config.task == "detect":
        model = load_form(checkpoint, where, trust_code) if data_of else trained.model
        how = 1 if data_of else BATCH, where
        outputs = results, write, pictures
        return _evaluate_boxes(model, how, config, split, str(checkpoint), gates, outputs)
    if data_of is not None or write is not None:
        raise WrongUseError(f"--config and --write are for detectors, not for {config.task}")
    _check_names(gates, list(METRICS))
    data = build_data(config, split)
    _check_fit(str(checkpoint), trained.labels, labels_of(config, data))
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
    _check_gates(gates, found)


def _evaluate_boxes(
    model: Any,
    how: tuple[int, torch.device],
    config: Config,
    split: str,
    title: str,
    gates: list[tuple[str, float]],
    outputs: tuple[Path | None, Path | None, Path | None],
) -> None:
    """how: scans at a time and the device. outputs: of --json, --write, --pictures."""
    from torchvox.train.builders import build_data, labels_of
    from torchvox.train.detecting import evaluate_detector

    labels, (results, write, pictures) = labels_of(config), outputs
    classes = labels.classes
    _check_fit(title, model, labels)
    data = build_data(config, split)
    if not hasattr(data, "measure"):
        levels = product(("3d", "bev"), ("strict", "loose"), classes)
        _check_names(gates, ["map", "map_strict", *map("/".join, levels)])
    if write is not None and not hasattr(data, "write"):
        raise WrongUseError(f"--write: {config.data.kind} has no form of results of its own")
    if write is not None:
        scans = getattr(data, "scans", ())
        written = [write / f"{scan.name}.txt" for scan in scans] or [write / "results_nusc.json"]
        check_outputs([scan.boxes for scan in scans], {"--write": written, "--json": results})
    start = time.perf_counter()
    told = evaluate_detector(model, data, classes, *how)
    measured = data.measure(told.found) if hasattr(data, "measure") else {}
    found, seconds = {**told.scores, **measured}, time.perf_counter() - start
    title += f", {len(data)} scans of {config.data.kind} ({split}), {seconds:.1f} s"
    _report_detections(title, found, classes, measured)
    if results is not None:
        content = {k: None if math.isnan(v) else v for k, v in found.items()}
        write_text(results, json.dumps({**content, "seconds": seconds}) + "\n")
    if write is not None:
        data.write(told.found, write)
        console().print(f"wrote {write}", soft_wrap=True, markup=False)
    if pictures is not None:
        from torchvox.cli.box_pictures import pictures_of

        limits = config.model.args["point_cloud_range"]
        _save(pictures, pictures_of(told, data, classes, limits))
    _check_gates(gates, found)


def _check_fit(title: str, model: Any, labels: Labels) -> None:
    """model: has classes and columns, or, a program of torch.export, does not tell."""
    for what, wanted in (("classes", list(labels.classes)), ("columns", labels.columns)):
        mine: Any = getattr(model, what, wanted)
        if (list(mine) if what == "classes" else mine) != wanted:
            raise WrongUseError(f"{title}: its {what} must be {wanted} of the data, got {mine}")


def _check_names(gates: list[tuple[str, float]], names: Sequence[str]) -> None:
    if wrong := [metric for metric, _ in gates if metric not in names]:
        raise WrongUseError(f"--at-least {wrong[0]}: the metrics are {', '.join(names)}")


def _check_gates(gates: list[tuple[str, float]], found: dict[str, float]) -> None:
    for metric, least in gates:
        if metric not in found:
            raise WrongUseError(f"--at-least: {unknown_key(metric, list(found))}")
        if not found[metric] >= least:
            raise TorchvoxError(f"{metric} {found[metric]:.4f} is below {least}")


def _report_detections(
    title: str, found: dict[str, float], classes: Sequence[str], measured: dict[str, float]
) -> None:
    table = Table(expand=False)
    table.add_column("class", style="bold cyan")
    columns = ["3d/strict", "3d/loose", "bev/strict", "bev/loose"]
    moves = any(f"3d/loose/{name}/velocity" in found for name in classes)
    for column in (*columns, "precision", "recall", "flipped", *["velocity/m/s"] * moves):
        table.add_column(column.replace("/", "\n", 1), justify="right")
    for name in classes:
        keys = [f"{column}/{name}" for column in columns]
        keys += [f"3d/loose/{name}/{part}" for part in ("precision", "recall", "flipped")]
        shares = ["-" if math.isnan(found[k]) else f"{100 * found[k]:.1f}" for k in keys]
        if moves:
            shares.append(f"{found[f'3d/loose/{name}/velocity']:.2f}")
        table.add_row(name, *shares)
    out = console()
    out.print(title, soft_wrap=True, markup=False, style="bold")
    out.print(table)
    out.print(f"map {found['map']:.4f}, map_strict {found['map_strict']:.4f}", soft_wrap=True)
    _report_measured(out, measured)


def _report_measured(out: Console, measured: dict[str, float]) -> None:
    """Numbers of a data set's own measure: a/b/c/d/e in row a/b/c and column d/e, a/b in row a, and
    those without a place in a line."""
    rows: dict[str, dict[str, str]] = {}
    for name, value in measured.items():
        parts = name.split("/")
        at = max(1, len(parts) - 2)
        shown = "-" if math.isnan(value) else f"{value:.4g}"
        rows.setdefault("/".join(parts[:at]), {})["/".join(parts[at:])] = shown
    lines = [f"{name} {row['']}" for name, row in rows.items() if "" in row]
    columns = dict.fromkeys(column for row in rows.values() for column in row if column)
    if columns:
        table = Table("", *(column.replace("/", "\n") for column in columns), expand=False)
        for name, row in rows.items():
            if row.keys() != {""}:
                table.add_row(name, *(row.get(column, "") for column in columns))
        out.print(table)
    if lines:
        out.print(", ".join(lines), soft_wrap=True, markup=False)


def _gate(text: str) -> tuple[str, float]:
    metric, _, value = text.partition("=")
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
    _save(folder, (("predictions", clouds), ("confusion", confusion)))


def _save(folder: Path, pictures: Iterable[tuple[str, Any]]) -> None:
    from torchvox import viz

    for name, figure in pictures:
        viz.save(figure, folder / f"{name}.png")
        console().print(f"wrote {folder / name}.png", soft_wrap=True, markup=False)


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
