# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a trained model over a whole data set."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from torchvox.data.generated import Generated
from torchvox.train.checkpoint import Checkpoint
from torchvox.train.lightning_module import Batch, predict
from torchvox.train.metrics import ConfusionOfSamples
from torchvox.train.tasks import TASKS


def evaluate(trained: Checkpoint, data: Generated, batch_size: int = 32) -> Tensor:
    """The confusion matrix [C, C] int64 over all samples, rows the truth.

    The model's own device does the work. metrics.scores turns the matrix into numbers.
    """
    confusion = ConfusionOfSamples(len(trained.labels.classes))
    confusion.to(next(trained.model.parameters()).device)
    for batch, predicted in predictions(trained, data, range(len(data)), batch_size):
        confusion.update(batch["id"], predicted, batch[TASKS[trained.config.task].target])
    return confusion.compute().cpu()


@torch.inference_mode()
def predictions(
    trained: Checkpoint, data: Generated, samples: range, batch_size: int
) -> Iterator[tuple[Batch, Tensor]]:
    """Batches of the samples, each with the predicted classes."""
    device = next(trained.model.parameters()).device
    for first in range(0, len(samples), batch_size):
        batch = data.batch(samples[first : first + batch_size], device)
        yield batch, predict(trained.model, trained.config, trained.labels, batch)
