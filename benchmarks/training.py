# SPDX-License-Identifier: Apache-2.0
"""python -m benchmarks.training: a training step of PointPillars at KITTI's size, and its stages,
beside the same detector in plain torch: dynamic pillars, targets and losses batched.

Scans are generated and stay on the device; a step changes them (in one row it pastes objects, too),
finds the loss, goes back, clips and updates. Prints a table in Markdown and writes JSON with
--json. First both are compared: the canvas, the targets and the terms of the loss.
"""

import argparse
import copy
import json
import math
import os
import time
import warnings
from pathlib import Path
from typing import Any, Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.machine import facts
from benchmarks.suite import WrongResult
from torchvox.augment import Paste, WholeScan, collect_objects
from torchvox.data import World
from torchvox.graphs import Captured
from torchvox.models.detection import detector
from torchvox.ops import anchor_targets

SCANS = ("points", "num_points", "boxes", "labels", "num_boxes", "weight")
STAGES = ("augmentation", "pillars", "convolutions", "targets and losses", "backward", "update")
CONFIG = "pointpillars_world"
# As the plain detector: no limits to points and pillars, batch norm over points alone.
DYNAMIC = {"max_points": -1, "max_pillars": [-1, -1], "encoder.pad_semantics": "none"}
WITH_PASTE, PASTED = "torchvox, objects pasted", 15  # candidates a scan of each class
KITTI_SCANS = 3712 * 80
Batch = dict[str, Tensor]


class Plain(nn.Module):
    """The detector by torch alone: its backbone and neck are torch's layers, its head three
    convolutions."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        layer = model.encoder.pfn_layers[0]
        self.linear = copy.deepcopy(layer.linear)
        self.norm = nn.BatchNorm1d(self.linear.out_features, eps=layer.norm.eps, momentum=0.01)
        self.backbone, self.neck = copy.deepcopy(model.backbone), copy.deepcopy(model.neck)
        head = copy.deepcopy(model.head)
        self.heads = nn.ModuleList([head.cls, head.box, head.dir])
        config = model._config
        limits = torch.tensor(config.point_cloud_range)
        self.register_buffer("low", limits[:3])
        self.register_buffer("high", limits[3:])
        self.register_buffer("size", torch.tensor(config.pillar_size))
        cells = ((limits[3:] - limits[:3]) / self.size).round().int().tolist()
        self.nx, self.ny = cells[0], cells[1]
        self.register_buffer("anchors", model.decoder.tasks[0].boxes.flatten(0, 2))
        self.loss_config, self.offset = config.loss, config.head.direction.offset
        per_class = [len(anchor.rotations) for anchor in config.head.anchors]
        ends = [sum(per_class[: i + 1]) for i in range(len(per_class))]
        self.columns = [range(end - n, end) for end, n in zip(ends, per_class, strict=True)]
        self.to(self.linear.weight.device)

    def canvas(self, points: Tensor, num_points: Tensor) -> Tensor:
        batch, capacity = points.shape[:2]
        rows = points.flatten(0, 1)
        number = torch.arange(capacity, device=rows.device)
        there = (number < num_points[:, None]).flatten()
        inside = there & ((rows[:, :3] >= self.low) & (rows[:, :3] < self.high)).all(1)
        sample = torch.arange(batch, device=rows.device).repeat_interleave(capacity)[inside]
        rows = rows[inside]
        cell = ((rows[:, :3] - self.low) / self.size).floor()
        key = (sample * self.ny + cell[:, 1].long()) * self.nx + cell[:, 0].long()
        pillar, of, count = key.unique(return_inverse=True, return_counts=True)
        total = rows.new_zeros(len(pillar), 3).index_add_(0, of, rows[:, :3])
        mean = (total / count[:, None])[of]
        center = (cell + 0.5) * self.size + self.low
        x = torch.cat([rows, rows[:, :3] - mean, rows[:, :3] - center], 1)
        x = F.relu(self.norm(self.linear(x)))
        best = x.new_zeros(len(pillar), x.size(1)).scatter_reduce(
            0, of[:, None].expand_as(x), x, "amax", include_self=False
        )
        canvas = x.new_zeros(batch * self.ny * self.nx, x.size(1)).index_put((pillar,), best)
        return canvas.view(batch, self.ny, self.nx, -1).permute(0, 3, 1, 2)

    def features(self, canvas: Tensor) -> Tensor:
        return self.neck(self.backbone(canvas))

    def head(self, x: Tensor) -> list[list[Tensor]]:
        return [[conv(x)] for conv in self.heads]

    def targets(self, boxes: Tensor, labels: Tensor) -> Tensor:
        """[B, M]: the box of every anchor, -1 background, -2 ignored."""
        mine = self.anchors.view(-1, sum(map(len, self.columns)), 7)
        parts = []
        for label, columns in enumerate(self.columns):
            some = mine[:, columns.start : columns.stop]
            overlap = flat_overlap(boxes, some.flatten(0, 1))  # [B, G, m]
            overlap = overlap * (labels == label)[..., None]
            best, box = overlap.max(1)
            most = overlap.amax(2, keepdim=True)
            forced = ((overlap == most) & (most > 0)).any(1)
            config = self.loss_config
            found = torch.where(best < config.unmatched[label], -1, -2)
            found = torch.where((best >= config.matched[label]) | forced, box, found)
            parts.append(found.view(len(boxes), -1, len(columns)))
        return torch.cat(parts, 2).flatten(1)

    def teach(self, maps: list[list[Tensor]], boxes: Tensor, labels: Tensor) -> dict[str, Tensor]:
        batch = len(boxes)
        assigned = self.targets(boxes, labels)
        positive, used = assigned >= 0, assigned > -2
        at = assigned.clamp(min=0)
        count = positive.sum(1, keepdim=True).clamp(min=1)
        scores, codes, bins = (
            m[0].float().permute(0, 2, 3, 1).reshape(batch, assigned.size(1), -1) for m in maps
        )
        label = labels.long().gather(1, at)
        wanted = F.one_hot(label.clamp(min=0), scores.size(2)) * positive[..., None]
        p = scores.sigmoid()
        weight = torch.where(wanted > 0, 0.25 * (1 - p) ** 2, 0.75 * p**2) * used[..., None]
        entropy = F.binary_cross_entropy_with_logits(scores, wanted.float(), reduction="none")
        classes = (weight * entropy / count[..., None]).sum() / batch

        rows, anchors = boxes.gather(1, at[..., None].expand(-1, -1, 7)), self.anchors
        diagonal = anchors[:, 3:5].square().sum(1, keepdim=True).sqrt()
        target = torch.cat(
            [
                (rows[..., :2] - anchors[:, :2]) / diagonal,
                (rows[..., 2:3] - anchors[:, 2:3]) / anchors[:, 5:6],
                (rows[..., 3:6].clamp(min=1e-5) / anchors[:, 3:6]).log(),
                rows[..., 6:] - anchors[:, 6:],
            ],
            2,
        )
        difference = torch.cat(
            [codes[..., :6] - target[..., :6], (codes[..., 6:] - target[..., 6:]).sin()], 2
        )
        smooth = F.smooth_l1_loss(
            difference, torch.zeros_like(difference), beta=1 / 9, reduction="none"
        )
        share = positive / count
        turned = rows[..., 6] - self.offset
        half = (turned - (turned / (2 * math.pi)).floor() * 2 * math.pi) / math.pi
        direction = F.cross_entropy(
            bins.flatten(0, 1), half.floor().clamp(0, 1).long().flatten(), reduction="none"
        )
        return {
            "classes": classes,
            "boxes": 2.0 * (smooth.sum(2) * share).sum() / batch,
            "directions": 0.2 * (direction.view(batch, -1) * share).sum() / batch,
        }


def flat_overlap(boxes: Tensor, anchors: Tensor) -> Tensor:
    """[B, G, M]: overlap from above of boxes [B, G, 7] and anchors [M, 7], each along the axis that
    is nearer."""

    def corners(b: Tensor) -> tuple[Tensor, Tensor]:
        yaw = b[..., 6] - (b[..., 6] / math.pi + 0.5).floor() * math.pi
        size = torch.where((yaw.abs() >= math.pi / 4)[..., None], b[..., [4, 3]], b[..., 3:5])
        return b[..., :2] - size / 2, b[..., :2] + size / 2

    (low, high), (first, last) = corners(boxes), corners(anchors)
    size = torch.minimum(high[:, :, None], last) - torch.maximum(low[:, :, None], first)
    both = size.clamp(min=0).prod(3)
    area, other = (high - low).prod(2), (last - first).prod(1)
    return both / (area[..., None] + other - both).clamp(min=1e-6)


def plain_change(points: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Flips, turns and scales as `WholeScan` does, with torch's own random numbers."""
    batch = len(points)
    points, boxes = points.clone(), boxes.clone()
    sign = torch.randint(0, 2, (batch, 1), device=points.device) * 2.0 - 1.0
    for rows in (points, boxes):
        rows[..., 1] *= sign
    boxes[..., 6] *= sign
    angle = (torch.rand(batch, 1, device=points.device) - 0.5) * (math.pi / 2)
    factor = torch.rand(batch, 1, 1, device=points.device) * 0.1 + 0.95
    c, s = angle.cos(), angle.sin()
    for rows in (points, boxes):
        x, y = rows[..., 0], rows[..., 1]
        rows[..., 0], rows[..., 1] = c * x - s * y, s * x + c * y
        rows[..., :3] *= factor
    boxes[..., 3:6] *= factor
    boxes[..., 6] += angle
    return points, boxes


class Clock:
    """Marks between stages: events on a GPU, the time on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.marks: list[Any] = []

    def mark(self) -> None:
        if self.cuda:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())

    def stages_ms(self) -> list[float]:
        pairs = zip(self.marks, self.marks[1:], strict=False)
        if self.cuda:
            return [a.elapsed_time(b) for a, b in pairs]
        return [1e3 * (b - a) for a, b in pairs]


class Trainer:
    """A model with its optimizer; step() is one of training."""

    def __init__(
        self, model: nn.Module, precision: torch.dtype, compiled: bool, paste: Paste | None = None
    ) -> None:
        self.paste, self.changed = paste, Captured(self.change)
        self.model, self.plain = model.train(), isinstance(model, Plain)
        self.device = next(model.parameters()).device
        self.precision = precision
        fused = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
        self.whole, self.count = WholeScan(), torch.zeros((), dtype=torch.int64).to(self.device)
        self.teach: Callable[..., dict[str, Tensor]] = model.teach
        if compiled:
            for part in (model.backbone, model.neck, *([] if self.plain else [model.head])):
                part.compile()
            if self.plain:
                self.teach = torch.compile(model.teach)
                model.head = torch.compile(model.head)

    def change(self, *given: Tensor) -> tuple[Tensor, ...]:
        *scans, ids, count = given
        if self.paste is not None:
            scans = [*self.paste(*scans, ids, count, 0)]
        scans[0], scans[2] = self.whole(scans[0], scans[2], ids, count, 0)
        return tuple(scans)

    def step(self, batch: Batch, clock: Clock) -> Tensor:
        clock.mark()
        scans = tuple(batch[name] for name in SCANS)
        if self.plain:
            points, num_points, boxes, labels, *_ = scans
            (points, boxes), rest = plain_change(points, boxes), []
        else:
            changed = self.changed(*scans, batch["id"], self.count)
            points, num_points, boxes, labels, *rest = changed
            self.count += 1
        clock.mark()
        with torch.autocast(self.device.type, self.precision, self.precision != torch.float32):
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
        return loss.detach()


def compare(model: nn.Module, plain: Plain, batch: Batch) -> None:
    """Raises WrongResult unless both see the same canvas, targets and losses, in float32."""
    given = batch["points"], batch["num_points"]
    mine, other = model.canvas(*given), plain.canvas(*given)
    if not torch.allclose(mine, other, atol=1e-4, rtol=1e-3):
        raise WrongResult(f"canvases differ by {float((mine - other).abs().max()):.3g}")
    config, boxes, labels = model._config.loss, batch["boxes"], batch["labels"]
    anchors = model.decoder.tasks[0].boxes
    of = [label for label, columns in enumerate(plain.columns) for _ in columns]
    limits = [[levels[label] for label in of] for levels in (config.matched, config.unmatched)]
    assigned, _ = anchor_targets(boxes, labels, None, None, anchors, of, *limits)
    apart = int((assigned.flatten(1) != plain.targets(boxes, labels)).sum())
    if apart > 1e-5 * assigned.numel():  # of rounding at the thresholds
        raise WrongResult(f"{apart} anchors differ")
    maps = model.head(model.features(mine))
    terms, others = model.teach(maps, boxes, labels, None, None), plain.teach(maps, boxes, labels)
    for name, term in terms.items():
        if not torch.allclose(term, others[name], rtol=1e-3, atol=1e-4):
            raise WrongResult(f"{name} is {float(term):.6g} and {float(others[name]):.6g}")


def measure(trainer: Trainer, batches: list[Batch], steps: int) -> dict[str, float]:
    """Milliseconds of a step and of its stages, and on a GPU the share of the time it is idle."""
    cuda = trainer.device.type == "cuda"
    wait = torch.cuda.synchronize if cuda else lambda: None
    for i in range(4 if cuda else 1):
        loss = trainer.step(batches[i % len(batches)], Clock(trainer.device))
    wait()
    clocks = [Clock(trainer.device) for _ in range(steps)]
    begin = time.perf_counter()
    for i, clock in enumerate(clocks):
        loss = trainer.step(batches[i % len(batches)], clock)
    wait()
    found = {"step": 1e3 * (time.perf_counter() - begin) / steps}
    stages = torch.tensor([clock.stages_ms() for clock in clocks]).median(0).values.tolist()
    found |= dict(zip(STAGES, stages, strict=True))
    if not math.isfinite(float(loss)):
        raise WrongResult(f"the loss is {float(loss)}")
    if cuda:
        found["syncs"] = syncs(lambda: trainer.step(batches[0], Clock(trainer.device)))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for i in range(5):
                trainer.step(batches[i % len(batches)], Clock(trainer.device))
            wait()
        kernels = (e for e in profile.key_averages() if not e.is_user_annotation)
        busy = sum(event.self_device_time_total for event in kernels)
        found["idle"] = max(0.0, 1 - busy / 5e3 / found["step"])
    return found


def syncs(call: Callable[[], Any]) -> int:
    """How often the host waits for the GPU in a call."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        call()
        torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(one.message) for one in told)


def build(device: torch.device, overrides: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    return detector(CONFIG, [f"model.args.{k}={v}" for k, v in overrides.items()]).to(device)


def run(device: torch.device, size: int, steps: int, small: bool = False) -> dict[str, Any]:
    """Rows by name. small: a net and scans of a test's size."""
    # As torchvox train sets them. The first call of cuBLAS decides whether it is deterministic.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.utils.deterministic.fill_uninitialized_memory = False
    area = {"point_cloud_range": [0.0, -20.48, -3.0, 20.48, 20.48, 1.0]} if small else {}
    world = World(view="front", sensor="vlp16" if small else "hdl64")
    count = size if small else 4 * size
    whole = world.batch(range(count), device)
    whole["weight"] = (whole["labels"] >= 0).float()
    starts = range(0, count, size)
    batches = [{k: v[i : i + size].clone() for k, v in whole.items()} for i in starts]
    model = build(device, DYNAMIC | area).train()
    with torch.no_grad():
        compare(model, Plain(model).train(), batches[0])
    half = torch.bfloat16 if device.type == "cuda" else torch.float32
    paste = Paste(collect_objects(batches, 3), [PASTED] * 3)
    rows = {}
    for name, options, plain, compiled, exact in (
        ("torchvox, deterministic", {}, False, False, True),
        ("torchvox", {}, False, False, False),
        (WITH_PASTE, {}, False, False, False),
        ("torchvox, convolutions compiled", {}, False, True, False),
        ("torchvox, dynamic pillars", DYNAMIC, False, False, False),
        ("plain torch", DYNAMIC, True, False, False),
        ("plain torch, compiled", DYNAMIC, True, True, False),
    ):
        if small and compiled:
            continue
        torch.use_deterministic_algorithms(exact)
        torch.backends.cudnn.benchmark = not exact
        model = build(device, {**options, **area})
        trainer = Trainer(
            Plain(model) if plain else model, half, compiled, paste if name == WITH_PASTE else None
        )
        rows[name] = measure(trainer, batches, steps)
        print(name, json.dumps(rows[name]), flush=True)  # whatever becomes of the next
        torch.use_deterministic_algorithms(False)
        torch._dynamo.reset()
    return rows


def report(rows: dict[str, Any], size: int) -> str:
    columns = ["step", *STAGES]
    lines = [f"| ms, {size} scans | {' | '.join(columns)} | scans/s | idle | syncs |"]
    lines.append("|---" * (len(columns) + 4) + "|")
    for name, row in rows.items():
        numbers = " | ".join(f"{row[column]:.2f}" for column in columns)
        idle = f"{100 * row['idle']:.1f} %" if "idle" in row else ""
        rate, waits = 1e3 * size / row["step"], row.get("syncs", "")
        lines.append(f"| {name} | {numbers} | {rate:.0f} | {idle} | {waits} |")
    mine, plain = rows["torchvox"]["step"], rows["plain torch"]["step"]
    minutes = KITTI_SCANS / size * mine / 6e4
    lines.append(f"\n{plain / mine:.2f} times plain torch; KITTI's 80 epochs {minutes:.1f} min")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--small", action="store_true", help="a net and scans of a test's size")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = run(torch.device(given.device), given.batch, given.steps, given.small)
    print(report(rows, given.batch))
    if given.json:
        content = {"machine": facts(given.device, []), "batch": given.batch, "rows": rows}
        given.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
