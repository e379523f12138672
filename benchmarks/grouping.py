# SPDX-License-Identifier: Apache-2.0
"""group_points and three_interpolate, forward and backward: cases, and the baselines."""

from dataclasses import dataclass
from functools import partial
from typing import Callable, Iterator

import torch
from torch import Tensor

import torchvox
from benchmarks.clouds import Clouds
from benchmarks.suite import Case, CaseSpec, Facts, Implementation, Outputs, Target, apart, bytes_of

H200_BYTES_PER_US = 4.26e6  # read and written, by a copy
TOLERANCE = 1e-5  # relative to the largest gradient: sums of thousands in another order


@dataclass(frozen=True)
class GatherCase(Case):
    """features [B, N, C], rows idx [B, M, k] and the gradient of what they give. With weights, of
    three neighbors, the rows are interpolated. A call is a forward and a backward."""

    features: Tensor
    idx: Tensor
    grad: Tensor
    weight: Tensor | None
    source: str

    @property
    def op(self) -> str:
        return "group_points" if self.weight is None else "three_interpolate"

    def facts(self) -> Facts:
        clouds, points, channels = self.features.shape
        queries, k = self.idx.shape[1:]
        return {
            "clouds": clouds, "points": points, "queries": queries, "k": k, "channels": channels,
        }  # fmt: skip

    def torchvox(self) -> Outputs:
        if self.weight is None:
            return self.step(torchvox.group_points)
        return self.step(partial(torchvox.three_interpolate, weight=self.weight))

    def step(self, forward: Callable[[Tensor, Tensor], Tensor]) -> Outputs:
        features = self.features.detach().requires_grad_()
        out = forward(features, self.idx)
        return out.detach(), *torch.autograd.grad(out, features, self.grad)

    def moved_bytes(self, outputs: Outputs) -> tuple[int, int]:
        """Every tensor once in each direction; idx and weights in both."""
        read, written = Case.moved_bytes(self, outputs)
        return read + bytes_of(self.idx, self.weight), written

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        check = partial(apart, expected=outputs, tolerance=TOLERANCE)
        clouds, _, channels = self.features.shape
        flat = self.idx.long().flatten(1)
        wide = flat[:, :, None].expand(-1, -1, channels)
        cloud = torch.arange(clouds, device=flat.device)[:, None]

        def weighted(rows: Tensor) -> Tensor:
            rows = rows.unflatten(1, self.idx.shape[1:])
            return rows if self.weight is None else (rows * self.weight[..., None]).sum(2)

        gather = partial(self.step, lambda features, _: weighted(features.gather(1, wide)))
        index = partial(self.step, lambda features, _: weighted(features[cloud, flat]))
        yield Implementation("torch.gather", gather, check, True)
        yield Implementation("indexing", index, check, True)


def neighbors(clouds: int, points: int, queries: int, k: int) -> Tensor:
    """[B, M, k] int32 as ball queries over a scan order give them: ascending rows near a center."""
    g = torch.Generator().manual_seed(2)
    center = torch.randint(points, (clouds, queries, 1), generator=g)
    near = torch.randint(12 * k, (clouds, queries, k), generator=g)
    return ((center + near) % points).sort(-1).values.int()


def spec(
    clouds: int,
    points: int,
    queries: int,
    k: int,
    channels: int,
    within: float = 0.0,
    interpolate: bool = False,
) -> CaseSpec:
    """within: the target on a GPU, times what moving the bytes takes; 0: none."""

    def build(made: Clouds) -> GatherCase:
        g = torch.Generator().manual_seed(1)
        shape = (clouds, queries, channels) if interpolate else (clouds, queries, k, channels)
        case = GatherCase(
            torch.randn(clouds, points, channels, generator=g),
            neighbors(clouds, points, queries, k),
            torch.randn(shape, generator=g),
            torch.rand(clouds, queries, 3, generator=g) if interpolate else None,
            "rows near random centers",
        )
        return case.on(made.device)

    op = "interpolate" if interpolate else "group"
    rows = queries * (1 if interpolate else k) + points
    limit = within * 2 * 4 * clouds * rows * channels / H200_BYTES_PER_US
    name = f"{op} {clouds} x {points} -> {queries} x {k}, {channels} channels"
    return CaseSpec(name, build, (Target("graph_us", round(limit, 1)),) if within else ())


def gpu_cases() -> list[CaseSpec]:
    return [
        spec(16, 16384, 4096, 32, 64, within=1.5),
        spec(32, 1024, 512, 32, 64),
        spec(32, 512, 128, 64, 128),
        spec(1, 120_000, 4096, 32, 64),
        spec(16, 4096, 16384, 3, 128, interpolate=True),
        spec(32, 128, 512, 3, 256, interpolate=True),
    ]


def cpu_cases() -> list[CaseSpec]:
    return [spec(4, 4096, 1024, 32, 64), spec(4, 1024, 4096, 3, 128, interpolate=True)]
