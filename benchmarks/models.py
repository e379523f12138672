# SPDX-License-Identifier: Apache-2.0
"""PointNet++, the one-scale classifier on 1024 points: forward and training step, beside the same
network of baseline ops and torch layers (baseline_pointnet2.py) with the same weights."""

import copy
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Callable, ContextManager, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import baseline_fps
from benchmarks.baseline_pointnet2 import Classifier
from benchmarks.clouds import Clouds
from benchmarks.suite import (
    Case,
    CaseSpec,
    Facts,
    Implementation,
    Outputs,
    Target,
    WrongResult,
    bytes_of,
    name_of,
)
from torchvox import models

CLASSES = 40
SCORE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}  # log-probabilities
LOSS_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.03}


def network() -> models.PointNet2Classifier:
    """The sizes of yanx27's classifier; weights by seed, no dropout, so that every implementation
    computes the same; statistics of a batch in the batch norms, so that scores depend on the
    points."""
    torch.manual_seed(0)
    model = models.PointNet2Classifier(CLASSES, preset="yanx27", start="first", dropout=[0.0, 0.0])
    with torch.no_grad():
        model.train()(Clouds(None, "cpu").cube(2, 1024).points * 2 - 1)
    return model.eval()


def autocast(device: torch.device, dtype: torch.dtype) -> ContextManager:
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)


@dataclass(frozen=True)
class ForwardCase(Case):
    """points [B, 1024, 3] -> log-probabilities [B, 40], in evaluation."""

    points: Tensor
    source: str
    dtype: torch.dtype
    model: nn.Module  # float32, batch norms not fused
    fast: nn.Module  # as a user would run it
    op: str = "PointNet2Classifier"

    def facts(self) -> Facts:
        clouds, points = self.points.shape[:2]
        return {"clouds": clouds, "points": points, "dtype": name_of(self.dtype)}

    @torch.no_grad()
    def torchvox(self) -> Outputs:
        return (self.fast(self.points),)

    def moved_bytes(self, outputs: Outputs) -> tuple[int, int]:
        return bytes_of(self.points, self.fast), bytes_of(outputs)

    @torch.no_grad()
    def check(self, found: Sequence[Tensor]) -> str:
        """Against the float32 model, batch norms apart."""
        exact = self.model(self.points)
        worst = float((found[0].float() - exact).abs().max())
        if not worst <= SCORE_TOLERANCE[self.dtype] * float(exact.abs().max()):
            raise WrongResult(f"scores are off by {worst:.3g} of {float(exact.abs().max()):.3g}")
        return f"scores within {worst:.2g} of float32"

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        def call(net: nn.Module) -> Outputs:
            with torch.no_grad(), autocast(self.points.device, self.dtype):
                return (net(self.points),)

        for by, net in baseline_nets(self.model, self.points):
            yield Implementation(f"baseline ops, {by}", partial(call, net.eval()), self.check, True)


@dataclass(frozen=True)
class TrainingCase(Case):
    """Forward, cross entropy, backward and Adam of one batch. The rate is 0: every call does the
    same work on the same weights, and gives the same loss."""

    points: Tensor
    source: str
    dtype: torch.dtype
    model: nn.Module
    step: Callable[[], Outputs]
    op: str = "PointNet2Classifier training"

    def facts(self) -> Facts:
        return ForwardCase.facts(self)

    def torchvox(self) -> Outputs:
        return self.step()

    def moved_bytes(self, outputs: Outputs) -> tuple[int, int]:
        weights = bytes_of(self.model)
        return 4 * weights + bytes_of(self.points), 4 * weights  # gradient and two moments

    def check(self, found: Sequence[Tensor]) -> str:
        with torch.no_grad():
            exact = float(loss_of(self.model, self.points, torch.float32))
        off = abs(float(found[0]) - exact)
        if not off <= LOSS_TOLERANCE[self.dtype] * exact:
            raise WrongResult(f"the loss is off by {off:.3g} of {exact:.3g}")
        return f"loss within {off:.2g} of float32"

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        for by, net in baseline_nets(self.model, self.points):
            call = training_step(net, self.points, self.dtype)
            yield Implementation(f"baseline ops, {by}", call, self.check, True)


def loss_of(net: nn.Module, points: Tensor, dtype: torch.dtype) -> Tensor:
    labels = torch.arange(points.size(0), device=points.device) % CLASSES
    with autocast(points.device, dtype):
        scores = net.train()(points)
    return F.nll_loss(scores.float(), labels)


def training_step(net: nn.Module, points: Tensor, dtype: torch.dtype) -> Callable[[], Outputs]:
    gpu = points.is_cuda
    optimizer = torch.optim.Adam(net.parameters(), lr=0.0, capturable=gpu, fused=gpu)

    def call() -> Outputs:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(net, points, dtype)
        loss.backward()
        optimizer.step()
        return (loss.detach(),)

    return call


def baseline_nets(model: nn.Module, points: Tensor) -> Iterator[tuple[str, nn.Module]]:
    if points.is_cuda:
        baseline_fps.prepare()
    for by in ("sort", "topk"):
        yield by, Classifier(CLASSES).take(model).select(by).to(points.device)


def spec(what: str, clouds: int, dtype: torch.dtype, targets: Sequence[Target] = ()) -> CaseSpec:
    def build(made: Clouds) -> Case:
        points, source = made.cube(clouds, 1024)
        points = points * 2 - 1
        model = network().to(points.device)
        if what == "forward":
            fast = models.fuse_batch_norms(model, None if dtype == torch.float32 else dtype)
            return ForwardCase(points, source, dtype, model, fast)
        step = training_step(copy.deepcopy(model), points, dtype)
        return TrainingCase(points, source, dtype, model, step)

    name = f"PointNet++ SSG {clouds} x 1024 {name_of(dtype)}, {what}"
    return CaseSpec(name, build, tuple(targets))


def gpu_cases() -> list[CaseSpec]:
    forward = [Target("graph_us", 600.0), Target("graph_us", faster_than="baseline", factor=3.0)]
    training = [Target("graph_us", faster_than="baseline", factor=2.0)]
    half = torch.bfloat16
    return [spec("forward", 32, half, forward), spec("training step", 32, half, training)]


def cpu_cases() -> list[CaseSpec]:
    return [spec(what, 4, torch.float32) for what in ("forward", "training step")]
