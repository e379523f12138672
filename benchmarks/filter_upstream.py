# SPDX-License-Identifier: Apache-2.0
"""Adapters for libraries that filter: on the CPU with x, y, z alone, and mmcv on a GPU. Each is
held to its own rule of cells. PCL is not among them: no binding with its filter installs with
pip."""

from functools import partial

import numpy as np
import torch

from benchmarks.filter import EPS, MOST_CHECKED, FilterCase, Filtered, compare
from benchmarks.suite import Implementation, NotApplicable, Outputs, UpstreamLibrary
from benchmarks.voxel_upstream import Downsampler, open3d_downsampler, small_gicp_downsampler


def _xyz(case: FilterCase) -> np.ndarray:
    case.only_on("cpu")
    if not case.others:
        raise NotApplicable
    return case.points[:, :3].double().numpy()


def _adapted(
    case: FilterCase,
    library: Downsampler,
    eps: float = EPS["double"],
    tolerance: float = 1e-6,
    split: bool = False,
) -> Implementation:
    def check(found: object) -> str:
        means = torch.from_numpy(library.means(found)).double()
        cells = ((means - torch.from_numpy(library.origin)) / case.size).floor().long()
        result = Filtered(cells, means)
        return compare(case, result, library.origin.tolist(), eps, tolerance, split)

    return Implementation(library.name, library.call, check)


def open3d(case: FilterCase, outputs: Outputs) -> Implementation:
    return _adapted(case, open3d_downsampler(_xyz(case), case.size))


def open3d_tensor(case: FilterCase, outputs: Outputs) -> Implementation:
    """The tensor geometry in float32. It gets its cloud made."""
    xyz = _xyz(case).astype(np.float32)
    import open3d as o3d

    cloud = o3d.t.geometry.PointCloud(o3d.core.Tensor(xyz))
    library = Downsampler(
        "open3d, tensor",
        lambda: cloud.voxel_down_sample(case.size),
        lambda found: found.point.positions.numpy(),
        np.zeros(3),
    )
    return _adapted(case, library, EPS["single"], 1e-4)


def small_gicp(case: FilterCase, outputs: Outputs, threads: int = 1) -> Implementation:
    library = small_gicp_downsampler(_xyz(case), case.size, threads)
    return _adapted(case, library, split=threads > 1)


def mmcv(case: FilterCase, outputs: Outputs) -> Implementation:
    """Dynamic Voxelization and DynamicScatter over the box of the points, which it gets."""
    case.only_on("cuda")
    if not case.others or len(case.points) > MOST_CHECKED:
        raise NotApplicable
    from mmcv.ops import DynamicScatter, Voxelization

    low, high = (case.points[:, :3] / case.size).double().aminmax(dim=0)
    low, high = low.floor() - 1, high.floor() + 2
    box = [*(low * case.size).tolist(), *(high * case.size).tolist()]
    cells = Voxelization([case.size] * 3, box, -1)
    means = DynamicScatter([case.size] * 3, box, True)

    def check(found: Outputs) -> str:
        result = Filtered(found[1].long().flip(1), found[0])
        return compare(case, result, torch.tensor(box[:3]).tolist(), EPS["single"], 1e-3)

    return Implementation("mmcv", lambda: means(case.points, cells(case.points)), check)


UPSTREAM: list[UpstreamLibrary] = [
    UpstreamLibrary("open3d", "voxel_downsample", open3d),
    UpstreamLibrary("open3d", "voxel_downsample", open3d_tensor),
    UpstreamLibrary("mmcv", "voxel_downsample", mmcv),
    UpstreamLibrary("small_gicp", "voxel_downsample", small_gicp),
    UpstreamLibrary("small_gicp", "voxel_downsample", partial(small_gicp, threads=2)),
]
