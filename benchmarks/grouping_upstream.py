# SPDX-License-Identifier: Apache-2.0
"""Adapters for libraries that group and interpolate, all of them channels first."""

from typing import Callable, List

from torch import Tensor

from benchmarks.grouping import GatherCase, compare
from benchmarks.suite import Implementation, NotApplicable, Outputs, UpstreamLibrary


def _implementation(
    name: str, forward: Callable[[Tensor, Tensor], Tensor], case: GatherCase, outputs: Outputs
) -> Implementation:
    """The layouts are turned before the call, so that it does no more than the library's own."""
    if case.features.device.type != "cuda":
        raise NotApplicable
    first = GatherCase(
        case.features.mT.contiguous(),
        case.idx,
        case.grad.movedim(-1, 1).contiguous(),
        case.weight,
        case.source,
    )

    def check(found: Outputs) -> str:
        return compare(outputs, [t.movedim(1, -1) for t in found])

    return Implementation(name, lambda: first.step(forward), check, True)


def mmcv(case: GatherCase, outputs: Outputs) -> Implementation:
    """ops.grouping_operation and ops.three_interpolate."""
    from mmcv import ops

    if case.weight is None:
        return _implementation("mmcv", ops.grouping_operation, case, outputs)
    weight = case.weight
    return _implementation(
        "mmcv", lambda f, idx: ops.three_interpolate(f, idx, weight), case, outputs
    )


def pointnet2_ops(case: GatherCase, outputs: Outputs) -> Implementation:
    """pointnet2_utils.grouping_operation and three_interpolate."""
    from pointnet2_ops import pointnet2_utils as utils

    if case.weight is None:
        return _implementation("pointnet2_ops", utils.grouping_operation, case, outputs)
    weight = case.weight
    return _implementation(
        "pointnet2_ops", lambda f, idx: utils.three_interpolate(f, idx, weight), case, outputs
    )


UPSTREAM: List[UpstreamLibrary] = [
    UpstreamLibrary(adapter.__name__, op, adapter)
    for op in ("group_points", "three_interpolate")
    for adapter in (mmcv, pointnet2_ops)
]
