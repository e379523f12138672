# SPDX-License-Identifier: Apache-2.0
"""Pillar detectors, scan on the device to boxes: the whole as one CUDA graph, with percentiles, and
its stages. Weights are seeded; scores are shifted so that a known number of candidates passes."""

import math
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import torch
from torch import Tensor, nn

from benchmarks.clouds import Clouds
from benchmarks.suite import (
    Case,
    CaseSpec,
    Facts,
    Outputs,
    Target,
    WrongResult,
    bytes_of,
    graph_us,
    moved,
    name_of,
)
from torchvox import models

CANDIDATES = 600  # above the threshold, about what a trained network has
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2}  # of the size of an output
STAGES = ("scan to boxes", "voxelize + encode + scatter", "backbone + neck", "head", "decode + NMS")
SWEEPS, SWEEP_POINTS = 3, 260_000


def network(config: str, overrides: Sequence[str], example: tuple[Tensor, Tensor]) -> nn.Module:
    """A detector in float32 whose scores depend on the points."""
    from torchvox.models.detection import detector

    torch.manual_seed(0)
    model = detector(config, overrides).to(example[0].device).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith(("cls.weight", "cls.out.weight", "hm.out.weight")):
                tensor.normal_(0.0, 0.05)
        logits = torch.cat([m.flatten() for m in model.maps(*example)[0]])
        high = float(logits.topk(CANDIDATES).values[-1])
        for name, tensor in model.state_dict().items():
            if name.endswith(("cls.bias", "cls.out.bias", "hm.out.bias")):
                tensor += math.log(0.1 / 0.9) - high
    return model


@dataclass(frozen=True)
class StageCase(Case):
    """One stage of a detector, or all of it, on what the stage before gives."""

    stage: str
    inputs: tuple[Any, ...]
    source: str
    dtype: torch.dtype
    points: int
    model: nn.Module  # float32, as built
    fast: nn.Module  # fused, merged

    @property
    def op(self) -> str:
        return f"{type(self.model).__name__}, {self.stage}"

    @property
    def percentiles(self) -> bool:
        return self.stage == STAGES[0]

    def facts(self) -> Facts:
        return {"points": self.points, "dtype": name_of(self.dtype)}

    def torchvox(self) -> Outputs:
        return self.run(self.fast, self.inputs)

    @torch.no_grad()
    def run(self, model: nn.Module, inputs: tuple[Any, ...]) -> Outputs:
        calls = (model, model.canvas, model.features, model.head, model.decoder)
        found = calls[STAGES.index(self.stage)](*inputs)
        if self.stage == STAGES[3]:
            return tuple(m for kind in found for m in kind)
        return (found,) if isinstance(found, Tensor) else tuple(found)

    def moved_bytes(self, outputs: Outputs) -> tuple[int, int]:
        net = self.fast
        parts = ([net], [net.encoder], [net.backbone, net.neck], [net.head], [])
        return bytes_of(self.inputs, parts[STAGES.index(self.stage)]), bytes_of(outputs)

    def check(self, found: Sequence[Tensor]) -> str:
        """Against the model as built, in float32; boxes against the CPU's on the same maps."""
        if self.stage == STAGES[4]:
            exact = self.run(self.fast.cpu(), moved(self.inputs, "cpu"))
            self.fast.to(found[0].device)
            if not all(torch.equal(a.cpu(), b) for a, b in zip(found, exact, strict=True)):
                raise WrongResult("not the bits of the CPU")
            return f"the bits of the CPU, {int(found[3][0])} boxes"
        if self.stage == STAGES[0]:
            count = int(found[3][0])
            if count == 0 or not torch.isfinite(found[0]).all():
                raise WrongResult(f"{count} boxes")
            return f"{count} boxes, {int(found[4][0])} candidates past the cap"
        exact = self.run(self.model, single(self.inputs))
        worst = 0.0
        for mine, other in zip(found, exact, strict=True):
            apart = (mine.float() - other).square().mean().sqrt()
            worst = max(worst, float(apart / other.square().mean().sqrt().clamp(min=1e-9)))
        if not worst <= TOLERANCE[self.dtype]:
            raise WrongResult(f"off by {worst:.3g} of its size")
        return f"within {worst:.2g} of the size of float32"


def single(values: Any) -> Any:
    """In float32, as the model as built wants it."""
    if isinstance(values, Tensor):
        return values.float() if values.is_floating_point() else values
    return type(values)(single(value) for value in values)


def ten_sweeps(made: Clouds) -> tuple[Tensor, str]:
    """As many points as ten sweeps of 32 beams: x, y, z, intensity up to 255, age."""
    points, source = made.sweep(SWEEPS)
    points = points[:SWEEP_POINTS]
    age = torch.arange(len(points), device=points.device) % 10 * 0.05
    scaled = points[:, 3:] * 255
    return torch.cat([points[:, :3], scaled, age[:, None]], 1), source


def stage_case(
    title: str,
    config: str,
    cloud: Callable[[Clouds], tuple[Tensor, str]],
    stage: str,
    dtype: torch.dtype,
    targets: Sequence[Target] = (),
    overrides: Sequence[str] = (),
) -> CaseSpec:
    def build(made: Clouds) -> StageCase:
        points, source = cloud(made)
        count = torch.tensor([len(points)], dtype=torch.int32, device=points.device)
        scan = (points[None].contiguous(), count)
        model = network(config, overrides, scan)
        half = None if dtype == torch.float32 else dtype
        fast = models.merge_heads(models.fuse_batch_norms(model, half))
        with torch.no_grad():
            inputs = inputs_of(fast, stage, scan)
        return StageCase(stage, inputs, source, dtype, len(points), model, fast)

    return CaseSpec(f"{title} {name_of(dtype)}, {stage}", build, tuple(targets))


def inputs_of(model: nn.Module, stage: str, scan: tuple[Tensor, Tensor]) -> tuple[Any, ...]:
    if stage in STAGES[:2]:
        return scan
    canvas = model.canvas(*scan)
    if stage == STAGES[2]:
        return (canvas,)
    features = model.features(canvas)
    return (features,) if stage == STAGES[3] else (model.head(features),)


KITTI = ("PointPillars KITTI", "pointpillars_kitti", Clouds.kitti)
CENTERS = ("CenterPoint pillars, ten sweeps", "centerpoint_pillars_nuscenes", ten_sweeps)
TASKS = ("PointPillars multihead, ten sweeps", "pointpillars_nuscenes_multihead", ten_sweeps)
LOW = ("PointPillars KITTI, threshold 0", "pointpillars_kitti", Clouds.kitti)
NO_THRESHOLD = ["model.args.detections.score=0.0"]


def gpu_cases() -> list[CaseSpec]:
    half = torch.float16
    limits = {STAGES[0]: graph_us(700), STAGES[1]: graph_us(60)}
    limits[STAGES[4]] = graph_us(100)
    return [
        *(stage_case(*KITTI, stage, half, limits.get(stage, ())) for stage in STAGES),
        stage_case(*LOW, STAGES[0], half, (), NO_THRESHOLD),
        stage_case(*LOW, STAGES[4], half, graph_us(200), NO_THRESHOLD),
        stage_case(*CENTERS, STAGES[0], half, graph_us(1500)),
        *(stage_case(*CENTERS, stage, half) for stage in STAGES[1:]),
        stage_case(*TASKS, STAGES[0], half),
    ]


def cpu_cases() -> list[CaseSpec]:
    whole = stage_case(*KITTI, STAGES[0], torch.float32, [Target("best_us", 1.5e6)])
    return [whole, *(stage_case(*KITTI, stage, torch.float32) for stage in STAGES[1:])]
