# SPDX-License-Identifier: Apache-2.0
"""voxel_downsample, voxel_group, voxel_mean: their cases, and the libraries that filter: on the CPU
x, y, z alone, mmcv on a GPU. Each is held to its own rule of cells."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import torchvox
from benchmarks import suite
from benchmarks.clouds import Clouds, Recipe, arranged, colored, recipe, street, tiles, uniform, xyz
from benchmarks.suite import Case, Outputs, Problem, Target, Way, expect, graph, peer

EPS = {"single": 2.0**-23, "double": 2.0**-52}
MOST_CHECKED = 20_000_000  # points that are filtered on the CPU to check a GPU
SURVEY = 648_433  # points of an airborne file
SIZES = (0.05, 0.1, 0.2, 0.25, 0.5, 0.75, 1.0)


class Filtered(NamedTuple):
    """A result in one form, whoever computed it, in any order.

    origin: where the cells of the implementation start.
    eps: of its arithmetic; voxels with points within 2 ulp of a face, or beside it, are left out.
    tolerance: of means, a share of the largest value of a column, or of 1.
    split: it may give several rows of a voxel; these are left out too.
    """

    cells: Tensor  # [M, 3] int64, x, y, z
    means: Tensor  # [M, C]
    origin: Sequence[float] = (0.0, 0.0, 0.0)
    eps: float = EPS["double"]
    tolerance: float = 1e-6
    split: bool = False


class Downsample(Problem):
    @property
    def size(self) -> float:
        return self["voxel_size"][0]

    def cubes(self) -> "Downsample":
        """What libraries do that average all points of cubes."""
        return self

    def box(self) -> list[float]:
        """Of the points, at whole cells, with one cell more on each side."""
        low, high = (self["points"][:, :3] / self.size).double().aminmax(dim=0)
        return torch.cat([(low.floor() - 1) * self.size, (high.floor() + 2) * self.size]).tolist()

    def check(self, outputs: Outputs) -> str:
        """A large cloud would take the CPU too long: there the backends are compared."""
        if len(self["points"]) <= MOST_CHECKED:
            return super().check(outputs)
        backend = "sort" if self["order"] == "first" else "hash"
        other = torchvox.voxel_downsample(**{**self.arguments, "backend": backend})
        expect(all(map(torch.equal, outputs, other)), "not the bits of the other backend")
        return "all outputs have the bits of the other backend"

    def compare(self, result: Filtered) -> str:
        """The same voxels and means as torchvox has of the points in float64."""
        points = self["points"].double()
        options = {"origin": list(result.origin), "trim": True}
        want = torchvox.voxel_downsample(points, self["voxel_size"], **options)
        left_out, at_faces = self._cells_at_faces(points, result)
        keys, times = _keys(result.cells).unique(return_counts=True)
        again = keys[(times > 1) & ~torch.isin(keys, left_out)]
        if result.split:
            left_out = torch.cat([left_out, again])
        expect(result.split or not len(again), f"{len(again)} voxels have more than one row")
        cells = want.indices[:, 1:].long().flip(1)
        mine, means = _sorted(_keys(cells), left_out, want.out)
        theirs, their_means = _sorted(_keys(result.cells), left_out, result.means.double())
        other, missing = (int((~torch.isin(*p)).sum()) for p in ((theirs, mine), (mine, theirs)))
        same = torch.equal(mine, theirs)
        expect(same, f"{other} voxels are other ones, {missing} are missing")
        columns = their_means.size(1)
        scale = points[:, :columns].abs().amax(0).clamp(min=1.0)
        off = ((means[:, :columns] - their_means).abs() / scale).amax() if len(mine) else 0.0
        good = float(off) <= result.tolerance
        expect(good, f"means differ by {float(off):.1e} of the largest value")
        rows = f", {len(again)} of them in several rows" if result.split else ""
        return (
            f"same {len(mine)} voxels, means to {result.tolerance:g}; left out: {at_faces} points "
            f"at faces, {len(want.out) - len(mine)} voxels{rows}"
        )

    def _cells_at_faces(self, points: Tensor, result: Filtered) -> tuple[Tensor, int]:
        """Keys of the cells that a point within rounding of a face may be in, and the number of
        such points."""
        shift = points.new_tensor(result.origin)
        place = points[:, :3] - shift
        faces = (place / self.size).round()
        largest = torch.maximum(torch.maximum(place.abs(), points[:, :3].abs()), shift.abs())
        near = (place - faces * self.size).abs() <= 2 * result.eps * largest
        at = near.any(1)
        near, faces, own = near[at], faces[at], (place[at] / self.size).floor()
        sides = map(place.new_tensor, itertools.product((0.0, 1.0), repeat=3))
        keys = [_keys(torch.where(near, faces - side, own).long()) for side in sides]
        return torch.cat(keys).unique(), int(at.sum())

    def way_of_means(
        self, call: Callable, means_of: Callable, origin: np.ndarray, name: str, **how: Any
    ) -> Way:
        """Of a library that gives means [M, 3] alone: the cell of a row is that of its mean."""

        def check(result: Any) -> str:
            means = torch.from_numpy(means_of(result)).double()
            cells = ((means - torch.from_numpy(origin)) / self.size).floor().long()
            return self.compare(Filtered(cells, means, origin.tolist(), **how))

        return Way(call, check=check, name=name)

    def xyz(self) -> np.ndarray:
        return self["points"][:, :3].double().numpy()


def _keys(cells: Tensor) -> Tensor:
    x, y, z = (cells + (1 << 20)).unbind(1)
    return x << 42 | y << 21 | z


def _sorted(keys: Tensor, left_out: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    keys, order = keys.sort()
    keep = ~torch.isin(keys, left_out)
    return keys[keep], means[order][keep]


@peer("open3d", "voxel_downsample", "voxelize", device="cpu")
def open3d(o3d: Any, problem: Any) -> Way:
    """Its cells start half a voxel below the least point. It gets its cloud made."""
    points = (problem := problem.cubes()).xyz()
    cloud = o3d.geometry.PointCloud(o3d.utility.Vector3dVector(points))
    call, origin = partial(cloud.voxel_down_sample, problem.size), points.min(0) - problem.size / 2
    return problem.way_of_means(call, lambda means: np.asarray(means.points), origin, "open3d")


@peer("small_gicp", "voxel_downsample", "voxelize", device="cpu")
def small_gicp(gicp: Any, problem: Any, threads: int = 1) -> Way:
    """It gets its cloud made. With threads it may split voxels, as it documents."""
    cloud = gicp.PointCloud((problem := problem.cubes()).xyz())
    call = partial(gicp.voxelgrid_sampling, cloud, problem.size, threads)
    name, split = "small_gicp" + f", {threads} threads" * (threads > 1), threads > 1
    return problem.way_of_means(
        call, lambda means: np.asarray(means.points())[:, :3], np.zeros(3), name, split=split
    )


@peer("small_gicp", "voxel_downsample", "voxelize", device="cpu")
def small_gicp_threads(gicp: Any, problem: Any) -> Way:
    return small_gicp(gicp, problem, max(2, torch.get_num_threads()))


@peer("mmcv.ops", "voxel_downsample", device="cuda")
def mmcv(ops: Any, problem: Downsample) -> Way:
    """Dynamic Voxelization and DynamicScatter over the box of the points, which it gets."""
    suite.limit(len(problem["points"]) <= MOST_CHECKED)
    box, size = problem.box(), problem["voxel_size"]
    cells, means = ops.Voxelization(size, box, -1), ops.DynamicScatter(size, box, True)
    points, origin = problem["points"], torch.tensor(box[:3]).tolist()

    def convert(result: Outputs) -> Filtered:
        return Filtered(result[1].long().flip(1), result[0], origin, EPS["single"], 1e-3)

    return Way(lambda: means(points, cells(points)), convert)


def row(
    name: str, cloud: Recipe, size: float, *targets: Target, order: str = "first",
    alone: bool = False, unit: str = "m",
) -> Case:  # fmt: skip
    name = f"voxel_downsample {name}, {size:g} {unit}, {order}"
    options = {"voxel_size": [size] * 3, "order": order}
    return Case(name, "voxel_downsample", cloud, options, targets, Downsample, alone)


@recipe
def keys_of(data: Clouds, cloud: Recipe) -> dict[str, Any]:
    points, source = cloud(data)
    return {"keys": torchvox.voxel_keys(points, [0.25] * 3).keys, "source": source}


@recipe
def grouped(data: Clouds, cloud: Recipe) -> dict[str, Any]:
    points, source = cloud(data)
    groups = torchvox.voxel_group(torchvox.voxel_keys(points, [0.25] * 3).keys)
    return {"values": points, "offsets": groups.offsets, "perm": groups.perm, "source": source}


def group_row(name: str, cloud: Recipe, order: str, backend: str) -> Case:
    name = f"voxel_group {name}, 0.25 m, {order}, {backend}"
    return Case(name, "voxel_group", keys_of(cloud), {"order": order, "backend": backend})


def mean_row(name: str, cloud: Recipe) -> Case:
    return Case(f"voxel_mean {name}, 0.25 m", "voxel_mean", grouped(cloud))


def cases(device: str) -> list[Case]:
    if device == "cpu":
        times = 2.0 if torch.get_num_threads() > 1 else 1.3
        ahead = [suite.faster("best_us", name, times) for name in ("open3d", "small_gicp")]
        sweep, survey = xyz(Clouds.sweep), xyz(street(SURVEY))
        return [
            *(row("111k xyz", sweep, size, *ahead) for size in (0.05, 0.1, 0.2, 0.5, 1.0)),
            row("111k xyz", sweep, 0.2, order="key", alone=True),
            row("111k xyz, Morton", arranged(sweep, "Morton"), 0.2, alone=True),
            row("111k xyz, shuffled", arranged(sweep, "shuffled"), 0.2, alone=True),
            *(row("660k airborne", tiles(6), size, *ahead, unit="ft") for size in (0.5, 1.0, 5.0)),
            row("41k room", Clouds.room, 0.05, *ahead),
            *(row(f"{SURVEY // 1000}k xyz", survey, size, alone=True) for size in (0.25, 1.0)),
            row("10M xyz", xyz(street(10_000_000)), 0.25, alone=True),
            *(group_row("111k", sweep, "first", backend) for backend in ("hash", "sort")),
            mean_row("111k xyz", sweep),
        ]
    survey, many = colored(street(SURVEY)), colored(street(10_000_000))
    vast, sweep = colored(uniform(100_000_000)), colored(Clouds.sweep)
    scan, floor = f"{SURVEY // 1000}k x 7", Target("times_floor", 4.0)
    ahead = suite.faster("eager_us", "mmcv", 2.5)
    sides = itertools.product(("first", "key"), ("hash", "sort"))
    return [
        *(row(scan, survey, size, graph(80), ahead) for size in (0.25, 0.5, 0.75, 1.0, 1.25)),
        *(row(scan, survey, size, graph(150), ahead, order="key") for size in (0.25, 1.0)),
        *(row(scan, survey, size, alone=True) for size in (0.05, 0.1)),
        *(row("111k x 7", sweep, size, alone=True) for size in SIZES),
        row(f"{scan}, Morton order", arranged(survey, "Morton"), 0.5),
        row(f"{scan}, shuffled", arranged(survey, "shuffled"), 0.5),
        row("110k x 7 airborne", colored(Clouds.tile), 5.0, unit="ft"),
        row("41k x 7 room", colored(Clouds.room), 0.05),
        row("10M x 7", many, 0.25, graph(1000), floor, ahead),
        row("10M x 7", many, 0.25, graph(1400), floor, ahead, order="key"),
        row("100M x 7", vast, 0.5, graph(12000), floor),
        row("100M x 7", vast, 0.5, graph(12000), floor, order="key"),
        *(group_row(scan, survey, order, backend) for order, backend in sides),
        mean_row(scan, survey),
        mean_row("10M x 7", many),
    ]
