# SPDX-License-Identifier: Apache-2.0
"""The Lightning module: loss, optimizer, schedule and metrics around a plain nn.Module."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F

from torchvox.train.config import AugmentConfig, Config
from torchvox.train.metrics import ConfusionOfSamples, scores
from torchvox.train.tasks import TASKS, Labels

LARGE_PRIME = 1_000_003
Batch = dict[str, Tensor]


class BaseModule(LightningModule):
    """Base of all tasks. extra: what a checkpoint holds beside the weights, plain types only."""

    def __init__(
        self, config: Config, model: nn.Module, labels: Labels, extra: dict[str, Any]
    ) -> None:
        super().__init__()
        self.config, self.labels, self.extra = config, labels, extra
        self.model = model
        self.task = TASKS[config.task]

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Dropout and augmentation are functions of (seed, step, process), so a run that is resumed
        draws what the uninterrupted one would have drawn."""
        seed = (self.config.train.seed * LARGE_PRIME + self.global_step) * LARGE_PRIME
        torch.manual_seed((seed + self.global_rank) % 2**63)

    def configure_optimizers(self) -> dict[str, Any]:
        train = self.config.train
        betas, decay = (0.9, train.beta2), train.weight_decay
        parameters = self.model.parameters()
        optimizer = torch.optim.AdamW(parameters, train.lr, betas, weight_decay=decay)
        steps = int(self.trainer.estimated_stepping_batches)
        ends = {"div_factor": train.div, "final_div_factor": train.final_div}
        cycle = torch.optim.lr_scheduler.OneCycleLR
        schedule = cycle(optimizer, train.lr, steps, pct_start=train.warm_up, **ends)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        metrics = {k: float(v) for k, v in self.trainer.callback_metrics.items()}
        checkpoint["torchvox"] = {**self.extra, "metrics": metrics}


class TrainingModule(BaseModule):
    """Trains `model`, which maps points [B, N, C] (and the category, for parts) to scores.

    class_weights: [C] for the loss, or None.
    """

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        labels: Labels,
        extra: dict[str, Any],
        class_weights: Tensor | None = None,
    ) -> None:
        super().__init__(config, model, labels, extra)
        self.confusion = ConfusionOfSamples(len(labels.classes))
        self.register_buffer("class_weights", class_weights, persistent=False)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        points = augment(batch["points"], self.config.train.augment)
        logits = forward(self.model, self.config, {**batch, "points": points}).float()
        target = batch[self.task.target]
        loss = F.cross_entropy(
            logits.flatten(0, -2),
            target.flatten(),
            self.class_weights,
            ignore_index=-1,
            label_smoothing=self.config.train.label_smoothing,
        )
        with torch.no_grad():
            right = (logits.argmax(-1) == target).sum() / (target >= 0).sum()
        self.log("loss", loss, on_step=True, on_epoch=False)
        options = {"on_step": False, "on_epoch": True, "sync_dist": True, "batch_size": len(target)}
        self.log("train_loss", loss, **options)
        self.log("train_accuracy", right, **options)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        predicted = predict(self.model, self.config, self.labels, batch)
        self.confusion.update(batch["id"], predicted, batch[self.task.target])

    def on_validation_epoch_end(self) -> None:
        for name, value in scores(self.confusion.compute()).items():
            self.log(name, value)  # equal on all processes: compute() has gathered
        self.confusion.reset()


def forward(model: nn.Module, config: Config, batch: Batch) -> Tensor:
    """Scores of a batch: [B, C], or [B, N, C] for points."""
    if config.task == "parts":
        return model(batch["points"], batch["label"])
    return model(batch["points"])


def predict(model: nn.Module, config: Config, labels: Labels, batch: Batch) -> Tensor:
    """The classes with the highest scores; parts only of the known category."""
    logits = forward(model, config, batch).float()
    if config.task == "parts":
        ends = torch.tensor(labels.offsets, device=logits.device)
        part = torch.arange(len(labels.classes), device=logits.device)
        first, last = ends[batch["label"]][:, None], ends[batch["label"] + 1][:, None]
        other = (part < first) | (part >= last)  # [B, C]
        logits = logits.masked_fill(other[:, None], -torch.inf)
    return logits.argmax(-1)


def augment(points: Tensor, how: AugmentConfig) -> Tensor:
    """Changed copies of training clouds [B, N, C]; x, y and z are the first columns."""
    if how == AugmentConfig():
        return points
    batch, device = len(points), points.device
    xyz, rest = points[..., :3], points[..., 3:]
    low, high = how.scale
    xyz = xyz * (torch.rand(batch, 1, 1, device=device) * (high - low) + low)
    if how.yaw:
        angle = torch.rand(batch, 1, device=device) * (2 * torch.pi)
        c, s = torch.cos(angle), torch.sin(angle)
        x, y, z = xyz.unbind(-1)
        xyz = torch.stack([c * x - s * y, s * x + c * y, z], -1)
    xyz = xyz + (torch.rand(batch, 1, 3, device=device) * 2 - 1) * how.shift
    points = torch.cat([xyz, rest], -1)
    if how.dropout:
        share = torch.rand(batch, 1, device=device) * how.dropout
        dropped = torch.rand(points.shape[:2], device=device) < share
        points = torch.where(dropped[..., None], points[:, :1], points)
    return points
