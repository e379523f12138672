# SPDX-License-Identifier: Apache-2.0
"""radius_neighbors, chamfer_distance and sampling over distances: cases, and baselines in torch."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Callable, Iterator

import torch
from torch import Tensor

import torchvox
from benchmarks.clouds import Cloud, Clouds, batched, cube
from benchmarks.neighbors import PAIRS_AT_ONCE, SearchCase
from benchmarks.suite import (
    Case,
    CaseSpec,
    Facts,
    Implementation,
    Outputs,
    Target,
    WrongResult,
    apart,
)

# A baseline that needs more distances is left out. Chamfer's are faster: products of matrices.
PAIRS_MOST = {"cuda": 1 << 30, "cpu": 300_000_000}
CHAMFER_PAIRS_MOST = {"cuda": 1 << 34, "cpu": 300_000_000}
TOLERANCE = 1e-3  # relative: cdist rounds, and takes another of two points as near


@dataclass(frozen=True)
class RadiusCase(SearchCase):
    """points and query [1, N, 3], the same."""

    radius: float
    capacity: int
    op: str = "radius_neighbors"

    def facts(self) -> Facts:
        return {**self.sizes(), "radius": self.radius, "capacity": self.capacity}

    def torchvox(self) -> Outputs:
        return torchvox.radius_neighbors(self.points[0], self.query[0], self.radius, self.capacity)

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        check = partial(self.compare_lengths, outputs)
        yield Implementation("cdist, nonzero", partial(listed_with_torch, self), check)

    def compare_lengths(self, outputs: Outputs, counts: Tensor) -> str:
        wrong = int((counts - outputs[0].diff()).abs().sum())
        if wrong > 1e-5 * self.capacity:
            raise WrongResult(f"rows have {wrong} neighbors more or less")
        return f"as many neighbors, {wrong} at the radius aside"


def listed_with_torch(case: RadiusCase) -> Tensor:
    """Baseline in torch: as many queries at a time as memory allows. Gives the length of rows."""
    case.refuse_distances(PAIRS_MOST)
    counts = []
    for part in case.query[0].split(max(1, PAIRS_AT_ONCE // case.points.size(1))):
        dist = torch.cdist(part, case.points[0], compute_mode="donot_use_mm_for_euclid_dist")
        rows, _ = (dist < case.radius).nonzero(as_tuple=True)
        counts.append(rows.bincount(minlength=len(part)))
    return torch.cat(counts)


@dataclass(frozen=True)
class ChamferCase(SearchCase):
    """A call is a forward and a backward of the mean of both ways, in both clouds."""

    op: str = "chamfer_distance"

    def facts(self) -> Facts:
        return self.sizes()

    def torchvox(self) -> Outputs:
        return self.step(lambda x, y: torchvox.chamfer_distance(x, y)[:2])

    def step(self, distances: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Outputs:
        x, y = (t.detach().requires_grad_() for t in (self.points, self.query))
        to_y, to_x = distances(x, y)
        loss = to_y.mean() + to_x.mean()
        return to_y.detach(), to_x.detach(), *torch.autograd.grad(loss, (x, y))

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        def with_torch() -> Outputs:
            self.refuse_distances(CHAMFER_PAIRS_MOST)
            return self.step(all_distances)

        def check(found: Outputs) -> str:
            return apart(found[:2], outputs[:2], TOLERANCE)

        yield Implementation("cdist, argmin", with_torch, check)


def all_distances(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Baseline in torch, cloud by cloud: all distances of a cloud are a gigabyte. Those of the
    nearest are computed again, for exact ones and a gradient."""
    found = []
    for a, b in zip(x, y, strict=True):
        with torch.no_grad():
            dist = torch.cdist(a, b)
            to_y, to_x = dist.argmin(1), dist.argmin(0)
        found.append(((a - b[to_y]).square().sum(1), (b - a[to_x]).square().sum(1)))
    to_y, to_x = zip(*found, strict=True)
    return torch.stack(to_y), torch.stack(to_x)


@dataclass(frozen=True)
class WithDistCase(Case):
    """distances [B, N, N]."""

    distances: Tensor
    samples: int
    source: str
    op: str = "furthest_point_sample_with_dist"

    def facts(self) -> Facts:
        clouds, points, _ = self.distances.shape
        return {"clouds": clouds, "points": points, "samples": self.samples}

    def torchvox(self) -> Outputs:
        return (torchvox.furthest_point_sample_with_dist(self.distances, self.samples),)

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        def loop() -> Tensor:
            rows = torch.arange(len(self.distances), device=self.distances.device)
            idx = torch.zeros(len(rows), self.samples, dtype=torch.int64, device=rows.device)
            dist = self.distances[:, 0]
            for s in range(1, self.samples):
                idx[:, s] = dist.argmax(1)
                dist = torch.minimum(dist, self.distances[rows, idx[:, s]])
            return idx

        yield Implementation("torch loop", loop, partial(compare_samples, self, outputs), True)


def compare_samples(case: WithDistCase, outputs: Outputs, idx: Tensor) -> str:
    """The same samples; or, where distances are equal, others that are as far, each in its turn."""
    found = idx.long()
    if torch.equal(found, outputs[0].long()):
        return "same samples"
    rows = torch.arange(len(found), device=found.device)
    dist, nearer = case.distances[:, 0], (found[:, 0] != 0).sum()
    for s in range(1, case.samples):
        nearer += (dist[rows, found[:, s]] != dist.amax(1)).sum()
        dist = torch.minimum(dist, case.distances[rows, found[:, s]])
    if int(nearer):
        raise WrongResult(f"{int(nearer)} samples are not the furthest in their turn")
    return "each sample a furthest one, of some that are as far another"


def radius_spec(name: str, cloud: Callable[[Clouds], Cloud], radius: float, each: int) -> CaseSpec:
    """Around every point; `each`: room for so many neighbors of a point."""

    def build(clouds: Clouds) -> RadiusCase:
        points, source = batched(cloud(clouds))
        return RadiusCase(points, points, source, radius, each * points.size(1))

    return CaseSpec(f"radius_neighbors {name}", build, _ahead("cdist, nonzero", 10.0))


def chamfer_spec(clouds: int, points: int, factor: float) -> CaseSpec:
    def build(made: Clouds) -> ChamferCase:
        x, source = made.cube(clouds, points)
        y = torch.rand(clouds, points, 3, generator=torch.Generator().manual_seed(1))
        return ChamferCase(x, y.to(x.device), source)

    name = f"chamfer_distance {clouds} x {points}, forward and backward"
    return CaseSpec(name, build, _ahead("cdist, argmin", factor))


def with_dist_spec(clouds: int, points: int, samples: int) -> CaseSpec:
    def build(made: Clouds) -> WithDistCase:
        x, source = made.cube(clouds, points)
        return WithDistCase(torch.cdist(x, x), samples, source)

    name = f"furthest_point_sample_with_dist {clouds} x {points} -> {samples}"
    return CaseSpec(name, build, _ahead("torch loop", 1.0))


def _ahead(baseline: str, factor: float) -> tuple[Target, ...]:
    return (Target("eager_us", faster_than=baseline, factor=factor),)


def gpu_cases() -> list[CaseSpec]:
    return [
        radius_spec("16k cube, r 0.076, 30 each", cube(1, 16384), 0.076, 40),
        radius_spec("100k cube, r 0.0415, 30 each", cube(1, 100_000), 0.0415, 40),
        radius_spec("111k sweep, r 0.3", Clouds.sweep, 0.3, 160),
        chamfer_spec(32, 16384, 5.0),
        chamfer_spec(32, 2048, 2.0),
        with_dist_spec(8, 4096, 1024),
    ]


def cpu_cases() -> list[CaseSpec]:
    cases = [
        radius_spec("16k cube, r 0.076, 30 each", cube(1, 16384), 0.076, 40),
        chamfer_spec(4, 4096, 5.0),
        with_dist_spec(2, 1024, 256),
    ]
    return [
        replace(c, targets=tuple(replace(t, figure="best_us") for t in c.targets)) for c in cases
    ]
