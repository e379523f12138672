# SPDX-License-Identifier: Apache-2.0
"""bev_max_height, pillars (a scan to its canvas, a training step of the pillar feature net),
serialize, unique_cells and grid_sample: their cases, and the same in plain torch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import torchvox
from benchmarks import suite
from benchmarks.clouds import Clouds, seeded, street
from benchmarks.suite import Case, Outputs, Problem, Target, constant, expect, faster, graph

RANGE = [-51.2, -51.2, -5.0, 51.2, 51.2, 3.0]


class Image(Problem):
    plain = "torch scatter_reduce"

    def compare(self, result: Sequence[Tensor]) -> str:
        """The same image, and the same top points; `counts` is torchvox's own."""
        names = ("image", "top points")
        for name, theirs, mine in zip(names, result, self.outputs, strict=False):
            differ = int((theirs.view(mine.shape) != mine).sum())
            expect(differ == 0, f"{differ} cells of the {name} differ")
        return "same " + ", ".join(names[: len(result)])

    def in_torch(self) -> list[Tensor]:
        """The cell of each point, a spare cell for those outside, a maximum over each cell."""
        xyz, cells, dtype = self["points"][:, :3], self["size"][0], self["out_dtype"]
        lower, upper = constant(tuple(RANGE), xyz.device).view(2, 3)
        cell = ((xyz[:, :2] - lower[:2]) / ((upper[:2] - lower[:2]) / cells)).floor()
        inside = ((xyz >= lower) & (xyz < upper)).all(1) & (cell < cells).all(1)
        where = torch.where(inside, cell[:, 1] * cells + cell[:, 0], cells * cells).long()
        z = xyz[:, 2]
        empty = torch.full((cells * cells + 1,), -torch.inf, device=z.device)
        height = empty.scatter_reduce(0, where, z, "amax")
        image, filled = height[:-1], height[:-1] > -torch.inf
        if dtype == torch.uint8:
            share = (image - lower[2]) / (upper[2] - lower[2])
            image = (1 + (share * 254).floor()).clamp(min=0).to(torch.uint8)
        results = [torch.where(filled, image, 0)]
        if self.op.endswith("with_index"):
            rows = torch.arange(len(z), dtype=torch.int32, device=z.device)
            none = torch.full_like(empty, len(z), dtype=torch.int32)
            tops = torch.where(z == height[where], rows, len(z))
            top = none.scatter_reduce(0, where, tops, "amin")[:-1]
            results.append(torch.where(filled, top, -1))
        return results


def image_row(name: str, *targets: Target, dtype: torch.dtype = torch.float32, **more: Any) -> Case:
    op = "bev_max_height_with_index" if "index" in name else "bev_max_height"
    cells, cloud = more.get("cells", 1024), more.get("cloud", Clouds.sweep)
    options = {"point_cloud_range": RANGE, "size": [cells, cells], "out_dtype": dtype}
    return Case(f"BEV {name}", op, cloud, options, targets, Image)


BOUNDS = [0.0, -39.68, -3.0, 69.12, 39.68, 1.0]
GRID = {"voxel_size": [0.16, 0.16, 4.0], "point_cloud_range": BOUNDS}
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
        tolerance = TOLERANCE_OF_MANY if many else TOLERANCE[self.dtype]
        return suite.close(result, self.outputs, tolerance)

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

    def inputs(data: Clouds) -> dict[str, Any]:
        net = seeded_net().eval().fuse_batch_norm().half()
        return {**cloud(data)._asdict(), "net": net}

    options = {"offsets": None, "max_voxels": 40_000, "seed": None}
    return Case(f"{name} to canvas, half", "pillar_encode", inputs, options, targets, Pillars)


def step(samples: int, pillars: int, slots: int, *targets: Target) -> Case:
    """Forward and backward of the net over full pillars."""

    def inputs(data: Clouds) -> dict[str, Any]:
        g, batch, count = seeded(), data.batch(samples), data.size(pillars)
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


CURVES = ["z", "z-trans", "hilbert", "hilbert-trans"]
POINTS, CELL = 120_000, 0.1


class Cells(Problem):
    """in_torch() gives those outputs of torchvox that in_use() chooses."""

    plain, plain_captures = "torch", False

    def compare(self, result: Sequence[Tensor]) -> str:
        for mine, other in zip(self.in_use(self.outputs), result, strict=True):
            expect(torch.equal(mine.long(), other.long()), "the outputs differ")
        return "outputs equal"


class UniqueCells(Cells):
    def in_use(self, outputs: Any) -> Sequence[Tensor]:
        rows = int(outputs.counts[0])
        return outputs.indices[:rows], outputs.point_voxel, outputs.num_points[:rows]

    def in_torch(self) -> Sequence[Tensor]:
        return self["cells"].unique(dim=0, return_inverse=True, return_counts=True)


class GridSample(Cells):
    def in_use(self, outputs: Any) -> Sequence[Tensor]:
        return [outputs.representative[: int(outputs.counts[0])]]

    def in_torch(self) -> Sequence[Tensor]:
        """The first point of each cell, ascending."""
        points = self["points"]
        cells = (points[:, :3] / torch.full_like(points[:1, :3], CELL)).floor().int()
        rows, inverse = cells.unique(dim=0, return_inverse=True)
        first = torch.full((len(rows),), len(points), device=points.device)
        index = torch.arange(len(points), device=points.device)
        return [first.scatter_reduce(0, inverse, index, "amin").sort().values]


def cells_of(clouds: Clouds) -> dict[str, Any]:
    points, source = clouds.street(POINTS)
    return {"cells": torchvox.grid_cells(points, CELL), "source": source}


def cells_of_batch(clouds: Clouds) -> dict[str, Any]:
    """With a batch column."""
    return {"cells": F.pad(cells_of(clouds)["cells"], (1, 0)), "source": "a street"}


def cell_rows(*ahead: Target, limits: Sequence[Target] = ()) -> list[Case]:
    def curves(depth: int) -> Case:
        name, options = f"serialize 120k, 4 curves of {depth} bits", {"order": CURVES}
        return Case(name, "serialize", cells_of, {**options, "depth": depth}, limits)

    def unique(bits: int) -> Case:
        name, options = f"unique_cells 120k x 4, bits {bits}", {"bits": bits, "order": "sorted"}
        return Case(name, "unique_cells", cells_of_batch, options, ahead, UniqueCells)

    options = {"grid_size": CELL}
    sample = Case("grid_sample 120k", "grid_sample", street(POINTS), options, ahead, GridSample)
    return [curves(12), curves(16), unique(15), unique(-1), sample]


def cases(device: str) -> list[Case]:
    uint8, kitti = torch.uint8, Clouds.kitti
    if device == "cpu":
        return [
            image_row("111k, 1024^2, uint8", dtype=uint8),
            image_row("111k, 1024^2, float32"),
            scan("KITTI", kitti),
            step(1, 4_000, 8),
            *cell_rows(faster("best_us", "torch")),
        ]
    eager, ahead = Target("eager_us", 20), faster("eager_us", "decorate", 5)
    small = {"cells": 64, "cloud": street(1000)}
    return [
        image_row("111k, 1024^2, uint8", graph(6), eager, dtype=uint8),
        image_row("111k, 1024^2, uint8 with index", graph(9), eager, dtype=uint8),
        image_row("111k, 1024^2, float32"),
        image_row("1k call, torchvox.bev_max_height", Target("cpu_us", 15), **small),
        scan("KITTI", kitti, graph(60)),
        scan("sweep", Clouds.sweep, graph(60)),
        step(4, 16_000, 32, ahead),
        step(4, 16_000, 4, ahead),
        *cell_rows(faster("eager_us", "torch", 2.0), limits=[graph(60)]),
    ]
