# SPDX-License-Identifier: Apache-2.0
"""bev_max_height: its cases, and the textbook way, `scatter_reduce`."""

from dataclasses import dataclass, replace
from typing import Iterator, List, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

import torchvox
from benchmarks.clouds import Clouds
from benchmarks.suite import Case, Goal, Outputs, Row, Way, WrongResult, constant

RANGE = [-51.2, -51.2, -5.0, 51.2, 51.2, 3.0]


@dataclass(frozen=True)
class BEVProblem:
    """points [N, F]; an image of cells x cells, float32 heights or uint8 codes."""

    points: Tensor
    source: str
    cells: int = 1024
    dtype: torch.dtype = torch.float32
    index: bool = False
    op: str = "bev_max_height"

    def facts(self) -> Row:
        size = [self.cells, self.cells]
        return {"points": self.points.size(0), "cells": size, "dtype": str(self.dtype)}

    def torchvox(self) -> Outputs:
        size = [self.cells, self.cells]
        if self.index:
            return torchvox.bev_max_height_with_index(
                self.points, RANGE, size, out_dtype=self.dtype
            )
        return torchvox.bev_max_height(self.points, RANGE, size, out_dtype=self.dtype)

    def on(self, device: str) -> "BEVProblem":
        return replace(self, points=self.points.to(device))

    def moved_bytes(self, outputs: Outputs) -> Tuple[int, int]:
        read = self.points.numel() * self.points.element_size()
        return read, sum(out.numel() * out.element_size() for out in outputs)

    def textbook(self, outputs: Outputs) -> Iterator[Way]:
        def check(found: Sequence[Tensor]) -> str:
            return compare(found, outputs)

        yield Way("torch scatter_reduce", lambda: with_torch(self), check, capturable=True)
        if self.points.device.type == "cpu" and not self.index:
            yield Way("numpy maximum.at", lambda: with_numpy(self), check)


def compare(found: Sequence[Tensor], outputs: Outputs) -> str:
    """The same image, and the same top points; `counts` is torchvox's own."""
    names = ("image", "top points")
    for name, theirs, mine in zip(names, found, outputs, strict=False):
        differ = int((theirs.view(mine.shape) != mine).sum())
        if differ:
            raise WrongResult(f"{differ} cells of the {name} differ")
    return "same " + ", ".join(names[: len(found)])


def with_torch(problem: BEVProblem) -> List[Tensor]:
    """Textbook: the cell of each point, a spare cell for those outside, `scatter_reduce`."""
    points, cells = problem.points, problem.cells
    lower, upper = constant(tuple(RANGE), points.device).view(2, 3)
    xyz = points[:, :3]
    cell = ((xyz[:, :2] - lower[:2]) / ((upper[:2] - lower[:2]) / cells)).floor()
    inside = ((xyz >= lower) & (xyz < upper)).all(1) & (cell < cells).all(1)
    where = torch.where(inside, cell[:, 1] * cells + cell[:, 0], cells * cells).long()
    z = xyz[:, 2]
    empty = torch.full((cells * cells + 1,), -torch.inf, device=points.device)
    height = empty.scatter_reduce(0, where, z, "amax")
    filled = height[:-1] > -torch.inf
    results = [torch.where(filled, _encode(height[:-1], lower, upper, problem.dtype), 0)]
    if problem.index:
        rows = torch.arange(len(points), dtype=torch.int32, device=points.device)
        none = torch.full_like(empty, len(points), dtype=torch.int32)
        tops = torch.where(z == height[where], rows, len(points))
        top = none.scatter_reduce(0, where, tops, "amin")[:-1]
        results.append(torch.where(filled, top, -1))
    return results


def _encode(height: Tensor, lower: Tensor, upper: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype != torch.uint8:
        return height
    t = (height - lower[2]) / (upper[2] - lower[2])
    return (1 + (t * 254).floor()).clamp(min=0).to(torch.uint8)


def with_numpy(problem: BEVProblem) -> List[Tensor]:
    """The same in NumPy, with `maximum.at`."""
    points, cells = problem.points.numpy(), problem.cells
    bounds = constant(tuple(RANGE), problem.points.device).view(2, 3)
    lower, upper = bounds.numpy()
    xyz = points[:, :3]
    xyz = xyz[((xyz >= lower) & (xyz < upper)).all(1)]
    width = (upper[:2] - lower[:2]) / np.float32(cells)
    cell = np.floor((xyz[:, :2] - lower[:2]) / width).astype(np.int64)
    fits = (cell < cells).all(1)
    cell, z = cell[fits], xyz[fits, 2]
    image = np.full(cells * cells, -np.inf, np.float32)
    np.maximum.at(image, cell[:, 1] * cells + cell[:, 0], z)
    height = torch.from_numpy(image)
    return [torch.where(height > -torch.inf, _encode(height, *bounds, problem.dtype), 0)]


def case(name: str, goals: Sequence[Goal] = (), points: int = 0, **more) -> Case:
    def build(clouds: Clouds) -> BEVProblem:
        cloud = clouds.street(points) if points else clouds.sweep()
        return BEVProblem(cloud.points, cloud.source, **more)

    return Case(f"BEV {name}", build, tuple(goals))


def gpu_cases() -> List[Case]:
    def goals(graph_us: float) -> List[Goal]:
        return [Goal("graph_us", graph_us), Goal("eager_us", 20)]

    uint8 = {"dtype": torch.uint8}
    return [
        case("111k, 1024^2, uint8", goals(6), **uint8),
        case("111k, 1024^2, uint8 with index", goals(9), **uint8, index=True),
        case("111k, 1024^2, float32"),
        case("1k call, torchvox.bev_max_height", [Goal("cpu_us", 15)], 1000, cells=64),
    ]


def cpu_cases() -> List[Case]:
    return [case("111k, 1024^2, uint8", dtype=torch.uint8), case("111k, 1024^2, float32")]
