# SPDX-License-Identifier: Apache-2.0
"""Pillars: a scan to its canvas, and a training step of the pillar feature net; the baseline:
padded rows through torch layers."""

from dataclasses import dataclass
from functools import partial
from typing import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

import torchvox
from benchmarks.clouds import Clouds
from benchmarks.suite import (
    Case,
    CaseSpec,
    Facts,
    Implementation,
    Outputs,
    Target,
    apart,
    constant,
    name_of,
)

GRID: dict[str, list[float]] = {
    "voxel_size": [0.16, 0.16, 4.0],
    "point_cloud_range": [0.0, -39.68, -3.0, 69.12, 39.68, 1.0],
}
NX, NY = 432, 496
SLOTS = 32
# Of the largest value. The baseline rounds halves, or sums in float32.
TOLERANCE = {torch.float32: 2e-3, torch.float16: 2e-2}
# Over millions of rows its rounding lifts some channels over the zero of the ReLU, or picks another
# point, and moves their gradients whole: with 4 x 16,000 pillars of 32 it is 7e-3 off float64,
# torchvox 3e-6.
MANY_ROWS, TOLERANCE_OF_MANY = 1_000_000, 1e-2


@dataclass(frozen=True)
class PillarCase(Case):
    """points [N, 4] of `batch` samples of equal length. seed: the gradient of the canvas; None:
    a fused net, without gradients."""

    points: Tensor
    batch: int
    max_voxels: int
    net: torchvox.nn.PillarFeatureNet
    seed: Tensor
    source: str
    op: str

    def facts(self) -> Facts:
        found = self.map()
        return {
            "points": self.points.size(0),
            "samples": self.batch,
            "pillars": int(found.counts[0, 0]),
            "channels": self.net.out_channels,
            "dtype": name_of(self.net.pfn_layers[0].linear.weight.dtype),
        }

    def voxel_arguments(self) -> dict[str, object]:
        offsets = None
        if self.batch > 1:
            step = self.points.size(0) // self.batch
            values = tuple(float(i * step) for i in range(self.batch + 1))
            offsets = constant(values, self.points.device).long()
        caps = {"max_points": SLOTS, "max_voxels": self.max_voxels, "batch_offsets": offsets}
        return {"points": self.points, **GRID, **caps}

    def map(self) -> torchvox.ops.VoxelMap:
        return torchvox.voxel_map(**self.voxel_arguments())

    def parameters(self) -> list[Tensor]:
        return list(self.net.parameters())

    def torchvox(self) -> Outputs:
        found = self.map()
        names = ("indices", "num_points", "point_voxel", "point_slot")
        canvas = self.net(self.points, *(getattr(found, n) for n in names), self.batch)
        if self.seed is None:
            return (canvas,)
        return torch.autograd.grad(canvas, self.parameters(), self.seed)

    def moved_bytes(self, outputs: Outputs) -> tuple[int, int]:
        canvas = self.batch * self.net.out_channels * NX * NY
        size = self.parameters()[0].element_size()
        read = self.points.numel() * 4 + (0 if self.seed is None else canvas * size)
        return read, canvas * size

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        tolerance = TOLERANCE[self.parameters()[0].dtype]
        if self.seed is not None and self.points.size(0) >= MANY_ROWS:
            tolerance = TOLERANCE_OF_MANY

        check = partial(apart, expected=outputs, tolerance=tolerance)
        call = partial(with_torch, self)
        yield Implementation("decorate, linear, norm, max, scatter", call, check, True)


def with_torch(case: PillarCase) -> Sequence[Tensor]:
    """Baseline: padded points, and torch layers over every slot."""
    voxels = torchvox.voxelize(**case.voxel_arguments())
    points, filled = voxels.features, voxels.num_points
    device = points.device
    mean = points[:, :, :3].sum(1, keepdim=True) / filled.clamp(min=1)[:, None, None]
    lower = constant(tuple(GRID["point_cloud_range"][:3]), device)
    size = constant(tuple(GRID["voxel_size"]), device)
    center = lower + (voxels.indices[:, 1:].flip(1) + 0.5) * size
    rows = torch.cat([points, points[:, :, :3] - mean, points[:, :, :3] - center[:, None]], 2)
    slots = torch.arange(SLOTS, device=device)
    rows = rows * (slots < filled[:, None])[:, :, None]
    layer = case.net.pfn_layers[0]
    y = F.linear(rows.to(layer.linear.weight.dtype), layer.linear.weight, layer.linear.bias)
    if case.seed is not None:
        norm = layer.norm
        y = F.batch_norm(
            y.flatten(0, 1), None, None, norm.weight, norm.bias, training=True, eps=norm.eps
        ).view(y.shape)
    best = F.relu(y).max(1)[0]
    b, _, row, column = voxels.indices.long().unbind(1)
    # Unused rows go to a cell behind the last.
    cell = torch.where(b >= 0, (b * NY + row) * NX + column, case.batch * NY * NX)
    canvas = best.new_zeros(case.batch * NY * NX + 1, best.size(1)).index_put((cell,), best)
    canvas = canvas[:-1].view(case.batch, NY, NX, -1).permute(0, 3, 1, 2)
    if case.seed is None:
        return (canvas,)
    return torch.autograd.grad(canvas, case.parameters(), case.seed)


def net_for(device: str) -> torchvox.nn.PillarFeatureNet:
    torch.manual_seed(0)
    net = torchvox.nn.PillarFeatureNet(4, (64,), max_points=SLOTS, **GRID)
    return net.to(device)


def scan(name: str, cap: int, sweep: bool, targets: Sequence[Target] = ()) -> CaseSpec:
    """One scan to a canvas in half precision."""

    def build(made: Clouds) -> PillarCase:
        points, source = made.sweep() if sweep else made.kitti()
        net = net_for(points.device.type).eval().fuse_batch_norm().half()
        return PillarCase(points, 1, cap, net, None, source, "pillar_encode")

    return CaseSpec(name, build, tuple(targets))


def step(samples: int, pillars: int, slots: int, targets: Sequence[Target] = ()) -> CaseSpec:
    """Forward and backward of the net over full pillars."""

    def build(made: Clouds) -> PillarCase:
        generator = torch.Generator().manual_seed(0)
        cells = torch.stack(
            [torch.randperm(NX * NY, generator=generator)[:pillars] for _ in range(samples)]
        )[:, :, None]
        u = 0.05 + 0.9 * torch.rand(samples, pillars, slots, 4, generator=generator)
        x = (cells % NX + u[..., 0]) * 0.16
        y = (cells // NX + u[..., 1]) * 0.16 - 39.68
        points = torch.stack([x, y, 4 * u[..., 2] - 3, u[..., 3]], -1).view(-1, 4)
        points = points.to(made.device).contiguous()
        canvas = torch.empty(samples, 64, NY, NX, memory_format=torch.channels_last)
        seed = canvas.normal_(generator=generator).to(made.device)
        net = net_for(made.device).train()
        return PillarCase(points, samples, pillars, net, seed, "full pillars", "PillarFeatureNet")

    return CaseSpec(f"training, {samples} x {pillars} pillars of {slots}", build, tuple(targets))


def gpu_cases() -> list[CaseSpec]:
    faster = Target("eager_us", faster_than="decorate", factor=5)
    return [
        scan("KITTI to canvas, half", 40_000, False, [Target("graph_us", 60)]),
        scan("sweep to canvas, half", 40_000, True, [Target("graph_us", 60)]),
        step(4, 16_000, 32, [faster]),
        step(4, 16_000, 4, [faster]),
    ]


def cpu_cases() -> list[CaseSpec]:
    return [scan("KITTI to canvas, half", 40_000, False), step(1, 4_000, 8)]
