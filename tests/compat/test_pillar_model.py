# SPDX-License-Identifier: Apache-2.0
"""A whole model that imports mmcv, unedited: it trains and detects over the adapters. What each of
them returns, test_values.py proves."""

import importlib
import sys

import pytest
import torch

import torchvox.compat
from tests.compat import loops
from tests.helpers import cube
from torchvox.reference import rotated_iou


@pytest.mark.parametrize("dynamic", (False, True))
def test_training_and_detection(monkeypatch, device, dynamic):
    monkeypatch.delitem(sys.modules, "tests.compat.pillar_detector", raising=False)
    with torchvox.compat.installed("mmcv", force=True):
        module = importlib.import_module("tests.compat.pillar_detector")
    torch.manual_seed(0)
    model = module.Detector(dynamic).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    clouds = [(cube(n, 4, seed=n)[0] * 9 - 0.5).to(device) for n in (150, 90)]
    for cloud in clouds:
        cloud[:, 2] = cloud[:, 2] / 5 - 0.5
    losses = []
    for _ in range(3):
        loss = (model(clouds) - 0.5).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses == sorted(losses, reverse=True)
    assert all(parameter.grad.any() for parameter in model.parameters())
    kept, most, boxes, scores = model.eval().detect(clouds)
    x, y, w, h, angle = boxes.cpu().unbind(1)
    boxes = torch.stack([x, y, x, w, h, w, angle], 1)
    assert kept.tolist() == loops.greedy(rotated_iou(boxes, boxes), scores, 0.2)
    assert len(most) == 20
