# SPDX-License-Identifier: Apache-2.0
"""Adapters for libraries that group and interpolate, all of them channels first."""

from typing import Callable, List

from torch import Tensor

from benchmarks.grouping import GatherProblem, compare
from benchmarks.suite import NotApplicable, Outputs, Peer, Way


def _way(
    name: str, forward: Callable[[Tensor, Tensor], Tensor], problem: GatherProblem, outputs: Outputs
) -> Way:
    """The layouts are turned before the call, so that it does no more than the library's own."""
    if problem.features.device.type != "cuda":
        raise NotApplicable
    first = GatherProblem(
        problem.features.mT.contiguous(),
        problem.idx,
        problem.grad.movedim(-1, 1).contiguous(),
        problem.weight,
        problem.source,
    )

    def check(found: Outputs) -> str:
        return compare(outputs, [t.movedim(1, -1) for t in found])

    return Way(name, lambda: first.step(forward), check, True)


def mmcv(problem: GatherProblem, outputs: Outputs) -> Way:
    """ops.grouping_operation and ops.three_interpolate."""
    from mmcv import ops

    if problem.weight is None:
        return _way("mmcv", ops.grouping_operation, problem, outputs)
    weight = problem.weight
    return _way("mmcv", lambda f, idx: ops.three_interpolate(f, idx, weight), problem, outputs)


def pointnet2_ops(problem: GatherProblem, outputs: Outputs) -> Way:
    """pointnet2_utils.grouping_operation and three_interpolate."""
    from pointnet2_ops import pointnet2_utils as utils

    if problem.weight is None:
        return _way("pointnet2_ops", utils.grouping_operation, problem, outputs)
    weight = problem.weight
    return _way(
        "pointnet2_ops", lambda f, idx: utils.three_interpolate(f, idx, weight), problem, outputs
    )


PEERS: List[Peer] = [
    Peer(adapter.__name__, op, adapter)
    for op in ("group_points", "three_interpolate")
    for adapter in (mmcv, pointnet2_ops)
]
