# SPDX-License-Identifier: Apache-2.0
"""serialize, unique_cells, grid_sample: their cases, and the same in plain torch."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Iterator, Sequence

import torch
from torch import Tensor

import torchvox
from benchmarks.clouds import Clouds
from benchmarks.suite import Case, CaseSpec, Facts, Implementation, Outputs, Target, WrongResult

CURVES = ["z", "z-trans", "hilbert", "hilbert-trans"]
POINTS, CELL = 120_000, 0.1


@dataclass(frozen=True)
class CellCase(Case):
    """A call on cells or points, and its plain form, whose outputs are some of the same."""

    op: str
    points: Tensor
    source: str
    arguments: dict[str, Any]
    plain: Callable[[Tensor], Sequence[Tensor]]
    same: Callable[[Any], Sequence[Tensor]]  # the outputs of torchvox that the plain form has

    def facts(self) -> Facts:
        return {"points": len(self.points), "columns": self.points.size(1)}

    def torchvox(self) -> Outputs:
        return getattr(torchvox, self.op)(self.points, **self.arguments)

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        yield Implementation(
            "torch", partial(self.plain, self.points), partial(self._check, outputs)
        )

    def _check(self, outputs: Outputs, found: Sequence[Tensor]) -> str:
        for mine, other in zip(self.same(outputs), found, strict=True):
            if not torch.equal(mine.long(), other.long()):
                raise WrongResult("the outputs differ")
        return "outputs equal"


def bit_loops(depth: int, cells: Tensor) -> Sequence[Tensor]:
    """Codes bit by bit, a stable sort, a scatter of places."""
    codes = torch.stack([place(cells.long(), depth, curve) for curve in CURVES])
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
            set_ = (axes[k] >> level & 1).bool()
            change = torch.where(set_, below, (axes[0] ^ axes[k]) & below)
            if k > 0:
                axes[k] = torch.where(set_, axes[k], axes[k] ^ change)
            axes[0] = axes[0] ^ change
    code, parity = torch.zeros_like(axes[0]), torch.zeros_like(axes[0])
    for level in reversed(range(depth)):
        for axis in axes:
            bit = axis >> level & 1
            parity = parity ^ bit if hilbert else bit
            code = code << 1 | parity
    return code


def unique(cells: Tensor) -> Sequence[Tensor]:
    return cells.unique(dim=0, return_inverse=True, return_counts=True)


def rows_in_use(found: torchvox.UniqueCells) -> Sequence[Tensor]:
    rows = int(found.counts[0])
    return found.indices[:rows], found.point_voxel, found.num_points[:rows]


def first_points(points: Tensor) -> Sequence[Tensor]:
    """The first point of each cell, ascending."""
    cells = (points[:, :3] / torch.full_like(points[:1, :3], CELL)).floor().int()
    rows, inverse = cells.unique(dim=0, return_inverse=True)
    first = torch.full((len(rows),), len(points), device=points.device)
    index = torch.arange(len(points), device=points.device)
    return [first.scatter_reduce(0, inverse, index, "amin").sort().values]


def taken(found: torchvox.GridSample) -> Sequence[Tensor]:
    return [found.representative[: int(found.counts[0])]]


def cases(figure: str, limits: Sequence[Target], factor: float) -> list[CaseSpec]:
    faster = Target(figure, faster_than="torch", factor=factor)
    thousands = f"{POINTS // 1000}k"

    def spec(op: str, words: str, call: dict[str, Any], plain, same, targets=()) -> CaseSpec:
        def build(clouds: Clouds) -> CellCase:
            points, source = clouds.street(POINTS)
            if op != "grid_sample":
                points = torchvox.grid_cells(points, CELL)
            if op == "unique_cells":  # a batch column
                points = torch.nn.functional.pad(points, (1, 0))
            return CellCase(op, points, source, call, plain, same)

        return CaseSpec(f"{op} {thousands}{words}", build, (*targets, faster))

    orders = [
        spec("serialize", f", 4 curves of {depth} bits", {"order": CURVES, "depth": depth},
             partial(bit_loops, depth), tuple, limits)
        for depth in (12, 16)
    ]  # fmt: skip
    uniques = [
        spec("unique_cells", f" x 4, bits {bits}", {"bits": bits, "order": "sorted"}, unique,
             rows_in_use)
        for bits in (15, -1)
    ]  # fmt: skip
    return [*orders, *uniques, spec("grid_sample", "", {"grid_size": CELL}, first_points, taken)]


def gpu_cases() -> list[CaseSpec]:
    return cases("eager_us", [Target("graph_us", 60.0)], 2.0)


def cpu_cases() -> list[CaseSpec]:
    return cases("best_us", [], 1.0)
