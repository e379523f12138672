# SPDX-License-Identifier: Apache-2.0
"""A training step of PointPillars at KITTI's size, beside the same detector in plain torch.

Scans are generated and stay on the device; a step changes them (in one case it pastes objects,
too), finds the loss, goes back, clips and updates. The cases take minutes: they run when a word of
--only is in their name, as `--only "train PointPillars"`.
"""

import math
import os
import time
from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.case import (
    Case,
    Facts,
    Implementation,
    Outputs,
    Problem,
    WrongResult,
    bytes_of,
    name_of,
)
from benchmarks.clouds import Clouds
from benchmarks.plain_detector import Batch, PlainDetector, compare, plain_change
from benchmarks.timing import synchronize
from torchvox.augment import Paste, WholeScan, collect_objects
from torchvox.data import World
from torchvox.graphs import Captured
from torchvox.models.detection import detector

SCANS = ("points", "num_points", "boxes", "labels", "num_boxes", "weight")
STAGES = ("augmentation", "pillars", "convolutions", "targets and losses", "backward", "update")
CONFIG = "pointpillars_world"
# As the plain detector: no limits to points and pillars, batch norm over points alone.
DYNAMIC = {"max_points": -1, "max_pillars": [-1, -1], "encoder.pad_semantics": "none"}
PASTED = 15  # candidates per scan and class
STEPS = 5  # whose stages are timed


class Clock:
    """Marks between stages: events on a GPU, the time on a CPU."""

    def __init__(self, on_gpu: bool) -> None:
        self.on_gpu = on_gpu
        self.marks: list[Any] = []

    def mark(self) -> None:
        if self.on_gpu:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())

    def stages_ms(self) -> list[float]:
        pairs = zip(self.marks, self.marks[1:], strict=False)
        return [a.elapsed_time(b) if self.on_gpu else 1e3 * (b - a) for a, b in pairs]


class Trainer:
    """A model with its optimizer; step() is one of training, on one batch after the other."""

    def __init__(
        self, model: nn.Module, batches: list[Batch], compiled: bool, exact: bool, pasted: bool
    ) -> None:
        self.model, self.plain = model.train(), isinstance(model, PlainDetector)
        self.batches, self.exact, self.steps = batches, exact, 0
        self.device = next(model.parameters()).device
        self.on_gpu = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=self.on_gpu)
        self.paste = Paste(collect_objects(batches, 3), [PASTED] * 3) if pasted else None
        self.changed, self.whole = Captured(self.change), WholeScan()
        self.count = torch.zeros((), dtype=torch.int64, device=self.device)
        self.teach = model.teach
        if compiled:
            torch._dynamo.reset()
            for part in (model.backbone, model.neck, *([] if self.plain else [model.head])):
                part.compile()
            if self.plain:
                self.teach, model.head = torch.compile(model.teach), torch.compile(model.head)

    def change(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        *scans, ids, count = arguments
        if self.paste is not None:
            scans = [*self.paste(*scans, ids, count, 0)]
        scans[0], scans[2] = self.whole(scans[0], scans[2], ids, count, 0)
        return tuple(scans)

    def step(self, clock: Clock | None = None) -> Outputs:
        """The loss. Determinism is as the case asks, within the step alone."""
        torch.backends.cudnn.benchmark = not self.exact
        torch.use_deterministic_algorithms(self.exact)
        try:
            return self._step(clock or Clock(self.on_gpu))
        finally:
            torch.use_deterministic_algorithms(False)

    def _step(self, clock: Clock) -> Outputs:
        clock.mark()
        batch = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        scans = tuple(batch[name] for name in SCANS)
        if self.plain:
            points, num_points, boxes, labels, *_ = scans
            (points, boxes), rest = plain_change(points, boxes), []
        else:
            points, num_points, boxes, labels, *rest = self.changed(*scans, batch["id"], self.count)
            self.count += 1
        clock.mark()
        half = torch.bfloat16 if self.on_gpu else torch.float32
        with torch.autocast(self.device.type, half, self.on_gpu):
            canvas = self.model.canvas(points, num_points)
            clock.mark()
            maps = self.model.head(self.model.features(canvas))
        clock.mark()
        loss = torch.stack(list(self.teach(maps, boxes, labels, *rest).values())).sum()
        clock.mark()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clock.mark()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 10.0, foreach=True)
        self.optimizer.step()
        clock.mark()
        return (loss.detach(),)

    def stages(self) -> dict[str, float]:
        """Milliseconds of each stage, medians of some steps."""
        clocks = [Clock(self.on_gpu) for _ in range(STEPS)]
        for clock in clocks:
            self.step(clock)
        synchronize()
        medians = torch.tensor([clock.stages_ms() for clock in clocks]).median(0).values
        return {name: round(ms, 2) for name, ms in zip(STAGES, medians.tolist(), strict=True)}


class TrainingStep(Problem):
    """overrides: of the configuration. The other implementations do the case with dynamic
    pillars."""

    capturable = False

    def trainer(self, model: nn.Module, compiled: bool = False) -> Trainer:
        compiled = compiled or self["compiled"]
        return Trainer(model, self["batches"], compiled, self["exact"], self["pasted"])

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        overrides = [f"model.args.{name}={value}" for name, value in self["overrides"].items()]
        return detector(CONFIG, overrides).to(self.device)

    @cached_property
    def own(self) -> Trainer:
        return self.trainer(self.model())

    def run(self) -> Outputs:
        return self.own.step()

    def facts(self, outputs: Outputs) -> Facts:
        scans = len(self["batches"][0]["points"])
        return {"scans": scans, "stages_ms": self.own.stages()}

    def moved_bytes(self, outputs: Outputs) -> tuple[int, int]:
        """Weights, their gradients and two moments, read and written."""
        weights = bytes_of(self.own.model)
        return 4 * weights + bytes_of(self["batches"][0]), 4 * weights

    def check(self, outputs: Outputs) -> str:
        if not math.isfinite(float(outputs[0])):
            raise WrongResult(f"the loss is {float(outputs[0])}")
        return f"a finite loss, {name_of(outputs[0].dtype)}"

    def others(self, outputs: Outputs) -> Iterator[Implementation]:
        compilations = (("plain torch", False), ("plain torch, compiled", True))
        for name, compiled in compilations if self["beside_plain"] else ():
            trainer = self.trainer(PlainDetector(self.model()), compiled)
            check = partial(self.check_plain, trainer)
            yield Implementation(name, trainer.step, check)

    def check_plain(self, trainer: Trainer, outputs: Outputs) -> str:
        model = self.model().train()
        said = compare(model, PlainDetector(model).train(), self["batches"][0])
        self.check(outputs)
        return f"{said}; ms of its stages: {trainer.stages()}"


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

    options = {"overrides": {}, "exact": False, "compiled": False, "pasted": False, **more}
    options.setdefault("beside_plain", False)
    if small:
        area = {"point_cloud_range": [0.0, -20.48, -3.0, 20.48, 20.48, 1.0]}
        options["overrides"] = {**options["overrides"], **area}
    name = f"train PointPillars{' small' * small}, {scans} scans{words}"
    op = "PointPillars training"
    return Case(name, op, inputs, options, kind=TrainingStep, on_demand=True)


def cases(device: str) -> list[Case]:
    if device == "cpu":
        return [
            row("", 2, small=True),
            row(", dynamic pillars", 2, small=True, overrides=DYNAMIC, beside_plain=True),
        ]
    return [
        row(", deterministic", 16, exact=True),
        row("", 16),
        row(", objects pasted", 16, pasted=True),
        row(", convolutions compiled", 16, compiled=True),
        row(", dynamic pillars", 16, overrides=DYNAMIC, beside_plain=True),
    ]
