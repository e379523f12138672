# SPDX-License-Identifier: Apache-2.0
"""bev_max_height: its cases, and the baseline, `scatter_reduce`."""

from dataclasses import dataclass
from functools import partial
from typing import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

import torchvox
from benchmarks.clouds import Clouds
from benchmarks.suite import (
    Case,
    CaseSpec,
    Facts,
    Implementation,
    Outputs,
    Target,
    WrongResult,
    constant,
)

RANGE = [-51.2, -51.2, -5.0, 51.2, 51.2, 3.0]


@dataclass(frozen=True)
class BEVCase(Case):
    """points [N, F]; an image of cells x cells, float32 heights or uint8 codes."""

    points: Tensor
    source: str
    cells: int = 1024
    dtype: torch.dtype = torch.float32
    index: bool = False
    op: str = "bev_max_height"

    def facts(self) -> Facts:
        size = [self.cells, self.cells]
        return {"points": self.points.size(0), "cells": size, "dtype": str(self.dtype)}

    def torchvox(self) -> Outputs:
        size = [self.cells, self.cells]
        op = torchvox.bev_max_height_with_index if self.index else torchvox.bev_max_height
        return op(self.points, RANGE, size, out_dtype=self.dtype)

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        check = partial(compare, outputs=outputs)
        yield Implementation("torch scatter_reduce", partial(with_torch, self), check, True)
        if self.points.device.type == "cpu" and not self.index:
            yield Implementation("numpy maximum.at", partial(with_numpy, self), check)


def compare(found: Sequence[Tensor], outputs: Outputs) -> str:
    """The same image, and the same top points; `counts` is torchvox's own."""
    names = ("image", "top points")
    for name, theirs, mine in zip(names, found, outputs, strict=False):
        differ = int((theirs.view(mine.shape) != mine).sum())
        if differ:
            raise WrongResult(f"{differ} cells of the {name} differ")
    return "same " + ", ".join(names[: len(found)])


def with_torch(case: BEVCase) -> list[Tensor]:
    """Baseline: the cell of each point, a spare cell for those outside, `scatter_reduce`."""
    points, cells = case.points, case.cells
    lower, upper = constant(tuple(RANGE), points.device).view(2, 3)
    xyz = points[:, :3]
    cell = ((xyz[:, :2] - lower[:2]) / ((upper[:2] - lower[:2]) / cells)).floor()
    inside = ((xyz >= lower) & (xyz < upper)).all(1) & (cell < cells).all(1)
    where = torch.where(inside, cell[:, 1] * cells + cell[:, 0], cells * cells).long()
    z = xyz[:, 2]
    empty = torch.full((cells * cells + 1,), -torch.inf, device=points.device)
    height = empty.scatter_reduce(0, where, z, "amax")
    filled = height[:-1] > -torch.inf
    results = [torch.where(filled, _encode(height[:-1], lower, upper, case.dtype), 0)]
    if case.index:
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


def with_numpy(case: BEVCase) -> list[Tensor]:
    """The same in NumPy, with `maximum.at`."""
    points, cells = case.points.numpy(), case.cells
    bounds = constant(tuple(RANGE), case.points.device).view(2, 3)
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
    return [torch.where(height > -torch.inf, _encode(height, *bounds, case.dtype), 0)]


def spec(name: str, targets: Sequence[Target] = (), points: int = 0, **more) -> CaseSpec:
    def build(clouds: Clouds) -> BEVCase:
        cloud = clouds.street(points) if points else clouds.sweep()
        return BEVCase(cloud.points, cloud.source, **more)

    return CaseSpec(f"BEV {name}", build, tuple(targets))


def gpu_cases() -> list[CaseSpec]:
    def targets(graph_us: float) -> list[Target]:
        return [Target("graph_us", graph_us), Target("eager_us", 20)]

    uint8 = {"dtype": torch.uint8}
    return [
        spec("111k, 1024^2, uint8", targets(6), **uint8),
        spec("111k, 1024^2, uint8 with index", targets(9), **uint8, index=True),
        spec("111k, 1024^2, float32"),
        spec("1k call, torchvox.bev_max_height", [Target("cpu_us", 15)], 1000, cells=64),
    ]


def cpu_cases() -> list[CaseSpec]:
    return [spec("111k, 1024^2, uint8", dtype=torch.uint8), spec("111k, 1024^2, float32")]
