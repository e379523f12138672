# SPDX-License-Identifier: Apache-2.0
"""Small networks over points, clouds, and weights whose outputs depend on the input."""

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from torchvox import models
from torchvox.nn import SparseBatchNorm

OBJECT = [
    {"points": 32, "radii": [0.4], "neighbors": [8], "channels": [[8, 16]]},
    {"points": 8, "radii": [0.5, 0.9], "neighbors": [4, 8], "channels": [[16, 16], [8, 24]]},
    {"points": None, "radii": [], "neighbors": [], "channels": [[32, 48]]},
]
ROOM = [
    {"points": 24, "radii": [0.3, 0.5], "neighbors": [4, 8], "channels": [[8, 8], [8, 16]]},
    {"points": 6, "radii": [1.0], "neighbors": [8], "channels": [[16, 32]]},
]
CLASSES = 5
PRESETS = ("minkunet18", "spunet")


def classifier(**options):
    return made(models.PointNet2Classifier, levels=OBJECT, head=[32, 16], **options)


def part_segmenter(**options):
    options = {"propagation": [[24], [24], [16]], "num_categories": 3, **options}
    return made(models.PointNet2PartSegmenter, levels=OBJECT, head=[16], **options)


def segmenter(**options):
    options = {"in_channels": 5, "propagation": [[24], [16]], **options}
    return made(models.PointNet2Segmenter, levels=ROOM, head=[16], **options)


def minkunet(**options):
    grid = {"voxel_size": [0.2] * 3, "point_cloud_range": [-1.0, -1.0, -1.0, 1.0, 1.0, 0.9]}
    sizes = {"channels": [8, 8, 16], "blocks": [1, 2], "up_channels": [16, 8], "up_blocks": [2, 1]}
    return made(models.MinkUNet, **grid, **sizes, **options)


SMALL = {"classifier": classifier, "part segmenter": part_segmenter, "segmenter": segmenter}
ALL = {**SMALL, "minkunet": minkunet}


def made(kind, **options):
    torch.manual_seed(0)
    model = kind(CLASSES, **options)
    return calibrated(model, *inputs(model, 100))


def inputs(model, count, clouds=3, seed=0):
    """points [B, count, C] in a cube about the origin, and a category if the model takes one."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(clouds, count, model.in_channels, generator=generator) * 2 - 1
    if hasattr(model, "num_categories"):
        return points, torch.arange(clouds) % model.num_categories
    return (points,)


@torch.no_grad()
def calibrated(model, *some, run=None):
    """The model in evaluation, its batch norms with the statistics of a batch and with weights of
    their own: without, its outputs hardly depend on the points. run: in place of its forward."""
    generator = torch.Generator().manual_seed(1)
    kinds = (nn.modules.batchnorm._BatchNorm, SparseBatchNorm)
    norms = [m for m in model.modules() if isinstance(m, kinds)]
    for norm in norms:
        norm.momentum = 1.0
        norm.weight += 0.3 * torch.randn(norm.weight.shape, generator=generator)
        norm.bias += 0.2 * torch.randn(norm.bias.shape, generator=generator)
    model.train()
    (run or model)(*some)
    for norm in norms:
        norm.momentum = 0.1
        # A channel that hardly varies over so small a batch would magnify rounding.
        norm.running_var.clamp_(min=0.2 * float(norm.running_var.mean()))
    return model.eval()


class Calls(TorchDispatchMode):
    """The torchvox ops of a block, each with its tensors."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "torchvox":
            self.seen.append((function._schema.name.split("::")[1], args))
        return function(*args, **(kwargs or {}))

    def count(self, name):
        return sum(called == name for called, _ in self.seen)
