# SPDX-License-Identifier: Apache-2.0
"""voxelize: its cases, and the baseline, `unique` and `index_add`."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import numpy as np
import torch
from torch import Tensor

import torchvox
from benchmarks.clouds import Cloud, Clouds
from benchmarks.suite import (
    Case,
    CaseSpec,
    Facts,
    Implementation,
    Outputs,
    Target,
    WrongResult,
    constant,
    graph_us,
)

GRIDS = {
    "KITTI pillars": ([0.16, 0.16, 4.0], [0.0, -39.68, -3.0, 69.12, 39.68, 1.0]),
    "pillars": ([0.16, 0.16, 4.0], [-39.68, -39.68, -3.0, 39.68, 39.68, 1.0]),
    "0.2 m": ([0.2, 0.2, 0.2], [-54.0, -54.0, -5.0, 54.0, 54.0, 3.0]),
    "0.075 m": ([0.075, 0.075, 0.2], [-54.0, -54.0, -5.0, 54.0, 54.0, 3.0]),
}


@dataclass(frozen=True)
class VoxelCase(Case):
    """points [N, F]; max_points, max_voxels -1: no limit; reduce "mean" or "none"; through the
    operator itself instead of the public function when `bare`."""

    points: Tensor
    source: str
    voxel_size: list[float]
    point_cloud_range: list[float]
    max_points: int
    max_voxels: int = -1
    reduce: str = "mean"
    out_dtype: torch.dtype | None = None
    bare: bool = False
    op: str = "voxelize"

    def facts(self) -> Facts:
        rows = self.torchvox()
        return {
            "points": self.points.size(0),
            "voxels": int(rows[4][0, 0]),
            "voxel_size": list(self.voxel_size),
            "max_points": self.max_points,
            "reduce": self.reduce,
            "features_bytes": rows[0].numel() * rows[0].element_size(),
        }

    def torchvox(self) -> Outputs:
        function = torch.ops.torchvox.voxelize if self.bare else torchvox.voxelize
        return function(
            self.points,
            self.voxel_size,
            self.point_cloud_range,
            self.max_points,
            self.max_voxels,
            reduce=self.reduce,
            out_dtype=self.out_dtype,
        )

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        if self.bare:
            return
        check = partial(compare, expected=Voxels.of_torchvox(self, outputs))
        yield Implementation("torch unique + index_add", partial(with_torch, self), check)
        if self.points.device.type == "cpu":
            yield Implementation("numpy unique", partial(with_numpy, self), check)

    def in_range(self) -> Tensor:
        """The points that lie in the grid, for libraries that know no range."""
        return self.points[self.torchvox()[3] >= 0]


class Voxels(NamedTuple):
    """A result in one form, whoever computed it: rows sorted by cell."""

    cells: Tensor  # [M] int64, (z * ny + y) * nx + x
    count: Tensor | None  # [M] stored points
    features: Tensor | None  # [M, F] mean or [M, P, F] padded

    @staticmethod
    def of(case: VoxelCase, zyx: Tensor, count: Tensor | None, features: Tensor | None) -> "Voxels":
        nx, ny, _ = torchvox.grid_size(case.voxel_size, case.point_cloud_range)
        z, y, x = zyx.long().unbind(1)
        cells, order = ((z * ny + y) * nx + x).sort()
        return Voxels(
            cells,
            None if count is None else count[order],
            None if features is None else features[order],
        )

    @staticmethod
    def of_torchvox(case: VoxelCase, outputs: Outputs) -> "Voxels":
        features, indices, num_points, _, counts = outputs
        rows = int(counts[0, 0])
        return Voxels.of(case, indices[:rows, 1:], num_points[:rows], features[:rows])


def compare(found: Voxels, expected: Voxels) -> str:
    """The same voxels, stored points and features. Sums in another order differ by rounding."""
    if found.cells.numel() != expected.cells.numel():
        raise WrongResult(f"{found.cells.numel()} voxels, not {expected.cells.numel()}")
    if not torch.equal(found.cells, expected.cells):
        differ = int((found.cells != expected.cells).sum())
        raise WrongResult(f"{differ} voxels are other ones")
    same = [f"{found.cells.numel()} voxels"]
    if found.count is not None:
        if not torch.equal(found.count.long(), expected.count.long()):
            raise WrongResult("the counts of stored points differ")
        same.append("counts")
    if found.features is not None:
        half = expected.features.dtype in (torch.half, torch.bfloat16)
        tolerance = 2e-3 if half else 1e-4
        mine, theirs = expected.features.float(), found.features.float()
        off = (mine - theirs).abs() - tolerance * mine.abs().clamp(min=1.0)
        if not bool((off <= 0).all()):
            raise WrongResult(f"features differ by up to {float((mine - theirs).abs().max()):.3g}")
        same.append(f"features to {tolerance:g}")
    return "same " + ", ".join(same)


def with_torch(case: VoxelCase) -> Voxels:
    """Baseline: cell of each point, `unique` of the cells, `index_add` of the points."""
    points = case.points
    lower = constant(tuple(case.point_cloud_range[:3]), points.device)
    width = constant(tuple(case.voxel_size), points.device)
    cell = ((points[:, :3] - lower) / width).floor()
    nx, ny, nz = torchvox.grid_size(case.voxel_size, case.point_cloud_range)
    limit = constant((nx, ny, nz), points.device)
    inside = ((cell >= 0) & (cell < limit)).all(1)
    points, cell = points[inside], cell[inside].long()
    key = (cell[:, 2] * ny + cell[:, 1]) * nx + cell[:, 0]
    cells, row, count = torch.unique(key, return_inverse=True, return_counts=True)
    most = case.max_points
    slot = None
    if most >= 0:  # the first points of each voxel, in input order
        order = row.argsort(stable=True)
        first = count.cumsum(0) - count
        slot = torch.arange(len(row), device=row.device) - first[row[order]]
        order, slot = order[slot < most], slot[slot < most]
        points, row, count = points[order], row[order], count.clamp(max=most)
    if case.reduce == "none":
        padded = points.new_zeros(len(cells), most, points.size(1))
        padded[row, slot] = points
        return Voxels(cells, count, padded)
    total = points.new_zeros(len(cells), points.size(1)).index_add_(0, row, points)
    mean = total / count[:, None]
    return Voxels(cells, count, mean if case.out_dtype is None else mean.to(case.out_dtype))


def with_numpy(case: VoxelCase) -> Voxels:
    """The same in NumPy, with `bincount` for the sums."""
    points = case.points.numpy()
    bounds = np.array(case.point_cloud_range, np.float32)
    cell = np.floor((points[:, :3] - bounds[:3]) / np.array(case.voxel_size, np.float32))
    nx, ny, nz = torchvox.grid_size(case.voxel_size, case.point_cloud_range)
    inside = ((cell >= 0) & (cell < np.array([nx, ny, nz]))).all(1)
    points, cell = points[inside], cell[inside].astype(np.int64)
    key = (cell[:, 2] * ny + cell[:, 1]) * nx + cell[:, 0]
    cells, row, count = np.unique(key, return_inverse=True, return_counts=True)
    most = case.max_points
    slot = None
    if most >= 0:
        order = np.argsort(row, kind="stable")
        slot = np.arange(len(row)) - (np.cumsum(count) - count)[row[order]]
        order, slot = order[slot < most], slot[slot < most]
        points, row, count = points[order], row[order], np.minimum(count, most)
    if case.reduce == "none":
        features = np.zeros((len(cells), most, points.shape[1]), np.float32)
        features[row, slot] = points
    else:
        sums = [np.bincount(row, column, len(cells)) for column in points.T]
        features = (np.stack(sums, 1) / count[:, None]).astype(np.float32)
    return Voxels(*(torch.from_numpy(array) for array in (cells, count, features)))


def spec(
    name: str,
    cloud: Callable[[Clouds], Cloud],
    grid: str,
    max_points: int,
    targets: Sequence[Target] = (),
    exact: bool = False,
    **more: Any,
) -> CaseSpec:
    """exact: the capacity is the number of voxels that there are, not that of points."""

    def build(clouds: Clouds) -> VoxelCase:
        points, source = cloud(clouds)
        case = VoxelCase(points, source, *GRIDS[grid], max_points, **more)
        if not exact:
            return case
        return replace(case, max_voxels=int(case.torchvox()[4][0, 0]))

    return CaseSpec(f"voxelize {name}", build, tuple(targets))


def gpu_cases() -> list[CaseSpec]:
    half, none = {"out_dtype": torch.half}, {"reduce": "none"}
    kitti, sweep = Clouds.kitti, Clouds.sweep

    def small(clouds: Clouds) -> Cloud:
        return clouds.street(1000)

    def sweeps(times: int) -> Callable[[Clouds], Cloud]:
        return lambda clouds: clouds.sweep(times)

    eager, call = [Target("eager_us", 35)], [Target("cpu_us", 15)]
    return [
        spec("17k KITTI pillars, P=32, mean", kitti, "KITTI pillars", 32, graph_us(12)),
        spec("111k 0.2 m, P=10, half mean", sweep, "0.2 m", 10, graph_us(18) + eager, **half),
        spec("111k pillars, P=32, half mean", sweep, "pillars", 32, graph_us(18), **half),
        spec("111k 0.075 m, P=10, half mean", sweep, "0.075 m", 10, graph_us(24), **half),
        spec("1M 0.2 m, P=10, half mean", sweeps(9), "0.2 m", 10, graph_us(60), **half),
        spec("10M 0.2 m, P=10, half mean", sweeps(90), "0.2 m", 10, graph_us(1000), **half),
        spec(
            "17k KITTI pillars, P=32, none", kitti, "KITTI pillars", 32, graph_us(12, 1.5), **none
        ),
        spec("111k 0.2 m, P=10, none", sweep, "0.2 m", 10, graph_us(18, 1.5), **none),
        spec("111k pillars, P=32, none", sweep, "pillars", 32, graph_us(18, 1.5), **none),
        spec("111k 0.075 m, P=10, none", sweep, "0.075 m", 10, graph_us(24, 1.5), **none),
        spec("1k call, torchvox.voxelize", small, "0.2 m", 10, call),
        spec("1k call, torch.ops.torchvox.voxelize", small, "0.2 m", 10, call, bare=True),
    ]


def cpu_cases() -> list[CaseSpec]:
    kitti, sweep = Clouds.kitti, Clouds.sweep

    def best(us: float) -> list[Target]:
        return [Target("best_us", us)]

    rivals = [Target("best_us", faster_than="every other implementation")]
    padded = {"reduce": "none", "exact": True}
    return [
        spec("111k 0.2 m, mean", sweep, "0.2 m", -1, best(1600) + rivals),
        spec("111k 0.075 m, P=10, mean", sweep, "0.075 m", 10, best(4000)),
        spec("17k KITTI pillars, P=32, mean", kitti, "KITTI pillars", 32, best(400)),
        spec("111k pillars, P=32, mean", sweep, "pillars", 32, best(1200)),
        spec("17k KITTI pillars, P=32, none", kitti, "KITTI pillars", 32, **padded),
        spec("111k 0.075 m, P=10, none", sweep, "0.075 m", 10, **padded),
    ]
