# SPDX-License-Identifier: Apache-2.0
"""furthest_point_sample: its cases, and the baselines: one block per cloud, loops."""

from dataclasses import dataclass
from functools import partial
from typing import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

import torchvox
from benchmarks import baseline_fps
from benchmarks.clouds import Cloud, Clouds, batched, cube
from benchmarks.suite import (
    Case,
    CaseSpec,
    Facts,
    Implementation,
    NotApplicable,
    Outputs,
    Target,
    WrongResult,
    graph_us,
)

RADIUS_TOLERANCE = 0.05  # of the coverage radius, between two exact samplings that part at a tie
LOOP_RATE = 2e8  # points a second that a loop of torch calls visits on the CPU, roughly
LOOP_MOST_S = 5.0  # an implementation that would take longer is left out


@dataclass(frozen=True)
class SamplingCase(Case):
    """points [B, N, 3]; every sampling starts at point 0."""

    points: Tensor
    source: str
    samples: int
    op: str = "furthest_point_sample"

    def facts(self) -> Facts:
        clouds, points = self.points.shape[:2]
        return {"clouds": clouds, "points": points, "samples": self.samples}

    def torchvox(self) -> Outputs:
        return torchvox.furthest_point_sample(self.points, self.samples)

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        check = partial(compare, self, outputs=outputs)
        if self.points.device.type == "cuda":
            baseline_fps.prepare()
            call = partial(baseline_fps.sample, self.points, self.samples)
            yield Implementation("one block per cloud", call, check, True)
        else:
            yield Implementation("torch loop", partial(with_torch, self), check)
            yield Implementation("numpy loop", partial(with_numpy, self), check)

    def refuse_slow_loop(self) -> None:
        """For implementations that are as fast on the CPU as a loop of torch calls."""
        seconds = self.points.size(0) * self.points.size(1) * self.samples / LOOP_RATE
        if self.points.device.type == "cpu" and seconds > LOOP_MOST_S:
            raise NotApplicable(f"a call would take about {seconds:.0f} s")


def compare(case: SamplingCase, idx: Tensor, outputs: Outputs) -> str:
    """The same samples; or, where rounding broke a tie otherwise, a cover just as good.

    From the first other choice on, two samplings differ, yet both are right. Then the radius
    within which every point has a sample is compared, and the samples must be distinct.
    """
    expected = outputs[0]
    found = idx.to(expected.device).reshape(expected.shape).long()
    if torch.equal(found, expected.long()):
        return "same samples"
    clouds, points = case.points.shape[:2]
    if int(found.min()) < 0 or int(found.max()) >= points:
        raise WrongResult("an index lies outside the cloud")
    worst, common = 0.0, 0
    for cloud in range(clouds):
        if found[cloud].unique().numel() < case.samples:
            raise WrongResult("a point is sampled twice")
        common += int(torch.isin(found[cloud], expected[cloud].long()).sum())
        mine = coverage_radius(case.points[cloud], expected[cloud].long())
        worst = max(worst, coverage_radius(case.points[cloud], found[cloud]) / mine - 1)
    if worst > RADIUS_TOLERANCE:
        raise WrongResult(f"the coverage radius is {100 * worst:.0f} % larger")
    share = 100 * common / found.numel()
    return f"{share:.1f} % of the samples in common, coverage radius {100 * worst:+.1f} %"


def coverage_radius(points: Tensor, chosen: Tensor, most: int = 20_000) -> float:
    """Greatest distance from a point to its nearest sample, over `most` evenly chosen points."""
    some = points[:: -(-len(points) // most)]
    samples = points[chosen]
    nearest = [torch.cdist(block, samples).amin(1).max() for block in some.split(1024)]
    return float(torch.stack(nearest).max())


def with_torch(case: SamplingCase) -> Tensor:
    """Baseline loop in torch, over all clouds at once."""
    case.refuse_slow_loop()
    points, samples = case.points, case.samples
    clouds, count = points.shape[:2]
    rows = torch.arange(clouds)
    idx = torch.zeros(clouds, samples, dtype=torch.int64)
    dist2 = points.new_full((clouds, count), float("inf"))
    for s in range(1, samples):
        last = points[rows, idx[:, s - 1]]
        dist2 = torch.minimum(dist2, (points - last[:, None]).square().sum(-1))
        idx[:, s] = dist2.argmax(1)
    return idx


def with_numpy(case: SamplingCase) -> Tensor:
    """Baseline loop in NumPy, cloud by cloud."""
    points, samples = case.points, case.samples
    idx = np.zeros((*points.shape[:1], samples), np.int64)
    for cloud, chosen in zip(points.numpy(), idx, strict=True):
        columns = [np.ascontiguousarray(column) for column in cloud.T]
        dist2 = np.full(len(cloud), np.inf, np.float32)
        for s in range(1, samples):
            x, y, z = (column - column[chosen[s - 1]] for column in columns)
            np.minimum(dist2, x * x + y * y + z * z, out=dist2)
            chosen[s] = dist2.argmax()
    return torch.from_numpy(idx)


def spec(
    name: str, cloud: Callable[[Clouds], Cloud], samples: int, targets: Sequence[Target] = ()
) -> CaseSpec:
    def build(clouds: Clouds) -> SamplingCase:
        return SamplingCase(*batched(cloud(clouds)), samples)

    return CaseSpec(f"FPS {name}", build, tuple(targets))


def gpu_cases() -> list[CaseSpec]:
    return [
        spec("32 x 1024 -> 512", cube(32, 1024), 512, graph_us(110)),
        spec("32 x 4096 -> 1024", cube(32, 4096), 1024, graph_us(400)),
        spec("16k -> 4k", cube(1, 16384), 4096, graph_us(1600)),
        spec("65k -> 16k", cube(1, 65536), 16384, graph_us(6500)),
        spec("111k sweep -> 16k", Clouds.sweep, 16384, graph_us(7000)),
        spec("1M cube -> 16k", cube(1, 1 << 20), 16384, graph_us(12000)),
        spec("1M (9 jittered sweeps) -> 16k", lambda made: made.sweep(9), 16384, graph_us(12000)),
        spec("16 x 16k -> 4k", cube(16, 16384), 4096, graph_us(2600)),
        spec("32 x 65k -> 4k", cube(32, 65536), 4096, graph_us(4500)),
    ]


def cpu_cases() -> list[CaseSpec]:
    def faster(factor: float) -> list[Target]:
        return [Target("best_us", faster_than="fpsample", factor=factor)]

    return [
        spec("17k KITTI -> 4k", Clouds.kitti, 4096, faster(2.0)),
        spec("50k cube -> 4k", cube(1, 50_000), 4096, faster(2.0)),
        spec("111k sweep -> 16k", Clouds.sweep, 16384, faster(2.0)),
        spec("1024 -> 512", cube(1, 1024), 512, faster(1.3)),
    ]
