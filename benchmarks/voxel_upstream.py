# SPDX-License-Identifier: Apache-2.0
"""Adapters for libraries that voxelize.

Each does the whole case: a padding library is followed by the mean that its users compute. What it
gets for free is said where it is: a capacity that fits exactly, or points in range only.
"""

from functools import partial
from importlib import import_module
from typing import Callable, NamedTuple

import numpy as np
import torch

from benchmarks.suite import Implementation, NotApplicable, Outputs, UpstreamLibrary, WrongResult
from benchmarks.voxel import VoxelCase, Voxels, compare

ROWS_MOVED = 0.002  # share of voxels that may differ where a library's cells round otherwise
MEAN_TOLERANCE = 1e-3  # meters; they compute in float64 or multiply by the inverse


def _capped(case: VoxelCase) -> int:
    if case.bare or case.max_points < 0:
        raise NotApplicable
    return case.max_points


def _reduced(case: VoxelCase, padded: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    if case.reduce == "none":
        return padded
    return padded.sum(1) / count[:, None].to(padded.dtype)


def mmcv(case: VoxelCase, outputs: Outputs, deterministic: bool = True) -> Implementation:
    """mmcv.ops.Voxelization, with room for exactly the voxels that there are.

    Its racy variant stores other points of a full voxel in every run, so features stay unchecked.
    """
    most = _capped(case)
    from mmcv.ops import Voxelization

    expected = Voxels.of_torchvox(case, outputs)
    if not deterministic and case.points.device.type == "cpu":
        raise NotApplicable  # one implementation there
    layer = Voxelization(
        case.voxel_size,
        case.point_cloud_range,
        most,
        expected.cells.numel(),
        deterministic=deterministic,
    )

    def call() -> tuple[torch.Tensor, ...]:
        padded, zyx, count = layer(case.points)
        return _reduced(case, padded, count), zyx, count

    def check(found: tuple[torch.Tensor, ...]) -> str:
        features, zyx, count = found
        return compare(Voxels.of(case, zyx, count, features if deterministic else None), expected)

    return Implementation("mmcv" if deterministic else "mmcv, racy", call, check)


def spconv(case: VoxelCase, outputs: Outputs, package: str = "spconv") -> Implementation:
    """pytorch.utils.PointToVoxel of spconv or spconv_triton, with room for exactly the voxels that
    there are.

    On a GPU spconv stores other points of a full voxel in every run: features stay unchecked there.
    """
    most = _capped(case)
    PointToVoxel = import_module(f"{package}.pytorch.utils").PointToVoxel
    expected = Voxels.of_torchvox(case, outputs)
    make = PointToVoxel(
        vsize_xyz=case.voxel_size,
        coors_range_xyz=case.point_cloud_range,
        num_point_features=case.points.size(1),
        max_num_voxels=expected.cells.numel(),
        max_num_points_per_voxel=most,
        device=case.points.device,
    )

    def call() -> tuple[torch.Tensor, ...]:
        padded, zyx, count = make(case.points)
        return _reduced(case, padded, count), zyx, count

    def check(found: tuple[torch.Tensor, ...]) -> str:
        features, zyx, count = found
        sure = case.points.device.type == "cpu" or package == "spconv_triton"
        return compare(Voxels.of(case, zyx, count, features if sure else None), expected)

    return Implementation(package, call, check)


def _downsampling(case: VoxelCase) -> np.ndarray:
    """x, y, z [N, 3] float64 of the points in range, for libraries that only average coordinates
    over all points of cubes."""
    cube = len(set(case.voxel_size)) == 1
    on_cpu = case.points.device.type == "cpu"
    if case.bare or case.max_points >= 0 or case.reduce != "mean" or not (cube and on_cpu):
        raise NotApplicable
    return case.in_range()[:, :3].double().numpy()


def _compare_means(found: np.ndarray, xyz: np.ndarray, origin: np.ndarray, size: float) -> str:
    """Means [M, 3] against those of the cells floor((p - origin) / size), the library's own rule.

    A mean is found by the cell that it lies in. Points within rounding of a face may change cells.
    """
    wanted, row, count = np.unique(
        np.floor((xyz - origin) / size).astype(np.int64),
        axis=0,
        return_inverse=True,
        return_counts=True,
    )
    sums = np.stack([np.bincount(row.ravel(), column) for column in xyz.T], 1)
    means = {tuple(cell): mean for cell, mean in zip(wanted, sums / count[:, None], strict=True)}
    cells = np.floor((found - origin) / size).astype(np.int64)
    none = np.full(3, np.inf)
    expected = np.array([means.get(tuple(cell), none) for cell in cells])
    right = int((np.abs(found - expected) < MEAN_TOLERANCE).all(1).sum())
    if abs(len(found) - len(wanted)) > ROWS_MOVED * len(wanted):
        raise WrongResult(f"{len(found)} voxels, not {len(wanted)}")
    if right < (1 - ROWS_MOVED) * len(wanted):
        raise WrongResult(f"{len(wanted) - right} of {len(wanted)} means differ")
    return f"{len(found)} voxels, {100 * right / len(wanted):.2f} % of the means"


class Downsampler(NamedTuple):
    """A library that averages coordinates; its cells start at the origin."""

    name: str
    call: Callable[[], object]
    means: Callable[[object], np.ndarray]  # [M, 3] of a result
    origin: np.ndarray

    def implementation(self, xyz: np.ndarray, size: float) -> Implementation:
        def check(found: object) -> str:
            return _compare_means(self.means(found), xyz, self.origin, size)

        return Implementation(self.name, self.call, check)


def open3d_downsampler(xyz: np.ndarray, size: float) -> Downsampler:
    """PointCloud.voxel_down_sample of x, y, z [N, 3] float64. Its cells start half a voxel below
    the least point. It gets its cloud made."""
    import open3d as o3d

    cloud = o3d.geometry.PointCloud(o3d.utility.Vector3dVector(xyz))
    return Downsampler(
        "open3d",
        lambda: cloud.voxel_down_sample(size),
        lambda found: np.asarray(found.points),
        xyz.min(0) - size / 2,
    )


def small_gicp_downsampler(xyz: np.ndarray, size: float, threads: int = 1) -> Downsampler:
    """voxelgrid_sampling of x, y, z [N, 3] float64. It gets its cloud made. With threads it may
    split voxels, as it documents."""
    import small_gicp as gicp

    cloud = gicp.PointCloud(xyz)
    return Downsampler(
        "small_gicp" if threads == 1 else f"small_gicp, {threads} threads",
        lambda: gicp.voxelgrid_sampling(cloud, size, threads),
        lambda found: np.asarray(found.points())[:, :3],
        np.zeros(3),
    )


def open3d(case: VoxelCase, outputs: Outputs) -> Implementation:
    """It gets only points in range, and averages x, y, z, not the fourth column."""
    xyz, size = _downsampling(case), case.voxel_size[0]
    return open3d_downsampler(xyz, size).implementation(xyz, size)


def small_gicp(case: VoxelCase, outputs: Outputs, threads: int = 1) -> Implementation:
    """As open3d."""
    xyz, size = _downsampling(case), case.voxel_size[0]
    return small_gicp_downsampler(xyz, size, threads).implementation(xyz, size)


def small_gicp_threaded(case: VoxelCase, outputs: Outputs) -> Implementation:
    if torch.get_num_threads() == 1:
        raise NotApplicable
    return small_gicp(case, outputs, torch.get_num_threads())


UPSTREAM: list[UpstreamLibrary] = [
    UpstreamLibrary("mmcv", "voxelize", mmcv),
    UpstreamLibrary("mmcv", "voxelize", lambda case, outputs: mmcv(case, outputs, False)),
    UpstreamLibrary("spconv", "voxelize", spconv),
    UpstreamLibrary("spconv_triton", "voxelize", partial(spconv, package="spconv_triton")),
    UpstreamLibrary("open3d", "voxelize", open3d),
    UpstreamLibrary("small_gicp", "voxelize", small_gicp),
    UpstreamLibrary("small_gicp", "voxelize", small_gicp_threaded),
]
