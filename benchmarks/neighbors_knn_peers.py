# SPDX-License-Identifier: Apache-2.0
"""Adapters for libraries that find nearest neighbors."""

from typing import List

import torch

from benchmarks.neighbors_knn import KnnProblem, compare
from benchmarks.suite import NotApplicable, Outputs, Peer, Way
from benchmarks.timing import Call


def _way(name: str, call: Call, problem: KnnProblem, outputs: Outputs) -> Way:
    return Way(name, call, lambda idx: compare(problem, torch.as_tensor(idx), outputs))


def _only_on(device: str, problem: KnnProblem) -> None:
    if problem.points.device.type != device:
        raise NotApplicable


def scipy(problem: KnnProblem, outputs: Outputs) -> Way:
    """cKDTree, built in the call, on as many threads as torchvox has."""
    _only_on("cpu", problem)
    from scipy.spatial import cKDTree

    threads = torch.get_num_threads()
    pairs = list(zip(problem.points.numpy(), problem.query.numpy(), strict=True))

    def call() -> torch.Tensor:
        found = [cKDTree(p).query(q, k=problem.k, workers=threads)[1] for p, q in pairs]
        return torch.stack([torch.from_numpy(idx) for idx in found])

    return _way("scipy cKDTree", call, problem, outputs)


def torch_cluster(problem: KnnProblem, outputs: Outputs) -> Way:
    """knn over packed clouds."""
    if problem.k > 100:
        raise NotApplicable("k above 100")
    if problem.points.device.type == "cuda" and problem.pairs() > 1 << 33:
        raise NotApplicable(f"a scan of {problem.pairs():.1e} pairs")
    import torch_cluster as package

    clouds, points = problem.points.shape[:2]
    queries, device = problem.query.size(1), problem.points.device
    rows = torch.arange(clouds, device=device)
    x, y = problem.points.reshape(-1, 3), problem.query.reshape(-1, 3)
    of_x, of_y = rows.repeat_interleave(points), rows.repeat_interleave(queries)
    first = points * rows[:, None, None]

    def check(pairs: torch.Tensor) -> str:
        idx = pairs[1].view(clouds, queries, problem.k) - first
        return compare(problem, idx, outputs)

    return Way("torch_cluster", lambda: package.knn(x, y, problem.k, of_x, of_y), check)


def pytorch3d(problem: KnnProblem, outputs: Outputs) -> Way:
    """ops.knn_points, its indices."""
    if problem.points.device.type == "cpu" and problem.pairs() > 1 << 31:
        raise NotApplicable(f"a scan of {problem.pairs():.1e} pairs")
    from pytorch3d.ops import knn_points

    def call() -> torch.Tensor:
        return knn_points(problem.query, problem.points, K=problem.k).idx

    return _way("pytorch3d", call, problem, outputs)


def mmcv(problem: KnnProblem, outputs: Outputs) -> Way:
    """ops.knn, and ops.three_nn for three."""
    _only_on("cuda", problem)
    if problem.op == "three_nn":
        from mmcv.ops import three_nn

        return _way("mmcv", lambda: three_nn(problem.query, problem.points)[1], problem, outputs)
    if problem.k >= 100:
        raise NotApplicable("k of 100 or more")
    from mmcv.ops import knn

    def check(idx: torch.Tensor) -> str:  # [B, k, M]
        return compare(problem, idx.transpose(1, 2), outputs)

    return Way("mmcv", lambda: knn(problem.k, problem.points, problem.query), check)


def pointnet2_ops(problem: KnnProblem, outputs: Outputs) -> Way:
    """pointnet2_utils.three_nn."""
    _only_on("cuda", problem)
    from pointnet2_ops.pointnet2_utils import three_nn

    return _way(
        "pointnet2_ops", lambda: three_nn(problem.query, problem.points)[1], problem, outputs
    )


PEERS: List[Peer] = [
    *(Peer(a.__name__, "knn", a) for a in (scipy, torch_cluster, pytorch3d, mmcv)),
    *(Peer(a.__name__, "three_nn", a) for a in (mmcv, pointnet2_ops)),
]
