# SPDX-License-Identifier: Apache-2.0
"""torchvox eval: how good a trained model is."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console

from torchvox._util.config_files import unknown_key
from torchvox._util.errors import TorchvoxError, WrongUseError
from torchvox._util.extras import require
from torchvox.cli import options
from torchvox.cli.commands import write_json
from torchvox.cli.options import argument, check_outputs, option, option_class
from torchvox.cli.train import Overrides
from torchvox.cli.work import console, table_of, use_device

if TYPE_CHECKING:
    from torchvox.data.generated import Generated
    from torchvox.train.checkpoint import Checkpoint
    from torchvox.train.config import Config
    from torchvox.train.tasks import Labels
    from torchvox.viz import Panel

CLOUDS, WRONG = 48, 16  # clouds in the picture, and how many of them may be wrong
PICTURES = ("predictions", "confusion", "precision_recall", "recall_by_range")
BATCH = 8  # scans that a detector gets at once
METRICS = {  # of torchvox.train.metrics.scores, with their names in print
    "accuracy": "accuracy",
    "mean_accuracy": "mean over classes",
    "miou": "mean IoU",
}


@option_class
class EvaluateOptions:
    checkpoint: Path = argument(
        ...,
        "best.ckpt from torchvox train, or a name such as center_world_small; with --config any "
        "detector's file.",
        metavar="MODEL",
    )
    overrides: Overrides = None
    data_of: str | None = option(
        None,
        "Config that defines the dataset (needed for model.pt and exported programs).",
        "--config",
    )
    split: str = option("val", "Split of the dataset: train or val.")
    pictures: Path | None = option(
        None, "Folder for pictures: clouds and the confusion matrix, or curves and the worst scans."
    )
    output: Path | None = option(
        None, "Folder for boxes in the dataset's own result format.", "--output", "-o"
    )
    at_least: list[str] | None = option(
        None, "Fail below this value, e.g. accuracy=0.95. Repeatable.", metavar="METRIC=VALUE"
    )
    json: options.Json = None
    trust_code: options.TrustCode = False
    device: options.Device = "auto"


@options.command
def evaluate(args: EvaluateOptions) -> None:
    """Evaluate a model: accuracy and IoU, in total and per class, or average precision of boxes.

    Examples:
        torchvox eval runs/mine/best.ckpt --pictures pictures/
        torchvox eval center_world_small --at-least map=0.8
        torchvox eval model.script.pt --config mine.yaml --json
    """
    if args.split not in ("train", "val"):
        raise WrongUseError(f"--split must be train or val, got {args.split!r}")
    gates = dict(map(_gate, args.at_least or []))
    drawings = [args.pictures / f"{name}.png" for name in PICTURES] if args.pictures else []
    inputs = [args.checkpoint, Path(args.data_of or args.checkpoint)]
    check_outputs(inputs, {"--json": args.json, "--pictures": drawings})
    from torchvox.models.detection.running import load_form
    from torchvox.train import load_checkpoint, load_config
    from torchvox.train.config import change_config

    if args.pictures is not None:
        require("matplotlib", "to draw pictures")
    device = use_device(args.device, args.checkpoint)
    if args.data_of is None:
        trained = load_checkpoint(args.checkpoint, device, args.trust_code)
        config, model = change_config(trained.config, args.overrides or []), trained.model
    else:
        config = load_config(args.data_of, args.overrides or [])
    if config.task == "detect":
        if args.data_of is not None:
            model = load_form(args.checkpoint, device, args.trust_code)
        scores = _evaluate_boxes(args, model, config, gates, device)
    elif args.data_of is not None or args.output is not None:
        raise WrongUseError(f"--config and --output are for detectors, not for {config.task}")
    else:
        scores = _evaluate_points(args, trained, config, gates)
    for metric, least in gates.items():
        if metric not in scores:
            raise WrongUseError(f"--at-least: {unknown_key(metric, list(scores))}")
        if not scores[metric] >= least:
            raise TorchvoxError(f"{metric} {scores[metric]:.4f} is below {least}")


def _evaluate_points(
    args: EvaluateOptions, trained: Checkpoint, config: Config, gates: Iterable[str]
) -> dict[str, float]:
    """The metrics of a classifier, or of a network that labels points; prints and writes them."""
    from torchvox.train import evaluate as evaluate_all
    from torchvox.train.builders import build_data, labels_of
    from torchvox.train.metrics import class_scores, scores

    _check_gates(gates, list(METRICS))
    data = build_data(config, args.split)
    _check_fit(str(args.checkpoint), trained.labels, labels_of(config, data))
    start = time.perf_counter()
    matrix = evaluate_all(trained, data, config.train.val_batch_size)
    seconds = time.perf_counter() - start
    metrics, size = scores(matrix), f"{len(data)} samples of {config.data.kind} ({args.split})"
    rows = (
        [name, f"{count:,}", _percent(recall), _percent(iou)]
        for name, count, recall, iou in class_scores(matrix, trained.labels.classes)
    )
    _print_table(f"{args.checkpoint}, {size}, {seconds:.1f} s", ("count", "found %", "IoU %"), rows)
    console().print(_summary(metrics), soft_wrap=True)
    content = {"samples": len(data), "seconds": seconds, "matrix": matrix.tolist()}
    write_json(args.json, {**_plain(metrics), **content})
    if args.pictures is not None:
        _save(args.pictures, _draw(trained, data, matrix.numpy(), metrics))
    return metrics


def _evaluate_boxes(
    args: EvaluateOptions,
    model: torch.nn.Module,
    config: Config,
    gates: Iterable[str],
    device: torch.device,
) -> dict[str, float]:
    """The metrics of a detector; prints and writes them."""
    from torchvox.train.builders import build_data, labels_of
    from torchvox.train.detecting import evaluate_detector

    labels, title = labels_of(config), str(args.checkpoint)
    classes = labels.classes
    _check_fit(title, model, labels)
    data = build_data(config, args.split)
    if not hasattr(data, "measure"):
        levels = product(("3d", "bev"), ("strict", "loose"), classes)
        _check_gates(gates, ["map", "map_strict", *map("/".join, levels)])
    if args.output is not None:
        if not hasattr(data, "write"):
            raise WrongUseError(f"--output: {config.data.kind} has no form of results of its own")
        scans = getattr(data, "scans", ())
        files = [args.output / f"{scan.name}.txt" for scan in scans]
        outputs = {"--output": files or [args.output / "results_nusc.json"], "--json": args.json}
        check_outputs([scan.boxes for scan in scans], outputs)
    start = time.perf_counter()
    batch = BATCH if args.data_of is None else 1
    result = evaluate_detector(model, data, classes, batch, device)
    measured = data.measure(result.found) if hasattr(data, "measure") else {}
    metrics, seconds = {**result.scores, **measured}, time.perf_counter() - start
    title += f", {len(data)} scans of {config.data.kind} ({args.split}), {seconds:.1f} s"
    _report_detections(title, metrics, classes, measured)
    write_json(args.json, {**_plain(metrics), "seconds": seconds})
    if args.output is not None:
        data.write(result.found, args.output)
        console().print(f"wrote {args.output}", soft_wrap=True, markup=False)
    if args.pictures is not None:
        from torchvox.cli.box_pictures import pictures_of

        limits = config.model.args["point_cloud_range"]
        _save(args.pictures, pictures_of(result, data, classes, limits))
    return metrics


# ---- checks -------------------------------------------------------------------------------------


def _check_fit(title: str, model: object, labels: Labels) -> None:
    """model: has classes and columns, except for programs of torch.export, which fit any data."""
    for what, needed in (("classes", list(labels.classes)), ("columns", labels.columns)):
        mine = getattr(model, what, None)
        if mine is not None and (list(mine) if what == "classes" else mine) != needed:
            raise WrongUseError(f"{title}: its {what} must be {needed} of the data, got {mine}")


def _gate(text: str) -> tuple[str, float]:
    """A metric, and the value that it must reach."""
    metric, _, value = text.partition("=")
    with contextlib.suppress(ValueError):
        if not math.isnan(least := float(value)):
            return metric, least
    raise WrongUseError(f"--at-least {text}: {value!r} is no number")


def _check_gates(gates: Iterable[str], names: Sequence[str]) -> None:
    if wrong := [gate for gate in gates if gate not in names]:
        raise WrongUseError(f"--at-least {wrong[0]}: the metrics are {', '.join(names)}")


# ---- tables -------------------------------------------------------------------------------------


def _print_table(title: str, columns: Iterable[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a row per class below a title."""
    out, numbers = console(), list(columns)
    out.print(title, soft_wrap=True, markup=False, style="bold")
    out.print(table_of("", ("class", *numbers), rows, right=numbers))


def _plain(metrics: dict[str, float]) -> dict[str, float | None]:
    """For JSON, which has no NaN."""
    return {name: None if math.isnan(value) else value for name, value in metrics.items()}


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f}"


def _report_detections(
    title: str, metrics: dict[str, float], classes: Sequence[str], measured: dict[str, float]
) -> None:
    columns = ["3d/strict", "3d/loose", "bev/strict", "bev/loose"]
    parts = ["precision", "recall", "flipped"]
    moves = any(f"3d/loose/{name}/velocity" in metrics for name in classes)
    rows = []
    for name in classes:
        keys = [f"{column}/{name}" for column in columns]
        keys += [f"3d/loose/{name}/{part}" for part in parts]
        rows.append([name, *(_percent(metrics[key]) for key in keys)])
        if moves:
            rows[-1].append(f"{metrics[f'3d/loose/{name}/velocity']:.2f}")
    heads = [*columns, *parts, *["velocity/m/s"] * moves]
    _print_table(title, (head.replace("/", "\n", 1) for head in heads), rows)
    out = console()
    out.print(f"map {metrics['map']:.4f}, map_strict {metrics['map_strict']:.4f}", soft_wrap=True)
    _report_measured(out, measured)


def _report_measured(out: Console, measured: dict[str, float]) -> None:
    """Print the metrics of a dataset's own measure: a/b/c/d/e in row a/b/c and column d/e, a/b in
    row a; the others in a line."""
    rows: dict[str, dict[str, str]] = {}
    for name, value in measured.items():
        parts = name.split("/")
        at = max(1, len(parts) - 2)
        text = "-" if math.isnan(value) else f"{value:.4g}"
        rows.setdefault("/".join(parts[:at]), {})["/".join(parts[at:])] = text
    lines = [f"{name} {row['']}" for name, row in rows.items() if "" in row]
    columns = dict.fromkeys(column for row in rows.values() for column in row if column)
    if columns:
        heads = ("", *(column.replace("/", "\n") for column in columns))
        cells = (
            (name, *(row.get(column, "") for column in columns))
            for name, row in rows.items()
            if row.keys() != {""}
        )
        out.print(table_of("", heads, cells))
    if lines:
        out.print(", ".join(lines), soft_wrap=True, markup=False)


def _summary(metrics: dict[str, float]) -> str:
    return ", ".join(f"{METRICS[name]} {100 * value:.2f} %" for name, value in metrics.items())


# ---- pictures -----------------------------------------------------------------------------------


def _save(folder: Path, pictures: Iterable[tuple[str, Any]]) -> None:
    from torchvox import viz

    for name, figure in pictures:
        viz.save(figure, folder / f"{name}.png")
        console().print(f"wrote {folder / name}.png", soft_wrap=True, markup=False)


def _draw(
    trained: Checkpoint, data: Generated, matrix: np.ndarray, metrics: dict[str, float]
) -> list[tuple[str, Any]]:
    """Names of files and figures."""
    from torchvox import viz

    panels = (_judged if trained.config.task == "classify" else _labeled)(trained, data)
    title, names = f"Predictions on held-back clouds: {_summary(metrics)}", trained.labels.classes
    note = f"{matrix.sum():,} labels: {_summary(metrics)}"
    confusion = viz.confusion_picture(matrix, names, "Confusion matrix", note)
    return [("predictions", viz.clouds_picture(panels, title)), ("confusion", confusion)]


def _judged(trained: Checkpoint, data: Generated) -> list[Panel]:
    """Clouds with their predicted classes: right ones first, then wrong ones with the truth."""
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


def _labeled(trained: Checkpoint, data: Generated) -> list[Panel]:
    """Clouds colored by the predicted labels of their points."""
    from torchvox.train.evaluation import predictions
    from torchvox.train.tasks import TASKS
    from torchvox.viz import Panel

    panels = []
    # Neighboring numbers are blocks of one room, which look alike.
    step = max(1, len(data) // CLOUDS) if trained.config.task == "segment" else 1
    samples = range(0, min(len(data), CLOUDS * step), step)
    for batch, predicted in predictions(trained, data, samples, 16):
        target = batch[TASKS[trained.config.task].target]
        shares = (target == predicted).sum(1) / (target >= 0).sum(1)
        for i, guess in enumerate(predicted.cpu().numpy()):
            title = f"{100 * float(shares[i]):.0f} % right"
            if trained.config.task == "parts":
                title = f"{trained.labels.categories[int(batch['label'][i])]}, {title}"
            panels.append(Panel(batch["points"][i, :, :3].cpu().numpy(), title, guess))
    return panels
