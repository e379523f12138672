# SPDX-License-Identifier: Apache-2.0
"""The clouds of the cases. Real scans where they are, the generated street scan in their place."""

import functools
import importlib.util
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np
import torch

import torchvox
from torchvox.data import generate_scan
from torchvox.io import read_cloud

JITTER = 0.05  # standard deviation, in each column


class Cloud(NamedTuple):
    points: torch.Tensor  # [N, columns] or [B, N, 3]
    source: str


Recipe = Callable[["Clouds"], Cloud]  # of the points of a case


def recipe(build: Callable[..., Any]) -> Callable[..., Callable[["Clouds"], Any]]:
    """Makes of build(data: Clouds, *arguments) a function of the arguments alone that gives a
    function of `data`."""

    @functools.wraps(build)
    def with_arguments(*arguments: Any) -> Callable[["Clouds"], Any]:
        return lambda data: build(data, *arguments)

    return with_arguments


@recipe
def box(data: "Clouds", clouds: int, points: int) -> Cloud:
    """Uniform in 70 x 80 x 4, the extent of a lidar sweep, [clouds, points, 3]."""
    unit = data.cube(clouds, points).points
    return Cloud(unit * unit.new_tensor([70.0, 80.0, 4.0]), "70 x 80 x 4 box")


@recipe
def uniform(data: "Clouds", points: int) -> Cloud:
    """Uniform in 200 x 200 x 50 m, [points, 3], made on the device of the case."""
    generator = torch.Generator(data.device).manual_seed(0)
    drawn = torch.rand(data.size(points), 3, generator=generator, device=data.device)
    return Cloud(drawn * drawn.new_tensor([200.0, 200.0, 50.0]), "uniform box")


@recipe
def one_batch(data: "Clouds", cloud: Recipe) -> Cloud:
    """[1, N, 3] of one cloud; a batch stays."""
    points, source = cloud(data)
    return Cloud(points if points.dim() == 3 else points[None, :, :3].contiguous(), source)


@recipe
def xyz(data: "Clouds", cloud: Recipe) -> Cloud:
    """The first three columns of a cloud."""
    points, source = cloud(data)
    return Cloud(points[:, :3].contiguous(), source)


@recipe
def colored(data: "Clouds", cloud: Recipe) -> Cloud:
    """x, y, z of a cloud, random colors and intensity, [N, 7]."""
    points, source = cloud(data)
    generator = torch.Generator(points.device).manual_seed(0)
    drawn = torch.rand(len(points), 4, generator=generator, device=points.device)
    return Cloud(torch.cat([points[:, :3], (256 * drawn).floor()], 1), source)


@recipe
def arranged(data: "Clouds", cloud: Recipe, how: str) -> Cloud:
    """The points of a cloud in another order: Morton or shuffled."""
    points, source = cloud(data)
    if how == "Morton":
        keys = torchvox.voxel_keys(points, [0.05] * 3).keys
        rows = torchvox.voxel_group(keys, order="key").perm.long()
    else:
        rows = torch.randperm(len(points), generator=seeded())
    return Cloud(points[rows.to(points.device)].contiguous(), f"{source}, {how}")


def evenly(points: torch.Tensor, count: int) -> torch.Tensor:
    """[B, count, 3]: points of each cloud, evenly chosen by their rows."""
    rows = torch.arange(count, device=points.device) * points.size(1) // count
    return points[:, rows].contiguous()


class Clouds:
    """data: folder with lidar/hdl64_360.bin and lidar/kitti_000008.bin, float32 x, y, z, intensity;
    indoor/scannet_scene0000_00.bin, float32 x, y, z, r, g, b; las/autzen_trim.laz.

    None of them is needed. All clouds are made on the CPU from fixed seeds and then moved. most: a
    limit of every size, to try the cases.
    """

    def __init__(self, data: Path | None, device: str, most: int | None = None) -> None:
        self.data, self.device, self.most = data, device, most

    def size(self, count: int) -> int:
        return count if self.most is None else min(count, self.most)

    def batch(self, count: int) -> int:
        return count if self.most is None else min(count, 2)

    def sweep(self, times: int = 1) -> Cloud:
        """A 360-degree sweep of 64 beams, or several copies of it, each point of them jittered."""
        points, source = self._sweep
        if times > 1:
            points = points.repeat(self.batch(times), 1)
            points += JITTER * torch.randn(points.shape, generator=seeded())
            source = f"{times} x {source}, jittered"
        return self._moved(points, source)

    def kitti(self) -> Cloud:
        """One KITTI frame, the field of view of its camera."""
        points = self._read("kitti_000008")
        if points is not None:
            return self._moved(points, "kitti_000008")
        points, source = self._sweep
        ahead = points[(points[:, 0] > 0) & (points[:, 1].abs() < 0.85 * points[:, 0])]
        return self._moved(ahead, f"{source}, ahead")

    def room(self) -> Cloud:
        """A room of 41k points, [N, 3]."""
        points = self._read("scannet_scene0000_00", "indoor", 6)
        if points is None:
            return self.street(40_684)
        return self._moved(points[:, :3], "scannet_scene0000_00")

    def tile(self, times: int = 1) -> Cloud:
        """An airborne tile of 110k points in feet, [N, 3], or copies of it side by side."""
        path = self.data / "las" / "autzen_trim.laz" if self.data else None
        if path is None or not path.exists() or importlib.util.find_spec("laspy") is None:
            return self.street(110_000 * times)
        points = torch.from_numpy(read_cloud(path).points[:, :3]).repeat(times, 1)
        side = 100 * (points[:, 1].max() - points[:, 1].min()).div(100).ceil()  # whole cells
        points[:, 1] += side * (torch.arange(len(points)) // (len(points) // times))
        return self._moved(points, f"{times} x autzen_trim")

    def cube(self, clouds: int, points: int) -> Cloud:
        """Uniform in the unit cube, [clouds, points, 3]."""
        shape = (self.batch(clouds), self.size(points), 3)
        return Cloud(torch.rand(shape, generator=seeded()).to(self.device), "unit cube")

    def street(self, points: int) -> Cloud:
        """A cloud of any size: the sweep thinned evenly, or repeated with jitter."""
        points, (whole, source) = self.size(points), self._sweep
        if points <= len(whole):
            return self._moved(thinned(whole, points), f"{source}, thinned")
        repeated, source = self.sweep(-(-points // len(whole)))
        return Cloud(repeated[:points], source)

    def _moved(self, points: torch.Tensor, source: str) -> Cloud:
        few = thinned(points, self.size(len(points)))
        return Cloud(few.contiguous().to(self.device), source)

    @functools.cached_property
    def _sweep(self) -> Cloud:
        points = self._read("hdl64_360")
        if points is None:
            return Cloud(generate_scan(seed=0).tensor(), "generated")
        return Cloud(points, "hdl64_360")

    def _read(self, name: str, folder: str = "lidar", columns: int = 4) -> torch.Tensor | None:
        path = self.data / folder / f"{name}.bin" if self.data else None
        if path is None or not path.exists():
            return None
        return torch.from_numpy(np.fromfile(path, dtype=np.float32).reshape(-1, columns))


cube, sweeps = recipe(Clouds.cube), recipe(Clouds.sweep)
street, tiles = recipe(Clouds.street), recipe(Clouds.tile)


def thinned(points: torch.Tensor, count: int) -> torch.Tensor:
    """So many of the points, evenly chosen by their rows."""
    return points if count >= len(points) else points[torch.arange(count) * len(points) // count]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
