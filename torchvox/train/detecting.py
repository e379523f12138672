# SPDX-License-Identifier: Apache-2.0
"""Training and evaluation of detectors by their loss and their boxes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from torchvox._util.errors import WrongUseError, expect
from torchvox.augment import Paste, collect_objects
from torchvox.data.generated import Generated
from torchvox.evaluation import lidar
from torchvox.evaluation.matching import LEAST_OVERLAP
from torchvox.graphs import Captured
from torchvox.ops import points_in_boxes
from torchvox.train.config import Config
from torchvox.train.lightning_module import BaseModule, Batch
from torchvox.train.loading import InMemory
from torchvox.train.tasks import Labels

TRUTH = ("boxes", "labels", "points")  # columns of the metric
FOUND = ("found", "scores", "found_labels")
OTHER = (0.5, 0.25)  # overlaps, strict and loose, of classes that have none of their own


class Detected(NamedTuple):
    """scores: those of DetectionScores. details: what is behind them. truth, found: of each scene
    boxes [n, 7] or [n, 9], labels [n] and points [n] (0 where the box is ignored) or scores [n]."""

    scores: dict[str, float]
    details: lidar.Details
    truth: list[dict[str, np.ndarray]]
    found: list[dict[str, np.ndarray]]


class DetectionScores(Metric):
    """Average precision of boxes, every scene counted once however many processes share them.

    update(batch, outputs of a detector); compute() gives the numbers of
    `torchvox.evaluation.lidar.evaluate` with classes in their order, and "map", "map_strict": means
    of "3d/loose/.." and "3d/strict/.." over the classes that occur.
    """

    full_state_update = False

    def __init__(self, classes: Sequence[str]) -> None:
        super().__init__()
        self.classes = {name: LEAST_OVERLAP.get(name.lower(), OTHER) for name in classes}
        for name in ("ids", *TRUTH, *FOUND):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, batch: Batch, outputs: Sequence[Tensor]) -> None:
        boxes, labels = batch["boxes"], batch["labels"]
        counts = points_in_boxes(batch["points"], boxes[..., :7], mode="count")
        counts = torch.where(batch["weight"] > 0, counts, 0)
        detected, scores, names = outputs[:3]
        columns = batch["id"], boxes, labels, counts, detected.float(), scores.float(), names
        for name, column in zip(("ids", *TRUTH, *FOUND), columns, strict=True):
            getattr(self, name).append(column)

    def compute(self) -> dict[str, float]:
        return self.detected().scores if len(self.ids) else {}

    def detected(self) -> Detected:
        """The scores and what they come from, scenes by rising id."""
        columns = {name: _padded(getattr(self, name)) for name in ("ids", *TRUTH, *FOUND)}
        most, classes = int(columns["found_labels"].max(initial=-1)), len(self.classes)
        expect(most < classes, f"labels of detections must be below {classes}, the classes", most)
        _, first = np.unique(columns["ids"], return_index=True)
        truth = [_scene(columns, TRUTH, "labels", i) for i in first]
        boxes = [_scene(columns, FOUND, "found_labels", i) for i in first]
        details = lidar.details(_split(truth), _split(boxes), self.classes)
        scores = dict(details.scores)
        for name, level in (("map", "loose"), ("map_strict", "strict")):
            of_classes = [scores[f"3d/{level}/{one}"] for one in self.classes]
            numbers = [value for value in of_classes if not math.isnan(value)]
            scores[name] = sum(numbers) / len(numbers) if numbers else 0.0
        return Detected(scores, details, truth, boxes)


def _padded(columns: Sequence[Tensor] | Tensor) -> np.ndarray:
    """One array of columns [B, ..], which differ in rows of a sample at most; a tensor is whole
    already, gathered from several processes."""
    columns = [columns] if isinstance(columns, Tensor) else columns
    if columns[0].dim() > 1:
        rows = max(column.size(1) for column in columns)
        grown = []
        for column in columns:
            more = column.new_full((len(column), rows - column.size(1), *column.shape[2:]), -1)
            grown.append(torch.cat([column, more], 1))
        columns = grown
    return dim_zero_cat(list(columns)).cpu().numpy()


def _scene(columns: Mapping[str, np.ndarray], names: Sequence[str], label: str, i: int) -> Any:
    """A scene as `lidar.evaluate` takes it; rows with labels below 0 are none."""
    used = columns[label][i] >= 0
    keys = {"found": "boxes", "found_labels": "labels"}
    return {keys.get(name, name): columns[name][i][used] for name in names}


def _split(scenes: Sequence[Mapping[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Scenes with the velocities, where their boxes have some, in a column of their own."""
    parts = [np.split(one["boxes"], [7], axis=1) for one in scenes]
    return [
        {**one, "boxes": boxes} | ({"velocity": velocity} if velocity.shape[1] else {})
        for one, (boxes, velocity) in zip(scenes, parts, strict=True)
    ]


class DetectionModule(BaseModule):
    """Trains a detector, which has `loss`."""

    def __init__(
        self, config: Config, model: nn.Module, labels: Labels, extra: dict[str, Any]
    ) -> None:
        super().__init__(config, model, labels, extra)
        self.paste: Paste | None = None
        self.change = Captured(self.changed)
        self.scores = DetectionScores(labels.classes)

    def on_train_start(self) -> None:
        """Collects the objects to paste: in every process those of all training scans."""
        if (how := self.config.train.paste) is None:
            return
        run, classes = self.trainer.datamodule, self.labels.classes
        scans = _batches(run.loaded.get("train", run.sets["train"]), 16, self.device)
        database = collect_objects(
            scans, len(classes), min_points=how.min_points, per_class=how.per_class
        )
        options = {key: getattr(how, key) for key in ("fill", "mode", "points", "boxes")}
        try:
            self.paste = Paste(database, [how.counts.get(c, 0) for c in classes], **options)
        except ValueError as error:
            raise WrongUseError(f"train.paste: {error}") from None

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        names = ("points", "num_points", "boxes", "labels", "num_boxes", "weight", "id")
        step = torch.full((), self.global_step, device=batch["id"].device)
        points, *rest = self.change(*(batch[name] for name in names), step)
        terms = self.model.loss(points, *rest[:5])
        options = {"on_step": False, "on_epoch": True, "sync_dist": True, "batch_size": len(points)}
        for name, term in terms.items():
            self.log(name, term.detach(), on_step=True, on_epoch=False)
        if self.paste is not None:
            self.log("refused", rest[5].float(), on_step=True, on_epoch=False)
        self.log("train_loss", terms["loss"].detach(), **options)
        return terms["loss"]

    def changed(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Arguments of the loss: pasted, nudged and changed as wholes, in this order; where objects
        are pasted, behind them how many had no room. given: columns of the batch, then the step."""
        *scans, ids, step = given
        key = ids, step, self.config.train.seed
        if self.paste is not None:
            scans = [*self.paste(*(*scans, *key)), self.paste.refused]
        if (nudge := self.config.train.nudge) is not None:
            scans[0], scans[2] = nudge(scans[0], scans[2], scans[4], *key)
        if (whole := self.config.train.whole) is not None:
            scans[0], scans[2] = whole(scans[0], scans[2], *key)
        return tuple(scans)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.scores.update(batch, self.model(batch["points"], batch["num_points"]))

    def on_validation_epoch_end(self) -> None:
        scores = self.scores.compute()
        for name in ("map", "map_strict", *(k for k in scores if k.count("/") == 2)):
            if name in scores and not math.isnan(scores[name]):
                self.log(name, scores[name])  # equal on all processes: compute() has gathered
        self.scores.reset()


@torch.inference_mode()
def evaluate_detector(
    model: Callable[[Tensor, Tensor], Sequence[Tensor]],
    data: Generated,
    classes: Sequence[str],
    batch_size: int = 8,
    device: torch.device | str = "cpu",
) -> Detected:
    """The scores of a detector, or of its program, over all scenes in their order."""
    scores = DetectionScores(classes)
    for number, batch in enumerate(_batches(data, batch_size, torch.device(device))):
        first = number * batch_size
        batch["id"] = torch.arange(first, first + len(batch["id"]))  # files may number as they like
        scores.update(batch, model(batch["points"], batch["num_points"]))
    return scores.detected()


def _batches(data: Generated | InMemory, size: int, device: torch.device) -> Iterator[Batch]:
    for first in range(0, len(data), size):
        yield data.batch(range(first, min(first + size, len(data))), device)
