# SPDX-License-Identifier: Apache-2.0
"""Logs of a run: a file of JSON lines, and lines or a bar on the screen."""

from __future__ import annotations

import csv
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console

from torchvox._util.errors import printable
from torchvox._util.extras import require
from torchvox.io.writers import full_disk_of, write_text

LOG = "log.jsonl"


class JsonLines(Logger):
    """One JSON object per line: step, epoch and the metrics of that moment, null if not finite."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    @property
    def name(self) -> str:
        return "jsonl"

    @property
    def version(self) -> str:
        return ""

    @rank_zero_only
    def log_hyperparams(self, *args: object, **kwargs: object) -> None:
        """The configuration has a file of its own."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        line = {"step": step, **finite, "epoch": int(metrics.get("epoch", 0))}
        with full_disk_of(self.path), self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def make_loggers(names: Sequence[str], output: Path, steps: int = 0) -> list[Logger]:
    """Loggers by their names, for a run that continues after so many steps. Raises
    MissingExtraError."""
    loggers: list[Logger] = [JsonLines(output / LOG)] if "jsonl" in names else []
    if "csv" in names:
        loggers.append(CSVLogger(output, "", "csv"))
    if "tensorboard" in names:
        require("tensorboard", "to log for TensorBoard")
        options = {"default_hp_metric": False, "purge_step": steps or None}
        loggers.append(TensorBoardLogger(output, "", "tensorboard", **options))
    return loggers


def forget_after(output: Path, loggers: Sequence[Logger], steps: int) -> None:
    """Drop the lines of steps that a resumed run takes again, and what an interrupted write left of
    one. TensorBoard's readers do so by themselves."""
    if (log := output / LOG).exists():
        lines = log.read_text(errors="replace").splitlines()
        write_text(log, "".join(f"{line}\n" for line in lines if _step(line) < steps))
    table = output / "csv" / "metrics.csv"
    for logger in loggers if table.exists() else ():
        if isinstance(logger, CSVLogger):  # which starts its file over: it gets the old rows again
            with table.open(newline="") as file:
                rows = [row for row in csv.DictReader(file) if None not in row.values()]
            for row in rows:
                if row["step"].isdigit() and int(row["step"]) < steps:
                    kept = {name: value for name, value in row.items() if value}
                    logger.log_metrics(kept, int(kept.pop("step")))
            logger.save()


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf


@rank_zero_only
def say(line: str) -> None:
    Console(highlight=False).print(printable(line), soft_wrap=True, markup=False)


class EpochLines(Callback):
    """A line on the screen after every epoch."""

    def __init__(self) -> None:
        self.start = time.perf_counter()

    @rank_zero_only
    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        metrics = trainer.callback_metrics
        names = ("train_loss", "train_accuracy", "accuracy", "mean_accuracy", "miou", "map")
        words = "  ".join(f"{n} {float(metrics[n]):.4f}" for n in names if n in metrics)
        seconds = time.perf_counter() - self.start
        say(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}  {words}  {seconds:.0f} s")


class EpochBar(RichProgressBar):
    """A bar that counts epochs from 1, as the lines do."""

    def _get_train_description(self, current_epoch: int) -> str:
        return f"epoch {current_epoch + 1}/{self.trainer.max_epochs}"


def screen() -> list[Callback]:
    """Lines, and a bar above them where somebody may be watching."""
    bar = [EpochBar(leave=False)] if Console(stderr=True).is_terminal else []
    return [EpochLines(), *bar]
