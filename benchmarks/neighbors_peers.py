# SPDX-License-Identifier: Apache-2.0
"""Adapters for libraries that find the points in a ball."""

from typing import List

import numpy as np
import torch

from benchmarks.neighbors import BallProblem, compare, compare_counts
from benchmarks.suite import NotApplicable, Outputs, Peer, Way


def _only_on(device: str, problem: BallProblem) -> None:
    if problem.points.device.type != device:
        raise NotApplicable


def scipy(problem: BallProblem, outputs: Outputs) -> Way:
    """cKDTree, built in the call, on as many threads as torchvox has: the nearest k in the ball,
    which is faster than query_ball_point, whose balls have no limit."""
    _only_on("cpu", problem)
    from scipy.spatial import cKDTree

    radius, k, threads = problem.radii[0], problem.ks[0], torch.get_num_threads()
    pairs = list(zip(problem.points.numpy(), problem.query.numpy(), strict=True))

    def call() -> np.ndarray:
        return np.stack(
            [
                cKDTree(p).query(q, k=k, distance_upper_bound=radius, workers=threads)[0]
                for p, q in pairs
            ]
        )

    def check(dist: np.ndarray) -> str:
        return compare_counts(torch.from_numpy(np.isfinite(dist).sum(-1)), outputs)

    return Way("scipy cKDTree", call, check)


def torch_cluster(problem: BallProblem, outputs: Outputs) -> Way:
    """radius over packed clouds; on the CPU it keeps other points of a full ball."""
    if problem.points.device.type == "cuda" and problem.pairs() > 1 << 34:
        raise NotApplicable(f"a scan of {problem.pairs():.1e} pairs")
    import torch_cluster as package

    clouds, points = problem.points.shape[:2]
    queries, device = problem.query.size(1), problem.points.device
    rows = torch.arange(clouds, device=device)
    x, y = problem.points.reshape(-1, 3), problem.query.reshape(-1, 3)
    of_x, of_y = rows.repeat_interleave(points), rows.repeat_interleave(queries)
    radius, k = problem.radii[0], problem.ks[0]

    def call() -> torch.Tensor:
        return package.radius(x, y, radius, of_x, of_y, max_num_neighbors=k)

    def check(pairs: torch.Tensor) -> str:
        return compare_counts(pairs[0].bincount(minlength=clouds * queries), outputs)

    return Way("torch_cluster", call, check)


def pytorch3d(problem: BallProblem, outputs: Outputs) -> Way:
    """ops.ball_query, which pads with -1; its CPU form stops at the k-th hit as well."""
    from pytorch3d.ops import ball_query

    def call() -> torch.Tensor:
        return ball_query(
            problem.query, problem.points, K=problem.ks[0], radius=problem.radii[0]
        ).idx

    def check(idx: torch.Tensor) -> str:
        return compare(problem, torch.where(idx < 0, idx[..., :1].clamp(min=0), idx), outputs)

    return Way("pytorch3d", call, check)


def mmcv(problem: BallProblem, outputs: Outputs) -> Way:
    """ops.ball_query."""
    _only_on("cuda", problem)
    from mmcv.ops import ball_query

    radius, k = problem.radii[0], problem.ks[0]

    def call() -> torch.Tensor:
        return ball_query(0.0, radius, k, problem.points, problem.query)

    return Way("mmcv", call, lambda idx: compare(problem, idx, outputs))


def pointnet2_ops(problem: BallProblem, outputs: Outputs) -> Way:
    """pointnet2_utils.ball_query."""
    _only_on("cuda", problem)
    from pointnet2_ops.pointnet2_utils import ball_query

    radius, k = problem.radii[0], problem.ks[0]

    def call() -> torch.Tensor:
        return ball_query(radius, k, problem.points, problem.query)

    return Way("pointnet2_ops", call, lambda idx: compare(problem, idx, outputs))


PEERS: List[Peer] = [
    Peer(adapter.__name__, "ball_query", adapter)
    for adapter in (scipy, torch_cluster, pytorch3d, mmcv, pointnet2_ops)
]
