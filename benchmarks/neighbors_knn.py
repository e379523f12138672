# SPDX-License-Identifier: Apache-2.0
"""knn and three_nn: their cases, and the baseline: all distances, then the k least."""

from dataclasses import dataclass
from functools import partial
from typing import Callable, Iterator, Sequence

import torch
from torch import Tensor

import torchvox
from benchmarks.clouds import Cloud, Clouds, batched, cube, evenly
from benchmarks.neighbors import SearchCase
from benchmarks.suite import CaseSpec, Facts, Implementation, Outputs, Target, WrongResult, graph_us

TOLERANCE = 1e-4  # relative, of a squared distance between two exact searches in float32
PAIRS_AT_ONCE = 1 << 30  # distances of the baseline, 4 bytes each
PAIRS_MOST = {"cuda": 1 << 32, "cpu": 300_000_000}  # a baseline that needs more is left out


@dataclass(frozen=True)
class KnnCase(SearchCase):
    k: int
    op: str = "knn"

    def facts(self) -> Facts:
        return {**self.sizes(), "k": self.k}

    def torchvox(self) -> Outputs:
        if self.op == "three_nn":
            return torchvox.three_nn(self.query, self.points)
        return torchvox.knn(self.points, self.query, self.k)

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        check = partial(compare, self, outputs=outputs)
        yield Implementation("cdist, topk", partial(all_distances, self), check, True)


def all_distances(case: KnnCase) -> Tensor:
    """Baseline in torch: as many queries at a time as a gigabyte or so of distances allows."""
    case.refuse_distances(PAIRS_MOST)
    at_once = max(1, PAIRS_AT_ONCE // (case.points.size(0) * case.points.size(1)))
    found = [
        torch.cdist(part, case.points, compute_mode="donot_use_mm_for_euclid_dist")
        .topk(case.k, largest=False)
        .indices
        for part in case.query.split(at_once, 1)
    ]
    return torch.cat(found, 1)


def compare(case: KnnCase, idx: Tensor, outputs: Outputs) -> str:
    """The same neighbors; or others at the same distances, where rounding broke a tie."""
    expected = outputs[1].long()
    found = case.indices(idx, expected)
    if torch.equal(found, expected):
        return "same neighbors"
    if bool((found.sort(-1).values.diff(dim=-1) == 0).any()):
        raise WrongResult("a point is named twice")
    mine, theirs = (distances(case, rows) for rows in (expected, found))
    if bool((theirs > mine * (1 + TOLERANCE) + 1e-12).any()):
        raise WrongResult("a neighbor is farther away")
    share = 100 * float((found == expected).double().mean())
    return f"{share:.2f} % of the neighbors in the same place, the others as near"


def distances(case: KnnCase, idx: Tensor) -> Tensor:
    """[B, M, k] squared distances in float64, ascending."""
    rows = idx.flatten(1)[:, :, None].expand(-1, -1, 3)
    near = case.points.gather(1, rows).unflatten(1, idx.shape[1:]).double()
    return (near - case.query[:, :, None].double()).square().sum(-1).sort(-1).values


def spec(
    name: str,
    cloud: Callable[[Clouds], Cloud],
    queries: int | None,
    k: int,
    targets: Sequence[Target] = (),
    op: str = "knn",
) -> CaseSpec:
    """queries: uniform ones in the box of each cloud of a batch; points of one cloud, evenly
    chosen; None: every point."""

    def build(clouds: Clouds) -> KnnCase:
        points, source = cloud(clouds)
        if points.dim() == 3:
            seed = torch.Generator().manual_seed(1)
            drawn = torch.rand(points.size(0), queries, 3, generator=seed)
            return KnnCase(points, drawn.to(points.device), source, k, op)
        points, source = batched(Cloud(points, source))
        return KnnCase(points, evenly(points, queries or points.size(1)), source, k, op)

    return CaseSpec(name, build, tuple(targets))


def gpu_cases() -> list[CaseSpec]:
    return [
        spec("knn k16, 32 x 1024, 512 queries", cube(32, 1024), 512, 16, graph_us(80)),
        spec("knn k16, 16 x 16k, 4k queries", cube(16, 16384), 4096, 16, graph_us(800)),
        spec("knn k16, 111k sweep, every point", Clouds.sweep, None, 16),
        spec("knn k64, 16 x 16k, 4k queries", cube(16, 16384), 4096, 64),
        spec("three_nn, 16 x 4k, 16k queries", cube(16, 4096), 16384, 3, graph_us(400), "three_nn"),
        spec("three_nn, 32 x 512, 1024 queries", cube(32, 512), 1024, 3, (), "three_nn"),
    ]


def cpu_cases() -> list[CaseSpec]:
    ahead = [Target("best_us", faster_than=name) for name in ("scipy", "torch_cluster")]
    return [
        spec("knn k16, 17k KITTI, every point", Clouds.kitti, None, 16, ahead),
        spec("knn k16, 111k sweep, 4k queries", Clouds.sweep, 4096, 16, ahead),
        spec("knn k16, 111k sweep, every point", Clouds.sweep, None, 16, ahead),
        spec("three_nn, 4 x 4k, 16k queries", cube(4, 4096), 16384, 3, (), "three_nn"),
    ]
