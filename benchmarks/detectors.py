# SPDX-License-Identifier: Apache-2.0
"""Detectors, scan on the device to boxes: the whole as one CUDA graph, with percentiles, and
its stages. Weights are seeded; scores are shifted so that a known number of candidates passes.

And a training step of PointPillars at KITTI's size. Scans are generated and stay on the device; a
step changes them (in one case it pastes objects, too), finds the loss, goes back, clips and
updates. These cases take minutes: they run with `--only "train PointPillars"`.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from benchmarks import suite
from benchmarks.clouds import Clouds
from benchmarks.suite import Case, Outputs, Target, bytes_of, expect, graph, moved, name_of
from benchmarks.timing import synchronize
from torchvox import models
from torchvox.augment import Paste, WholeScan, collect_objects
from torchvox.data import World
from torchvox.graphs import Captured
from torchvox.models.detection import detector

CANDIDATES = 600  # above the threshold, about what a trained network has
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2}  # of the size of an output
STAGES = ("scan to boxes", "voxelize + encode + scatter", "backbone + neck", "head", "decode + NMS")
SWEEPS, SWEEP_POINTS = 3, 260_000


def seeded_model(
    config: str, overrides: Sequence[str], scan: tuple[Tensor, Tensor], measure_norms: bool = False
) -> nn.Module:
    """A detector in float32 whose scores depend on the points.

    measure_norms: batch norms take their statistics from the scan. Otherwise features of sparse
    networks vanish, and all scores tie.
    """
    torch.manual_seed(0)
    model = detector(config, overrides).to(scan[0].device).eval()
    with torch.no_grad():
        if measure_norms:
            for module in model.modules():
                if hasattr(module, "running_var"):
                    module.momentum = 1.0
            model.train().maps(*scan)
            model.eval()
        for name, tensor in model.state_dict().items():
            if name.endswith(("cls.weight", "cls.out.weight", "hm.out.weight")):
                tensor.normal_(0.0, 0.05)
            elif measure_norms and name.endswith("out.weight"):
                tensor.mul_(0.1)  # or boxes are as large as the exponential of random numbers
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
        result = stages_of(model)[self.stage](*inputs)
        if self["stage"] == "head":
            return tuple(m for kind in result for m in kind)
        return (result,) if isinstance(result, Tensor) else tuple(result)

    def moved_bytes(self) -> tuple[int, int]:
        net = self["fast"]
        if self.stage == 0:
            return bytes_of(self["inputs"], [net]), bytes_of(self.outputs)
        parts = ([net.encoder], [net.backbone, net.neck], [net.head], [])
        return bytes_of(self["inputs"], parts[self.stage - 1]), bytes_of(self.outputs)

    def check(self, outputs: Outputs) -> str:
        """Against the model as built, in float32; boxes against the CPU's on the same maps."""
        if self["stage"] == "scan to boxes":
            count = int(outputs[3][0])
            expect(count > 0 and bool(outputs[0].isfinite().all()), f"{count} boxes")
            return f"{count} boxes, {int(outputs[4][0])} candidates past the cap"
        if self["stage"] == "decode + NMS":
            exact = self.through(moved(self["fast"], "cpu"), moved(self["inputs"], "cpu"))
            return f"{self.same(outputs, exact)}, {int(outputs[3][0])} boxes"
        single = tree_map(lambda t: t.float() if t.is_floating_point() else t, self["inputs"])
        exact = self.through(self["model"], single)
        worst = 0.0
        for mine, other in zip(outputs, exact, strict=True):
            apart = (mine.float() - other).square().mean().sqrt()
            worst = max(worst, float(apart / other.square().mean().sqrt().clamp(min=1e-9)))
        expect(worst <= TOLERANCE[self["dtype"]], f"off by {worst:.3g} of its size")
        return f"within {worst:.2g} of the size of float32"


def ten_sweeps(data: Clouds) -> tuple[Tensor, str]:
    """As many points as ten sweeps of 32 beams: x, y, z, intensity up to 255, age."""
    points, source = data.sweep(SWEEPS)
    points = points[:SWEEP_POINTS]
    age = torch.arange(len(points), device=points.device) % 10 * 0.05
    scaled = points[:, 3:] * 255
    return torch.cat([points[:, :3], scaled, age[:, None]], 1), source


NETWORKS: dict[str, tuple[str, Callable[[Clouds], tuple[Tensor, str]]]] = {
    "PointPillars KITTI": ("pointpillars_kitti", Clouds.kitti),
    "PointPillars KITTI, threshold 0": ("pointpillars_kitti", Clouds.kitti),
    "CenterPoint pillars, ten sweeps": ("centerpoint_pillars_nuscenes", ten_sweeps),
    "PointPillars multihead, ten sweeps": ("pointpillars_nuscenes_multihead", ten_sweeps),
    "CenterPoint-voxel, ten sweeps": ("centerpoint_voxel_nuscenes", ten_sweeps),
}
KITTI, LOW, CENTERS, TASKS, VOXELS = NETWORKS


def row(title: str, stage: str, dtype: torch.dtype, *targets: Target) -> Case:
    config, cloud = NETWORKS[title]
    kind = {CENTERS: "CenterPointPillars", VOXELS: "CenterPoint-voxel"}.get(title, "PointPillars")
    overrides = ["model.args.detections.score=0.0"] if title == LOW else []

    def inputs(data: Clouds) -> dict[str, Any]:
        points, source = cloud(data)
        count = torch.tensor([len(points)], dtype=torch.int32, device=points.device)
        scan = (points[None].contiguous(), count)
        model = seeded_model(config, overrides, scan)
        half = None if dtype == torch.float32 else dtype
        fast = models.merge_heads(models.fuse_batch_norms(model, half))
        before: tuple[Any, ...] = scan
        with torch.no_grad():
            for call in stages_of(fast)[1 : STAGES.index(stage)]:
                before = (call(*before),)
        nets = {"model": model, "fast": fast}
        return {"inputs": before, **nets, "count": len(points), "source": source}

    name, op = f"{title} {name_of(dtype)}, {stage}", f"{kind}, {stage}"
    return Case(name, op, inputs, {"stage": stage, "dtype": dtype}, targets, Stage)


def stages_of(model: nn.Module) -> tuple[Callable, ...]:
    return model, model.canvas, model.features, model.head, model.decoder


SCANS = ("points", "num_points", "boxes", "labels", "num_boxes", "weight")
STEP_STAGES = ("augmentation", "pillars", "convolutions", "losses", "backward", "update")
PASTED = 15  # candidates per scan and class
STEPS = 5  # whose stages are timed


class TrainingStep(suite.Problem):
    """One step after the other, on one batch after the other."""

    capturable, steps, config, stages = False, 0, "pointpillars_world", STEP_STAGES

    @cached_property
    def model(self) -> nn.Module:
        torch.manual_seed(0)
        model = detector(self.config, self["overrides"]).to(self.device).train()
        torch._dynamo.reset()
        for part in (model.backbone, model.neck, model.head) if self["compiled"] else ():
            part.compile()
        return model

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        on_gpu = self.device.type == "cuda"
        return torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=on_gpu)

    @cached_property
    def change(self) -> Captured:
        whole = WholeScan()
        paste = Paste(collect_objects(self["batches"], 3), [PASTED] * 3) if self["pasted"] else None

        def change(*arguments: Tensor) -> tuple[Tensor, ...]:
            *scans, ids, count = arguments
            if paste is not None:
                scans = [*paste(*scans, ids, count, 0)]
            scans[0], scans[2] = whole(scans[0], scans[2], ids, count, 0)
            return tuple(scans)

        return Captured(change)

    def run(self) -> Outputs:
        """The loss. Determinism is as the case asks, within the step alone."""
        torch.backends.cudnn.benchmark = not self["exact"]
        torch.use_deterministic_algorithms(self["exact"])
        try:
            return self.step()
        finally:
            torch.use_deterministic_algorithms(False)

    def step(self, mark: Callable[[], None] = lambda: None) -> Outputs:
        """mark: called between the stages."""
        mark()
        batch = self["batches"][self.steps % len(self["batches"])]
        self.steps += 1
        changed = self.change(*(batch[name] for name in SCANS), batch["id"], self["count"])
        points, num_points, boxes, labels, *rest = changed
        self["count"].add_(1)
        mark()
        half = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        with torch.autocast(self.device.type, half, half != torch.float32):
            canvas = self.model.canvas(points, num_points)
            mark()
            maps = self.model.head(self.model.features(canvas))
        mark()
        loss = torch.stack(list(self.model.teach(maps, boxes, labels, *rest).values())).sum()
        mark()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        mark()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 10.0, foreach=True)
        self.optimizer.step()
        mark()
        return (loss.detach(),)

    def facts(self) -> suite.Facts:
        return {"scans": len(self["batches"][0]["points"]), "stages_ms": self.stages_ms()}

    def stages_ms(self) -> dict[str, float]:
        """The milliseconds of each stage, medians of some steps; each is waited for."""
        times: list[float] = []

        def mark() -> None:
            synchronize()
            times.append(1e3 * time.perf_counter())

        for _ in range(STEPS):
            self.step(mark)
        marks = torch.tensor(times, dtype=torch.float64).view(STEPS, -1)
        medians = marks.diff(dim=1).median(0).values.tolist()
        return {name: round(ms, 2) for name, ms in zip(self.stages, medians, strict=True)}

    def check(self, outputs: Outputs) -> str:
        expect(math.isfinite(outputs[0]), f"the loss is {float(outputs[0])}")
        return "a finite loss"


def training_row(
    words: str, scans: int, small: bool = False, net: str = "PointPillars", reach: float = 70.0,
    kind: type[TrainingStep] = TrainingStep, **more: Any,
) -> Case:  # fmt: skip
    """small: a net and scans of a test's size. reach: of the boxes, in meters."""

    def inputs(clouds: Clouds) -> dict[str, Any]:
        # As torchvox train sets them. The first call of cuBLAS decides whether it is deterministic.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.utils.deterministic.fill_uninitialized_memory = False
        world = World(view="front", sensor="vlp16" if small else "hdl64", reach=reach)
        count = scans if small else 4 * scans
        whole = world.batch(range(count), torch.device(clouds.device))
        whole["weight"] = (whole["labels"] >= 0).float()
        starts = range(0, count, scans)
        batches = [{k: v[i : i + scans].clone() for k, v in whole.items()} for i in starts]
        return {"batches": batches, "count": torch.tensor(0), "source": "generated world"}

    area = "model.args.point_cloud_range=[0.0, -12.8, -3.0, 25.6, 12.8, 1.0]"
    options = {"exact": False, "compiled": False, "pasted": False, **more}
    options["overrides"] = [area] if small else []
    name = f"train {net}{' small' * small}, {scans} scans{words}"
    return Case(name, f"{net} training", inputs, options, kind=kind, on_demand=True)


def cases(device: str) -> list[Case]:
    if device == "cpu":
        whole = row(KITTI, STAGES[0], torch.float32, Target("best_us", 1.5e6))
        stages = (row(KITTI, stage, torch.float32) for stage in STAGES[1:])
        return [whole, *stages, training_row("", 2, small=True)]
    half = torch.float16
    limits = {STAGES[0]: [graph(700)], STAGES[1]: [graph(60)], STAGES[4]: [graph(100)]}
    return [
        *(row(KITTI, stage, half, *limits.get(stage, ())) for stage in STAGES),
        row(LOW, STAGES[0], half),
        row(LOW, STAGES[4], half, graph(200)),
        row(CENTERS, STAGES[0], half, graph(1500)),
        *(row(CENTERS, stage, half) for stage in STAGES[1:]),
        row(TASKS, STAGES[0], half),
        row(VOXELS, STAGES[0], half, graph(3000)),
        training_row("", 16),
        training_row(", deterministic", 16, exact=True),
        training_row(", objects pasted", 16, pasted=True),
        training_row(", convolutions compiled", 16, compiled=True),
    ]
