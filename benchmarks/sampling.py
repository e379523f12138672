# SPDX-License-Identifier: Apache-2.0
"""furthest_point_sample: its cases, and the textbook ways: one block per cloud, loops."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Callable, Iterator, List, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

import torchvox
from benchmarks import textbook_fps
from benchmarks.clouds import Cloud, Clouds
from benchmarks.suite import Case, Goal, NotApplicable, Outputs, Row, Way, WrongResult

RADIUS_TOLERANCE = 0.05  # of the coverage radius, between two exact samplings that part at a tie
LOOP_RATE = 2e8  # points a second that a loop of torch calls visits on the CPU, roughly
LOOP_MOST_S = 5.0  # a way that would take longer is left out


@dataclass(frozen=True)
class SamplingProblem:
    """points [B, N, 3]; every sampling starts at point 0."""

    points: Tensor
    source: str
    samples: int
    op: str = "furthest_point_sample"

    def facts(self) -> Row:
        clouds, points = self.points.shape[:2]
        return {"clouds": clouds, "points": points, "samples": self.samples}

    def torchvox(self) -> Outputs:
        return torchvox.furthest_point_sample(self.points, self.samples)

    def on(self, device: str) -> "SamplingProblem":
        return replace(self, points=self.points.to(device))

    def moved_bytes(self, outputs: Outputs) -> Tuple[int, int]:
        read = self.points.numel() * self.points.element_size()
        return read, sum(out.numel() * out.element_size() for out in outputs)

    def textbook(self, outputs: Outputs) -> Iterator[Way]:
        def check(idx: Tensor) -> str:
            return compare(self, idx, outputs)

        if self.points.device.type == "cuda":
            textbook_fps.prepare()
            call = partial(textbook_fps.sample, self.points, self.samples)
            yield Way("one block per cloud", call, check, True)
        else:
            yield Way("torch loop", partial(with_torch, self), check)
            yield Way("numpy loop", partial(with_numpy, self), check)

    def refuse_slow_loop(self) -> None:
        """For ways that are as fast on the CPU as a loop of torch calls."""
        seconds = self.points.size(0) * self.points.size(1) * self.samples / LOOP_RATE
        if self.points.device.type == "cpu" and seconds > LOOP_MOST_S:
            raise NotApplicable(f"a call would take about {seconds:.0f} s")


def compare(problem: SamplingProblem, idx: Tensor, outputs: Outputs) -> str:
    """The same samples; or, where rounding broke a tie otherwise, a cover just as good.

    From the first other choice on, two samplings differ, yet both are right. Then the radius
    within which every point has a sample is compared, and the samples must be distinct.
    """
    expected = outputs[0]
    found = idx.to(expected.device).reshape(expected.shape).long()
    if torch.equal(found, expected.long()):
        return "same samples"
    clouds, points = problem.points.shape[:2]
    if int(found.min()) < 0 or int(found.max()) >= points:
        raise WrongResult("an index lies outside the cloud")
    worst, common = 0.0, 0
    for cloud in range(clouds):
        if found[cloud].unique().numel() < problem.samples:
            raise WrongResult("a point is sampled twice")
        common += int(torch.isin(found[cloud], expected[cloud].long()).sum())
        mine = coverage_radius(problem.points[cloud], expected[cloud].long())
        worst = max(worst, coverage_radius(problem.points[cloud], found[cloud]) / mine - 1)
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


def with_torch(problem: SamplingProblem) -> Tensor:
    """Textbook loop in torch, over all clouds at once."""
    problem.refuse_slow_loop()
    points, samples = problem.points, problem.samples
    clouds, count = points.shape[:2]
    rows = torch.arange(clouds)
    idx = torch.zeros(clouds, samples, dtype=torch.int64)
    dist2 = points.new_full((clouds, count), float("inf"))
    for s in range(1, samples):
        last = points[rows, idx[:, s - 1]]
        dist2 = torch.minimum(dist2, (points - last[:, None]).square().sum(-1))
        idx[:, s] = dist2.argmax(1)
    return idx


def with_numpy(problem: SamplingProblem) -> Tensor:
    """Textbook loop in NumPy, cloud by cloud."""
    points, samples = problem.points, problem.samples
    idx = np.zeros((*points.shape[:1], samples), np.int64)
    for cloud, chosen in zip(points.numpy(), idx, strict=True):
        columns = [np.ascontiguousarray(column) for column in cloud.T]
        dist2 = np.full(len(cloud), np.inf, np.float32)
        for s in range(1, samples):
            x, y, z = (column - column[chosen[s - 1]] for column in columns)
            np.minimum(dist2, x * x + y * y + z * z, out=dist2)
            chosen[s] = dist2.argmax()
    return torch.from_numpy(idx)


def case(
    name: str, cloud: Callable[[Clouds], Cloud], samples: int, goals: Sequence[Goal] = ()
) -> Case:
    def build(clouds: Clouds) -> SamplingProblem:
        points, source = cloud(clouds)
        points = points if points.dim() == 3 else points[None, :, :3].contiguous()
        return SamplingProblem(points, source, samples)

    return Case(f"FPS {name}", build, tuple(goals))


def cube(clouds: int, points: int) -> Callable[[Clouds], Cloud]:
    return lambda made: made.cube(clouds, points)


def gpu_cases() -> List[Case]:
    def graph(us: float) -> List[Goal]:
        return [Goal("graph_us", us)]

    return [
        case("32 x 1024 -> 512", cube(32, 1024), 512, graph(110)),
        case("32 x 4096 -> 1024", cube(32, 4096), 1024, graph(400)),
        case("16k -> 4k", cube(1, 16384), 4096, graph(1600)),
        case("65k -> 16k", cube(1, 65536), 16384, graph(6500)),
        case("111k sweep -> 16k", Clouds.sweep, 16384, graph(7000)),
        case("1M cube -> 16k", cube(1, 1 << 20), 16384, graph(12000)),
        case("1M (9 jittered sweeps) -> 16k", lambda made: made.sweep(9), 16384, graph(12000)),
        case("16 x 16k -> 4k", cube(16, 16384), 4096, graph(2600)),
        case("32 x 65k -> 4k", cube(32, 65536), 4096, graph(4500)),
    ]


def cpu_cases() -> List[Case]:
    def faster(factor: float) -> List[Goal]:
        return [Goal("best_us", faster_than="fpsample", factor=factor)]

    return [
        case("17k KITTI -> 4k", Clouds.kitti, 4096, faster(2.0)),
        case("50k cube -> 4k", cube(1, 50_000), 4096, faster(2.0)),
        case("111k sweep -> 16k", Clouds.sweep, 16384, faster(2.0)),
        case("1024 -> 512", cube(1, 1024), 512, faster(1.3)),
    ]
