# SPDX-License-Identifier: Apache-2.0
"""PointNet++, the one-scale classifier on 1024 points: forward and training step, beside the same
layers with the same weights as the network is commonly written."""

import copy
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchvox
from benchmarks import suite
from benchmarks.clouds import Clouds
from benchmarks.suite import Case, Outputs, Problem, Target, close
from torchvox import models

CLASSES = 40
LEVELS = ((512, 0.2, 32), (128, 0.4, 64))  # samples, radius and neighbors; a third takes all points
SCORE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}  # log-probabilities
LOSS_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.03}


def plain_scores(model: nn.Module, xyz: Tensor) -> Tensor:
    """Log-probabilities by the layers of a torchvox.models.PointNet2Classifier around balls from
    expanded distances and a sort of all indices, as yanx27 has them, and advanced indexing. It
    samples with torchvox. As nothing waits for the host, it can be captured."""

    def activated(x: Tensor, norm: nn.Module) -> Tensor:
        statistics = (None, None) if model.training else (norm.running_mean, norm.running_var)
        options = {"training": model.training, "eps": norm.eps}
        return F.relu(F.batch_norm(x, *statistics, norm.weight, norm.bias, **options))

    features: Tensor | None = None
    for level, size in zip(model.levels, (*LEVELS, None), strict=True):
        if size is None:
            centers, grouped = xyz[:, :1], torch.cat([xyz, features], -1)[:, None]
        else:
            centers, idx = balls(xyz, *size)
            grouped = rows_at(xyz, idx) - centers[:, :, None]
            if features is not None:
                grouped = torch.cat([grouped, rows_at(features, idx)], -1)
        x = grouped.permute(0, 3, 2, 1)  # [B, C, k, S]
        for layer in level.mlps[0].layers:
            weight = layer.linear.weight[:, :, None, None]
            x = activated(F.conv2d(x, weight, layer.linear.bias), layer.norm)
        xyz, features = centers, x.amax(2).transpose(1, 2)
    x = features.squeeze(1)
    for layer in model.head.layers:
        x = activated(layer.linear(x), layer.norm)
    return F.log_softmax(model.head.scores(x).float(), -1)


def rows_at(values: Tensor, idx: Tensor) -> Tensor:
    batch = torch.arange(values.size(0), device=values.device)
    return values[batch.view(-1, *[1] * (idx.dim() - 1)), idx]


def balls(xyz: Tensor, count: int, radius: float, k: int) -> tuple[Tensor, Tensor]:
    """Centers [B, S, 3] and the first k points of the ball of each, [B, S, k]."""
    n = xyz.size(1)
    centers = rows_at(xyz, torchvox.furthest_point_sample(xyz, count).idx.long())
    with torch.autocast(xyz.device.type, enabled=False):
        d2 = -2 * torch.matmul(centers, xyz.transpose(1, 2))
        d2 += centers.square().sum(-1)[:, :, None]
        d2 += xyz.square().sum(-1)[:, None]
    idx = torch.arange(n, device=xyz.device).expand_as(d2).masked_fill(d2 > radius**2, n)
    idx = idx.sort(-1)[0][..., :k]
    return centers, torch.where(idx == n, idx[..., :1], idx)


def seeded_model() -> models.PointNet2Classifier:
    """The sizes of yanx27's classifier; weights by seed, no dropout, so that every implementation
    computes the same; statistics of a batch in the batch norms, so that scores depend on the
    points."""
    torch.manual_seed(0)
    model = models.PointNet2Classifier(CLASSES, preset="yanx27", start="first", dropout=[0.0, 0.0])
    with torch.no_grad():
        model.train()(Clouds(None, "cpu").cube(2, 1024).points * 2 - 1)
    return model.eval()


class Forward(Problem):
    """points [B, 1024, 3] -> log-probabilities [B, 40], in evaluation. model: float32, batch norms
    not fused; run() has it as a user would."""

    plain = "baseline ops, sort"

    @cached_property
    def fast(self) -> nn.Module:
        dtype = None if self["dtype"] == torch.float32 else self["dtype"]
        return models.fuse_batch_norms(self["model"], dtype)

    @torch.no_grad()
    def run(self) -> Outputs:
        return (self.fast(self["points"]),)

    @torch.no_grad()
    def in_torch(self) -> Outputs:
        with torch.autocast(self.device.type, self["dtype"], self["dtype"] != torch.float32):
            return (plain_scores(self["model"], self["points"]),)

    @torch.no_grad()
    def compare(self, result: Outputs) -> str:
        """With the float32 model, batch norms apart."""
        return close(result, (self["model"](self["points"]),), SCORE_TOLERANCE[self["dtype"]])

    check = compare


class Training(Problem):
    """Forward, cross entropy, backward and Adam of one batch. The rate is 0: every call does the
    same work on the same weights, and gives the same loss."""

    plain = "baseline ops, sort"

    @cached_property
    def run(self) -> Callable[[], Outputs]:
        model = copy.deepcopy(self["model"]).train()
        return self.step(model, model)

    @cached_property
    def in_torch(self) -> Callable[[], Outputs]:
        model = copy.deepcopy(self["model"]).train()
        return self.step(model, partial(plain_scores, model))

    def loss(self, scores_of: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Tensor:
        points = self["points"]
        labels = torch.arange(len(points), device=points.device) % CLASSES
        with torch.autocast(points.device.type, dtype, dtype != torch.float32):
            scores = scores_of(points)
        return F.nll_loss(scores.float(), labels)

    def step(self, model: nn.Module, scores_of: Callable[[Tensor], Tensor]):
        on_gpu = self.device.type == "cuda"
        rates = {"lr": 0.0, "capturable": on_gpu, "fused": on_gpu}
        optimizer = torch.optim.Adam(model.parameters(), **rates)

        def call() -> Outputs:
            optimizer.zero_grad(set_to_none=True)
            loss = self.loss(scores_of, self["dtype"])
            loss.backward()
            optimizer.step()
            return (loss.detach(),)

        return call

    @torch.no_grad()
    def compare(self, result: Outputs) -> str:
        """With the loss of the float32 model."""
        exact = self.loss(self["model"].train(), torch.float32)
        return close(result, (exact,), LOSS_TOLERANCE[self["dtype"]])

    check = compare


def row(kind: type[Problem], clouds: int, dtype: torch.dtype, *targets: Target) -> Case:
    def inputs(data: Clouds) -> dict[str, Any]:
        points, source = data.cube(clouds, 1024)
        return {"points": points * 2 - 1, "model": seeded_model(), "source": source}

    words = "forward" if kind is Forward else "training step"
    op = "PointNet2Classifier" + " training" * (kind is Training)
    name = f"PointNet++ SSG {clouds} x 1024 {suite.name_of(dtype)}, {words}"
    return Case(name, op, inputs, {"dtype": dtype}, targets, kind)


def cases(device: str) -> list[Case]:
    if device == "cpu":
        return [row(Forward, 4, torch.float32), row(Training, 4, torch.float32)]
    ahead = partial(suite.faster, "graph_us", "baseline")
    training = row(Training, 32, torch.bfloat16, ahead(2.0))
    return [row(Forward, 32, torch.bfloat16, suite.graph(600), ahead(3.0)), training]
