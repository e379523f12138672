# SPDX-License-Identifier: Apache-2.0
"""The adapter of torch_scatter: segment_csr over the same offsets."""

from functools import partial

from torch import Tensor

from benchmarks.segments import TOLERANCE, SegmentCase
from benchmarks.suite import Implementation, Outputs, UpstreamLibrary, apart


def torch_scatter(case: SegmentCase, outputs: Outputs) -> Implementation:
    from torch_scatter import segment_csr

    def forward(src: Tensor) -> Tensor:
        return segment_csr(case.entries(src), case.offsets, reduce=case.reduce)

    check = partial(apart, expected=outputs, tolerance=TOLERANCE)
    return Implementation("torch_scatter", partial(case.step, forward), check, True)


UPSTREAM = [UpstreamLibrary("torch_scatter", "segment_reduce", torch_scatter)]
