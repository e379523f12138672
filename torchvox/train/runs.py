# SPDX-License-Identifier: Apache-2.0
"""One training run: data, model, Lightning's trainer, and the files in the output folder."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.utils.data import DataLoader

from torchvox._util import config_files
from torchvox._util.errors import WrongUseError
from torchvox._util.locks import lock
from torchvox.data.generated import Generated
from torchvox.data.readers.folder import ScanFolder, unlabelled
from torchvox.io.writers import write_text, write_whole
from torchvox.models import checkpoints
from torchvox.models.checkpoints import CheckpointError
from torchvox.train.builders import build_data, build_model, labels_of
from torchvox.train.checkpoint import describe, load_weights, start_from
from torchvox.train.config import Config, parse_config
from torchvox.train.detecting import DetectionModule
from torchvox.train.lightning_module import BaseModule, TrainingModule
from torchvox.train.loading import InMemory, SharedBatches, make_loader
from torchvox.train.logs import LOG, EpochBar, forget_after, make_loggers, say, screen
from torchvox.train.norm import convert_batch_norm
from torchvox.train.tasks import BUILDERS, TASKS, Labels

BEST, LAST, CONFIG = "best.ckpt", "last.ckpt", "config.yaml"
MODEL = "model.pt"
FILES = (BEST, LAST, CONFIG, MODEL, LOG)  # of a run


def fit(
    config: Config, output: str | Path, *, resume: bool = False, quiet: bool = False
) -> dict[str, float]:
    """Train, and leave best.ckpt, last.ckpt, log.jsonl and config.yaml in the output folder, and
    model.pt for torchvox export.

    resume: go on after the last whole epoch of the run in that folder; the result is that of a run
    that was never interrupted. Equal configurations on equal machines give equal bits.
    Returns the metrics of the last epoch. Raises WrongUseError; KeyboardInterrupt when interrupted.
    """
    output = Path(output)
    if not _is_first(config):
        return _fit(config, output, resume, quiet)
    if is_new := not output.exists():
        _check_folder(output, resume)
        output.mkdir(parents=True, exist_ok=True)
    try:
        with lock(output, wait=False) as is_mine:
            if not is_mine:
                raise WrongUseError(
                    f"{output} belongs to a training that runs now: wait, or give another --output"
                )
            _check_folder(output, resume)
            return _fit(config, output, resume, quiet)
    finally:
        if is_new:  # a refused run leaves nothing
            with contextlib.suppress(OSError):
                output.rmdir()


def _fit(config: Config, output: Path, resume: bool, quiet: bool) -> dict[str, float]:
    if resume:
        _check_resumed(config, output / CONFIG)
    data = RunData(config)
    scans = [s for d in data.sets.values() if isinstance(d, ScanFolder) for s in d.scans]
    if not quiet and _is_first(config) and (empty := unlabelled(scans)):
        say(empty)
    labels = labels_of(config, data.sets["train"])
    torch.manual_seed(config.train.seed)
    model = build_model(config, labels)
    if config.train.init is not None and not resume:
        fresh = start_from(model, config.train.init, labels.classes)
        if fresh and not quiet:
            say(f"initialized, as {config.train.init} does not fit: {', '.join(fresh)}")
    if config.train.devices * config.train.nodes > 1:
        on_gpu = config.train.device != "cpu" and torch.cuda.is_available()
        model = convert_batch_norm(model, on_gpu)
    if config.train.compile:  # in place, so that checkpoints have the same names
        if not hasattr(model, "neck"):
            raise WrongUseError(f"train.compile: {type(model).__name__} has no dense convolutions")
        for part in (model.backbone, model.neck, model.head):
            part.compile()
    about = describe(config, labels)
    module: BaseModule
    if config.task == "detect":
        module = DetectionModule(config, model, labels, about)
    else:
        weights = None
        if config.train.class_weights:
            weights = class_weights(data.sets["train"], labels, config)
        module = TrainingModule(config, model, labels, about, weights)
    last = str(output / LAST) if resume else None
    steps = _steps_of(output / LAST) if resume else 0
    with _quiet_and_deterministic():
        try:
            trainer = make_trainer(config, output, [] if quiet else screen(), steps)
        except MisconfigurationException as error:
            raise WrongUseError(f"this machine cannot train as configured: {error}") from None
        if trainer.is_global_zero:
            write_text(output / CONFIG, config.text())  # once nothing is left to refuse
            if resume:
                forget_after(output, trainer.loggers, steps)
            if not quiet:
                say(_start_line(data, trainer.strategy.root_device))
        on_interrupt = signal.getsignal(signal.SIGINT)
        try:
            trainer.fit(module, data, ckpt_path=last, weights_only=True)
        except SystemExit as error:  # what Lightning makes of an interrupt, silently
            if not isinstance(error.__context__, KeyboardInterrupt):
                raise
            with contextlib.suppress(ValueError):  # in another thread than the first
                signal.signal(signal.SIGINT, on_interrupt)  # which it ignores from then on
            raise KeyboardInterrupt from None
    if trainer.is_global_zero:
        _write_model(config, labels, output)
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def _start_line(data: RunData, device: torch.device) -> str:
    where = f"the CPU ({torch.get_num_threads()} threads)"
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    train, val = (len(data.sets[split]) for split in ("train", "val"))
    return f"training on {where}: {train:,} samples, {val:,} for validation"


def make_trainer(
    config: Config, output: Path, callbacks: list[Callback], steps: int = 0
) -> Trainer:
    """steps: that a resumed run has taken."""
    train = config.train
    every = {"save_on_train_epoch_end": True, "enable_version_counter": False}
    monitor = TASKS[config.task].monitor
    # In this order, so that last.ckpt knows which is the best.
    best = BestCheckpoint(output, Path(BEST).stem, monitor=monitor, mode="max", **every)
    best.val_every = train.val_every
    last = ModelCheckpoint(output, Path(LAST).stem, **every)
    return Trainer(
        accelerator=train.device,
        devices=train.devices,
        num_nodes=train.nodes,
        strategy="ddp" if train.devices * train.nodes > 1 else "auto",
        precision=train.precision,
        max_epochs=train.epochs,
        gradient_clip_val=train.clip or None,
        deterministic=True,
        benchmark=False,
        logger=make_loggers(train.loggers, output, steps),
        log_every_n_steps=train.log_every,
        callbacks=[best, last, *callbacks],
        plugins=[WholeCheckpoints()],
        default_root_dir=output,
        enable_model_summary=False,
        enable_progress_bar=any(isinstance(c, EpochBar) for c in callbacks),
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )


class BestCheckpoint(ModelCheckpoint):
    """Of the epochs that validate: every `val_every`-th, and the last. Of equal ones the last."""

    val_every = 1

    def on_train_epoch_start(self, trainer: Trainer, *_: object) -> None:
        last = trainer.current_epoch + 1 == trainer.max_epochs
        trainer.check_val_every_n_epoch = 1 if last else self.val_every
        trainer.callback_metrics.clear()  # which keeps those of earlier epochs

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        if self.monitor in trainer.callback_metrics:
            super().on_train_epoch_end(trainer, module)

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        equal = current is not None and bool(current == self.best_model_score)
        return equal or super().check_monitor_top_k(trainer, current)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lightning forgets the best so far where the folder of the run has moved."""
        super().load_state_dict({**state_dict, "dirpath": self.dirpath})


class WholeCheckpoints(TorchCheckpointIO):
    """Replaces a checkpoint by a whole one or not at all; Lightning copies over the old one where
    the folder for temporary files is on another file system."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: object = None
    ) -> None:
        write_whole(path, lambda buffer: torch.save(checkpoint, buffer))

    def remove_checkpoint(self, path: str | Path) -> None:
        """Nothing: a run keeps two files, and a foreign last.ckpt names what it likes here."""


class RunData(LightningDataModule):
    """The two splits; in memory on the training device if the configuration asks for it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.sets = {split: build_data(config, split) for split in ("train", "val")}
        self.loaded: dict[str, InMemory] = {}

    def train_dataloader(self) -> DataLoader:
        train = self.config.train
        return self._loader("train", train.batch_size, train.seed)

    def val_dataloader(self) -> DataLoader:
        return self._loader("val", self.config.train.val_batch_size, None)

    def _loader(self, split: str, batch_size: int, seed: int | None) -> DataLoader:
        data: Generated | InMemory = self.sets[split]
        if in_memory := self.config.data.in_memory:
            if split not in self.loaded:
                self.loaded[split] = InMemory(self.sets[split], self.trainer.strategy.root_device)
            data = self.loaded[split]
        workers = 0 if in_memory else self.config.train.workers
        rank, world = self.trainer.global_rank, self.trainer.world_size
        batches = SharedBatches(len(data), batch_size, seed, rank, world, self.sets[split].order)
        return make_loader(data, batches, workers)


def class_weights(data: Generated, labels: Labels, config: Config) -> Tensor:
    """[C] weights (largest count / count)^(1/3), from at most 512 samples evenly spread: yanx27's
    rule for S3DIS."""
    step = max(1, len(data) // 512)
    target = TASKS[config.task].target
    counts = torch.zeros(len(labels.classes), dtype=torch.int64)
    for first in range(0, len(data), 32 * step):
        batch = data.batch(range(first, min(first + 32 * step, len(data)), step))
        known = batch[target][batch[target] >= 0]
        counts += torch.bincount(known, minlength=len(counts))
    return (counts.amax() / counts.clamp(min=1)).pow(1 / 3).clamp(max=10).float()


def _is_first(config: Config) -> bool:
    """Whether this is the first process of a training, all of which call fit."""
    if config.train.devices * config.train.nodes == 1:
        return True
    ranks = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
    return all(os.environ.get(name, "0") == "0" for name in ranks)


def _check_folder(output: Path, resume: bool) -> None:
    """Raises WrongUseError for a folder without a run to resume, or with one, or with a
    configuration that a person wrote."""
    if resume and not (output / LAST).is_file():
        raise WrongUseError(
            f"{output} holds no {LAST} to resume from: a run that ended in its first epoch begins "
            "again in another --output"
        )
    if not resume and ((output / LOG).exists() or (output / LAST).exists()):  # it began to learn
        raise WrongUseError(
            f"{output} holds a run: give --resume to continue it, or another --output"
        )
    path = output / CONFIG
    if not resume and path.is_file():
        own = parse_config(config_files.read_file(path), str(path)).text()
        if own != path.read_text():
            raise WrongUseError(f"{path} is not of a run and would be replaced: --output elsewhere")


def _check_resumed(config: Config, path: Path) -> None:
    """Raises WrongUseError unless the file holds this configuration."""
    if parse_config(config_files.read_file(path), str(path)) != config:
        raise WrongUseError(f"{path} is of another configuration: a resumed run must be the same")


def _write_model(config: Config, labels: Labels, output: Path) -> None:
    """The best weights alone, in the form that torchvox export takes. The model is that of the
    configuration: best.ckpt may come from elsewhere and name foreign code."""
    model = build_model(config, labels)
    if config.task == "detect" or type(model) in BUILDERS.values():
        load_weights(model, output / BEST)
        checkpoints.save(model.eval(), output / MODEL)


def epochs_of(output: str | Path) -> int:
    """Whole epochs of the run in a folder, from which it can be resumed; 0 without any."""
    last = Path(output) / LAST
    try:
        return int(checkpoints.read(last)["epoch"]) + 1 if last.is_file() else 0
    except (KeyError, TypeError, ValueError):
        return 0


def _steps_of(checkpoint: Path) -> int:
    try:
        return int(checkpoints.read(checkpoint)["global_step"])
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:  # of the reader too
        raise CheckpointError(f"{checkpoint} holds no checkpoint to resume from: {error}") from None


@contextlib.contextmanager
def _quiet_and_deterministic() -> Iterator[None]:
    """Deterministic torch, and Lightning without its notices; as before afterwards."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    fill, before = torch.utils.deterministic, torch.are_deterministic_algorithms_enabled()
    filling, fill.fill_uninitialized_memory = fill.fill_uninitialized_memory, False
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
            yield
    finally:
        fill.fill_uninitialized_memory = filling
        torch.use_deterministic_algorithms(before)
