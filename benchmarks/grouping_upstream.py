# SPDX-License-Identifier: Apache-2.0
"""Adapters for libraries that group and interpolate, all of them channels first."""

from dataclasses import replace
from functools import partial
from importlib import import_module

from benchmarks.grouping import TOLERANCE, GatherCase
from benchmarks.suite import Implementation, NotApplicable, Outputs, UpstreamLibrary, apart

MODULES = {"mmcv": "mmcv.ops", "pointnet2_ops": "pointnet2_ops.pointnet2_utils"}


def prepare(package: str, case: GatherCase, outputs: Outputs) -> Implementation:
    """The layouts are turned before the call, so that it does no more than the library's own."""
    if case.features.device.type != "cuda":
        raise NotApplicable
    library = import_module(MODULES[package])
    features, grad = case.features.mT.contiguous(), case.grad.movedim(-1, 1).contiguous()
    first = replace(case, features=features, grad=grad)

    def call() -> Outputs:
        if case.weight is None:
            return first.step(library.grouping_operation)
        return first.step(lambda f, idx: library.three_interpolate(f, idx, case.weight))

    def check(found: Outputs) -> str:
        return apart([t.movedim(1, -1) for t in found], outputs, TOLERANCE)

    return Implementation(package, call, check, True)


UPSTREAM = [
    UpstreamLibrary(package, op, partial(prepare, package))
    for op in ("group_points", "three_interpolate")
    for package in MODULES
]
