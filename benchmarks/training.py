# SPDX-License-Identifier: Apache-2.0
"""A training step of PointPillars at KITTI's size.

Scans are generated and stay on the device; a step changes them (in one case it pastes objects,
too), finds the loss, goes back, clips and updates. The cases take minutes: they run with
`--only "train PointPillars"`.
"""

import math
import os
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.clouds import Clouds
from benchmarks.suite import Case, Facts, Outputs, Problem, WrongResult, bytes_of
from benchmarks.timing import synchronize
from torchvox.augment import Paste, WholeScan, collect_objects
from torchvox.data import World
from torchvox.graphs import Captured
from torchvox.models.detection import detector

SCANS = ("points", "num_points", "boxes", "labels", "num_boxes", "weight")
STAGES = ("augmentation", "pillars", "convolutions", "targets and losses", "backward", "update")
CONFIG = "pointpillars_world"
# No limits to points and pillars, batch norm over points alone.
DYNAMIC = {"max_points": -1, "max_pillars": [-1, -1], "encoder.pad_semantics": "none"}
PASTED = 15  # candidates per scan and class
STEPS = 5  # whose stages are timed


class TrainingStep(Problem):
    """One step after the other, on one batch after the other. overrides: of the configuration."""

    capturable = False

    @cached_property
    def model(self) -> nn.Module:
        torch.manual_seed(0)
        overrides = [f"model.args.{name}={value}" for name, value in self["overrides"].items()]
        model = detector(CONFIG, overrides).to(self.device).train()
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

    @cached_property
    def count(self) -> Tensor:
        return torch.zeros((), dtype=torch.int64, device=self.device)

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
        changed = self.change(*(batch[name] for name in SCANS), batch["id"], self.count)
        points, num_points, boxes, labels, *rest = changed
        self.count += 1
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

    steps = 0

    def facts(self) -> Facts:
        """With the milliseconds of each stage, medians of some steps; each is waited for."""
        times: list[list[float]] = [[] for _ in range(STEPS)]

        for marks in times:

            def mark(marks: list[float] = marks) -> None:
                synchronize()
                marks.append(1e3 * time.perf_counter())

            self.step(mark)
        medians = torch.tensor(times).double().diff(dim=1).median(0).values.tolist()
        stages = {name: round(ms, 2) for name, ms in zip(STAGES, medians, strict=True)}
        return {"scans": len(self["batches"][0]["points"]), "stages_ms": stages}

    def moved_bytes(self) -> tuple[int, int]:
        """Weights, their gradients and two moments, read and written."""
        weights = bytes_of(self.model)
        return 4 * weights + bytes_of(self["batches"][0]), 4 * weights

    def check(self, outputs: Outputs) -> str:
        if not math.isfinite(float(outputs[0])):
            raise WrongResult(f"the loss is {float(outputs[0])}")
        return "a finite loss"


def row(words: str, scans: int, small: bool = False, **more: Any) -> Case:
    """small: a net and scans of a test's size."""

    def inputs(clouds: Clouds) -> dict[str, Any]:
        # As torchvox train sets them. The first call of cuBLAS decides whether it is deterministic.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.utils.deterministic.fill_uninitialized_memory = False
        world = World(view="front", sensor="vlp16" if small else "hdl64")
        count = scans if small else 4 * scans
        whole = world.batch(range(count), torch.device(clouds.device))
        whole["weight"] = (whole["labels"] >= 0).float()
        starts = range(0, count, scans)
        batches = [{k: v[i : i + scans].clone() for k, v in whole.items()} for i in starts]
        return {"batches": batches, "source": "generated world"}

    area = {"point_cloud_range": [0.0, -20.48, -3.0, 20.48, 20.48, 1.0]} if small else {}
    options = {"exact": False, "compiled": False, "pasted": False, **more}
    options["overrides"] = {**more.get("overrides", {}), **area}
    name = f"train PointPillars{' small' * small}, {scans} scans{words}"
    op = "PointPillars training"
    return Case(name, op, inputs, options, kind=TrainingStep, on_demand=True)


def cases(device: str) -> list[Case]:
    if device == "cpu":
        return [row("", 2, small=True), row(", objects pasted", 2, small=True, pasted=True)]
    return [
        row("", 16),
        row(", deterministic", 16, exact=True),
        row(", objects pasted", 16, pasted=True),
        row(", convolutions compiled", 16, compiled=True),
        row(", dynamic pillars", 16, overrides=DYNAMIC),
    ]
