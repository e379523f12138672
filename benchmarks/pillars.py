# SPDX-License-Identifier: Apache-2.0
"""Pillars: a scan to its canvas, and a training step of the pillar feature net; beside them padded
rows through torch's layers."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import torchvox
from benchmarks.clouds import Clouds
from benchmarks.suite import Case, Outputs, Problem, Target, close, constant, faster, graph

GRID: dict[str, list[float]] = {
    "voxel_size": [0.16, 0.16, 4.0],
    "point_cloud_range": [0.0, -39.68, -3.0, 69.12, 39.68, 1.0],
}
NX, NY = 432, 496
SLOTS = 32
# Of the largest value. Plain torch rounds halves, or sums in float32.
TOLERANCE = {torch.float32: 2e-3, torch.float16: 2e-2}
# Over millions of rows its rounding lifts some channels over the zero of the ReLU, or picks another
# point, and moves their gradients whole: with 4 x 16,000 pillars of 32 it is 7e-3 off float64,
# torchvox 3e-6.
MANY_ROWS, TOLERANCE_OF_MANY = 1_000_000, 1e-2


class Pillars(Problem):
    """points [N, 4] of `offsets` samples of equal length through net. seed: the gradient of the
    canvas; None: a fused net, without gradients."""

    plain = "decorate, linear, norm, max, scatter"

    @property
    def samples(self) -> int:
        return 1 if self["offsets"] is None else len(self["offsets"]) - 1

    @property
    def dtype(self) -> torch.dtype:
        return self["net"].pfn_layers[0].linear.weight.dtype

    def grid(self) -> dict[str, Any]:
        caps = {"max_points": SLOTS, "max_voxels": self["max_voxels"]}
        return {"points": self["points"], **GRID, **caps, "batch_offsets": self["offsets"]}

    def gradients(self, canvas: Tensor) -> Outputs:
        if self["seed"] is None:
            return (canvas,)
        return torch.autograd.grad(canvas, list(self["net"].parameters()), self["seed"])

    def run(self) -> Outputs:
        pillars = torchvox.voxel_map(**self.grid())
        names = ("indices", "num_points", "point_voxel", "point_slot")
        rows = (getattr(pillars, name) for name in names)
        return self.gradients(self["net"](self["points"], *rows, self.samples))

    def moved_bytes(self) -> tuple[int, int]:
        """Points, the canvas, and for a step the gradient of the canvas."""
        canvas = self.samples * self["net"].out_channels * NX * NY * self.dtype.itemsize
        return self["points"].numel() * 4 + canvas * (self["seed"] is not None), canvas

    def compare(self, result: Outputs) -> str:
        many = self["seed"] is not None and self["points"].size(0) >= MANY_ROWS
        return close(result, self.outputs, TOLERANCE_OF_MANY if many else TOLERANCE[self.dtype])

    def in_torch(self) -> Outputs:
        """Padded points, and torch's layers over every slot."""
        voxels = torchvox.voxelize(**self.grid())
        points, filled = voxels.features, voxels.num_points
        mean = points[:, :, :3].sum(1, keepdim=True) / filled.clamp(min=1)[:, None, None]
        lower = constant(tuple(GRID["point_cloud_range"][:3]), points.device)
        size = constant(tuple(GRID["voxel_size"]), points.device)
        center = lower + (voxels.indices[:, 1:].flip(1) + 0.5) * size
        rows = torch.cat([points, points[:, :, :3] - mean, points[:, :, :3] - center[:, None]], 2)
        slots = torch.arange(SLOTS, device=points.device)
        rows = rows * (slots < filled[:, None])[:, :, None]
        layer = self["net"].pfn_layers[0]
        y = F.linear(rows.to(self.dtype), layer.linear.weight, layer.linear.bias)
        if self["seed"] is not None:
            norm = layer.norm
            flat = y.flatten(0, 1)
            flat = F.batch_norm(flat, None, None, norm.weight, norm.bias, True, eps=norm.eps)
            y = flat.view(y.shape)
        best = F.relu(y).max(1)[0]
        b, _, row, column = voxels.indices.long().unbind(1)
        cells = self.samples * NY * NX
        cell = torch.where(b >= 0, (b * NY + row) * NX + column, cells)  # unused rows: a spare one
        canvas = best.new_zeros(cells + 1, best.size(1)).index_put((cell,), best)
        return self.gradients(canvas[:-1].view(self.samples, NY, NX, -1).permute(0, 3, 1, 2))


def seeded_net() -> torchvox.nn.PillarFeatureNet:
    torch.manual_seed(0)
    return torchvox.nn.PillarFeatureNet(4, (64,), max_points=SLOTS, **GRID)


def scan(name: str, cloud: Any, *targets: Target) -> Case:
    """One scan to a canvas in half precision."""

    def inputs(made: Clouds) -> dict[str, Any]:
        net = seeded_net().eval().fuse_batch_norm().half()
        return {**cloud(made)._asdict(), "net": net}

    options = {"offsets": None, "max_voxels": 40_000, "seed": None}
    return Case(f"{name} to canvas, half", "pillar_encode", inputs, options, targets, Pillars)


def step(samples: int, pillars: int, slots: int, *targets: Target) -> Case:
    """Forward and backward of the net over full pillars."""

    def inputs(made: Clouds) -> dict[str, Any]:
        g, batch, count = torch.Generator().manual_seed(0), made.batch(samples), made.size(pillars)
        cells = [torch.randperm(NX * NY, generator=g)[:count] for _ in range(batch)]
        cells = torch.stack(cells)[:, :, None]
        u = 0.05 + 0.9 * torch.rand(batch, count, slots, 4, generator=g)
        x = (cells % NX + u[..., 0]) * 0.16
        y = (cells // NX + u[..., 1]) * 0.16 - 39.68
        points = torch.stack([x, y, 4 * u[..., 2] - 3, u[..., 3]], -1).view(-1, 4)
        canvas = torch.empty(batch, 64, NY, NX, memory_format=torch.channels_last)
        arguments = {"points": points, "seed": canvas.normal_(generator=g)}
        offsets = torch.arange(batch + 1) * (count * slots) if batch > 1 else None
        arguments |= {"offsets": offsets, "max_voxels": count, "net": seeded_net().train()}
        return {**arguments, "source": "full pillars"}

    name = f"training, {samples} x {pillars} pillars of {slots}"
    return Case(name, "PillarFeatureNet", inputs, {}, targets, Pillars)


def cases(device: str) -> list[Case]:
    if device == "cpu":
        return [scan("KITTI", Clouds.kitti), step(1, 4_000, 8)]
    ahead = faster("eager_us", "decorate", 5)
    return [
        scan("KITTI", Clouds.kitti, graph(60)),
        scan("sweep", Clouds.sweep, graph(60)),
        step(4, 16_000, 32, ahead),
        step(4, 16_000, 4, ahead),
    ]
