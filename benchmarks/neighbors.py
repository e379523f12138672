# SPDX-License-Identifier: Apache-2.0
"""ball_query and query_and_group: their cases, and the baseline: distances, then a sort."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Callable, Iterator, Sequence

import torch
from torch import Tensor

import torchvox
from benchmarks.clouds import Cloud, Clouds, batched, cube, evenly
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

TOLERANCE = 1e-4  # relative, of a squared distance: so near to the radius a point is in or out
MSG = ((0.1, 0.2, 0.4), (16, 32, 128))  # radii and neighbors of PointNet++'s first level
PAIRS_AT_ONCE = 1 << 28  # of the baseline, some 20 bytes each
PAIRS_MOST = {"cuda": 1 << 34, "cpu": 300_000_000}  # a baseline that needs more is left out


@dataclass(frozen=True)
class SearchCase(Case):
    """points [B, N, 3], query [B, M, 3]."""

    points: Tensor
    query: Tensor
    source: str

    def sizes(self) -> Facts:
        clouds, points = self.points.shape[:2]
        return {"clouds": clouds, "points": points, "queries": self.query.size(1)}

    def refuse_pairs(self, most: int, device: str = "", what: str = "a scan of {:.1e} pairs"):
        """Leaves an implementation out that would look at too many pairs, on a kind of device."""
        pairs = self.points.size(0) * self.points.size(1) * self.query.size(1)
        if pairs > most and device in ("", self.points.device.type):
            raise NotApplicable(what.format(pairs))

    def refuse_distances(self, most: dict[str, int]) -> None:
        self.refuse_pairs(most[self.points.device.type], what="{:.1e} distances")

    def indices(self, idx: Tensor, expected: Tensor) -> Tensor:
        """Another implementation's, in the place and shape of those of torchvox."""
        found = idx.to(expected.device).reshape(expected.shape).long()
        if int(found.min()) < 0 or int(found.max()) >= self.points.size(1):
            raise WrongResult("an index lies outside the cloud")
        return found


@dataclass(frozen=True)
class BallCase(SearchCase):
    """And for query_and_group features [B, N, C]."""

    radii: tuple[float, ...]
    ks: tuple[int, ...]
    features: Tensor | None = None
    op: str = "ball_query"

    def facts(self) -> Facts:
        facts = {**self.sizes(), "radii": list(self.radii), "k": list(self.ks)}
        return facts if self.features is None else {**facts, "channels": self.features.size(2)}

    def torchvox(self) -> Outputs:
        if self.op == "ball_query":
            return torchvox.ball_query(self.points, self.query, self.radii[0], self.ks[0])
        return torchvox.query_and_group(
            self.points, self.query, self.features, list(self.radii), list(self.ks)
        )

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        if self.op == "ball_query":
            call, check = with_torch, partial(compare, self, outputs=outputs)
        else:
            call, check = grouped_with_torch, partial(compare_groups, outputs)
        yield Implementation("cdist, sort", partial(call, self), check, True)


def with_torch(case: BallCase, radius: float | None = None, k: int = 0) -> Tensor:
    """Baseline in torch: indices of points outside become N, sorted, the first k kept."""
    radius, k = (case.radii[0], case.ks[0]) if radius is None else (radius, k)
    case.refuse_distances(PAIRS_MOST)
    clouds, points = case.points.shape[:2]
    rows = torch.arange(points, device=case.points.device, dtype=torch.int32)
    found = []
    for part in case.query.split(max(1, PAIRS_AT_ONCE // (clouds * points)), 1):
        dist = torch.cdist(part, case.points, compute_mode="donot_use_mm_for_euclid_dist")
        near = torch.where(dist < radius, rows, points)
        found.append(near.topk(min(k, points), largest=False, sorted=True).values)
    idx = torch.cat(found, 1)
    first = idx[..., :1] % points  # an empty ball holds point 0
    return torch.where(idx < points, idx, first)


def grouped_with_torch(case: BallCase) -> Tensor:
    """Baseline in torch: the same for every radius, gathers, a difference, a concatenation."""
    pairs = zip(case.radii, case.ks, strict=True)
    idx = torch.cat([with_torch(case, radius, k) for radius, k in pairs], 2).long()
    clouds = torch.arange(idx.size(0), device=idx.device)[:, None, None]
    relative = case.points[clouds, idx] - case.query[:, :, None]
    return torch.cat([relative, case.features[clouds, idx]], -1)


def compare(case: BallCase, idx: Tensor, outputs: Outputs) -> str:
    """The same neighbors; where rows differ, by points at the radius alone."""
    expected = outputs[1].long()
    found = case.indices(idx, expected)
    other = (found != expected).any(-1)
    if not bool(other.any()):
        return "same neighbors"
    limit = case.radii[0] ** 2
    cloud, row = other.nonzero(as_tuple=True)
    dist2 = case.points[cloud].double() - case.query[cloud, row, None].double()
    dist2 = dist2.square().sum(-1)
    at_radius = ((dist2 / limit - 1).abs() < TOLERANCE).any(-1)
    if not bool(at_radius.all()):
        raise WrongResult(f"{int((~at_radius).sum())} rows differ with no point at the radius")
    return f"{len(row)} rows differ, each with a point at the radius"


def compare_groups(outputs: Outputs, found: Tensor) -> str:
    """The same groups; a few may hold another point at the radius."""
    apart = (found - outputs[0]).abs() > 1e-4 * (1 + outputs[0].abs())
    wrong = apart.flatten(2).any(-1)
    if int(wrong.sum()) > 1e-3 * wrong.numel():
        raise WrongResult(f"{int(wrong.sum())} of {wrong.numel()} groups differ")
    return f"the same groups in all but {int(wrong.sum())} balls"


def compare_counts(counts: Tensor, outputs: Outputs) -> str:
    """For libraries that find the same balls and keep others of their points."""
    expected = outputs[2].flatten().long()
    wrong = int((counts.to(expected.device).flatten().long() != expected).sum())
    if wrong > 1e-3 * len(expected):
        raise WrongResult(f"{wrong} balls have another number of points")
    return f"as many points in all but {wrong} balls"


def spec(
    name: str,
    cloud: Callable[[Clouds], Cloud],
    queries: int,
    radii: Sequence[float],
    ks: Sequence[int],
    targets: Sequence[Target] = (),
    channels: int = 0,
) -> CaseSpec:
    """queries: points of each cloud, evenly chosen. channels: of query_and_group."""

    def build(clouds: Clouds) -> BallCase:
        points, source = batched(cloud(clouds))
        case = BallCase(points, evenly(points, queries), source, tuple(radii), tuple(ks))
        if channels == 0:
            return case
        generator = torch.Generator().manual_seed(0)
        features = torch.randn(*points.shape[:2], channels, generator=generator)
        return replace(case, features=features.to(points.device), op="query_and_group")

    return CaseSpec(name, build, tuple(targets))


def box(clouds: int, points: int) -> Callable[[Clouds], Cloud]:
    """70 x 80 x 4, the extent of a lidar sweep."""

    def build(made: Clouds) -> Cloud:
        unit = made.cube(clouds, points).points
        return Cloud(unit * torch.tensor([70.0, 80.0, 4.0], device=unit.device), "70 x 80 x 4 box")

    return build


def gpu_cases() -> list[CaseSpec]:
    return [
        spec("ball 32 x 1024, 512 queries, r 0.2", cube(32, 1024), 512, [0.2], [32], graph_us(35)),
        spec("ball 16 x 16k, 4k queries, r 0.8", box(16, 16384), 4096, [0.8], [32], graph_us(600)),
        spec("ball 120k, 4k queries, r 0.05", cube(1, 120_000), 4096, [0.05], [32], graph_us(200)),
        spec("ball 111k sweep, 16k queries, r 0.8", Clouds.sweep, 16384, [0.8], [32]),
        spec("group 32 x 1024, three radii, C 3", cube(32, 1024), 512, *MSG, channels=3),
        spec(
            "group 16 x 16k, 4k queries, k 32, C 64", box(16, 16384), 4096, [0.8], [32], channels=64
        ),
    ]


def cpu_cases() -> list[CaseSpec]:
    ahead = [Target("best_us", faster_than=name) for name in ("scipy", "torch_cluster")]
    return [
        spec("ball 17k KITTI, 4k queries, r 0.8", Clouds.kitti, 4096, [0.8], [32], ahead),
        spec("ball 111k sweep, 4k queries, r 0.8", Clouds.sweep, 4096, [0.8], [32], ahead),
        spec("ball 111k sweep, 16k queries, r 0.2", Clouds.sweep, 16384, [0.2], [32], ahead),
        spec("group 32 x 1024, three radii, C 3", cube(32, 1024), 512, *MSG, channels=3),
    ]
