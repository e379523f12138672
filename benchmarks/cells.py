# SPDX-License-Identifier: Apache-2.0
"""serialize, unique_cells, grid_sample: their cases, and the same in plain torch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import torchvox
from benchmarks.clouds import Clouds, street
from benchmarks.suite import Case, Problem, Target, WrongResult, faster, graph

CURVES = ["z", "z-trans", "hilbert", "hilbert-trans"]
POINTS, CELL = 120_000, 0.1


class Cells(Problem):
    """`in_torch` gives the outputs of torchvox that `in_use` chooses."""

    plain, plain_captures = "torch", False

    def compare(self, result: Sequence[Tensor]) -> str:
        for mine, other in zip(self.in_use(self.outputs), result, strict=True):
            if not torch.equal(mine.long(), other.long()):
                raise WrongResult("the self.outputs differ")
        return "self.outputs equal"

    def in_use(self, outputs: Any) -> Sequence[Tensor]:
        return outputs


class Serialize(Cells):
    def in_torch(self) -> Sequence[Tensor]:
        """Codes bit by bit, a stable sort, a scatter of places."""
        cells = self["cells"].long()
        codes = torch.stack([place(cells, self["depth"], curve) for curve in self["order"]])
        order = codes.sort(dim=1, stable=True).indices
        places = torch.arange(codes.size(1), device=codes.device).expand_as(order)
        return codes, order, torch.empty_like(order).scatter_(1, order, places)


def place(cells: Tensor, depth: int, curve: str) -> Tensor:
    axes = list(cells.unbind(1))
    if curve.endswith("-trans"):
        axes[:2] = axes[1::-1]
    hilbert = curve.startswith("hilbert")
    for level in reversed(range(depth if hilbert else 0)):
        below = (1 << level) - 1
        for k in range(3):
            is_set = (axes[k] >> level & 1).bool()
            change = torch.where(is_set, below, (axes[0] ^ axes[k]) & below)
            if k > 0:
                axes[k] = torch.where(is_set, axes[k], axes[k] ^ change)
            axes[0] = axes[0] ^ change
    code, parity = torch.zeros_like(axes[0]), torch.zeros_like(axes[0])
    for level in reversed(range(depth)):
        for axis in axes:
            bit = axis >> level & 1
            parity = parity ^ bit if hilbert else bit
            code = code << 1 | parity
    return code


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
    made = cells_of(clouds)
    return {**made, "cells": torch.nn.functional.pad(made["cells"], (1, 0))}


def cases(device: str) -> list[Case]:
    on_gpu, thousands = device == "cuda", f"{POINTS // 1000}k"
    figure, factor = ("eager_us", 2.0) if on_gpu else ("best_us", 1.0)
    ahead = faster(figure, "torch", factor)
    curves: list[Target] = [graph(60), ahead] if on_gpu else [ahead]
    by_depth = [
        Case(f"serialize {thousands}, 4 curves of {depth} bits", "serialize", cells_of,
             {"order": CURVES, "depth": depth}, curves, Serialize)
        for depth in (12, 16)
    ]  # fmt: skip
    by_bits = [
        Case(f"unique_cells {thousands} x 4, bits {bits}", "unique_cells", cells_of_batch,
             {"bits": bits, "order": "sorted"}, [ahead], UniqueCells)
        for bits in (15, -1)
    ]  # fmt: skip
    options = {"grid_size": CELL}
    sample = f"grid_sample {thousands}"
    return [
        *by_depth,
        *by_bits,
        Case(sample, "grid_sample", street(POINTS), options, [ahead], GridSample),
    ]
