# SPDX-License-Identifier: Apache-2.0
"""voxel_downsample, voxel_group, voxel_mean: their cases, and the baselines: torch, NumPy, voxelize
and the kernels of baseline_filter.cu."""

import itertools
from dataclasses import dataclass, replace
from functools import partial
from typing import Callable, Iterator, NamedTuple, Sequence

import numpy as np
import torch
from torch import Tensor

import torchvox
from benchmarks import baseline_filter
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
)

EPS = {"single": 2.0**-23, "double": 2.0**-52}
MOST_CHECKED = 20_000_000  # points that are filtered on the CPU to check a GPU
SURVEY = 648_433  # points of an airborne file
SIZES = (0.05, 0.1, 0.2, 0.25, 0.5, 0.75, 1.0)
HASH, MORTON = "hash + float atomics", "Morton + Thrust"


class Filtered(NamedTuple):
    """A result in one form, whoever computed it, in any order."""

    cells: Tensor  # [M, 3] int64, x, y, z
    means: Tensor  # [M, C]
    count: Tensor | None = None  # [M]


@dataclass(frozen=True)
class FilterCase(Case):
    """points [N, C] float32; cubes of size; others: beside other implementations."""

    points: Tensor
    source: str
    size: float
    order: str = "first"
    backend: str = "auto"
    others: bool = True
    op: str = "voxel_downsample"

    def facts(self) -> Facts:
        points, columns = self.points.shape
        voxels = int(self.torchvox()[5][0, 0])
        return {"points": points, "columns": columns, "voxels": voxels, "voxel_size": self.size}

    def torchvox(self) -> Outputs:
        return torchvox.voxel_downsample(
            self.points, [self.size] * 3, order=self.order, backend=self.backend
        )

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        if not self.others:
            return
        check, single = partial(compare, self), EPS["single"]
        on_cpu = self.points.device.type == "cpu"
        sums = {"torch unique + index_add": (torch.float32, 1e-4)}
        if not on_cpu:
            sums["torch unique + index_add, float64 sums"] = (torch.float64, 1e-6)
        for name, (dtype, tolerance) in sums.items():
            checked = partial(check, eps=single, tolerance=tolerance)
            yield Implementation(name, partial(with_torch, self, dtype), checked)
        if on_cpu:
            checked = partial(check, eps=single, tolerance=1e-6)
            yield Implementation("numpy unique + bincount", partial(with_numpy, self), checked)
            yield voxelized(self)
            return
        lower = tuple(self.points[:, :3].amin(0).tolist())
        for name, function in ((HASH, baseline_filter.by_hash), (MORTON, baseline_filter.by_code)):
            call = partial(function, self.points, self.size, lower)
            yield Implementation(name, call, partial(self._check_rows, lower), name == HASH)

    def _check_rows(self, lower: tuple[float, ...], rows: baseline_filter.Rows) -> str:
        found = int(rows.found)
        zyx = torchvox.voxel_cells(rows.codes[:found], 21, [0, 0, 0])[:, 1:]
        result = Filtered(zyx.long().flip(1), rows.means[:found], rows.counts[:found])
        return compare(self, result, lower, EPS["single"], 1e-3)


class LargeCase(FilterCase):
    """A case that would take the CPU too long for a check."""

    def check(self, found: object) -> str:
        backend = "sort" if self.order == "first" else "hash"
        for mine, other in zip(found, replace(self, backend=backend).torchvox(), strict=True):
            if not torch.equal(mine, other):
                raise WrongResult("not the bits of the other backend")
        return "all outputs have the bits of the other backend"


@dataclass(frozen=True)
class GroupCase(Case):
    """keys [N] of points; order, backend: those of voxel_group."""

    points: Tensor
    source: str
    order: str
    backend: str
    op: str = "voxel_group"

    def facts(self) -> Facts:
        return {"points": len(self.points), "voxels": int(self.torchvox()[4][0])}

    def torchvox(self) -> Outputs:
        return torchvox.voxel_group(self.points, order=self.order, backend=self.backend)


@dataclass(frozen=True)
class MeanCase(Case):
    """points [N, C], with the lists of their voxels."""

    points: Tensor
    source: str
    offsets: Tensor
    perm: Tensor
    op: str = "voxel_mean"

    def facts(self) -> Facts:
        voxels = int((self.offsets.diff() > 0).sum())
        return {"points": len(self.points), "columns": self.points.size(1), "voxels": voxels}

    def torchvox(self) -> Outputs:
        return [torchvox.voxel_mean(self.points, self.offsets, self.perm)]


def compare(
    case: FilterCase,
    found: Filtered,
    origin: Sequence[float] = (0.0, 0.0, 0.0),
    eps: float = EPS["double"],
    tolerance: float = 1e-6,
    split: bool = False,
) -> str:
    """The same voxels, counts and means as torchvox has of the points in float64.

    origin: where the implementation's cells start. eps: of its arithmetic; voxels that have points
        within 2 ulp of a face, or beside it, are left out.
    tolerance: of means, a share of the largest value of a column, or of 1.
    split: it may give several rows of a voxel; these are left out too.
    """
    points = case.points.double()
    want = torchvox.voxel_downsample(points, [case.size] * 3, origin=list(origin), trim=True)
    shift = torch.tensor(origin, dtype=torch.float64, device=points.device)
    xyz = points[:, :3] - shift
    faces = (xyz / case.size).round()
    reach = 2 * eps * torch.maximum(torch.maximum(xyz.abs(), points[:, :3].abs()), shift.abs())
    near = (xyz - faces * case.size).abs() <= reach
    at = near.any(1)
    near, faces, own = near[at], faces[at], (xyz[at] / case.size).floor()
    left_out = [
        _keys(torch.where(near, faces - xyz.new_tensor(side), own).long())
        for side in itertools.product((0.0, 1.0), repeat=3)
    ]
    out = torch.cat(left_out).unique()
    keys, times = _keys(found.cells).unique(return_counts=True)
    again = keys[(times > 1) & ~torch.isin(keys, out)]
    if split:
        out = torch.cat([out, again])
    elif len(again):
        raise WrongResult(f"{len(again)} voxels have more than one row")
    mine = _sorted(_keys(want.indices[:, 1:].long().flip(1)), out, want.out, want.num_points)
    theirs = _sorted(_keys(found.cells), out, found.means.double(), found.count)
    if not torch.equal(mine[0], theirs[0]):
        common = int(torch.isin(theirs[0], mine[0]).sum())
        raise WrongResult(
            f"{len(theirs[0]) - common} voxels are other ones, {len(mine[0]) - common} are missing"
        )
    if found.count is not None and not torch.equal(mine[2].long(), theirs[2].long()):
        raise WrongResult("the counts of points differ")
    columns = theirs[1].size(1)
    scale = points[:, :columns].abs().amax(0).clamp(min=1.0)
    off = ((mine[1][:, :columns] - theirs[1]).abs() / scale).amax() if len(mine[0]) else 0.0
    if not float(off) <= tolerance:
        raise WrongResult(f"means differ by {float(off):.1e} of the largest value")
    counts = "" if found.count is None else "counts, "
    rows = f", {len(again)} of them in several rows" if split else ""
    return (
        f"same {len(mine[0])} voxels, {counts}means to {tolerance:g}; left out: "
        f"{int(at.sum())} points at faces, {len(want.out) - len(mine[0])} voxels{rows}"
    )


def _keys(cells: Tensor) -> Tensor:
    x, y, z = (cells + (1 << 20)).unbind(1)
    return x << 42 | y << 21 | z


def _sorted(keys: Tensor, left_out: Tensor, *columns: Tensor | None) -> list[Tensor]:
    keys, order = keys.sort()
    keep = ~torch.isin(keys, left_out)
    return [keys[keep], *(c if c is None else c[order][keep] for c in columns)]


def with_torch(case: FilterCase, dtype: torch.dtype) -> Filtered:
    """Baseline: `unique` of the raveled cells, `index_add` of the points."""
    points = case.points
    cell = (points[:, :3] / constant((case.size,), points.device)).floor().long()
    low = cell.amin(0)
    across = cell.amax(0) - low + 1
    x, y, z = (cell - low).unbind(1)
    key, row, count = torch.unique(
        (x * across[1] + y) * across[2] + z, return_inverse=True, return_counts=True
    )
    sums = points.new_zeros(len(key), points.size(1), dtype=dtype)
    sums.index_add_(0, row, points.to(dtype))
    rest = key // across[2]
    cells = torch.stack([rest // across[1], rest % across[1], key % across[2]], 1) + low
    return Filtered(cells, (sums / count[:, None]).to(points.dtype), count)


def with_numpy(case: FilterCase) -> Filtered:
    """The same in NumPy, with `bincount` for the sums."""
    points = case.points.numpy()
    cell = np.floor(points[:, :3] / np.float32(case.size)).astype(np.int64)
    low = cell.min(0)
    across = cell.max(0) - low + 1
    key, row, count = np.unique(
        np.ravel_multi_index((cell - low).T, across), return_inverse=True, return_counts=True
    )
    means = np.stack([np.bincount(row, c) for c in points.T], 1) / count[:, None]
    cells = np.stack(np.unravel_index(key, across), 1) + low
    arrays = cells, means.astype(np.float32), count
    return Filtered(*(torch.from_numpy(each) for each in arrays))


def voxelized(case: FilterCase) -> Implementation:
    """torchvox.voxelize, with float sums, over the box of the points."""
    low, high = (case.points[:, :3] / case.size).double().aminmax(dim=0)
    low, high = low.floor() - 1, high.floor() + 2
    box = [*(low * case.size).tolist(), *(high * case.size).tolist()]
    call = partial(torchvox.voxelize, case.points, [case.size] * 3, box, -1, -1, reduce="mean")

    def check(outputs: Outputs) -> str:
        features, indices, count, _, counts = outputs
        rows = int(counts[0, 0])
        cells = indices[:rows, 1:].long().flip(1)
        found = Filtered(cells, features[:rows], count[:rows])
        return compare(case, found, torch.tensor(box[:3]).tolist(), EPS["single"], 1e-6)

    return Implementation("voxelize", call, check)


def xyz(cloud: Callable[[Clouds], Cloud]) -> Callable[[Clouds], Cloud]:
    """The first three columns of a cloud."""

    def made(clouds: Clouds) -> Cloud:
        points, source = cloud(clouds)
        return Cloud(points[:, :3].contiguous(), source)

    return made


def colored(cloud: Callable[[Clouds], Cloud]) -> Callable[[Clouds], Cloud]:
    """x, y, z, colors and intensity, which are drawn."""

    def made(clouds: Clouds) -> Cloud:
        points, source = cloud(clouds)
        generator = torch.Generator(points.device).manual_seed(0)
        drawn = torch.rand(len(points), 4, generator=generator, device=points.device)
        return Cloud(torch.cat([points[:, :3], (256 * drawn).floor()], 1), source)

    return made


def street(points: int) -> Callable[[Clouds], Cloud]:
    return lambda clouds: clouds.street(points)


def uniform(points: int) -> Callable[[Clouds], Cloud]:
    """In a box of 200 x 200 x 50 m, made where it is used."""

    def made(clouds: Clouds) -> Cloud:
        generator = torch.Generator(clouds.device).manual_seed(0)
        drawn = torch.rand(points, 3, generator=generator, device=clouds.device)
        return Cloud(drawn * constant((200.0, 200.0, 50.0), drawn.device), "uniform box")

    return made


def arranged(cloud: Callable[[Clouds], Cloud], how: str) -> Callable[[Clouds], Cloud]:
    """The points of a cloud in another order: Morton or shuffled."""

    def made(clouds: Clouds) -> Cloud:
        points, source = cloud(clouds)
        if how == "Morton":
            keys = torchvox.voxel_keys(points, [0.05] * 3).keys
            rows = torchvox.voxel_group(keys, order="key").perm.long()
        else:
            rows = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))
        return Cloud(points[rows.to(points.device)].contiguous(), f"{source}, {how}")

    return made


def spec(
    name: str,
    cloud: Callable[[Clouds], Cloud],
    size: float,
    order: str = "first",
    targets: Sequence[Target] = (),
    others: bool = True,
    unit: str = "m",
) -> CaseSpec:

    def build(clouds: Clouds) -> FilterCase:
        points, source = cloud(clouds)
        large = len(points) > MOST_CHECKED
        return (LargeCase if large else FilterCase)(points, source, size, order, others=others)

    return CaseSpec(f"voxel_downsample {name}, {size:g} {unit}, {order}", build, tuple(targets))


def group_spec(name: str, cloud: Callable[[Clouds], Cloud], order: str, backend: str) -> CaseSpec:
    def build(clouds: Clouds) -> GroupCase:
        points, source = cloud(clouds)
        return GroupCase(torchvox.voxel_keys(points, [0.25] * 3).keys, source, order, backend)

    return CaseSpec(f"voxel_group {name}, 0.25 m, {order}, {backend}", build)


def mean_spec(name: str, cloud: Callable[[Clouds], Cloud]) -> CaseSpec:
    def build(clouds: Clouds) -> MeanCase:
        points, source = cloud(clouds)
        groups = torchvox.voxel_group(torchvox.voxel_keys(points, [0.25] * 3).keys)
        return MeanCase(points, source, groups.offsets, groups.perm)

    return CaseSpec(f"voxel_mean {name}, 0.25 m", build)


def gpu_targets(order: str, us: float, times_torch: float = 1.0) -> list[Target]:
    rival, figure = (HASH, "graph_us") if order == "first" else (MORTON, "eager_us")
    targets = [Target("graph_us", us), Target("eager_us", faster_than="torch", factor=times_torch)]
    if times_torch == 1.0:
        return [*targets, Target(figure, faster_than=rival, factor=2.5)]
    return [*targets, Target("times_floor", 4.0)]


def gpu_cases() -> list[CaseSpec]:
    survey, many = colored(street(SURVEY)), colored(street(10_000_000))
    vast = colored(uniform(100_000_000))
    sweep, scan = colored(Clouds.sweep), f"{SURVEY // 1000}k x 7"
    first, by_key = gpu_targets("first", 80), gpu_targets("key", 150)
    return [
        *(spec(scan, survey, size, "first", first) for size in (0.25, 0.5, 0.75, 1.0, 1.25)),
        *(spec(scan, survey, size, "key", by_key) for size in (0.25, 1.0)),
        *(spec(scan, survey, size, others=False) for size in (0.05, 0.1)),
        *(spec("111k x 7", sweep, size, others=False) for size in SIZES),
        spec(f"{scan}, Morton order", arranged(survey, "Morton"), 0.5),
        spec(f"{scan}, shuffled", arranged(survey, "shuffled"), 0.5),
        spec("110k x 7 airborne", colored(Clouds.tile), 5.0, unit="ft"),
        spec("41k x 7 room", colored(Clouds.room), 0.05),
        spec("10M x 7", many, 0.25, "first", gpu_targets("first", 1000, 3.0)),
        spec("10M x 7", many, 0.25, "key", gpu_targets("key", 1400, 3.0)),
        spec("100M x 7", vast, 0.5, "first", gpu_targets("first", 12000, 3.0)),
        spec("100M x 7", vast, 0.5, "key", gpu_targets("key", 12000, 3.0)),
        *(
            group_spec(scan, survey, order, backend)
            for order in ("first", "key")
            for backend in ("hash", "sort")
        ),
        mean_spec(scan, survey),
        mean_spec("10M x 7", many),
    ]


def cpu_cases() -> list[CaseSpec]:
    times = 2.0 if torch.get_num_threads() > 1 else 1.3
    sweep, tile = xyz(Clouds.sweep), lambda clouds: clouds.tile(6)
    others = [
        Target("best_us", faster_than=name, factor=times)
        for name in ("torch", "numpy", "open3d", "small_gicp")
    ]
    most = Target("best_us", faster_than="voxelize", factor=0.5)
    return [
        *(spec("111k xyz", sweep, s, "first", [*others, most]) for s in (0.05, 0.1, 0.2, 0.5, 1.0)),
        spec("111k xyz", sweep, 0.2, "key", others=False),
        *(
            spec(f"111k xyz, {how}", arranged(sweep, how), 0.2, others=False)
            for how in ("Morton", "shuffled")
        ),
        *(spec("660k airborne", tile, s, "first", others, unit="ft") for s in (0.5, 1.0, 5.0)),
        spec("41k room", Clouds.room, 0.05, "first", others),
        *(
            spec(f"{SURVEY // 1000}k xyz", xyz(street(SURVEY)), s, others=False)
            for s in (0.25, 1.0)
        ),
        spec("10M xyz", xyz(street(10_000_000)), 0.25, others=False),
        *(group_spec("111k", sweep, "first", backend) for backend in ("hash", "sort")),
        mean_spec("111k xyz", sweep),
    ]
