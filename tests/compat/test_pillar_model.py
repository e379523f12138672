# SPDX-License-Identifier: Apache-2.0
"""A whole model that imports mmcv, unedited: training steps over the adapters and over loops."""

import contextlib
import importlib
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

import torchvox.compat
from tests.compat import loops
from tests.helpers import cube
from torchvox.reference import rotated_iou


class Voxelization(nn.Module):
    def __init__(self, size, bounds, most_points, most):
        super().__init__()
        self.plan, self.most = (size, bounds, most_points), most

    def forward(self, points):
        most = self.most[0 if self.training else 1]
        rows, cells, _, of_point = loops.voxels(points.cpu().numpy(), *self.plan, most)
        if self.plan[2] < 0:
            return torch.tensor(of_point, dtype=torch.int32).to(points.device)
        voxels = torch.zeros(len(rows), self.plan[2], points.shape[1])
        for voxel, row in zip(voxels, rows, strict=True):
            voxel[: len(row)] = points[row]
        found = voxels, torch.tensor(cells).int(), torch.tensor([len(row) for row in rows])
        return [one.to(points.device) for one in found]


class DynamicScatter(nn.Module):
    def __init__(self, size, bounds, mean):
        super().__init__()
        self.reduce = "mean" if mean else "amax"

    def forward(self, features, coors):
        cells, rows = coors.unique(dim=0, return_inverse=True)
        index = rows[:, None].expand_as(features)
        out = features.new_zeros(len(cells), features.shape[1])
        return out.scatter_reduce(0, index, features, self.reduce, include_self=False), cells


def nms_rotated(dets, scores, threshold):
    x, y, w, h, angle = dets.detach().cpu().unbind(1)
    boxes = torch.stack([x, y, x, w, h, w, angle], 1)
    kept = loops.greedy(rotated_iou(boxes, boxes), scores, threshold)
    return dets, torch.tensor(kept, device=dets.device)


def nms_bev(boxes, scores, threshold, pre_max_size, post_max_size):
    order = scores.sort(descending=True).indices[:pre_max_size]
    low, high = boxes[order, :2], boxes[order, 2:4]
    dets = torch.cat([(low + high) / 2, high - low, boxes[order, 4:]], 1)
    return order[nms_rotated(dets, scores[order], threshold)[1]][:post_max_size]


def detector(monkeypatch, slow=False):
    """The model's text over the adapters, or over the loops of this file."""
    monkeypatch.delitem(sys.modules, "tests.compat.pillar_detector", raising=False)
    if slow:
        monkeypatch.setitem(sys.modules, "mmcv", ModuleType("mmcv"))
        monkeypatch.setitem(sys.modules, "mmcv.ops", sys.modules[__name__])
    with contextlib.nullcontext() if slow else torchvox.compat.installed("mmcv", force=True):
        return importlib.import_module("tests.compat.pillar_detector").Detector


def trained(make, dynamic, device):
    torch.manual_seed(0)
    model = make(dynamic).to(device)
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
    return losses, [one.tolist() for one in model.eval().detect(clouds)]


@pytest.mark.parametrize("dynamic", (False, True))
def test_training_and_detection(monkeypatch, device, dynamic):
    ours = trained(detector(monkeypatch), dynamic, device)
    theirs = trained(detector(monkeypatch, slow=True), dynamic, device)
    assert np.allclose(ours[0], theirs[0], rtol=1e-5) and ours[0][2] < ours[0][0]
    assert ours[1] == theirs[1] and len(ours[1][1]) == 20
