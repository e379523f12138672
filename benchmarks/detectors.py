# SPDX-License-Identifier: Apache-2.0
"""Pillar detectors, scan on the device to boxes: the whole as one CUDA graph, with percentiles, and
its stages. Weights are seeded; scores are shifted so that a known number of candidates passes."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks import suite
from benchmarks.clouds import Clouds
from benchmarks.suite import Case, Outputs, Target, WrongResult, bytes_of, graph, moved, name_of
from torchvox import models

CANDIDATES = 600  # above the threshold, about what a trained network has
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2}  # of the size of an output
STAGES = ("scan to boxes", "voxelize + encode + scatter", "backbone + neck", "head", "decode + NMS")
SWEEPS, SWEEP_POINTS = 3, 260_000


def seeded_model(config: str, overrides: Sequence[str], scan: tuple[Tensor, Tensor]) -> nn.Module:
    """A detector in float32 whose scores depend on the points."""
    from torchvox.models.detection import detector

    torch.manual_seed(0)
    model = detector(config, overrides).to(scan[0].device).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith(("cls.weight", "cls.out.weight", "hm.out.weight")):
                tensor.normal_(0.0, 0.05)
        logits = torch.cat([m.flatten() for m in model.maps(*scan)[0]])
        high = float(logits.topk(CANDIDATES).values[-1])
        for name, tensor in model.state_dict().items():
            if name.endswith(("cls.bias", "cls.out.bias", "hm.out.bias")):
                tensor += math.log(0.1 / 0.9) - high
    return model


class Stage(suite.Problem):
    """One stage of a detector, or all of it, on what the stage before gives.

    model: float32, as built; fast: fused, heads merged.
    """

    @property
    def stage(self) -> int:
        return STAGES.index(self["stage"])

    @property
    def percentiles(self) -> bool:
        return self.stage == 0

    def facts(self) -> suite.Facts:
        return {"points": self["count"], "dtype": name_of(self["dtype"])}

    def run(self) -> Outputs:
        return self.through(self["fast"], self["inputs"])

    @torch.no_grad()
    def through(self, model: nn.Module, inputs: tuple[Any, ...]) -> Outputs:
        calls = (model, model.canvas, model.features, model.head, model.decoder)
        result = calls[self.stage](*inputs)
        if self["stage"] == "head":
            return tuple(m for kind in result for m in kind)
        return (result,) if isinstance(result, Tensor) else tuple(result)

    def moved_bytes(self) -> tuple[int, int]:
        net = self["fast"]
        parts = ([net], [net.encoder], [net.backbone, net.neck], [net.head], [])
        return bytes_of(self["inputs"], parts[self.stage]), bytes_of(self.outputs)

    def check(self, outputs: Outputs) -> str:
        """Against the model as built, in float32; boxes against the CPU's on the same maps."""
        if self["stage"] == "scan to boxes":
            count = int(outputs[3][0])
            if count == 0 or not torch.isfinite(outputs[0]).all():
                raise WrongResult(f"{count} boxes")
            return f"{count} boxes, {int(outputs[4][0])} candidates past the cap"
        if self["stage"] == "decode + NMS":
            exact = self.through(moved(self["fast"], "cpu"), moved(self["inputs"], "cpu"))
            if not all(torch.equal(a.cpu(), b) for a, b in zip(outputs, exact, strict=True)):
                raise WrongResult("not the bits of the CPU")
            return f"the bits of the CPU, {int(outputs[3][0])} boxes"
        exact = self.through(self["model"], single(self["inputs"]))
        worst = 0.0
        for mine, other in zip(outputs, exact, strict=True):
            apart = (mine.float() - other).square().mean().sqrt()
            worst = max(worst, float(apart / other.square().mean().sqrt().clamp(min=1e-9)))
        if not worst <= TOLERANCE[self["dtype"]]:
            raise WrongResult(f"off by {worst:.3g} of its size")
        return f"within {worst:.2g} of the size of float32"


def single(values: Any) -> Any:
    """In float32, as the model as built needs it."""
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


class Network(NamedTuple):
    title: str
    kind: str  # its class
    config: str
    cloud: Callable[[Clouds], tuple[Tensor, str]]
    overrides: Sequence[str] = ()


KITTI = Network("PointPillars KITTI", "PointPillars", "pointpillars_kitti", Clouds.kitti)
LOW = KITTI._replace(
    title="PointPillars KITTI, threshold 0", overrides=["model.args.detections.score=0.0"]
)
CENTERS = Network(
    *("CenterPoint pillars, ten sweeps", "CenterPointPillars", "centerpoint_pillars_nuscenes"),
    ten_sweeps,
)
TASKS = Network(
    *("PointPillars multihead, ten sweeps", "PointPillars", "pointpillars_nuscenes_multihead"),
    ten_sweeps,
)


def row(network: Network, stage: str, dtype: torch.dtype, *targets: Target) -> Case:
    def inputs(made: Clouds) -> dict[str, Any]:
        points, source = network.cloud(made)
        count = torch.tensor([len(points)], dtype=torch.int32, device=points.device)
        scan = (points[None].contiguous(), count)
        model = seeded_model(network.config, network.overrides, scan)
        half = None if dtype == torch.float32 else dtype
        fast = models.merge_heads(models.fuse_batch_norms(model, half))
        with torch.no_grad():
            before = inputs_of(fast, stage, scan)
        nets = {"model": model, "fast": fast}
        return {"inputs": before, **nets, "count": len(points), "source": source}

    name, op = f"{network.title} {name_of(dtype)}, {stage}", f"{network.kind}, {stage}"
    return Case(name, op, inputs, {"stage": stage, "dtype": dtype}, targets, Stage)


def inputs_of(model: nn.Module, stage: str, scan: tuple[Tensor, Tensor]) -> tuple[Any, ...]:
    if stage in STAGES[:2]:
        return scan
    canvas = model.canvas(*scan)
    if stage == STAGES[2]:
        return (canvas,)
    features = model.features(canvas)
    return (features,) if stage == STAGES[3] else (model.head(features),)


def cases(device: str) -> list[Case]:
    if device == "cpu":
        whole = row(KITTI, STAGES[0], torch.float32, Target("best_us", 1.5e6))
        return [whole, *(row(KITTI, stage, torch.float32) for stage in STAGES[1:])]
    half = torch.float16
    limits = {STAGES[0]: [graph(700)], STAGES[1]: [graph(60)], STAGES[4]: [graph(100)]}
    return [
        *(row(KITTI, stage, half, *limits.get(stage, ())) for stage in STAGES),
        row(LOW, STAGES[0], half),
        row(LOW, STAGES[4], half, graph(200)),
        row(CENTERS, STAGES[0], half, graph(1500)),
        *(row(CENTERS, stage, half) for stage in STAGES[1:]),
        row(TASKS, STAGES[0], half),
    ]
