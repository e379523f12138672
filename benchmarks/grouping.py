# SPDX-License-Identifier: Apache-2.0
"""group_points, three_interpolate and segment_reduce, forward and backward, and group_mlp_max:
cases, plain torch, and the libraries that group."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import torchvox
from benchmarks import suite
from benchmarks.clouds import Clouds, evenly, seeded
from benchmarks.suite import Case, Implementation, Outputs, Problem, Target, Way, close, peer

# Between two orders of rounding. Sums of 16-bit layers may differ by device.
MLP_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}


class WithGradient(Problem):
    """A forward and, where there is a `grad` of the output, a backward to the first argument."""

    def run(self) -> Outputs:
        more = {name: self[name] for name in [*self.arguments][1:] if name != "grad"}
        function = getattr(torchvox, self.op)
        return self.step(lambda values: suite.listed(function(values, **more))[0])

    def step(self, forward: Callable[[Tensor], Tensor]) -> Outputs:
        values, grad = next(iter(self.arguments.values())), self.arguments.get("grad")
        if grad is None:
            return (forward(values),)
        values = values.detach().requires_grad_()
        out = forward(values)
        return out.detach(), *torch.autograd.grad(out, values, grad)


class Gather(WithGradient):
    """Rows idx [B, M, k] of features [B, N, C]; interpolated where there are weights."""

    def moved_bytes(self) -> tuple[int, int]:
        """Every tensor once in each direction; idx and weights in both."""
        read, written = super().moved_bytes()
        return read + suite.bytes_of(self["idx"], self.arguments.get("weight")), written


class Segments(WithGradient):
    """src [N, C], offsets [R + 1], index [E] or none."""

    def others(self) -> Iterator[Implementation]:
        offsets, reduce, src = self["offsets"], self["reduce"], self["src"]
        row = torch.repeat_interleave(offsets.diff())
        shape = (len(offsets) - 1, src.size(1))

        def by_index(src: Tensor) -> Tensor:
            zeros, entries = src.new_zeros(shape), self.entries(src)
            if reduce == "sum":
                return zeros.index_add_(0, row, entries)
            return zeros.index_reduce_(0, row, entries, "amax", include_self=False)

        def by_offsets(src: Tensor) -> Tensor:
            options = {"offsets": offsets, "axis": 0, "initial": 0, "unsafe": True}
            return torch.segment_reduce(self.entries(src), reduce, **options)

        ways = {INDEXED[reduce]: by_index}
        if reduce == "sum":  # its maximum begins at `initial`
            ways["torch.segment_reduce"] = by_offsets
        for name, way in ways.items():
            yield Implementation(name, partial(self.step, way), self.compare, True)

    def entries(self, src: Tensor) -> Tensor:
        index = self.arguments.get("index")
        return src if index is None else src[index]


INDEXED = {"sum": "torch index_add_", "max": "torch index_reduce_"}


class GroupMlp(Problem):
    plain = "gather, linear, max"

    def same(self, outputs: Outputs, expected: Outputs) -> str:
        return close(outputs, expected, MLP_TOLERANCE[expected[0].dtype])

    def compare(self, result: Outputs) -> str:
        return self.same(result, self.outputs)

    def in_torch(self) -> Outputs:
        """Advanced indexing, a difference, a concatenation, layer after layer."""
        points, query, features = (self[name] for name in ("points", "query", "features"))
        rows, weights = self["idx"].long(), self["weights"]
        clouds = torch.arange(len(rows), device=rows.device)[:, None, None]
        x = (points[clouds, rows] - query[:, :, None]).to(weights[0].dtype)
        if features is not None:
            x = torch.cat([x, features[clouds, rows]], -1)
        for weight, bias in zip(weights, self["biases"], strict=True):
            x = F.relu(F.linear(x, weight, bias))
        return (x.max(2)[0],)


@peer("mmcv.ops", "group_points", "three_interpolate", device="cuda", capturable=True)
def channels_first(ops: Any, problem: Gather) -> Way:
    """The layouts are turned before the call, so that it does no more than the library's own."""
    idx, weight = problem["idx"], problem.arguments.get("weight")
    features = problem["features"].mT.contiguous()
    grad = problem["grad"].movedim(-1, 1).contiguous()
    turned = Gather(problem.op, {"features": features, "grad": grad})

    def forward(features: Tensor) -> Tensor:
        if weight is None:
            return ops.grouping_operation(features, idx)
        return ops.three_interpolate(features, idx, weight)

    return Way(partial(turned.step, forward), lambda result: [t.movedim(1, -1) for t in result])


@peer("torch_scatter", "segment_reduce", capturable=True)
def torch_scatter(package: Any, problem: Segments) -> Way:
    def forward(src: Tensor) -> Tensor:
        entries = problem.entries(src)
        return package.segment_csr(entries, problem["offsets"], reduce=problem["reduce"])

    return Way(partial(problem.step, forward))


def gather_row(
    clouds: int, points: int, queries: int, k: int, channels: int, *targets: Target,
    interpolate: bool = False,
) -> Case:  # fmt: skip

    def inputs(data: Clouds) -> dict[str, Any]:
        g, batch = seeded(1), data.batch(clouds)
        n, m = data.size(points), data.size(queries)
        shape = (batch, m, channels) if interpolate else (batch, m, k, channels)
        features, idx = torch.randn(batch, n, channels, generator=g), near_rows(batch, n, m, k)
        arguments = {"features": features, "idx": idx, "grad": torch.randn(shape, generator=g)}
        if interpolate:
            arguments["weight"] = torch.rand(batch, m, 3, generator=g)
        return {**arguments, "source": "rows near random centers"}

    kind = "interpolate" if interpolate else "group"
    op = "three_interpolate" if interpolate else "group_points"
    name = f"{kind} {clouds} x {points} -> {queries} x {k}, {channels} channels"
    return Case(name, op, inputs, {}, targets, Gather)


def near_rows(clouds: int, points: int, queries: int, k: int) -> Tensor:
    """[B, M, k] int32 as ball queries over a scan order give them: ascending rows near a center."""
    g = seeded(2)
    center = torch.randint(points, (clouds, queries, 1), generator=g)
    near = torch.randint(12 * k, (clouds, queries, k), generator=g)
    return ((center + near) % points).sort(-1).values.int()


def segments_row(
    rows: int, segments: int, channels: int, reduce: str = "sum", kind: str = "even",
    entries: int = 0, backward: bool = False, factor: float = 0.0,
) -> Case:  # fmt: skip
    """entries: of an index, 0: none. factor: the target on a GPU, times torch's speed."""

    def inputs(data: Clouds) -> dict[str, Any]:
        g, n, indices = seeded(1), data.size(rows), data.size(entries)
        lengths = lengths_of(data.size(segments), indices or n, kind)
        offsets = torch.cat([torch.zeros(1).long(), lengths.cumsum(0)])
        arguments = {"src": torch.randn(n, channels, generator=g), "offsets": offsets}
        arguments["index"] = torch.randint(n, (indices,), generator=g) if indices else None
        if backward:
            arguments["grad"] = torch.randn(len(lengths), channels, generator=g)
        return {**arguments, "source": "random lengths"}

    name = f"segments {reduce} {rows} x {channels} -> {segments}, {kind}"
    name += ", index" * bool(entries) + ", backward" * backward
    targets = [suite.faster("graph_us", INDEXED[reduce], factor)] if factor else []
    return Case(name, "segment_reduce", inputs, {"reduce": reduce}, targets, Segments)


def lengths_of(segments: int, entries: int, kind: str) -> Tensor:
    """Of about even segments, of mostly empty ones, or of one that has all."""
    g = seeded(3)
    if kind == "one":
        return torch.tensor([entries])
    used = segments if kind == "even" else segments // 50
    row = torch.randint(used, (entries,), generator=g) * (segments // used)
    return torch.bincount(row, minlength=segments)


LEVELS = {1: (0.2, 32, (0, 64, 64, 128)), 2: (0.4, 64, (128, 128, 128, 256))}


def mlp_row(level: int, name: str, sizes: tuple[int, int, int], dtype: torch.dtype) -> Case:
    """A level of a PointNet++ classifier: radius, k, features and outputs of the layers. sizes:
    clouds, points, queries."""
    radius, k, widths = LEVELS[level]

    def inputs(data: Clouds) -> dict[str, Any]:
        clouds, count, queries = sizes
        points, source = data.cube(clouds, count)
        query = evenly(points, data.size(queries))
        _, idx, hits = torchvox.ball_query(points, query, radius, k)
        generator = seeded()

        def values(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        ins = [3 + widths[0], *widths[1:-1]]
        weights = [values(b, a) * (2 / a) ** 0.5 for a, b in zip(ins, widths[1:], strict=True)]
        biases = [values(b) * 0.1 for b in widths[1:]]
        features = values(*points.shape[:2], widths[0]).to(dtype) if widths[0] else None
        arguments = {"points": points, "query": query, "features": features, "idx": idx}
        arguments |= {"count": hits, "weights": [weight.to(dtype) for weight in weights]}
        return {**arguments, "biases": [bias.to(dtype) for bias in biases], "source": source}

    return Case(f"group_mlp_max level {level}, {name}", "group_mlp_max", inputs, kind=GroupMlp)


def cases(device: str) -> list[Case]:
    if device == "cpu":
        return [
            gather_row(4, 4096, 1024, 32, 64),
            gather_row(4, 1024, 4096, 3, 128, interpolate=True),
            segments_row(100_000, 6250, 64),
            segments_row(100_000, 6250, 64, "max", backward=True),
            mlp_row(1, "1024 points, float32", (1, 1024, 512), torch.float32),
            mlp_row(2, "512 points, float32", (1, 512, 128), torch.float32),
        ]
    million, first, second = 1_000_000, (32, 1024, 512), (32, 512, 128)
    return [
        gather_row(16, 16384, 4096, 32, 64, suite.graph(425.3)),  # 1.5 times the floor of an H200
        gather_row(32, 1024, 512, 32, 64),
        gather_row(32, 512, 128, 64, 128),
        gather_row(1, 120_000, 4096, 32, 64),
        gather_row(16, 4096, 16384, 3, 128, interpolate=True),
        gather_row(32, 128, 512, 3, 256, interpolate=True),
        segments_row(million, 62_500, 64, factor=2.0),
        segments_row(million, 62_500, 64, "max", factor=2.0),
        segments_row(million, 62_500, 64, backward=True),
        segments_row(million, 62_500, 64, "max", backward=True),
        segments_row(million, 1, 64, kind="one", factor=2.0),
        segments_row(million, million, 64, kind="sparse"),
        segments_row(100_000, 62_500, 64, entries=million, factor=2.0),
        segments_row(100_000, 62_500, 64, "max", entries=million, backward=True),
        segments_row(million, 62_500, 1),
        mlp_row(1, "32 x 1024, bfloat16", first, torch.bfloat16),
        mlp_row(2, "32 x 512, bfloat16", second, torch.bfloat16),
        mlp_row(1, "32 x 1024, float32", first, torch.float32),
        mlp_row(2, "32 x 512, float32", second, torch.float32),
    ]
