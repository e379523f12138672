# SPDX-License-Identifier: Apache-2.0
"""Adapters for libraries that sample furthest points. All start at point 0, like torchvox here."""

from functools import partial

import numpy as np
import torch

from benchmarks.neighbor_lists import WithDistCase, compare_samples
from benchmarks.sampling import SamplingCase, compare
from benchmarks.suite import Implementation, NotApplicable, Outputs, UpstreamLibrary, WrongResult
from benchmarks.timing import Call, fastest

HEIGHTS = (3, 5, 7, 9)  # of fpsample's tree, the ones that its documentation names


def _implementation(
    name: str, call: Call, case: SamplingCase, outputs: Outputs, capturable: bool = False
) -> Implementation:
    def check(idx: object) -> str:
        found = idx if isinstance(idx, torch.Tensor) else torch.from_numpy(idx.astype(np.int64))
        return compare(case, found, outputs)

    return Implementation(name, call, check, capturable)


def _one_cloud_of_the_cpu(case: SamplingCase) -> None:
    case.only_on("cpu")
    if case.points.size(0) > 1:
        raise NotApplicable


def fpsample(case: SamplingCase, outputs: Outputs) -> Implementation:
    """bucket_fps_kdline_sampling with the tree height that is fastest here."""
    _one_cloud_of_the_cpu(case)
    import fpsample as package

    cloud = case.points[0].numpy()

    def call(height: int) -> np.ndarray:
        return package.bucket_fps_kdline_sampling(cloud, case.samples, h=height, start_idx=0)

    calls = {f"fpsample, h={height}": partial(call, height) for height in HEIGHTS}
    name = fastest(calls)
    return _implementation(name, calls[name], case, outputs)


def open3d(case: SamplingCase, outputs: Outputs) -> Implementation:
    """PointCloud.farthest_point_down_sample, which gives points: their rows are looked up."""
    _one_cloud_of_the_cpu(case)
    import open3d as o3d

    xyz = case.points[0].double().numpy()
    cloud = o3d.geometry.PointCloud(o3d.utility.Vector3dVector(xyz))
    row_of = {point.tobytes(): row for row, point in reversed(list(enumerate(xyz)))}

    def check(found: "o3d.geometry.PointCloud") -> str:
        rows = [row_of.get(point.tobytes()) for point in np.asarray(found.points)]
        if len(rows) != case.samples or None in rows:
            raise WrongResult(f"{len(rows)} points, {rows.count(None)} of them not in the cloud")
        # It keeps the order of the cloud, so its samples are a set: sorted, they are the same ones.
        mine = torch.tensor(sorted(rows))
        if torch.equal(mine, outputs[0][0].long().sort().values):
            return "same set of samples"
        return compare(case, mine[None], outputs)

    return Implementation(
        "open3d", lambda: cloud.farthest_point_down_sample(case.samples, start_index=0), check
    )


def torch_cluster(case: SamplingCase, outputs: Outputs) -> Implementation:
    """fps over packed clouds; the ratio is chosen so that it rounds up to the sample count. It gets
    its offsets, and the ratio as a tensor."""
    case.refuse_slow_loop()
    import torch_cluster as package

    clouds, count = case.points.shape[:2]
    packed = case.points.reshape(-1, 3)
    ptr = count * torch.arange(clouds + 1, device=packed.device)
    ratio = packed.new_tensor((case.samples - 0.5) / count)

    def check(idx: torch.Tensor) -> str:
        found = idx.view(clouds, -1) - count * torch.arange(clouds, device=idx.device)[:, None]
        return compare(case, found, outputs)

    return Implementation(
        "torch_cluster",
        lambda: package.fps(packed, ratio=ratio, random_start=False, ptr=ptr),
        check,
    )


def pytorch3d(case: SamplingCase, outputs: Outputs) -> Implementation:
    """ops.sample_farthest_points, its indices; it gathers the points as well."""
    case.refuse_slow_loop()
    from pytorch3d.ops import sample_farthest_points

    call = lambda: sample_farthest_points(case.points, K=case.samples)[1]  # noqa: E731
    return _implementation("pytorch3d", call, case, outputs)


def torch_fps(case: SamplingCase, outputs: Outputs) -> Implementation:
    """farthest_point_sampling, in Triton, without its checks of counts and of numbers, for which it
    waits."""
    case.only_on("cuda")
    from torch_fps import farthest_point_sampling

    call = partial(
        farthest_point_sampling,
        case.points,
        torch.ones(case.points.shape[:2], dtype=torch.bool, device=case.points.device),
        case.samples,
        random_start=False,
        validate=False,
        assume_finite=True,
    )
    return _implementation("torch_fps", call, case, outputs, True)


def torch_quickfps(case: SamplingCase, outputs: Outputs) -> Implementation:
    """sample_idx with the tree height that is fastest here."""
    from torch_quickfps import sample_idx

    def call(height: int) -> torch.Tensor:
        return sample_idx(case.points, case.samples, h=height, start_idx=0)

    calls = {f"torch_quickfps, h={height}": partial(call, height) for height in HEIGHTS}
    name = fastest(calls)
    return _implementation(name, calls[name], case, outputs)


def torchbvh(case: SamplingCase, outputs: Outputs) -> Implementation:
    """fps, the exact one, which replays a graph of its own; it finds the nearest sample of every
    point as well."""
    case.only_on("cuda")
    import torchbvh as package

    call = lambda: package.fps(case.points, case.samples, seed=0).indices  # noqa: E731
    return _implementation("torchbvh", call, case, outputs)


def mmcv(case: SamplingCase, outputs: Outputs) -> Implementation:
    """mmcv.ops.furthest_point_sample; other ties."""
    case.only_on("cuda")
    from mmcv.ops import furthest_point_sample

    call = partial(furthest_point_sample, case.points, case.samples)
    return _implementation("mmcv", call, case, outputs, True)


def mmcv_with_dist(case: WithDistCase, outputs: Outputs) -> Implementation:
    case.only_on("cuda")
    from mmcv.ops import furthest_point_sample_with_dist

    call = partial(furthest_point_sample_with_dist, case.distances, case.samples)
    return Implementation("mmcv", call, partial(compare_samples, case, outputs), True)


def pointnet2_ops(case: SamplingCase, outputs: Outputs) -> Implementation:
    """pointnet2_utils.furthest_point_sample; other ties, and points next to 0 are skipped."""
    case.only_on("cuda")
    from pointnet2_ops.pointnet2_utils import furthest_point_sample

    call = partial(furthest_point_sample, case.points, case.samples)
    return _implementation("pointnet2_ops", call, case, outputs, True)


UPSTREAM: list[UpstreamLibrary] = [
    *(
        UpstreamLibrary(adapter.__name__, "furthest_point_sample", adapter)
        for adapter in (
            *(fpsample, open3d, torch_cluster, pytorch3d, mmcv, pointnet2_ops),
            *(torch_fps, torch_quickfps, torchbvh),
        )
    ),
    UpstreamLibrary("mmcv", "furthest_point_sample_with_dist", mmcv_with_dist),
]
