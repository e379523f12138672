# SPDX-License-Identifier: Apache-2.0
"""Adapters for libraries that find the points in a ball."""

from typing import List

import numpy as np
import torch

from benchmarks.neighbors import BallCase, compare, compare_counts
from benchmarks.suite import Implementation, NotApplicable, Outputs, UpstreamLibrary


def _only_on(device: str, case: BallCase) -> None:
    if case.points.device.type != device:
        raise NotApplicable


def scipy(case: BallCase, outputs: Outputs) -> Implementation:
    """cKDTree, built in the call, on as many threads as torchvox has: the nearest k in the ball,
    which is faster than query_ball_point, whose balls have no limit."""
    _only_on("cpu", case)
    from scipy.spatial import cKDTree

    radius, k, threads = case.radii[0], case.ks[0], torch.get_num_threads()
    pairs = list(zip(case.points.numpy(), case.query.numpy(), strict=True))

    def call() -> np.ndarray:
        return np.stack(
            [
                cKDTree(p).query(q, k=k, distance_upper_bound=radius, workers=threads)[0]
                for p, q in pairs
            ]
        )

    def check(dist: np.ndarray) -> str:
        return compare_counts(torch.from_numpy(np.isfinite(dist).sum(-1)), outputs)

    return Implementation("scipy cKDTree", call, check)


def torch_cluster(case: BallCase, outputs: Outputs) -> Implementation:
    """radius over packed clouds; on the CPU it keeps other points of a full ball."""
    if case.points.device.type == "cuda" and case.pairs() > 1 << 34:
        raise NotApplicable(f"a scan of {case.pairs():.1e} pairs")
    import torch_cluster as package

    clouds, points = case.points.shape[:2]
    queries, device = case.query.size(1), case.points.device
    rows = torch.arange(clouds, device=device)
    x, y = case.points.reshape(-1, 3), case.query.reshape(-1, 3)
    of_x, of_y = rows.repeat_interleave(points), rows.repeat_interleave(queries)
    radius, k = case.radii[0], case.ks[0]

    def call() -> torch.Tensor:
        return package.radius(x, y, radius, of_x, of_y, max_num_neighbors=k)

    def check(pairs: torch.Tensor) -> str:
        return compare_counts(pairs[0].bincount(minlength=clouds * queries), outputs)

    return Implementation("torch_cluster", call, check)


def pytorch3d(case: BallCase, outputs: Outputs) -> Implementation:
    """ops.ball_query, which pads with -1; its CPU form stops at the k-th hit as well."""
    from pytorch3d.ops import ball_query

    def call() -> torch.Tensor:
        return ball_query(case.query, case.points, K=case.ks[0], radius=case.radii[0]).idx

    def check(idx: torch.Tensor) -> str:
        return compare(case, torch.where(idx < 0, idx[..., :1].clamp(min=0), idx), outputs)

    return Implementation("pytorch3d", call, check)


def mmcv(case: BallCase, outputs: Outputs) -> Implementation:
    """ops.ball_query."""
    _only_on("cuda", case)
    from mmcv.ops import ball_query

    radius, k = case.radii[0], case.ks[0]

    def call() -> torch.Tensor:
        return ball_query(0.0, radius, k, case.points, case.query)

    return Implementation("mmcv", call, lambda idx: compare(case, idx, outputs))


def pointnet2_ops(case: BallCase, outputs: Outputs) -> Implementation:
    """pointnet2_utils.ball_query."""
    _only_on("cuda", case)
    from pointnet2_ops.pointnet2_utils import ball_query

    radius, k = case.radii[0], case.ks[0]

    def call() -> torch.Tensor:
        return ball_query(radius, k, case.points, case.query)

    return Implementation("pointnet2_ops", call, lambda idx: compare(case, idx, outputs))


UPSTREAM: List[UpstreamLibrary] = [
    UpstreamLibrary(adapter.__name__, "ball_query", adapter)
    for adapter in (scipy, torch_cluster, pytorch3d, mmcv, pointnet2_ops)
]
