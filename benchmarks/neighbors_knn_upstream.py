# SPDX-License-Identifier: Apache-2.0
"""Adapters for libraries that find nearest neighbors."""

from typing import List

import torch

from benchmarks.neighbors_knn import KnnCase, compare
from benchmarks.suite import Implementation, NotApplicable, Outputs, UpstreamLibrary
from benchmarks.timing import Call


def _implementation(name: str, call: Call, case: KnnCase, outputs: Outputs) -> Implementation:
    return Implementation(name, call, lambda idx: compare(case, torch.as_tensor(idx), outputs))


def _only_on(device: str, case: KnnCase) -> None:
    if case.points.device.type != device:
        raise NotApplicable


def scipy(case: KnnCase, outputs: Outputs) -> Implementation:
    """cKDTree, built in the call, on as many threads as torchvox has."""
    _only_on("cpu", case)
    from scipy.spatial import cKDTree

    threads = torch.get_num_threads()
    pairs = list(zip(case.points.numpy(), case.query.numpy(), strict=True))

    def call() -> torch.Tensor:
        found = [cKDTree(p).query(q, k=case.k, workers=threads)[1] for p, q in pairs]
        return torch.stack([torch.from_numpy(idx) for idx in found])

    return _implementation("scipy cKDTree", call, case, outputs)


def torch_cluster(case: KnnCase, outputs: Outputs) -> Implementation:
    """knn over packed clouds."""
    if case.k > 100:
        raise NotApplicable("k above 100")
    if case.points.device.type == "cuda" and case.pairs() > 1 << 33:
        raise NotApplicable(f"a scan of {case.pairs():.1e} pairs")
    import torch_cluster as package

    clouds, points = case.points.shape[:2]
    queries, device = case.query.size(1), case.points.device
    rows = torch.arange(clouds, device=device)
    x, y = case.points.reshape(-1, 3), case.query.reshape(-1, 3)
    of_x, of_y = rows.repeat_interleave(points), rows.repeat_interleave(queries)
    first = points * rows[:, None, None]

    def check(pairs: torch.Tensor) -> str:
        idx = pairs[1].view(clouds, queries, case.k) - first
        return compare(case, idx, outputs)

    return Implementation("torch_cluster", lambda: package.knn(x, y, case.k, of_x, of_y), check)


def pytorch3d(case: KnnCase, outputs: Outputs) -> Implementation:
    """ops.knn_points, its indices."""
    if case.points.device.type == "cpu" and case.pairs() > 1 << 31:
        raise NotApplicable(f"a scan of {case.pairs():.1e} pairs")
    from pytorch3d.ops import knn_points

    def call() -> torch.Tensor:
        return knn_points(case.query, case.points, K=case.k).idx

    return _implementation("pytorch3d", call, case, outputs)


def mmcv(case: KnnCase, outputs: Outputs) -> Implementation:
    """ops.knn, and ops.three_nn for three."""
    _only_on("cuda", case)
    if case.op == "three_nn":
        from mmcv.ops import three_nn

        return _implementation("mmcv", lambda: three_nn(case.query, case.points)[1], case, outputs)
    if case.k >= 100:
        raise NotApplicable("k of 100 or more")
    from mmcv.ops import knn

    def check(idx: torch.Tensor) -> str:  # [B, k, M]
        return compare(case, idx.transpose(1, 2), outputs)

    return Implementation("mmcv", lambda: knn(case.k, case.points, case.query), check)


def pointnet2_ops(case: KnnCase, outputs: Outputs) -> Implementation:
    """pointnet2_utils.three_nn."""
    _only_on("cuda", case)
    from pointnet2_ops.pointnet2_utils import three_nn

    return _implementation(
        "pointnet2_ops", lambda: three_nn(case.query, case.points)[1], case, outputs
    )


UPSTREAM: List[UpstreamLibrary] = [
    *(UpstreamLibrary(a.__name__, "knn", a) for a in (scipy, torch_cluster, pytorch3d, mmcv)),
    *(UpstreamLibrary(a.__name__, "three_nn", a) for a in (mmcv, pointnet2_ops)),
]
