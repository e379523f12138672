# SPDX-License-Identifier: Apache-2.0
"""bev_max_height: its cases, and the same with torch's scatter_reduce."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.clouds import Clouds, street
from benchmarks.suite import Case, Problem, Target, WrongResult, constant, graph

RANGE = [-51.2, -51.2, -5.0, 51.2, 51.2, 3.0]


class Image(Problem):
    plain = "torch scatter_reduce"

    def compare(self, result: Sequence[Tensor]) -> str:
        """The same image, and the same top points; `counts` is torchvox's own."""
        names = ("image", "top points")
        for name, theirs, mine in zip(names, result, self.outputs, strict=False):
            differ = int((theirs.view(mine.shape) != mine).sum())
            if differ:
                raise WrongResult(f"{differ} cells of the {name} differ")
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


def row(name: str, *targets: Target, dtype: torch.dtype = torch.float32, **more: Any) -> Case:
    op = "bev_max_height_with_index" if "index" in name else "bev_max_height"
    cells, cloud = more.get("cells", 1024), more.get("cloud", Clouds.sweep)
    options = {"point_cloud_range": RANGE, "size": [cells, cells], "out_dtype": dtype}
    return Case(f"BEV {name}", op, cloud, options, targets, Image)


def cases(device: str) -> list[Case]:
    uint8, eager = torch.uint8, Target("eager_us", 20)
    if device == "cpu":
        return [row("111k, 1024^2, uint8", dtype=uint8), row("111k, 1024^2, float32")]
    small = {"cells": 64, "cloud": street(1000)}
    return [
        row("111k, 1024^2, uint8", graph(6), eager, dtype=uint8),
        row("111k, 1024^2, uint8 with index", graph(9), eager, dtype=uint8),
        row("111k, 1024^2, float32"),
        row("1k call, torchvox.bev_max_height", Target("cpu_us", 15), **small),
    ]
