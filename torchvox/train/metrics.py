# SPDX-License-Identifier: Apache-2.0
"""One confusion matrix over a whole data set, every sample counted once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat


class ConfusionOfSamples(Metric):
    """Accuracy and mean intersection over union from one confusion matrix, keyed by sample.

    Samplers of several processes repeat samples to even out their shares; here a sample with a
    known id is dropped, so the result is that of one process. Works for whole clouds (one label
    each) and for points.

    update(ids [B], predicted [B, ..], target [B, ..]), targets -1 being ignored; compute() gives
    the matrix [C, C] int64, rows the truth. scores() turns a matrix into numbers.
    """

    full_state_update = False

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.add_state("ids", default=[], dist_reduce_fx="cat")
        self.add_state("counts", default=[], dist_reduce_fx="cat")

    def update(self, ids: Tensor, predicted: Tensor, target: Tensor) -> None:
        batch, cells = len(ids), self.num_classes**2  # and one more for what is ignored
        target = target.reshape(batch, -1)
        cell = target * self.num_classes + predicted.reshape(batch, -1)
        cell = torch.where(target < 0, cells, cell)
        row = torch.arange(batch, device=cell.device)[:, None] * (cells + 1)
        counts = torch.bincount((cell + row).flatten(), minlength=batch * (cells + 1))
        self.ids.append(ids)
        self.counts.append(counts.view(batch, cells + 1)[:, :cells])

    def compute(self) -> Tensor:
        shape = self.num_classes, self.num_classes
        if len(self.ids) == 0:
            return torch.zeros(shape, dtype=torch.int64, device=self.device)
        ids, counts = dim_zero_cat(self.ids), dim_zero_cat(self.counts)
        order = ids.argsort(stable=True)
        ids, counts = ids[order], counts[order]
        first = torch.ones_like(ids, dtype=torch.bool)
        first[1:] = ids[1:] != ids[:-1]
        return counts[first].sum(0).view(shape)


def scores(matrix: Tensor) -> dict[str, float]:
    """accuracy: share of all that is right. mean_accuracy: mean over classes that occur. miou: mean
    intersection over union over classes that occur or are predicted."""
    hit, truth, predicted = _parts(matrix)
    union = truth + predicted - hit
    occurs, either = truth > 0, union > 0
    return {
        "accuracy": float(hit.sum() / truth.sum().clamp(min=1)),
        "mean_accuracy": float((hit[occurs] / truth[occurs]).mean()) if occurs.any() else 0.0,
        "miou": float((hit[either] / union[either]).mean()) if either.any() else 0.0,
    }


def class_scores(matrix: Tensor, names: Sequence[str]) -> list[tuple[str, int, float, float]]:
    """Per class: name, how many there are, share found (recall), intersection over union."""
    hit, truth, predicted = _parts(matrix)
    recall, iou = hit / truth, hit / (truth + predicted - hit)  # NaN where there is none
    return [(name, int(truth[i]), float(recall[i]), float(iou[i])) for i, name in enumerate(names)]


def _parts(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    matrix = matrix.to(torch.float64).cpu()
    return matrix.diagonal(), matrix.sum(1), matrix.sum(0)
