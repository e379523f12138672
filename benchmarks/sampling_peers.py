# SPDX-License-Identifier: Apache-2.0
"""Adapters for libraries that sample furthest points. All start at point 0, like torchvox here."""

from functools import partial
from typing import List

import numpy as np
import torch

from benchmarks.sampling import SamplingProblem, compare
from benchmarks.suite import NotApplicable, Outputs, Peer, Way, WrongResult
from benchmarks.timing import Call, fastest

HEIGHTS = (3, 5, 7, 9)  # of fpsample's tree, the ones that its documentation names


def _way(name: str, call: Call, problem: SamplingProblem, outputs: Outputs) -> Way:
    def check(idx: object) -> str:
        found = idx if isinstance(idx, torch.Tensor) else torch.from_numpy(idx.astype(np.int64))
        return compare(problem, found, outputs)

    return Way(name, call, check)


def _only_on(device: str, problem: SamplingProblem, batches: bool = True) -> None:
    if problem.points.device.type != device or (problem.points.size(0) > 1 and not batches):
        raise NotApplicable


def fpsample(problem: SamplingProblem, outputs: Outputs) -> Way:
    """bucket_fps_kdline_sampling with the tree height that is fastest here."""
    _only_on("cpu", problem, batches=False)
    import fpsample as package

    cloud = problem.points[0].numpy()

    def call(height: int) -> np.ndarray:
        return package.bucket_fps_kdline_sampling(cloud, problem.samples, h=height, start_idx=0)

    calls = {f"fpsample, h={height}": partial(call, height) for height in HEIGHTS}
    name = fastest(calls)
    return _way(name, calls[name], problem, outputs)


def open3d(problem: SamplingProblem, outputs: Outputs) -> Way:
    """PointCloud.farthest_point_down_sample, which gives points: their rows are looked up."""
    _only_on("cpu", problem, batches=False)
    import open3d as o3d

    xyz = problem.points[0].double().numpy()
    cloud = o3d.geometry.PointCloud(o3d.utility.Vector3dVector(xyz))
    row_of = {point.tobytes(): row for row, point in reversed(list(enumerate(xyz)))}

    def check(found: "o3d.geometry.PointCloud") -> str:
        rows = [row_of.get(point.tobytes()) for point in np.asarray(found.points)]
        if len(rows) != problem.samples or None in rows:
            raise WrongResult(f"{len(rows)} points, {rows.count(None)} of them not in the cloud")
        # It keeps the order of the cloud, so its samples are a set: sorted, they are the same ones.
        mine = torch.tensor(sorted(rows))
        if torch.equal(mine, outputs[0][0].long().sort().values):
            return "same set of samples"
        return compare(problem, mine[None], outputs)

    return Way(
        "open3d", lambda: cloud.farthest_point_down_sample(problem.samples, start_index=0), check
    )


def torch_cluster(problem: SamplingProblem, outputs: Outputs) -> Way:
    """fps over packed clouds; the ratio is chosen so that it rounds up to the sample count."""
    problem.refuse_slow_loop()
    import torch_cluster as package

    clouds, count = problem.points.shape[:2]
    packed = problem.points.reshape(-1, 3)
    batch = torch.arange(clouds, device=packed.device).repeat_interleave(count)
    ratio = (problem.samples - 0.5) / count

    def check(idx: torch.Tensor) -> str:
        found = idx.view(clouds, -1) - count * torch.arange(clouds, device=idx.device)[:, None]
        return compare(problem, found, outputs)

    return Way(
        "torch_cluster", lambda: package.fps(packed, batch, ratio, random_start=False), check
    )


def pytorch3d(problem: SamplingProblem, outputs: Outputs) -> Way:
    """ops.sample_farthest_points, its indices; it gathers the points as well."""
    problem.refuse_slow_loop()
    from pytorch3d.ops import sample_farthest_points

    def call() -> torch.Tensor:
        return sample_farthest_points(problem.points, K=problem.samples)[1]

    return _way("pytorch3d", call, problem, outputs)


def mmcv(problem: SamplingProblem, outputs: Outputs) -> Way:
    """mmcv.ops.furthest_point_sample; other ties."""
    _only_on("cuda", problem)
    from mmcv.ops import furthest_point_sample

    def call() -> torch.Tensor:
        return furthest_point_sample(problem.points, problem.samples)

    return _way("mmcv", call, problem, outputs)


def pointnet2_ops(problem: SamplingProblem, outputs: Outputs) -> Way:
    """pointnet2_utils.furthest_point_sample; other ties, and points next to 0 are skipped."""
    _only_on("cuda", problem)
    from pointnet2_ops.pointnet2_utils import furthest_point_sample

    def call() -> torch.Tensor:
        return furthest_point_sample(problem.points, problem.samples)

    return _way("pointnet2_ops", call, problem, outputs)


PEERS: List[Peer] = [
    Peer(adapter.__name__, "furthest_point_sample", adapter)
    for adapter in (fpsample, open3d, torch_cluster, pytorch3d, mmcv, pointnet2_ops)
]
