# SPDX-License-Identifier: Apache-2.0
"""Heads to boxes; the baseline: sigmoid, topk and decoding in torch, then rotated_nms."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Iterator

import torch
from torch import Tensor

import torchvox
from benchmarks.clouds import Clouds
from benchmarks.suite import (
    Case,
    CaseSpec,
    Facts,
    Implementation,
    NotApplicable,
    Outputs,
    Target,
    WrongResult,
    bytes_of,
    name_of,
)

KITTI = (248, 216)  # cells
ANCHORS = ((3.9, 1.6, 1.56, -1.0), (0.8, 0.6, 1.73, 0.265), (1.76, 0.6, 1.73, 0.265))
OBJECTS, AROUND = 40, 8  # of a trained head: candidates that pass lie about objects


@dataclass(frozen=True)
class HeadCase(Case):
    """The arguments of the call, tensors and lists of them."""

    arguments: dict[str, object]
    op: str
    source: str

    def scores(self) -> list[Tensor]:
        return self.arguments["cls" if self.op.startswith("anchor") else "heatmap"]

    def facts(self) -> Facts:
        call = self.arguments
        facts = {"maps": [list(m.shape) for m in self.scores()]}
        facts |= {"dtype": name_of(self.scores()[0].dtype), "threshold": call["score_threshold"]}
        return {**facts, "pre": call["pre"], "post": call["post"]}

    def torchvox(self) -> Outputs:
        return getattr(torchvox, self.op)(**self.arguments)

    def moved_bytes(self, outputs: Outputs) -> tuple[int, int]:
        """Of the scores, which all are read, and of the outputs."""
        return bytes_of(self.scores()), bytes_of(outputs)

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        if self.op == "anchor_decode_nms" and len(self.arguments["cls"]) == 1:
            call, check = partial(with_torch, self), self._check(outputs)
            yield Implementation("topk, decode, rotated_nms", call, check, True)

    def _check(self, expected: Outputs):
        def check(found: Outputs) -> str:
            if self.arguments["score_threshold"] == 0:
                raise NotApplicable("topk leaves open which of equal scores it takes")
            if not torch.equal(found[2].cpu(), expected[3].cpu()):
                raise WrongResult(f"{found[2].tolist()} boxes, not {expected[3].tolist()}")
            for got, want in zip(found[:2], expected[:2], strict=True):
                torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
            return "the same boxes, within 1e-3"

        return check


def with_torch(case: HeadCase) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes, scores, count, as upstream libraries compute them, all on the device."""
    call = case.arguments
    scores = of_boxes(call, "cls").float().sigmoid()
    best, at = scores.max(-1).values.topk(call["pre"])
    boxes = decoded(call, at)
    if call.get("convention") == "mmdet3d":
        return by_class(call, boxes, scores.gather(1, at[..., None].expand(-1, -1, scores.size(2))))
    passing = (best >= call["score_threshold"]).sum(1)
    index, count = torchvox.rotated_nms(
        boxes, best, call["nms_threshold"][0], call["post"], lengths=passing
    )
    kept = index.long().clamp(min=0)
    there = index >= 0
    return rows_of(boxes, kept) * there[..., None], best.gather(1, kept) * there, count


def by_class(
    call: dict[str, object], boxes: Tensor, scores: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As mmdetection3d does it: each class thins out the same boxes, then the best of all stay."""
    samples, _, classes = scores.shape
    passing = torch.where(scores > call["score_threshold"], scores, -math.inf).mT
    index, _ = torchvox.rotated_nms(
        boxes[:, None].expand(-1, classes, -1, -1).flatten(0, 1),
        passing.flatten(0, 1),
        call["nms_threshold"][0],
        call["post"],
    )
    index = index.unflatten(0, (samples, classes))
    kept = index.long().clamp(min=0)
    best = torch.where(index >= 0, passing.gather(2, kept), -math.inf)
    best, of_all = best.flatten(1).topk(call["post"])
    there = best > -math.inf
    kept = kept.flatten(1).gather(1, of_all)
    return rows_of(boxes, kept) * there[..., None], best.where(there, 0), there.sum(1).int()


def of_boxes(call: dict[str, object], name: str) -> Tensor:
    """[samples, boxes, values a box] of a map."""
    head_map = call[name][0]
    each = head_map.size(1) // call["anchors"][0].size(2)
    return head_map.permute(0, 2, 3, 1).reshape(head_map.size(0), -1, each)


def rows_of(boxes: Tensor, at: Tensor) -> Tensor:
    return boxes.gather(1, at[..., None].expand(-1, -1, boxes.size(2)))


def decoded(call: dict[str, object], at: Tensor) -> Tensor:
    delta = rows_of(of_boxes(call, "box"), at).float()
    bins = rows_of(of_boxes(call, "direction"), at).argmax(-1)
    a = call["anchors"][0].flatten(0, 2)[at]
    diagonal = a[..., 3:5].norm(dim=-1, keepdim=True)
    yaw = delta[..., 6] + a[..., 6] - call["dir_offset"]
    yaw = yaw - (yaw / math.pi).floor() * math.pi + call["dir_offset"] + math.pi * bins
    return torch.cat(
        [
            delta[..., :2] * diagonal + a[..., :2],
            delta[..., 2:3] * a[..., 5:6] + a[..., 2:3],
            delta[..., 3:6].exp() * a[..., 3:6],
            yaw[..., None],
        ],
        -1,
    )


def trained(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Logits [B, C, H, W] that are low but about some objects, where no two are equal."""
    logits = torch.randn(shape, generator=generator) * 0.5 - 6
    for sample in logits:
        number = OBJECTS * AROUND
        cells = torch.randint(sample[0].numel(), (OBJECTS,), generator=generator)
        cells = (cells[:, None] + torch.arange(AROUND)).flatten() % sample[0].numel()
        channel = torch.randint(shape[1], (number,), generator=generator)
        sample.flatten(1)[channel, cells] = torch.linspace(-1.5, 3.5, number)
    return logits


def anchors() -> Tensor:
    """[248, 216, 6, 7] of KITTI's three classes."""
    y = torch.linspace(-39.68, 39.68, KITTI[0])[:, None, None]
    x = torch.linspace(0, 69.12, KITTI[1])[None, :, None]
    out = torch.empty(*KITTI, 6, 7)
    out[..., 0], out[..., 1] = x, y
    for k, (length, width, height, z) in enumerate(ANCHORS):
        out[:, :, 2 * k : 2 * k + 2, 2:6] = torch.tensor([z, length, width, height])
    out[..., 6] = torch.tensor([0.0, 1.57] * 3)
    return out


def kitti(name: str, batch: int, threshold: float, dtype: torch.dtype, **options) -> CaseSpec:
    """As channels of one channels-last convolution."""
    targets = options.pop("targets", ())

    def build(made: Clouds) -> HeadCase:
        generator = torch.Generator().manual_seed(3)
        merged = torch.randn(batch, 72, *KITTI, generator=generator) * 0.2
        merged[:, :18] = trained((batch, 18, *KITTI), generator)
        merged = merged.to(made.device, dtype).to(memory_format=torch.channels_last)
        arguments = {
            "cls": [merged[:, :18]],
            "box": [merged[:, 18:60]],
            "direction": [merged[:, 60:]],
            "anchors": [anchors().to(made.device)],
            "score_threshold": threshold,
            "nms_threshold": [0.01],
            "pre": 4096,
            "post": 500,
            "dir_offset": 0.78539,
            **options,
        }
        return HeadCase(arguments, "anchor_decode_nms", "generated maps")

    return CaseSpec(f"head {name}", build, tuple(targets))


def centers(name: str, batch: int, threshold: float, dtype: torch.dtype) -> CaseSpec:
    def build(made: Clouds) -> HeadCase:
        generator = torch.Generator().manual_seed(3)
        classes, channels = (1, 2, 2, 1, 2, 2), {"offset": 2, "z": 1, "dim": 3, "rot": 2, "vel": 2}
        arguments: dict[str, object] = {
            "heatmap": [trained((batch, c, 128, 128), generator) for c in classes],
            **{
                k: [torch.randn(batch, c, 128, 128, generator=generator) * 0.3 for _ in classes]
                for k, c in channels.items()
            },
        }
        arguments = {
            k: [t.to(made.device, dtype).to(memory_format=torch.channels_last) for t in v]
            for k, v in arguments.items()
        }
        arguments |= {
            "voxel_size": [0.2, 0.2, 8.0],
            "point_cloud_range": [-51.2, -51.2, -5.0, 51.2, 51.2, 3.0],
            "stride": 4,
            "score_threshold": threshold,
            "nms_threshold": [0.2],
            "pre": 500,
            "post": 83,
            "post_range": [-61.2, -61.2, -10.0, 61.2, 61.2, 10.0],
        }
        return HeadCase(arguments, "center_decode_nms", "generated maps")

    return CaseSpec(f"head {name}", build)


def gpu_cases() -> list[CaseSpec]:
    half = torch.half
    return [
        kitti("KITTI, float16", 1, 0.1, half, targets=[Target("graph_us", 100)]),
        kitti("KITTI, threshold 0", 1, 0.0, half, targets=[Target("graph_us", 200)]),
        kitti("KITTI, batch of 16", 16, 0.1, half),
        kitti("KITTI by class", 1, 0.1, half, convention="mmdet3d", pre=100, post=50),
        centers("nuScenes centers, float16", 1, 0.1, half),
        centers("nuScenes centers, threshold 0", 1, 0.0, half),
    ]  # fmt: skip


def cpu_cases() -> list[CaseSpec]:
    return [
        kitti("KITTI, float32", 1, 0.1, torch.float),
        kitti("KITTI, threshold 0", 1, 0.0, torch.float),
        centers("nuScenes centers, float32", 1, 0.1, torch.float),
    ]
