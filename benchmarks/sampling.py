# SPDX-License-Identifier: Apache-2.0
"""furthest_point_sample, from points and from distances: cases, and the libraries that sample. All
samplings start at point 0."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.clouds import Clouds, Recipe, cube, one_batch, sweeps
from benchmarks.suite import Case, Problem, Target, Way, expect, faster, graph, limit, peer
from benchmarks.timing import fastest

RADIUS_TOLERANCE = 0.05  # of the coverage radius, between two exact samplings that part at a tie
LOOP_RATE = 2e8  # points per second that a loop of torch calls visits on the CPU, roughly
LOOP_MOST_S = 5.0  # an implementation that would take longer is left out
HEIGHTS = (3, 5, 7, 9)  # of fpsample's tree, the ones that its documentation names


class Sampling(Problem):
    def compare(self, result: Tensor) -> str:
        """The same samples; or, where rounding broke a tie otherwise, a cover just as good.

        From the first other choice on, two samplings differ, yet both are right. Then the radius
        within which every point has a sample is compared, and the samples must be distinct.
        """
        expected = self.outputs[0].long()
        points = self["points"]
        idx = self.rows(result, points, expected)
        if torch.equal(idx, expected):
            return "same samples"
        worst, common = 0.0, 0
        for cloud, theirs, mine in zip(points, idx, expected, strict=True):
            expect(theirs.unique().numel() == len(theirs), "a point is sampled twice")
            common += int(torch.isin(theirs, mine).sum())
            worst = max(worst, coverage_radius(cloud, theirs) / coverage_radius(cloud, mine) - 1)
        larger = f"the coverage radius is {100 * worst:.0f} % larger"
        expect(worst <= RADIUS_TOLERANCE, larger)
        share = 100 * common / idx.numel()
        return f"{share:.1f} % of the samples in common, coverage radius {100 * worst:+.1f} %"


class DistanceSampling(Problem):
    def compare(self, result: Tensor) -> str:
        """The same samples; or, where distances are equal, others that are as far, each in its
        turn."""
        idx, distances = result.long(), self["distances"]
        if torch.equal(idx, self.outputs[0].long()):
            return "same samples"
        rows = torch.arange(len(idx), device=idx.device)
        dist, nearer = distances[:, 0], (idx[:, 0] != 0).sum()
        for column in idx[:, 1:].unbind(1):
            nearer += (dist[rows, column] != dist.amax(1)).sum()
            dist = torch.minimum(dist, distances[rows, column])
        expect(nearer == 0, f"{int(nearer)} samples are not the furthest in their turn")
        return "each sample a furthest one, of several that are as far another"


def coverage_radius(points: Tensor, chosen: Tensor, most: int = 20_000) -> float:
    """Greatest distance from a point to its nearest sample, over `most` evenly chosen points."""
    part = points[:: -(-len(points) // most)]
    samples = points[chosen]
    nearest = [torch.cdist(block, samples).amin(1).max() for block in part.split(1024)]
    return float(torch.stack(nearest).max())


def best_height(name: str, call: Callable[..., Any]) -> Way:
    """With the tree height that is fastest here."""
    calls = {f"{name}, h={height}": partial(call, h=height, start_idx=0) for height in HEIGHTS}
    name = fastest(calls)
    return Way(calls[name], name=name)


@peer("fpsample", "furthest_point_sample", device="cpu")
def fpsample(package: Any, problem: Sampling) -> Way:
    limit(len(problem["points"]) == 1)
    cloud = problem["points"][0].numpy()
    call = partial(package.bucket_fps_kdline_sampling, cloud, problem["num_samples"])
    return best_height("fpsample", call)._replace(convert=lambda idx: idx.astype(np.int64))


@peer("torch_quickfps", "furthest_point_sample")
def torch_quickfps(package: Any, problem: Sampling) -> Way:
    call = partial(package.sample_idx, problem["points"], problem["num_samples"])
    return best_height("torch_quickfps", call)


@peer("torch_cluster", "furthest_point_sample")
def torch_cluster(package: Any, problem: Sampling) -> Way:
    """The ratio is chosen so that it rounds up to the sample count. It gets its offsets, and the
    ratio as a tensor."""
    clouds, count, _ = problem["points"].shape
    seconds = clouds * count * problem["num_samples"] / LOOP_RATE
    in_time = problem.device.type == "cuda" or seconds <= LOOP_MOST_S
    limit(in_time, f"a call would take about {seconds:.0f} s")
    points = problem["points"].reshape(-1, 3)
    ptr = count * torch.arange(clouds + 1, device=points.device)
    ratio = points.new_tensor((problem["num_samples"] - 0.5) / count)
    call = partial(package.fps, points, ratio=ratio, random_start=False, ptr=ptr)
    return Way(call, lambda idx: idx.view(clouds, -1) - ptr[:-1, None])


@peer("torch_fps", "furthest_point_sample", device="cuda", capturable=True)
def torch_fps(package: Any, problem: Sampling) -> Way:
    """In Triton, without its checks of counts and of numbers, for which it waits."""
    points = problem["points"]
    valid = torch.ones(points.shape[:2], dtype=torch.bool, device=points.device)
    options = {"random_start": False, "validate": False, "assume_finite": True}
    sample = package.farthest_point_sampling
    return Way(partial(sample, points, valid, problem["num_samples"], **options))


@peer("torchbvh", "furthest_point_sample", device="cuda")
def torchbvh(package: Any, problem: Sampling) -> Way:
    """The exact one, which replays a graph of its own; it finds the nearest sample of every point
    as well."""
    points, count = problem["points"], problem["num_samples"]
    return Way(lambda: package.fps(points, count, seed=0).indices)


MMCV = ("furthest_point_sample", "furthest_point_sample_with_dist")


@peer("mmcv.ops", *MMCV, device="cuda", capturable=True)
def mmcv(ops: Any, problem: Problem) -> Way:
    """Other ties."""
    return Way(partial(getattr(ops, problem.op), *problem.arguments.values()))


def row(name: str, cloud: Recipe, samples: int, *targets: Target) -> Case:
    def inputs(clouds: Clouds) -> dict[str, Any]:
        points, source = one_batch(cloud)(clouds)
        count = min(samples, points.size(1))
        return {"points": points, "num_samples": count, "source": source}

    return Case(f"FPS {name}", "furthest_point_sample", inputs, {}, targets, Sampling)


def distance_row(clouds: int, points: int, samples: int, *targets: Target) -> Case:
    def inputs(data: Clouds) -> dict[str, Any]:
        x, source = data.cube(clouds, points)
        distances = {"distances": torch.cdist(x, x), "num_samples": min(samples, x.size(1))}
        return {**distances, "source": source}

    op = "furthest_point_sample_with_dist"
    name = f"{op} {clouds} x {points} -> {samples}"
    return Case(name, op, inputs, {}, targets, DistanceSampling)


def cases(device: str) -> list[Case]:
    if device == "cpu":
        twice, ahead = faster("best_us", "fpsample", 2.0), faster("best_us", "fpsample", 1.3)
        return [
            row("17k KITTI -> 4k", Clouds.kitti, 4096, twice),
            row("50k cube -> 4k", cube(1, 50_000), 4096, twice),
            row("111k sweep -> 16k", Clouds.sweep, 16384, twice),
            row("1024 -> 512", cube(1, 1024), 512, ahead),
            distance_row(2, 1024, 256),
        ]
    return [
        row("32 x 1024 -> 512", cube(32, 1024), 512, graph(110)),
        row("32 x 4096 -> 1024", cube(32, 4096), 1024, graph(400)),
        row("16k -> 4k", cube(1, 16384), 4096, graph(1600)),
        row("65k -> 16k", cube(1, 65536), 16384, graph(6500)),
        row("111k sweep -> 16k", Clouds.sweep, 16384, graph(7000)),
        row("1M cube -> 16k", cube(1, 1 << 20), 16384, graph(12000)),
        row("1M (9 jittered sweeps) -> 16k", sweeps(9), 16384, graph(12000)),
        row("16 x 16k -> 4k", cube(16, 16384), 4096, graph(2600)),
        row("32 x 65k -> 4k", cube(32, 65536), 4096, graph(4500)),
        distance_row(8, 4096, 1024, faster("eager_us", "mmcv")),
    ]
