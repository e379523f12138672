# SPDX-License-Identifier: Apache-2.0
"""A point-wise net that learns in seconds, in place of a real one."""

from unittest import mock

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from torchvox.train import runs


class TinyClassifier(nn.Module):
    def __init__(self, num_classes, *, in_channels=3, width=32, dropout=0.0):
        super().__init__()
        # No bias before batch norm: its gradient is rounding noise, which AdamW blows up.
        self.first, self.norm = nn.Linear(in_channels, width, bias=False), nn.BatchNorm1d(width)
        self.drop, self.last = nn.Dropout(dropout), nn.Linear(width, num_classes)

    def forward(self, points):
        rows = self.norm(self.first(points).flatten(0, 1)).relu()
        return self.last(self.drop(rows.view(*points.shape[:2], -1).amax(1)))


class TinySegmenter(TinyClassifier):
    def forward(self, points):
        rows = self.norm(self.first(points).flatten(0, 1)).relu()
        local = rows.view(*points.shape[:2], -1)
        return self.last(self.drop(local + local.amax(1, keepdim=True)))


class TinyPartSegmenter(TinySegmenter):
    def __init__(self, num_classes, num_categories, **args):
        super().__init__(num_classes, **args)
        self.of_category = nn.Embedding(num_categories, num_classes)

    def forward(self, points, category):
        return super().forward(points) + self.of_category(category)[:, None]


def content(task="classify", **train):
    """A configuration that runs in a second."""
    kinds = {"classify": "TinyClassifier", "parts": "TinyPartSegmenter", "segment": "TinySegmenter"}
    data = {"kind": "shapes", "points": 32, "train_size": 64, "val_size": 33}
    if task == "segment":
        data = {"kind": "rooms", "points": 64, "train_size": 32, "val_size": 9}
    return {
        "task": task,
        "model": {"kind": f"tiny:{kinds[task]}"},
        "data": data,
        "train": {
            "epochs": 3,
            "batch_size": 16,
            "lr": 0.01,
            "precision": "32-true",
            "device": "cpu",
            "log_every": 1,
            **train,
        },
    }


class Before(Callback):
    """Calls a function before a step."""

    def __init__(self, step, call):
        self.step, self.call = step, call

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == self.step:
            self.call()


def fit_with(callback, config, folder, **options):
    with mock.patch.object(runs, "screen", lambda: [callback]):
        return runs.fit(config, folder, **options)


def fit_until(step, config, folder):
    """A run that is interrupted before a step, as by a signal."""

    def stop():
        raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit_with(Before(step, stop), config, folder)


def equal_weights(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
