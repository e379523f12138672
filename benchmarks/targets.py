# SPDX-License-Identifier: Apache-2.0
"""Targets and losses of detection heads at the sizes of KITTI and nuScenes, and pasted objects."""

from dataclasses import dataclass
from typing import Any, Sequence

import torch

import torchvox
from benchmarks.clouds import Clouds
from benchmarks.suite import Case, CaseSpec, Facts, Outputs, Target, graph_us

KITTI = [0.0, -39.68, -3.0, 69.12, 39.68, 1.0]
NUSCENES = [-51.2, -51.2, -5.0, 51.2, 51.2, 3.0]
SIZES = torch.tensor([[3.9, 1.6, 1.56], [0.8, 0.6, 1.73], [1.76, 0.6, 1.73]])
BOXES = 50  # of a scan, pasted ones among them


def boxes_of(scans: int, area: list[float], columns: int = 7, count: int = BOXES) -> torch.Tensor:
    """[scans, count, columns]: cars, pedestrians, cyclists in turn, anywhere in the range."""
    g = torch.Generator().manual_seed(count)
    boxes = torch.rand(scans, count, columns, generator=g)
    low, high = torch.tensor(area[:3]), torch.tensor(area[3:])
    boxes[..., :3] = low + boxes[..., :3] * (high - low)
    boxes[..., 3:6] = SIZES[torch.arange(count) % 3]
    boxes[..., 6] *= 6.28
    return boxes


def anchors() -> torch.Tensor:
    """[248, 216, 6, 7]"""
    out = torch.zeros(248, 216, 3, 2, 7)
    out[..., 0] = torch.linspace(KITTI[0], KITTI[3], 216)[:, None, None]
    out[..., 1] = torch.linspace(KITTI[1], KITTI[4], 248)[:, None, None, None]
    out[..., 2], out[..., 3:6], out[..., 1, 6] = -1.0, SIZES[:, None], 1.57
    return out.flatten(2, 3)


@dataclass(frozen=True)
class TargetCase(Case):
    """The arguments of the call; of a loss forward and backward."""

    op: str
    arguments: dict[str, Any]
    source: str = "boxes anywhere"

    def facts(self) -> Facts:
        return {"scans": len(self.arguments["boxes"]), "boxes": self.arguments["boxes"].size(1)}

    def torchvox(self) -> Outputs:
        if self.op != "anchor_loss":
            out = getattr(torchvox, self.op)(**self.arguments)
            return (out,) if torch.is_tensor(out) else out
        call = {k: v for k, v in self.arguments.items() if k != "grad"}
        loss = torchvox.anchor_loss(**call)
        return loss, *torch.ops.torchvox._anchor_loss_backward(self.arguments["grad"], **call)


def anchor_case(scans: int) -> TargetCase:
    call = {
        "boxes": boxes_of(scans, KITTI),
        "labels": (torch.arange(BOXES, dtype=torch.int32) % 3).expand(scans, BOXES).contiguous(),
        "weight": None,
        "num_boxes": None,
        "anchors": anchors(),
        "class_of_anchor": [0, 0, 1, 1, 2, 2],
        "matched": [0.6, 0.6, 0.5, 0.5, 0.5, 0.5],
        "unmatched": [0.45, 0.45, 0.35, 0.35, 0.35, 0.35],
    }
    return TargetCase("anchor_targets", call)


def loss_case(scans: int) -> TargetCase:
    call = anchor_case(scans).arguments
    assigned, _ = torchvox.anchor_targets(**call)
    g = torch.Generator().manual_seed(0)
    maps = torch.randn(scans, 18 + 42 + 12, 248, 216, generator=g).bfloat16()
    maps = maps.contiguous(memory_format=torch.channels_last)
    maps = dict(zip(("cls", "box", "direction"), maps.split([18, 42, 12], 1), strict=True))
    rest = {k: call[k] for k in ("anchors", "boxes", "labels")}
    loss = {**maps, **rest, "assigned": assigned, "dir_offset": 0.78539}
    return TargetCase("anchor_loss", {**loss, "grad": torch.ones(scans, 3)}, "maps at random")


def center_case(scans: int) -> TargetCase:
    call = {
        "boxes": boxes_of(scans, NUSCENES, 9, 60),
        "labels": (torch.arange(60, dtype=torch.int32) % 10).expand(scans, 60).contiguous(),
        "weight": None,
        "num_boxes": None,
        "point_cloud_range": NUSCENES,
        "pillar_size": [0.2, 0.2, 8.0],
        "cells": 4,
        "size": [128, 128],
        "task_of_class": [0, 1, 1, 2, 2, 3, 4, 4, 5, 5],
    }
    return TargetCase("center_targets", call)


def place_case(scans: int, count: int, tries: int) -> TargetCase:
    candidates = boxes_of(scans, KITTI, count=count * tries).reshape(scans, count, tries, 7)
    group = torch.arange(count) // 15 if tries == 1 else torch.arange(count)
    call = {
        "boxes": boxes_of(scans, KITTI, count=20),
        "candidates": candidates,
        "group": group.expand(scans, count).contiguous(),
    }
    return TargetCase("place_boxes", call)


def cases(scans: int, us: Sequence[list[Target]]) -> list[CaseSpec]:
    def spec(name: str, make, targets: Sequence[Target] = ()) -> CaseSpec:
        return CaseSpec(name, lambda clouds: on(clouds, make()), tuple(targets))

    def on(clouds: Clouds, case: TargetCase) -> Case:
        return case.on(str(clouds.device))

    return [
        spec(f"anchor_targets {scans} x 321,408", lambda: anchor_case(scans), us[0]),
        spec(f"anchor_loss {scans} x 321,408, bfloat16", lambda: loss_case(scans), us[1]),
        spec(f"center_targets {scans} x 10 x 128 x 128", lambda: center_case(scans)),
        spec(f"place_boxes {scans} x 45", lambda: place_case(scans, 45, 1)),
        spec(f"place_boxes {scans} x 40 of 100 tries", lambda: place_case(scans, 40, 100)),
    ]


def gpu_cases() -> list[CaseSpec]:
    return cases(16, [graph_us(200), graph_us(300)])


def cpu_cases() -> list[CaseSpec]:
    return cases(2, [[], []])
