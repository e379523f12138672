# SPDX-License-Identifier: Apache-2.0
"""segment_reduce, forward and backward: cases, and torch's own operations."""

from dataclasses import dataclass
from functools import partial
from typing import Callable, Iterator

import torch
from torch import Tensor

import torchvox
from benchmarks.clouds import Clouds
from benchmarks.suite import Case, CaseSpec, Facts, Implementation, Outputs, Target, apart

TOLERANCE = 1e-5  # relative to the largest value: sums in another order
BASELINE = {"sum": "torch index_add_", "max": "torch index_reduce_"}


@dataclass(frozen=True)
class SegmentCase(Case):
    """src [N, C], offsets [R + 1], index [E] or none, row [E] the segment of each entry; with grad
    [R, C] a call is a forward and a backward."""

    src: Tensor
    offsets: Tensor
    index: Tensor | None
    row: Tensor
    grad: Tensor | None
    reduce: str
    source: str = "random lengths"
    op: str = "segment_reduce"

    def facts(self) -> Facts:
        return {
            "rows": self.src.size(0), "channels": self.src.size(1), "entries": self.row.size(0),
            "segments": self.offsets.size(0) - 1, "reduce": self.reduce,
        }  # fmt: skip

    def entries(self, src: Tensor) -> Tensor:
        return src if self.index is None else src[self.index]

    def step(self, forward: Callable[[Tensor], Tensor]) -> Outputs:
        if self.grad is None:
            return (forward(self.src),)
        src = self.src.detach().requires_grad_()
        out = forward(src)
        return out.detach(), *torch.autograd.grad(out, src, self.grad)

    def torchvox(self) -> Outputs:
        function = partial(torchvox.segment_reduce, index=self.index)
        return self.step(lambda src: function(src, self.offsets, self.reduce)[0])

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        check = partial(apart, expected=outputs, tolerance=TOLERANCE)
        shape = (self.offsets.size(0) - 1, self.src.size(1))

        def by_index(src: Tensor) -> Tensor:
            zeros = src.new_zeros(shape)
            if self.reduce == "sum":
                return zeros.index_add_(0, self.row, self.entries(src))
            return zeros.index_reduce_(0, self.row, self.entries(src), "amax", include_self=False)

        def segments(src: Tensor) -> Tensor:
            return torch.segment_reduce(
                self.entries(src), self.reduce, offsets=self.offsets, axis=0, initial=0, unsafe=True
            )

        yield Implementation(BASELINE[self.reduce], partial(self.step, by_index), check, True)
        if self.reduce == "sum":  # its maximum begins at `initial`
            yield Implementation("torch.segment_reduce", partial(self.step, segments), check, True)


def lengths_of(segments: int, entries: int, kind: str) -> Tensor:
    """Of about even, of mostly empty segments, or of one that has all."""
    g = torch.Generator().manual_seed(3)
    if kind == "one":
        return torch.tensor([entries])
    used = segments if kind == "even" else segments // 50
    row = torch.randint(used, (entries,), generator=g) * (segments // used)
    return torch.bincount(row, minlength=segments)


def spec(
    rows: int, segments: int, channels: int, reduce: str = "sum", kind: str = "even",
    entries: int = 0, backward: bool = False, factor: float = 0.0,
) -> CaseSpec:  # fmt: skip
    """entries: of an index, 0: none. factor: the target on a GPU, times torch's speed."""

    def build(made: Clouds) -> SegmentCase:
        g = torch.Generator().manual_seed(1)
        lengths = lengths_of(segments, entries or rows, kind)
        case = SegmentCase(
            torch.randn(rows, channels, generator=g),
            torch.cat([torch.zeros(1).long(), lengths.cumsum(0)]),
            torch.randint(rows, (entries,), generator=g) if entries else None,
            torch.repeat_interleave(lengths),
            torch.randn(len(lengths), channels, generator=g) if backward else None,
            reduce,
        )
        return case.on(made.device)

    name = f"segments {reduce} {rows} x {channels} -> {segments}, {kind}" + ", index" * bool(
        entries
    )
    target = Target("graph_us", faster_than=BASELINE[reduce], factor=factor)
    return CaseSpec(name + ", backward" * backward, build, (target,) if factor else ())


def gpu_cases() -> list[CaseSpec]:
    million = 1_000_000
    return [
        spec(million, 62_500, 64, factor=2.0),
        spec(million, 62_500, 64, "max", factor=2.0),
        spec(million, 62_500, 64, backward=True),
        spec(million, 62_500, 64, "max", backward=True),
        spec(million, 1, 64, kind="one", factor=2.0),
        spec(million, million, 64, kind="sparse"),
        spec(100_000, 62_500, 64, entries=million, factor=2.0),
        spec(100_000, 62_500, 64, "max", entries=million, backward=True),
        spec(million, 62_500, 1),
    ]


def cpu_cases() -> list[CaseSpec]:
    return [spec(100_000, 6250, 64), spec(100_000, 6250, 64, "max", backward=True)]
