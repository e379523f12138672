# SPDX-License-Identifier: Apache-2.0
"""Adapters for libraries that find the points in a ball, or the nearest ones. torch_cluster gets
the number of clouds, and with it waits for the GPU less often."""

from functools import partial
from typing import Any, Callable

import numpy as np
import torch

from benchmarks import neighbors, neighbors_knn
from benchmarks.neighbor_lists import RadiusCase
from benchmarks.neighbors import BallCase, SearchCase, compare_counts, compare_groups
from benchmarks.neighbors_knn import KnnCase
from benchmarks.suite import Implementation, NotApplicable, Outputs, UpstreamLibrary
from benchmarks.timing import Call


def _implementation(name: str, call: Call, case: SearchCase, outputs: Outputs) -> Implementation:
    """One that gives indices in the layout of torchvox."""
    compare = neighbors.compare if isinstance(case, BallCase) else neighbors_knn.compare
    check = lambda idx: compare(case, torch.as_tensor(idx), outputs)  # noqa: E731
    return Implementation(name, call, check, True)


def _trees(case: SearchCase, column: int, **options: Any) -> Callable[[], np.ndarray]:
    """scipy's cKDTree, built in the call, on as many threads as torchvox has. column: 0 gives
    distances, 1 indices."""
    case.only_on("cpu")
    from scipy.spatial import cKDTree

    options["workers"] = torch.get_num_threads()
    pairs = list(zip(case.points.numpy(), case.query.numpy(), strict=True))
    return lambda: np.stack([cKDTree(p).query(q, **options)[column] for p, q in pairs])


def scipy_ball(case: BallCase, outputs: Outputs) -> Implementation:
    """The nearest k in the ball, which is faster than query_ball_point, whose balls have no
    limit."""
    call = _trees(case, 0, k=case.ks[0], distance_upper_bound=case.radii[0])

    def check(dist: np.ndarray) -> str:
        return compare_counts(torch.from_numpy(np.isfinite(dist).sum(-1)), outputs)

    return Implementation("scipy cKDTree", call, check)


def scipy_knn(case: KnnCase, outputs: Outputs) -> Implementation:
    return _implementation("scipy cKDTree", _trees(case, 1, k=case.k), case, outputs)


def _packed(case: SearchCase) -> dict[str, Any]:
    """The arguments that torch_cluster's searches share."""
    rows = torch.arange(case.points.size(0), device=case.points.device)
    return {
        "x": case.points.reshape(-1, 3),
        "y": case.query.reshape(-1, 3),
        "batch_x": rows.repeat_interleave(case.points.size(1)),
        "batch_y": rows.repeat_interleave(case.query.size(1)),
        "batch_size": case.points.size(0),
    }


def torch_cluster_ball(case: BallCase, outputs: Outputs) -> Implementation:
    """On the CPU it keeps other points of a full ball."""
    case.refuse_pairs(1 << 34, "cuda")
    from torch_cluster import radius

    call = partial(radius, **_packed(case), r=case.radii[0], max_num_neighbors=case.ks[0])
    balls = case.query.shape[:2].numel()

    def check(pairs: torch.Tensor) -> str:
        return compare_counts(pairs[0].bincount(minlength=balls), outputs)

    return Implementation("torch_cluster", call, check)


def torch_cluster_radius(case: RadiusCase, outputs: Outputs) -> Implementation:
    """It gets room for the longest row."""
    case.refuse_pairs(1 << 34, "cuda")
    from torch_cluster import radius

    longest = int(outputs[0].diff().max())
    call = partial(radius, **_packed(case), r=case.radius, max_num_neighbors=longest)

    def check(pairs: torch.Tensor) -> str:
        return case.compare_lengths(outputs, pairs[0].bincount(minlength=case.query.size(1)))

    return Implementation("torch_cluster", call, check)


def torch_cluster_knn(case: KnnCase, outputs: Outputs) -> Implementation:
    if case.k > 100:
        raise NotApplicable("k above 100")
    case.refuse_pairs(1 << 33, "cuda")
    from torch_cluster import knn

    clouds, points = case.points.shape[:2]
    first = points * torch.arange(clouds, device=case.points.device)[:, None, None]

    def check(pairs: torch.Tensor) -> str:
        idx = pairs[1].view(clouds, case.query.size(1), case.k) - first
        return neighbors_knn.compare(case, idx, outputs)

    return Implementation("torch_cluster", partial(knn, **_packed(case), k=case.k), check)


def pytorch3d_ball(case: BallCase, outputs: Outputs) -> Implementation:
    """It pads with -1; its CPU form stops at the k-th hit as well."""
    from pytorch3d.ops import ball_query

    call = partial(ball_query, case.query, case.points, K=case.ks[0], radius=case.radii[0])

    def check(found: Any) -> str:
        idx = torch.where(found.idx < 0, found.idx[..., :1].clamp(min=0), found.idx)
        return neighbors.compare(case, idx, outputs)

    return Implementation("pytorch3d", call, check)


def pytorch3d_knn(case: KnnCase, outputs: Outputs) -> Implementation:
    case.refuse_pairs(1 << 31, "cpu")
    from pytorch3d.ops import knn_points

    def call() -> torch.Tensor:
        return knn_points(case.query, case.points, K=case.k).idx

    return _implementation("pytorch3d", call, case, outputs)


def mmcv_ball(case: BallCase, outputs: Outputs) -> Implementation:
    case.only_on("cuda")
    from mmcv.ops import ball_query

    call = partial(ball_query, 0.0, case.radii[0], case.ks[0], case.points, case.query)
    return _implementation("mmcv", call, case, outputs)


def mmcv_knn(case: KnnCase, outputs: Outputs) -> Implementation:
    case.only_on("cuda")
    if case.k >= 100:
        raise NotApplicable("k of 100 or more")
    from mmcv.ops import knn

    def check(idx: torch.Tensor) -> str:  # [B, k, M]
        return neighbors_knn.compare(case, idx.transpose(1, 2), outputs)

    return Implementation("mmcv", partial(knn, case.k, case.points, case.query), check, True)


def mmcv_group(case: BallCase, outputs: Outputs) -> Implementation:
    """QueryAndGroup for each radius. It gets its features channels first, and gives them so."""
    case.only_on("cuda")
    from mmcv.ops import QueryAndGroup

    layers = [QueryAndGroup(*pair) for pair in zip(case.radii, case.ks, strict=True)]
    features = case.features.mT.contiguous()

    def call() -> list[torch.Tensor]:
        return [layer(case.points, case.query, features) for layer in layers]

    def check(groups: list[torch.Tensor]) -> str:  # [B, 3 + C, M, k]
        return compare_groups(outputs, torch.cat(groups, 3).movedim(1, 3))

    return Implementation("mmcv", call, check, True)


def torchbvh_knn(case: KnnCase, outputs: Outputs) -> Implementation:
    """BVH, built in the call, and its knn."""
    case.only_on("cuda")
    if case.k not in (4, 8, 16):
        raise NotApplicable("k is not 4, 8 or 16")
    from torchbvh import BVH

    def call() -> torch.Tensor:
        with BVH(case.points) as tree:
            return tree.knn(case.query, case.k)[0]

    return _implementation("torchbvh", call, case, outputs)


def mmcv_three(case: KnnCase, outputs: Outputs) -> Implementation:
    case.only_on("cuda")
    from mmcv.ops import three_nn

    return _implementation("mmcv", lambda: three_nn(case.query, case.points)[1], case, outputs)


def pointnet2_ball(case: BallCase, outputs: Outputs) -> Implementation:
    case.only_on("cuda")
    from pointnet2_ops.pointnet2_utils import ball_query

    call = partial(ball_query, case.radii[0], case.ks[0], case.points, case.query)
    return _implementation("pointnet2_ops", call, case, outputs)


def pointnet2_three(case: KnnCase, outputs: Outputs) -> Implementation:
    case.only_on("cuda")
    from pointnet2_ops.pointnet2_utils import three_nn

    call = lambda: three_nn(case.query, case.points)[1]  # noqa: E731
    return _implementation("pointnet2_ops", call, case, outputs)


UPSTREAM = [
    UpstreamLibrary("scipy", "ball_query", scipy_ball),
    UpstreamLibrary("torch_cluster", "ball_query", torch_cluster_ball),
    UpstreamLibrary("pytorch3d", "ball_query", pytorch3d_ball),
    UpstreamLibrary("mmcv", "ball_query", mmcv_ball),
    UpstreamLibrary("pointnet2_ops", "ball_query", pointnet2_ball),
    UpstreamLibrary("mmcv", "query_and_group", mmcv_group),
    UpstreamLibrary("torch_cluster", "radius_neighbors", torch_cluster_radius),
    UpstreamLibrary("scipy", "knn", scipy_knn),
    UpstreamLibrary("torch_cluster", "knn", torch_cluster_knn),
    UpstreamLibrary("pytorch3d", "knn", pytorch3d_knn),
    UpstreamLibrary("mmcv", "knn", mmcv_knn),
    UpstreamLibrary("torchbvh", "knn", torchbvh_knn),
    UpstreamLibrary("mmcv", "three_nn", mmcv_three),
    UpstreamLibrary("pointnet2_ops", "three_nn", pointnet2_three),
]
