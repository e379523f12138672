# SPDX-License-Identifier: Apache-2.0
"""voxelize: its cases, and the libraries that voxelize.

A library does the whole case: one that pads is followed by the mean that its users compute.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

import torchvox
from benchmarks import suite
from benchmarks.clouds import Clouds, Recipe, street, sweeps
from benchmarks.filter import Downsample
from benchmarks.suite import ANY, Case, Outputs, Target, Way, expect, graph, limit, peer

GRIDS = {
    "KITTI pillars": ([0.16, 0.16, 4.0], [0.0, -39.68, -3.0, 69.12, 39.68, 1.0]),
    "pillars": ([0.16, 0.16, 4.0], [-39.68, -39.68, -3.0, 39.68, 39.68, 1.0]),
    "0.2 m": ([0.2, 0.2, 0.2], [-54.0, -54.0, -5.0, 54.0, 54.0, 3.0]),
    "0.075 m": ([0.075, 0.075, 0.2], [-54.0, -54.0, -5.0, 54.0, 54.0, 3.0]),
}


class Voxels(NamedTuple):
    """A result in one form, whoever computed it: rows sorted by cell."""

    cells: Tensor  # [M] int64, (z * ny + y) * nx + x
    count: Tensor  # [M] stored points
    features: Tensor | None  # [M, F] mean or [M, P, F] padded; None where they vary by run


class Voxelize(suite.Problem):
    def voxels(self, zyx: Tensor, count: Tensor, features: Tensor | None) -> Voxels:
        nx, ny, _ = torchvox.grid_size(self["voxel_size"], self["point_cloud_range"])
        z, y, x = zyx.long().unbind(1)
        cells, order = ((z * ny + y) * nx + x).sort()
        return Voxels(cells, count[order], None if features is None else features[order])

    def of_torchvox(self) -> Voxels:
        features, indices, num_points, _, counts = self.outputs
        rows = int(counts[0, 0])
        return self.voxels(indices[:rows, 1:], num_points[:rows], features[:rows])

    def compare(self, result: Voxels) -> str:
        """The same voxels, stored points and features. Sums in another order differ by rounding."""
        expected = self.of_torchvox()
        same = torch.equal(result.cells, expected.cells)
        expect(same, f"{len(result.cells)} voxels, not the {len(expected.cells)} of here")
        same = torch.equal(result.count.long(), expected.count.long())
        expect(same, "the counts of stored points differ")
        said = f"same {len(result.cells)} voxels, counts"
        if result.features is None:
            return said
        tolerance = 2e-3 if expected.features.dtype in (torch.half, torch.bfloat16) else 1e-4
        mine, theirs = expected.features.float(), result.features.float()
        off = (mine - theirs).abs() - tolerance * mine.abs().clamp(min=1.0)
        most = float((mine - theirs).abs().max())
        expect(bool((off <= 0).all()), f"features differ by up to {most:.3g}")
        return f"{said}, features to {tolerance:g}"

    def cubes(self) -> Downsample:
        """The points in range, for libraries that average all points of cubes and know no range."""
        cube = len(set(self["voxel_size"])) == 1
        limit(cube and self["max_points"] < 0 and self["reduce"] == "mean")
        call = {"points": self["points"][self.outputs[3] >= 0], "voxel_size": self["voxel_size"]}
        return Downsample("voxel_downsample", call)

    def way(self, layer: Any, name: str, exact_features: bool = True) -> Way:
        """Of a library whose layer gives padded points, z y x and counts."""

        def call() -> tuple[Tensor, ...]:
            padded, zyx, count = layer(self["points"])
            if self["reduce"] == "mean":
                padded = padded.sum(1) / count[:, None].to(padded.dtype)
            return padded, zyx, count

        def convert(result: tuple[Tensor, ...]) -> Voxels:
            features, zyx, count = result
            return self.voxels(zyx, count, features if exact_features else None)

        return Way(call, convert, name=name)


class BareVoxelize(Voxelize):
    """Through the operator itself instead of the public function."""

    def run(self) -> Outputs:
        return torch.ops.torchvox.voxelize(**self.arguments)


@peer("mmcv.ops", "voxelize")
def mmcv(ops: Any, problem: Voxelize, deterministic: bool = True) -> Way:
    """With room for exactly the voxels that there are."""
    limit(problem["max_points"] >= 0)
    grid = (problem["voxel_size"], problem["point_cloud_range"], problem["max_points"])
    layer = ops.Voxelization(*grid, len(problem.of_torchvox().cells), deterministic=deterministic)
    return problem.way(layer, "mmcv" if deterministic else "mmcv, racy", deterministic)


@peer("mmcv.ops", "voxelize", device="cuda")
def mmcv_racy(ops: Any, problem: Voxelize) -> Way:
    """It stores other points of a full voxel in every run, so its features stay unchecked."""
    return mmcv(ops, problem, False)


@peer("spconv.pytorch.utils", "voxelize")
@peer("spconv_triton.pytorch.utils", "voxelize")
def spconv(utils: Any, problem: Voxelize) -> Way:
    """With room for exactly the voxels that there are. On a GPU spconv stores other points of a
    full voxel in every run: its features stay unchecked there."""
    limit(problem["max_points"] >= 0)
    layer = utils.PointToVoxel(
        vsize_xyz=problem["voxel_size"],
        coors_range_xyz=problem["point_cloud_range"],
        num_point_features=problem["points"].size(1),
        max_num_voxels=len(problem.of_torchvox().cells),
        max_num_points_per_voxel=problem["max_points"],
        device=problem.device,
    )
    package = utils.__name__.split(".")[0]
    sure = problem.device.type == "cpu" or package == "spconv_triton"
    return problem.way(layer, package, sure)


def row(
    name: str, cloud: Recipe, grid: str, max_points: int, *targets: Target, exact: bool = False,
    kind: type[Voxelize] = Voxelize, **more: Any,
) -> Case:  # fmt: skip
    """exact: the capacity is the number of voxels, not that of points."""
    size, bounds = GRIDS[grid]
    options = {"voxel_size": size, "point_cloud_range": bounds, "max_points": max_points}
    options |= {"reduce": "mean", "out_dtype": None, **more}

    def inputs(clouds: Clouds) -> dict[str, Any]:
        arguments = {**cloud(clouds)._asdict(), "max_voxels": -1}
        if exact:
            outputs = torchvox.voxelize(arguments["points"], max_voxels=-1, **options)
            arguments["max_voxels"] = int(outputs.counts[0, 0])
        return arguments

    name, alone = f"voxelize {name}", kind is BareVoxelize
    return Case(name, "voxelize", inputs, options, targets, kind, alone)


def cases(device: str) -> list[Case]:
    kitti, sweep, small = Clouds.kitti, Clouds.sweep, street(1000)
    half, none = {"out_dtype": torch.half}, {"reduce": "none"}
    if device == "cpu":
        padded = {"reduce": "none", "exact": True}
        best = {us: Target("best_us", us) for us in (400, 1200, 1600, 4000)}
        return [
            row("111k 0.2 m, mean", sweep, "0.2 m", -1, best[1600], suite.faster("best_us", ANY)),
            row("111k 0.075 m, P=10, mean", sweep, "0.075 m", 10, best[4000]),
            row("17k KITTI pillars, P=32, mean", kitti, "KITTI pillars", 32, best[400]),
            row("111k pillars, P=32, mean", sweep, "pillars", 32, best[1200]),
            row("17k KITTI pillars, P=32, none", kitti, "KITTI pillars", 32, **padded),
            row("111k 0.075 m, P=10, none", sweep, "0.075 m", 10, **padded),
        ]
    eager, call = Target("eager_us", 35), Target("cpu_us", 15)
    return [
        row("17k KITTI pillars, P=32, mean", kitti, "KITTI pillars", 32, graph(12)),
        row("111k 0.2 m, P=10, half mean", sweep, "0.2 m", 10, graph(18), eager, **half),
        row("111k pillars, P=32, half mean", sweep, "pillars", 32, graph(18), **half),
        row("111k 0.075 m, P=10, half mean", sweep, "0.075 m", 10, graph(24), **half),
        row("1M 0.2 m, P=10, half mean", sweeps(9), "0.2 m", 10, graph(60), **half),
        row("10M 0.2 m, P=10, half mean", sweeps(90), "0.2 m", 10, graph(1000), **half),
        row("17k KITTI pillars, P=32, none", kitti, "KITTI pillars", 32, graph(15.1), **none),
        row("111k 0.2 m, P=10, none", sweep, "0.2 m", 10, graph(24.3), **none),
        row("111k pillars, P=32, none", sweep, "pillars", 32, graph(38.1), **none),
        row("111k 0.075 m, P=10, none", sweep, "0.075 m", 10, graph(30.3), **none),
        row("1k call, torchvox.voxelize", small, "0.2 m", 10, call),
        row("1k call, torch.ops.torchvox.voxelize", small, "0.2 m", 10, call, kind=BareVoxelize),
    ]
