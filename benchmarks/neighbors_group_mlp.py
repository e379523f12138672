# SPDX-License-Identifier: Apache-2.0
"""group_mlp_max: the levels of a PointNet++ classifier; the baseline: gathers and layers."""

from dataclasses import dataclass
from functools import partial
from typing import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

import torchvox
from benchmarks.clouds import Clouds
from benchmarks.suite import Case, CaseSpec, Facts, Implementation, Outputs, apart, name_of

# Of the largest value, between two orders of rounding. Sums of 16-bit layers may differ by device.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@dataclass(frozen=True)
class MlpCase(Case):
    """One level: the arguments of the call, tensors and lists of them."""

    arguments: dict[str, object]
    source: str
    op: str = "group_mlp_max"

    def facts(self) -> Facts:
        points, idx, weights = (self.arguments[k] for k in ("points", "idx", "weights"))
        return {
            "clouds": points.size(0),
            "points": points.size(1),
            "queries": idx.size(1),
            "k": idx.size(2),
            "hits": round(float(self.arguments["count"].float().mean()), 1),
            "channels": [weights[0].size(1), *(w.size(0) for w in weights)],
            "dtype": name_of(weights[0].dtype),
        }

    def torchvox(self) -> Outputs:
        return (torchvox.group_mlp_max(**self.arguments),)

    def compare(self, found: Outputs, expected: Outputs) -> str:
        """In the place of equal bits."""
        return apart(found, expected, TOLERANCE[expected[0].dtype])

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        call = partial(with_torch, **self.arguments)
        check = partial(self.compare, expected=outputs)
        yield Implementation("gather, linear, max", call, check, True)


def with_torch(
    points: Tensor,
    query: Tensor,
    features: Tensor,
    idx: Tensor,
    count: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
) -> Outputs:
    """Baseline in torch: advanced indexing, a difference, a concatenation, layer after layer."""
    clouds, rows = torch.arange(idx.size(0), device=idx.device)[:, None, None], idx.long()
    relative = (points[clouds, rows] - query[:, :, None]).to(weights[0].dtype)
    x = relative if features is None else torch.cat([relative, features[clouds, rows]], -1)
    for weight, bias in zip(weights, biases, strict=True):
        x = F.relu(F.linear(x, weight, bias))
    return (x.max(2)[0],)


def level(
    name: str,
    sizes: tuple[int, int, int],
    radius: float,
    k: int,
    widths: Sequence[int],
    dtype: torch.dtype,
) -> CaseSpec:
    """sizes: clouds, points, queries. widths: features and outputs of the layers."""

    def build(made: Clouds) -> MlpCase:
        clouds, count, queries = sizes
        points, source = made.cube(clouds, count)
        query = points[:, torch.arange(queries) * count // queries].contiguous()
        _, idx, hits = torchvox.ball_query(points, query, radius, k)
        generator = torch.Generator().manual_seed(0)

        def values(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        ins = [3 + widths[0], *widths[1:-1]]
        weights = [values(b, a) * (2 / a) ** 0.5 for a, b in zip(ins, widths[1:], strict=True)]
        biases = [values(b) * 0.1 for b in widths[1:]]
        features = values(clouds, count, widths[0]).to(dtype) if widths[0] else None
        arguments = {"points": points, "query": query, "features": features, "idx": idx}
        arguments |= {"count": hits, "weights": [w.to(dtype) for w in weights]}
        arguments["biases"] = [b.to(dtype) for b in biases]
        return MlpCase(arguments, source).on(points.device.type)

    return CaseSpec(f"group_mlp_max level {name}", build)


FIRST = {"radius": 0.2, "k": 32, "widths": (0, 64, 64, 128)}
SECOND = {"radius": 0.4, "k": 64, "widths": (128, 128, 128, 256)}


def gpu_cases() -> list[CaseSpec]:
    first, second = (32, 1024, 512), (32, 512, 128)
    return [
        level("1, 32 x 1024, bfloat16", first, **FIRST, dtype=torch.bfloat16),
        level("2, 32 x 512, bfloat16", second, **SECOND, dtype=torch.bfloat16),
        level("1, 32 x 1024, float32", first, **FIRST, dtype=torch.float32),
        level("2, 32 x 512, float32", second, **SECOND, dtype=torch.float32),
    ]


def cpu_cases() -> list[CaseSpec]:
    return [
        level("1, 1024 points, float32", (1, 1024, 512), **FIRST, dtype=torch.float32),
        level("2, 512 points, float32", (1, 512, 128), **SECOND, dtype=torch.float32),
    ]
