# SPDX-License-Identifier: Apache-2.0
"""The one list of ops that the acceptance tests in tests/core walk.

An op is one entry: how to call it with n points, what else its contract allows, what has a
gradient. Everything else (empty, strided, on the GPU, compiled, captured ...) is derived from that.
test_surface.py fails for a registered op without an entry and for an entry without an op.
"""

from collections.abc import Callable

import pytest
import torch
from entries import bev, grouping, knn, sampling, voxel
from entries.op import (  # noqa: F401 (the tests take everything from here)
    Call,
    Op,
    backward,
    cloud,
    generator,
    gradients,
    leaves,
    map_tensors,
    on,
    run,
    some_gradient,
    with_gradients,
)

import torchvox

OPS: list[Op] = [*voxel.OPS, *bev.OPS, *sampling.OPS, *grouping.OPS, *knn.OPS]

# Modules of torchvox.nn: a maker, and its forward's arguments for n points.
MODULES: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[int], tuple]]] = {
    "BEVMaxHeight": (
        lambda: torchvox.nn.BEVMaxHeight(bev.BEV_RANGE, [8, 6], orientation="image", fill=-1.0),
        lambda n: (cloud(n),),
    ),
    "Voxelize": (
        lambda: torchvox.nn.Voxelize(**voxel.GRID, max_points=3, max_voxels=(9, 20), order="zyx"),
        lambda n: (cloud(n),),
    ),
    "FurthestPointSample": (
        lambda: torchvox.nn.FurthestPointSample(sampling.SAMPLES, tie="mmcv", tie_block=64),
        lambda n: (sampling.batch_of_clouds(n),),
    ),
}


def cases(op: Op) -> dict[str, Callable[[], Call]]:
    """Every call of an op: the plain one, one point, none, and those of its entry."""
    return {
        "plain": lambda: op.call(40, 0),
        "one point": lambda: op.call(1, 0),
        "empty": lambda: op.call(0, 0),
        **op.cases,
    }


DIFFERENTIABLE = [op for op in OPS if op.gradients]

each_op = pytest.mark.parametrize("op", OPS, ids=str)
each_public_op = pytest.mark.parametrize("op", [op for op in OPS if op.public], ids=str)
each_differentiable_op = pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
each_case = pytest.mark.parametrize(
    ("op", "make"),
    [pytest.param(op, make, id=f"{op}-{name}") for op in OPS for name, make in cases(op).items()],
)
each_module = pytest.mark.parametrize("name", MODULES)
