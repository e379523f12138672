# SPDX-License-Identifier: Apache-2.0
"""Adapters for libraries that filter, on the CPU and with x, y, z alone. Each is held to its own
rule of cells. PCL is not among them: no binding with its filter installs with pip."""

from functools import partial

import numpy as np
import torch

from benchmarks.filter import EPS, FilterCase, Filtered, compare
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


UPSTREAM: list[UpstreamLibrary] = [
    UpstreamLibrary("open3d", "voxel_downsample", open3d),
    UpstreamLibrary("open3d", "voxel_downsample", open3d_tensor),
    UpstreamLibrary("small_gicp", "voxel_downsample", small_gicp),
    UpstreamLibrary("small_gicp", "voxel_downsample", partial(small_gicp, threads=2)),
]
