# SPDX-License-Identifier: Apache-2.0
"""Rotated boxes, heads to boxes, and targets of heads: cases, and mmcv's boxes on a GPU; on the CPU
it takes seconds per call.

Its bird's-eye ops take x, y, dx, dy, yaw, which are cut out before the call; its points_in_boxes
ops take the bottom of a box for its z.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import torchvox
from benchmarks import suite
from benchmarks.clouds import Clouds, recipe, seeded
from benchmarks.suite import Case, Problem, Target, Way, expect, graph, limit, peer

MAP = (248, 216)  # cells of KITTI's map
OBJECTS, AROUND = 40, 8  # of a trained head: candidates that pass lie about objects
CENTER_CHANNELS = {"offset": 2, "z": 1, "dim": 3, "rot": 2, "vel": 2}
BEV = [0, 1, 3, 4, 6]
# Of an IoU: corners that nearly coincide; of mmcv's iou3d ops, to which 1 cm outside is inside.
TOLERANCE, MARGIN_TOLERANCE = 2e-3, 2e-2
SHARE_KEPT = 0.98  # of boxes, by libraries whose IoU rounds otherwise
SIZES = torch.tensor([[3.9, 1.6, 1.56], [0.8, 0.6, 1.73], [1.76, 0.6, 1.73]])
KITTI = [0.0, -39.68, -3.0, 69.12, 39.68, 1.0]
NUSCENES = [-51.2, -51.2, -5.0, 51.2, 51.2, 3.0]
PER_SCAN = 50  # boxes, pasted ones among them


class Iou(Problem):
    def compare(self, result: Tensor) -> str:
        off = float((result - self.outputs[0]).abs().max())
        most = TOLERANCE if self["mode"] == "bev" else MARGIN_TOLERANCE
        expect(off <= most, f"an IoU is off by {off:.1e}")
        return f"every IoU within {off:.0e}"


class Nms(Problem):
    def compare(self, result: Sequence[Tensor]) -> str:
        """Rows of each sample as another library keeps them, which goes on past `max_out`. Where an
        IoU rounds to the other side of the threshold, one box goes for another."""
        kept = [rows[: self["max_out"]].to(self.outputs[0].device) for rows in result]
        expected = [rows[rows >= 0].long() for rows in self.outputs[0]]
        pairs = list(zip(kept, expected, strict=True))
        if all(torch.equal(theirs, mine) for theirs, mine in pairs):
            return "the same boxes"
        common = sum(int(torch.isin(theirs, mine).sum()) for theirs, mine in pairs)
        share = common / sum(max(len(theirs), len(mine)) for theirs, mine in pairs)
        said = f"{100 * share:.2f} % of the kept boxes are the same"
        expect(share >= SHARE_KEPT, said)
        return said

    def way(self, function: Callable, columns: list[int], name: str) -> Way:
        """Sample by sample. It waits for the GPU."""
        boxes, threshold = self["boxes"][..., columns].contiguous(), self["threshold"]
        samples = list(zip(boxes, self["scores"], strict=True))
        return Way(lambda: [function(*sample, threshold) for sample in samples], name=name)


class Inside(Problem):
    def compare(self, result: Tensor) -> str:
        """Rounding at faces may change one in 1,000."""
        wrong, number = int((result != self.outputs[0]).sum()), result.numel()
        expect(wrong <= number // 1000 + 3, f"{wrong} of {number} differ")
        return f"{wrong} of {number} differ, by rounding at faces"


class AnchorLoss(Problem):
    """Forward and backward."""

    def run(self) -> suite.Outputs:
        call = {k: v for k, v in self.arguments.items() if k != "grad"}
        backward = torch.ops.torchvox._anchor_loss_backward
        return torchvox.anchor_loss(**call), *backward(self["grad"], **call)


@peer("mmcv.ops", "rotated_iou", device="cuda", capturable=True)
def mmcv_iou(ops: Any, problem: Iou) -> Way:
    """box_iou_rotated, in three dimensions boxes_iou3d."""
    a, b = problem["a"], problem["b"]
    if problem["mode"] == "3d":
        return Way(partial(ops.boxes_iou3d, a, b))
    return Way(partial(ops.box_iou_rotated, a[:, BEV].contiguous(), b[:, BEV].contiguous()))


@peer("mmcv.ops", "rotated_nms", device="cuda")
def mmcv_nms(ops: Any, problem: Nms) -> Way:
    return problem.way(lambda *call: ops.nms_rotated(*call)[1], BEV, "mmcv nms_rotated")


@peer("mmcv.ops", "rotated_nms", device="cuda")
def mmcv_nms_3d(ops: Any, problem: Nms) -> Way:
    return problem.way(ops.nms3d, list(range(7)), "mmcv nms3d")


@peer("mmcv.ops", "points_in_boxes", device="cuda", capturable=True)
def mmcv_inside(ops: Any, problem: Inside) -> Way:
    """points_in_boxes_part for the index of a box, points_in_boxes_all for the mask, which it gives
    point by point as int32."""
    calls = {"index": ops.points_in_boxes_part, "mask": ops.points_in_boxes_all}
    mode, boxes = problem["mode"], problem["boxes"].clone()
    limit(mode in calls)
    boxes[..., 2] -= boxes[..., 5] / 2
    call = partial(calls[mode], problem["points"], boxes)
    return Way(call, (lambda result: result.mT.bool()) if mode == "mask" else None)


def candidates(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """boxes [count, 7] and scores [count] as a detector gives them over a KITTI range: nine of ten
    about one of 60 objects, the better the nearer."""
    g, objects = seeded(seed), 60
    place = torch.rand(objects, 7, generator=g) * torch.tensor([69.0, 79, 1, 0, 0, 0, 6.28])
    place[:, 3:6] = SIZES[torch.randint(0, 3, (objects,), generator=g)]
    near = place[torch.randint(0, objects, (count,), generator=g)]
    jitter = torch.randn(count, 7, generator=g)
    near += jitter * torch.tensor([0.5, 0.5, 0.1, 0.1, 0.05, 0.05, 0.1])
    anywhere = torch.rand(count, generator=g) < 0.1
    far = torch.rand(count, 2, generator=g) * torch.tensor([69.0, 79])
    near[:, :2] = torch.where(anywhere[:, None], far, near[:, :2])
    scores = torch.exp(-jitter[:, :2].square().sum(1)) * torch.rand(count, generator=g)
    return near, scores


def iou(rows: int, mode: str = "bev") -> Case:
    def inputs(clouds: Clouds) -> dict[str, Any]:
        a, b = (candidates(clouds.size(rows), seed)[0] for seed in (0, 1))
        return {"a": a, "b": b, "source": "candidates"}

    name = f"rotated_iou {'3d ' * (mode == '3d')}{rows} x {rows}"
    return Case(name, "rotated_iou", inputs, {"mode": mode}, (), Iou)


def nms(name: str, samples: int, boxes: int, threshold: float, most: int, *targets: Target):
    def inputs(clouds: Clouds) -> dict[str, Any]:
        count = clouds.size(boxes)
        parts = zip(*(candidates(count, seed) for seed in range(samples)), strict=True)
        stacked, scores = (torch.stack(part) for part in parts)
        return {"boxes": stacked, "scores": scores, "source": "candidates"}

    options = {"threshold": threshold, "max_out": most}
    return Case(f"rotated_nms {name}", "rotated_nms", inputs, options, targets, Nms)


@recipe
def among_points(clouds: Clouds, boxes: int, most: int = 0) -> dict[str, Any]:
    """Boxes among the points of a sweep, of which at most so many are taken; 0: all."""
    points, source = clouds.sweep()
    if most:
        points = points[:: max(1, len(points) // most)][:most]
    near = candidates(boxes)[0] - torch.tensor([0.0, 40.0, 1.5, 0, 0, 0, 0])
    points = points[None, :, :3].contiguous()
    return {"points": points, "boxes": near[None], "source": source}


def inside(mode: str) -> Case:
    name, inputs = f"points_in_boxes sweep, 50 boxes, {mode}", among_points(50)
    return Case(name, "points_in_boxes", inputs, {"mode": mode}, (), Inside)


def query(name: str, k: int, grid: list[int] | None = None) -> Case:
    inputs, options = among_points(128, 16384), {"k": k, "grid": grid}
    return Case(f"box_query 16k, 128 boxes, {name}", "box_query", inputs, options)


def scattered(
    scans: int, area: list[float], columns: int = 7, count: int = PER_SCAN, classes: int = 3
) -> dict[str, Any]:
    """boxes [scans, count, columns]: cars, pedestrians, cyclists in turn, anywhere in the range;
    and their labels."""
    g = seeded(count)
    boxes = torch.rand(scans, count, columns, generator=g)
    low, high = torch.tensor(area[:3]), torch.tensor(area[3:])
    boxes[..., :3] = low + boxes[..., :3] * (high - low)
    boxes[..., 3:6] = SIZES[torch.arange(count) % 3]
    boxes[..., 6] *= 6.28
    labels = (torch.arange(count, dtype=torch.int32) % classes).expand(scans, count).contiguous()
    return {"boxes": boxes, "labels": labels, "source": "boxes anywhere"}


def anchors(z: Sequence[float] = (-1.0,) * 3) -> Tensor:
    """[248, 216, 6, 7]: two of each of KITTI's classes in each cell."""
    out = torch.zeros(248, 216, 3, 2, 7)
    out[..., 0] = torch.linspace(KITTI[0], KITTI[3], 216)[:, None, None]
    out[..., 1] = torch.linspace(KITTI[1], KITTI[4], 248)[:, None, None, None]
    out[..., 2], out[..., 3:6] = torch.tensor(z)[:, None], SIZES[:, None]
    out[..., 1, 6] = 1.57
    return out.flatten(2, 3)


ALL_BOXES: dict[str, Any] = {"weight": None, "num_boxes": None}
LEVELS = {"matched": [0.6] * 2 + [0.5] * 4, "unmatched": [0.45] * 2 + [0.35] * 4}
ANCHOR_RULES = {**ALL_BOXES, "class_of_anchor": [0, 0, 1, 1, 2, 2], **LEVELS}
CENTER_GRID = {"point_cloud_range": NUSCENES, "pillar_size": [0.2, 0.2, 8.0], "size": [128, 128]}
TASKS = {"cells": 4, "task_of_class": [0, 1, 1, 2, 2, 3, 4, 4, 5, 5]}
CENTER_RULES = {**ALL_BOXES, **CENTER_GRID, **TASKS}


def head_targets(scans: int, *targets: Sequence[Target]) -> list[Case]:
    """Targets and losses of heads at the sizes of KITTI and nuScenes, and pasted objects."""

    def anchor_inputs(clouds: Clouds) -> dict[str, Any]:
        return {**scattered(clouds.batch(scans), KITTI), "anchors": anchors()}

    def loss_inputs(clouds: Clouds) -> dict[str, Any]:
        call = anchor_inputs(clouds)
        del call["source"]
        assigned, _ = torchvox.anchor_targets(**call, **ANCHOR_RULES)
        shape = (clouds.batch(scans), 18 + 42 + 12, 248, 216)
        maps = torch.randn(shape, generator=seeded()).bfloat16()
        maps = maps.contiguous(memory_format=torch.channels_last).split([18, 42, 12], 1)
        maps = dict(zip(("cls", "box", "direction"), maps, strict=True))
        grad = torch.ones(len(assigned), 3)
        return {**maps, **call, "assigned": assigned, "grad": grad, "source": "maps at random"}

    def center_inputs(clouds: Clouds) -> dict[str, Any]:
        return scattered(scans, NUSCENES, 9, 60, classes=10)

    def place(name: str, count: int, tries: int) -> Case:
        def inputs(clouds: Clouds) -> dict[str, Any]:
            tried = scattered(scans, KITTI, count=count * tries)["boxes"]
            group = (torch.arange(count) // (15 if tries == 1 else 1)).expand(scans, count)
            placed = {"boxes": scattered(scans, KITTI, count=20)["boxes"]}
            placed |= {"candidates": tried.view(scans, count, tries, 7)}
            return {**placed, "group": group.contiguous(), "source": "boxes anywhere"}

        return Case(f"place_boxes {scans} x {name}", "place_boxes", inputs)

    name, offset = f"{scans} x 321,408", {"dir_offset": 0.78539}
    center = f"center_targets {scans} x 10 x 128 x 128"
    loss = f"anchor_loss {name}, bfloat16"
    of_anchors, of_loss = targets or ((), ())
    return [
        Case(f"anchor_targets {name}", "anchor_targets", anchor_inputs, ANCHOR_RULES, of_anchors),
        Case(loss, "anchor_loss", loss_inputs, offset, of_loss, AnchorLoss),
        Case(center, "center_targets", center_inputs, CENTER_RULES),
        place("45", 45, 1),
        place("40 of 100 tries", 40, 100),
    ]


class Head(Problem):
    def moved_bytes(self) -> tuple[int, int]:
        """Of the scores, which all are read, and of the outputs."""
        scores = self["cls" if self.op.startswith("anchor") else "heatmap"]
        return suite.bytes_of(scores), suite.bytes_of(self.outputs)


def trained(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Logits [B, C, H, W] that are low except about some objects, where no two are equal."""
    logits = torch.randn(shape, generator=generator) * 0.5 - 6
    for sample in logits:
        number = OBJECTS * AROUND
        cells = torch.randint(sample[0].numel(), (OBJECTS,), generator=generator)
        cells = (cells[:, None] + torch.arange(AROUND)).flatten() % sample[0].numel()
        channel = torch.randint(shape[1], (number,), generator=generator)
        sample.flatten(1)[channel, cells] = torch.linspace(-1.5, 3.5, number)
    return logits


def kitti(name: str, batch: int, threshold: float, dtype: torch.dtype, *targets: Target, **more):
    """Maps as channels of one channels-last convolution."""

    def inputs(clouds: Clouds) -> dict[str, Any]:
        generator, count = seeded(3), clouds.batch(batch)
        merged = torch.randn(count, 72, *MAP, generator=generator) * 0.2
        merged[:, :18] = trained((count, 18, *MAP), generator)
        merged = merged.to(clouds.device, dtype).to(memory_format=torch.channels_last)
        parts = zip(("cls", "box", "direction"), merged.split([18, 42, 12], 1), strict=True)
        maps: dict[str, Any] = {name: [part] for name, part in parts}
        return {**maps, "anchors": [anchors((-1.0, 0.265, 0.265))], "source": "generated maps"}

    options = {"score_threshold": threshold, "nms_threshold": [0.01], "pre": 4096, "post": 500}
    options |= {"dir_offset": 0.78539, **more}
    return Case(f"head {name}", "anchor_decode_nms", inputs, options, targets, Head)


def centers(name: str, threshold: float, dtype: torch.dtype) -> Case:
    def inputs(clouds: Clouds) -> dict[str, Any]:
        generator, classes = seeded(3), (1, 2, 2, 1, 2, 2)
        maps: dict[str, Any] = {"heatmap": [trained((1, c, 128, 128), generator) for c in classes]}
        for kind, channels in CENTER_CHANNELS.items():
            shape = (1, channels, 128, 128)
            maps[kind] = [torch.randn(shape, generator=generator) * 0.3 for _ in classes]
        layout = {"memory_format": torch.channels_last}
        maps = {k: [t.to(clouds.device, dtype).to(**layout) for t in v] for k, v in maps.items()}
        return {**maps, "source": "generated maps"}

    options = {"voxel_size": [0.2, 0.2, 8.0], "point_cloud_range": NUSCENES, "stride": 4}
    options |= {"score_threshold": threshold, "nms_threshold": [0.2], "pre": 500, "post": 83}
    options["post_range"] = [-61.2, -61.2, -10.0, 61.2, 61.2, 10.0]
    return Case(f"head nuScenes centers, {name}", "center_decode_nms", inputs, options, (), Head)


def cases(device: str) -> list[Case]:
    on_gpu, half, single = device == "cuda", torch.half, torch.float
    both = [
        nms("4096, threshold 0.01", 1, 4096, 0.01, 500, *[graph(60)] * on_gpu),
        nms("4096, threshold 0.7", 1, 4096, 0.7, 4096),
        nms("6 x 1000, threshold 0.2", 6, 1000, 0.2, 83),
        iou(1024),
        iou(1024, "3d"),
        inside("index"),
        inside("count"),
        query("k 512", 512),
        query("14^3 cells, k 127", 127, [14, 14, 14]),
    ]
    if not on_gpu:
        low = kitti("KITTI, threshold 0", 1, 0.0, single)
        heads = [kitti("KITTI, float32", 1, 0.1, single), low, centers("float32", 0.1, single)]
        return [*both, *head_targets(2), *heads]
    return [
        *both,
        nms("50k, threshold 0.2", 1, 50_000, 0.2, 500),
        nms("50k, nothing suppressed", 1, 50_000, 1.0, 50_000),
        iou(4096),
        inside("mask"),
        *head_targets(16, [graph(200)], [graph(300)]),
        kitti("KITTI, float16", 1, 0.1, half, graph(100)),
        kitti("KITTI, threshold 0", 1, 0.0, half, graph(200)),
        kitti("KITTI, batch of 16", 16, 0.1, half),
        kitti("KITTI by class", 1, 0.1, half, convention="mmdet3d", pre=100, post=50),
        centers("float16", 0.1, half),
        centers("threshold 0", 0.0, half),
    ]
