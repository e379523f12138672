# SPDX-License-Identifier: Apache-2.0
"""ball_query, query_and_group, knn, three_nn, radius_neighbors, chamfer_distance: cases, and the
libraries that search.

torch_cluster gets the number of clouds, and with it waits for the GPU less often.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import torchvox
from benchmarks import suite
from benchmarks.clouds import Clouds, Recipe, box, cube, evenly, one_batch, recipe, seeded
from benchmarks.suite import Case, Outputs, Target, Way, expect, faster, graph, limit, peer

TOLERANCE = 1e-4  # relative, of a squared distance between two exact searches in float32
CHAMFER_TOLERANCE = 1e-3  # relative: cdist rounds, and takes another of two points as near
MSG = {"radii": [0.1, 0.2, 0.4], "ks": [16, 32, 128]}  # PointNet++'s first level


class Search(suite.Problem):
    """points [B, N, 3], query [B, M, 3]; radius_neighbors has one cloud, [N, 3]."""

    def packed(self) -> dict[str, Any]:
        """The arguments that torch_cluster's searches share."""
        points, query = (self[k].view(-1, *self[k].shape[-2:]) for k in ("points", "query"))
        rows = torch.arange(len(points), device=points.device)
        batch_x, batch_y = (rows.repeat_interleave(each.size(1)) for each in (points, query))
        call = {"x": points.reshape(-1, 3), "y": query.reshape(-1, 3), "batch_size": len(points)}
        return {**call, "batch_x": batch_x, "batch_y": batch_y}


class Ball(Search):
    def compare(self, result: Any) -> str:
        """The same neighbors; where rows differ, by points at the radius alone."""
        expected = self.outputs[1].long()
        other = (self.rows(result, self["points"], expected) != expected).any(-1)
        if not bool(other.any()):
            return "same neighbors"
        cloud, row = other.nonzero(as_tuple=True)
        apart = self["points"][cloud].double() - self["query"][cloud, row, None].double()
        ratio = apart.square().sum(-1) / self["radius"] ** 2
        at_radius = ((ratio - 1).abs() < TOLERANCE).any(-1)
        others = int((~at_radius).sum())
        expect(others == 0, f"{others} rows differ with no point at the radius")
        return f"{len(row)} rows differ, each with a point at the radius"

    def compare_counts(self, counts: Tensor) -> str:
        """For libraries that find the same balls and keep others of their points."""
        expected = self.outputs[2].flatten().long()
        wrong = int((counts.to(expected.device).flatten().long() != expected).sum())
        expect(wrong <= 1e-3 * len(expected), f"{wrong} balls have another number of points")
        return f"as many points in all but {wrong} balls"


class Groups(Search):
    def compare(self, result: Tensor) -> str:
        """The same groups; a few may hold another point at the radius."""
        apart = (result - self.outputs[0]).abs() > 1e-4 * (1 + self.outputs[0].abs())
        other = apart.flatten(2).any(-1)
        wrong, number = int(other.sum()), other.numel()
        expect(wrong <= 1e-3 * number, f"{wrong} of {number} groups differ")
        return f"the same groups in all but {wrong} balls"


class Nearest(Search):
    def compare(self, result: Any) -> str:
        """The same neighbors; or others at the same distances, where rounding broke a tie."""
        expected = self.outputs[1].long()
        idx = self.rows(result, self["points"], expected)
        if torch.equal(idx, expected):
            return "same neighbors"
        expect(bool((idx.sort(-1).values.diff(dim=-1) > 0).all()), "a point is named twice")
        mine, theirs = self.distances(expected), self.distances(idx)
        near = bool((theirs <= mine * (1 + TOLERANCE) + 1e-12).all())
        expect(near, "a neighbor is farther away")
        share = 100 * float((idx == expected).double().mean())
        return f"{share:.2f} % of the neighbors in the same place, the others as near"

    def distances(self, idx: Tensor) -> Tensor:
        """[B, M, k] squared distances in float64, ascending."""
        rows = idx.flatten(1)[:, :, None].expand(-1, -1, 3)
        near = self["points"].gather(1, rows).unflatten(1, idx.shape[1:]).double()
        return (near - self["query"][:, :, None].double()).square().sum(-1).sort(-1).values


class Radius(Search):
    def compare(self, result: Tensor) -> str:
        """Numbers of neighbors; a few points at the radius may be in or out."""
        wrong = int((result - self.outputs[0].diff()).abs().sum())
        expect(wrong <= 1e-5 * self["capacity"], f"rows have {wrong} neighbors more or less")
        return f"as many neighbors, {wrong} at the radius aside"


class Chamfer(suite.Problem):
    """A call is a forward and a backward of the mean of both ways, in both clouds."""

    plain, plain_captures = "cdist, argmin", False

    def run(self) -> Outputs:
        return self.step(lambda x, y: torchvox.chamfer_distance(x, y)[:2])

    def step(self, distances: Callable[[Tensor, Tensor], Sequence[Tensor]]) -> Outputs:
        x, y = (self[name].detach().requires_grad_() for name in "xy")
        to_y, to_x = distances(x, y)
        gradients = torch.autograd.grad(to_y.mean() + to_x.mean(), (x, y))
        return to_y.detach(), to_x.detach(), *gradients

    def compare(self, result: Outputs) -> str:
        return suite.close(result[:2], self.outputs[:2], CHAMFER_TOLERANCE)

    def in_torch(self) -> Outputs:
        return self.step(all_distances)


def all_distances(x: Tensor, y: Tensor) -> Sequence[Tensor]:
    """Cloud by cloud: all distances of a cloud are a gigabyte. Those of the nearest are computed
    again, for exact ones and a gradient."""
    ways = []
    for a, b in zip(x, y, strict=True):
        with torch.no_grad():
            dist = torch.cdist(a, b)
            to_y, to_x = dist.argmin(1), dist.argmin(0)
        ways.append(((a - b[to_y]).square().sum(1), (b - a[to_x]).square().sum(1)))
    return [torch.stack(way) for way in zip(*ways, strict=True)]


def trees(spatial: Any, problem: Search, column: int, **options: Any) -> Callable[[], np.ndarray]:
    """scipy's cKDTree, built in the call, on as many threads as torchvox has. column: 0 gives
    distances, 1 indices."""
    options["workers"] = torch.get_num_threads()
    pairs = list(zip(problem["points"].numpy(), problem["query"].numpy(), strict=True))
    return lambda: np.stack([spatial.cKDTree(p).query(q, **options)[column] for p, q in pairs])


@peer("scipy.spatial", "ball_query", device="cpu")
def scipy_ball(spatial: Any, problem: Ball) -> Way:
    """The nearest k in the ball, which is faster than query_ball_point, whose balls have no
    limit."""
    call = trees(spatial, problem, 0, k=problem["k"], distance_upper_bound=problem["radius"])

    def check(dist: np.ndarray) -> str:
        return problem.compare_counts(torch.from_numpy(np.isfinite(dist).sum(-1)))

    return Way(call, check=check, name="scipy cKDTree")


@peer("scipy.spatial", "knn", device="cpu")
def scipy_knn(spatial: Any, problem: Nearest) -> Way:
    return Way(trees(spatial, problem, 1, k=problem["k"]), name="scipy cKDTree")


@peer("torch_cluster", "ball_query")
def torch_cluster_ball(package: Any, problem: Ball) -> Way:
    """On the CPU it keeps other points of a full ball."""
    options = {"r": problem["radius"], "max_num_neighbors": problem["k"]}
    balls = problem["query"].shape[:2].numel()

    def check(pairs: Tensor) -> str:
        return problem.compare_counts(pairs[0].bincount(minlength=balls))

    return Way(partial(package.radius, **problem.packed(), **options), check=check)


@peer("torch_cluster", "radius_neighbors")
def torch_cluster_radius(package: Any, problem: Radius) -> Way:
    """It gets room for the longest row."""
    longest, rows = int(problem.outputs[0].diff().max()), len(problem["query"])
    options = {"r": problem["radius"], "max_num_neighbors": longest}
    call = partial(package.radius, **problem.packed(), **options)
    return Way(call, lambda pairs: pairs[0].bincount(minlength=rows))


@peer("torch_cluster", "knn")
def torch_cluster_knn(package: Any, problem: Nearest) -> Way:
    clouds, points, _ = problem["points"].shape
    pairs = clouds * points * problem["query"].size(1)
    limit(problem.device.type == "cpu" or pairs <= 1 << 33, f"a scan of {pairs:.1e} pairs")
    first = points * torch.arange(clouds, device=problem.device)[:, None, None]
    shape = (clouds, problem["query"].size(1), problem["k"])
    call = partial(package.knn, **problem.packed(), k=problem["k"])
    return Way(call, lambda pairs: pairs[1].view(shape) - first)


@peer("mmcv.ops", "query_and_group", device="cuda", capturable=True)
def mmcv_group(ops: Any, problem: Groups) -> Way:
    """QueryAndGroup for each radius. It gets its features channels first, and gives them so."""
    layers = [ops.QueryAndGroup(*p) for p in zip(problem["radii"], problem["ks"], strict=True)]
    features = problem["features"].mT.contiguous()

    def call() -> list[Tensor]:
        return [layer(problem["points"], problem["query"], features) for layer in layers]

    return Way(call, lambda groups: torch.cat(groups, 3).movedim(1, 3))  # [B, 3 + C, M, k]


@peer("torchbvh", "knn", device="cuda", capturable=True)
def torchbvh_knn(package: Any, problem: Nearest) -> Way:
    """BVH, built in the call, and its knn."""
    limit(problem["k"] in (4, 8, 16), "k is not 4, 8 or 16")

    def call() -> Tensor:
        with package.BVH(problem["points"]) as tree:
            return tree.knn(problem["query"], problem["k"])[0]

    return Way(call)


MMCV: dict[str, Callable[[Any, Any], Way]] = {
    "ball_query": lambda ops, p: Way(
        partial(ops.ball_query, 0.0, p["radius"], p["k"], p["points"], p["query"])),
    "knn": lambda ops, p: Way(
        partial(ops.knn, p["k"], p["points"], p["query"]), lambda idx: idx.mT),  # [B, k, M]
    "three_nn": lambda ops, p: Way(lambda: ops.three_nn(p["query"], p["points"])[1]),
}  # fmt: skip
for op, prepare in MMCV.items():
    peer("mmcv.ops", op, device="cuda", capturable=True)(prepare)


@recipe
def chosen(clouds: Clouds, cloud: Recipe, queries: int, channels: int = 0) -> dict[str, Any]:
    """Queries are points of each cloud, evenly chosen; 0: every point."""
    points, source = one_batch(cloud)(clouds)
    arguments = {"points": points, "query": evenly(points, clouds.size(queries) or points.size(1))}
    if channels:
        shape = (*points.shape[:2], channels)
        arguments["features"] = torch.randn(shape, generator=seeded())
    return {**arguments, "source": source}


@recipe
def anywhere(clouds: Clouds, cloud: Recipe, queries: int) -> dict[str, Any]:
    """Queries are uniform in the unit cube of each cloud."""
    points, source = cloud(clouds)
    query = torch.rand(len(points), clouds.size(queries), 3, generator=seeded(1))
    return {"points": points, "query": query, "source": source}


def ball(name: str, cloud: Recipe, queries: int, radius: float, *targets: Target) -> Case:
    name, options = f"ball {name}, r {radius:g}", {"radius": radius, "k": 32}
    return Case(name, "ball_query", chosen(cloud, queries), options, targets, Ball)


def group(name: str, cloud: Recipe, queries: int, channels: int, sizes: dict[str, Any]) -> Case:
    inputs = chosen(cloud, queries, channels)
    return Case(f"group {name}, C {channels}", "query_and_group", inputs, sizes, (), Groups)


def knn(name: str, inputs: suite.Inputs, k: int, *targets: Target) -> Case:
    return Case(f"knn k{k}, {name}", "knn", inputs, {"k": k}, targets, Nearest)


def three_nn(name: str, clouds: int, points: int, queries: int, *targets: Target) -> Case:
    inputs = anywhere(cube(clouds, points), queries)
    return Case(f"three_nn, {name}", "three_nn", inputs, {}, targets, Nearest)


def radius(name: str, cloud: Recipe, size: float, each: int, *targets: Target) -> Case:
    """Around every point; `each`: room for so many neighbors of a point."""

    def inputs(clouds: Clouds) -> dict[str, Any]:
        points, source = one_batch(cloud)(clouds)
        capacity = each * points.size(1)
        return {"points": points[0], "query": points[0], "capacity": capacity, "source": source}

    options = {"radius": size}
    return Case(f"radius_neighbors {name}", "radius_neighbors", inputs, options, targets, Radius)


def chamfer(clouds: int, points: int, *targets: Target) -> Case:
    def inputs(data: Clouds) -> dict[str, Any]:
        x, source = data.cube(clouds, points)
        y = torch.rand(x.shape, generator=seeded(1))
        return {"x": x, "y": y, "source": source}

    name = f"chamfer_distance {clouds} x {points}, forward and backward"
    return Case(name, "chamfer_distance", inputs, {}, targets, Chamfer)


def cases(device: str) -> list[Case]:
    if device == "cpu":
        kitti, sweep = Clouds.kitti, Clouds.sweep
        ahead = [faster("best_us", name) for name in ("scipy", "torch_cluster")]
        return [
            ball("17k KITTI, 4k queries", kitti, 4096, 0.8, *ahead),
            ball("111k sweep, 4k queries", sweep, 4096, 0.8, *ahead),
            ball("111k sweep, 16k queries", sweep, 16384, 0.2, *ahead),
            group("32 x 1024, three radii", cube(32, 1024), 512, 3, MSG),
            knn("17k KITTI, every point", chosen(kitti, 0), 16, *ahead),
            knn("111k sweep, 4k queries", chosen(sweep, 4096), 16, *ahead),
            knn("111k sweep, every point", chosen(sweep, 0), 16, *ahead),
            three_nn("4 x 4k, 16k queries", 4, 4096, 16384),
            radius("16k cube, r 0.076, 30 each", cube(1, 16384), 0.076, 40, ahead[1]),
            chamfer(4, 4096, faster("best_us", "cdist, argmin", 5.0)),
        ]
    sweep, lists = Clouds.sweep, faster("eager_us", "torch_cluster", 10.0)
    wide = {"radii": [0.8], "ks": [32]}
    return [
        ball("32 x 1024, 512 queries", cube(32, 1024), 512, 0.2, graph(35)),
        ball("16 x 16k, 4k queries", box(16, 16384), 4096, 0.8, graph(600)),
        ball("120k, 4k queries", cube(1, 120_000), 4096, 0.05, graph(200)),
        ball("111k sweep, 16k queries", sweep, 16384, 0.8),
        group("32 x 1024, three radii", cube(32, 1024), 512, 3, MSG),
        group("16 x 16k, 4k queries, k 32", box(16, 16384), 4096, 64, wide),
        knn("32 x 1024, 512 queries", anywhere(cube(32, 1024), 512), 16, graph(80)),
        knn("16 x 16k, 4k queries", anywhere(cube(16, 16384), 4096), 16, graph(800)),
        knn("111k sweep, every point", chosen(sweep, 0), 16),
        knn("16 x 16k, 4k queries", anywhere(cube(16, 16384), 4096), 64),
        three_nn("16 x 4k, 16k queries", 16, 4096, 16384, graph(400)),
        three_nn("32 x 512, 1024 queries", 32, 512, 1024),
        radius("16k cube, r 0.076, 30 each", cube(1, 16384), 0.076, 40, lists),
        radius("100k cube, r 0.0415, 30 each", cube(1, 100_000), 0.0415, 40, lists),
        radius("111k sweep, r 0.3", sweep, 0.3, 160, lists),
        chamfer(32, 16384, faster("eager_us", "cdist, argmin", 5.0)),
        chamfer(32, 2048, faster("eager_us", "cdist, argmin", 2.0)),
    ]
