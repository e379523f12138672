# SPDX-License-Identifier: Apache-2.0
"""Heads to boxes: their cases."""

from typing import Any

import torch
from torch import Tensor

from benchmarks.boxes import NUSCENES, anchors
from benchmarks.clouds import Clouds
from benchmarks.suite import Case, Problem, Target, bytes_of, graph

KITTI = (248, 216)  # cells
OBJECTS, AROUND = 40, 8  # of a trained head: candidates that pass lie about objects
CENTER_CHANNELS = {"offset": 2, "z": 1, "dim": 3, "rot": 2, "vel": 2}


class Head(Problem):
    def moved_bytes(self) -> tuple[int, int]:
        """Of the scores, which all are read, and of the outputs."""
        scores = self["cls" if self.op.startswith("anchor") else "heatmap"]
        return bytes_of(scores), bytes_of(self.outputs)


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
        generator, count = torch.Generator().manual_seed(3), clouds.batch(batch)
        merged = torch.randn(count, 72, *KITTI, generator=generator) * 0.2
        merged[:, :18] = trained((count, 18, *KITTI), generator)
        merged = merged.to(clouds.device, dtype).to(memory_format=torch.channels_last)
        parts = zip(("cls", "box", "direction"), merged.split([18, 42, 12], 1), strict=True)
        maps: dict[str, Any] = {name: [part] for name, part in parts}
        return {**maps, "anchors": [anchors((-1.0, 0.265, 0.265))], "source": "generated maps"}

    options = {"score_threshold": threshold, "nms_threshold": [0.01], "pre": 4096, "post": 500}
    options |= {"dir_offset": 0.78539, **more}
    return Case(f"head {name}", "anchor_decode_nms", inputs, options, targets, Head)


def centers(name: str, threshold: float, dtype: torch.dtype) -> Case:
    def inputs(clouds: Clouds) -> dict[str, Any]:
        generator, classes = torch.Generator().manual_seed(3), (1, 2, 2, 1, 2, 2)
        maps: dict[str, Any] = {"heatmap": [trained((1, c, 128, 128), generator) for c in classes]}
        for kind, channels in CENTER_CHANNELS.items():
            shape = (1, channels, 128, 128)
            maps[kind] = [torch.randn(shape, generator=generator) * 0.3 for _ in classes]
        layout = {"memory_format": torch.channels_last}
        maps = {k: [t.to(clouds.device, dtype).to(**layout) for t in v] for k, v in maps.items()}
        return {**maps, "source": "generated maps"}

    options = {
        "voxel_size": [0.2, 0.2, 8.0],
        "point_cloud_range": NUSCENES,
        "stride": 4,
        "score_threshold": threshold,
        "nms_threshold": [0.2],
        "pre": 500,
        "post": 83,
        "post_range": [-61.2, -61.2, -10.0, 61.2, 61.2, 10.0],
    }
    return Case(f"head nuScenes centers, {name}", "center_decode_nms", inputs, options, (), Head)


def cases(device: str) -> list[Case]:
    half, single = torch.half, torch.float
    if device == "cpu":
        return [
            kitti("KITTI, float32", 1, 0.1, single),
            kitti("KITTI, threshold 0", 1, 0.0, single),
            centers("float32", 0.1, single),
        ]
    return [
        kitti("KITTI, float16", 1, 0.1, half, graph(100)),
        kitti("KITTI, threshold 0", 1, 0.0, half, graph(200)),
        kitti("KITTI, batch of 16", 16, 0.1, half),
        kitti("KITTI by class", 1, 0.1, half, convention="mmdet3d", pre=100, post=50),
        centers("float16", 0.1, half),
        centers("threshold 0", 0.0, half),
    ]
