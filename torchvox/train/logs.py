# SPDX-License-Identifier: Apache-2.0
"""What a run tells while it goes: a file of JSON lines, and lines or a bar on the screen."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console


class JsonLines(Logger):
    """One JSON object per line: step, epoch and the metrics of that moment."""

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
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """The configuration has a file of its own."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        epoch = int(metrics.pop("epoch", 0))
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, "epoch": epoch, **metrics}) + "\n")


class EpochLines(Callback):
    """A line on the screen after every epoch."""

    def __init__(self) -> None:
        self.start = time.perf_counter()

    @rank_zero_only
    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        found = trainer.callback_metrics
        names = ("train_loss", "train_accuracy", "accuracy", "mean_accuracy", "miou", "map")
        shown = "  ".join(f"{n} {float(found[n]):.4f}" for n in names if n in found)
        seconds = time.perf_counter() - self.start
        Console(highlight=False).print(
            f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}  {shown}  {seconds:.0f} s",
            soft_wrap=True,
        )


def screen() -> list[Callback]:
    """Lines, and a bar above them where somebody may be watching."""
    bar = [RichProgressBar(leave=False)] if Console(stderr=True).is_terminal else []
    return [EpochLines(), *bar]
