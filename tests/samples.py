# SPDX-License-Identifier: Apache-2.0
"""The one list of ops that the acceptance tests in tests/core walk.

An op is one OpInfo, or one for each layout of its batch: how to call it with n points, what else
its contract allows, what has a gradient. Everything else (empty, strided, on the GPU, compiled,
captured ...) is derived from that.
test_surface.py fails for a registered op without an OpInfo and for an OpInfo without an op.
"""

import importlib
import pkgutil
from collections.abc import Callable

import op_infos
import pytest
import torch
from op_infos import bev, pillars, rays, sampling, voxel
from op_infos.op_info import (  # noqa: F401 (the tests take everything from here)
    Call,
    ErrorInput,
    OpInfo,
    backward,
    cloud,
    copy_of,
    fresh,
    generator,
    gradients,
    is_tensor_list,
    laid_out,
    leaves,
    map_tensors,
    on,
    run,
    some_gradient,
    with_gradients,
    with_special_values,
)
from torch.utils.data import Dataset

import torchvox
from torchvox.models import fuse
from torchvox.nn import sparse_blocks

OPS: list[OpInfo] = [
    op
    for file in pkgutil.iter_modules(op_infos.__path__, "op_infos.")
    for op in getattr(importlib.import_module(file.name), "OPS", ())
]


class OnRows(torch.nn.Module):
    """Layers of sparse tensors between the features of rows and a dense grid."""

    def __init__(self, *layers: torch.nn.Module) -> None:
        super().__init__()
        self.layers = torchvox.nn.SparseSequential(*layers)
        self.dense = torchvox.nn.ToDense()

    def forward(self, features: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return self.dense(self.layers(torchvox.nn.sparse_tensor(features, indices, [3, 4, 5], 2)))


def sparse_rows(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and cells, some of them outside or twice."""
    cells = [torch.randint(-1, size + 1, (n,), generator=generator(n)) for size in (2, 3, 4, 5)]
    return rows(n, 4), torch.stack(cells, 1).int()


def layers_of(code: str) -> torch.nn.Module:
    """Of their calls, with commas between."""
    names = vars(sparse_blocks) | vars(torchvox.nn) | vars(fuse) | globals()
    return torch.nn.ModuleList(eval(f"[{code.strip()}]", names)).eval()


CHAIN = """
SubMConv3d(4, 4, bias=False), SparseBatchNorm(4), SparseReLU(),
SparseConv3d(4, 6, 3, 2, 1, indice_key="down", max_rows=30), SparseResidualBlock(6, 3),
SparseInverseConv3d(3, 4, 3, "down"), SubMConv3d(4, 2)
"""
# Layers of sparse tensors of 4 channels.
SPARSE = {
    "SparseBatchNorm": "SparseBatchNorm(4)",
    "SparseConv2d": "SparseConv2d(4, 5, 2, 2)",
    "SparseConv3d": "SparseConv3d(4, 5, 3, (1, 2, 2), 1)",
    "SparseInverseConv2d": "SparseConv2d(4, 5, 2, 2, indice_key='a'), "
    "SparseInverseConv2d(5, 4, 2, 'a')",
    "SparseInverseConv3d": "SparseConv3d(4, 5, 3, 2, 1, indice_key='a'), "
    "SparseInverseConv3d(5, 4, 3, 'a')",
    "SparseMaxPool3d": "SparseMaxPool3d(3, 2, 1)",
    "SparseReLU": "SparseReLU()",
    "SparseSequential": "SparseSequential(SubMConv3d(4, 6), SubMConv3d(6, 2))",
    "SparseSequential, of all layers": f"SparseSequential({CHAIN})",
    "SparseSequential, fused": f"*fuse_batch_norms(layers_of('''{CHAIN}'''))",
    "SubMConv2d": "SubMConv2d(4, 5, dilation=2)",
    "SubMConv3d": "SubMConv3d(4, 5), SubMConv3d(5, 3, 1)",
    "ToDense": "",
}

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
    "Voxelize, trimmed": (
        lambda: torchvox.nn.Voxelize(
            **voxel.GRID, max_points=3, max_voxels=-1, reduce="mean", trim=True
        ),
        lambda n: (cloud(n, seed=n),),
    ),
    "SensorInput": (
        lambda: torchvox.nn.SensorInput(4, drop_boxes=rays.CAR),
        lambda n: tuple(rays.merge_call(n, poses=rays.poses(3)).values())[:5],
    ),
    "FurthestPointSample": (
        lambda: torchvox.nn.FurthestPointSample(sampling.SAMPLES, convention="mmcv"),
        lambda n: (sampling.batch_of_clouds(n),),
    ),
    "SetAbstraction": (
        lambda: torchvox.nn.SetAbstraction(6, [0.8, 2.5], [4, 8], 2, [[8], [8, 6]]).eval(),
        lambda n: (sampling.batch_of_clouds(n), rows(2, n, 2)),
    ),
    "FeaturePropagation": (
        lambda: torchvox.nn.FeaturePropagation(7, [8, 6]).eval(),
        lambda n: (rows(2, n, 3), rows(2, 5, 3), rows(2, n, 4), rows(2, 5, 3)),
    ),
    "PillarFeatureNet": (
        lambda: torchvox.nn.PillarFeatureNet(4, [8, 6], **pillars.GRID, max_points=3).eval(),
        lambda n: tuple(
            pillars.mapped(cloud(n), max_voxels=-1)[k] for k in ("points", *pillars.MAP)
        ),
    ),
    "RayVisibility": (
        lambda: torchvox.nn.RayVisibility(**voxel.GRID),
        lambda n: (cloud(n), cloud(4)[:, :3], torch.arange(n) % 4),
    ),
    "SharedMLP": (lambda: torchvox.nn.SharedMLP(4, [8, 6]).eval(), lambda n: (rows(n, 4),)),
    **{k: (lambda code=code: OnRows(*layers_of(code)), sparse_rows) for k, code in SPARSE.items()},
}


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(sum(shape)))


class EveryOp(Dataset):
    """Item i: the outputs of every op on its i-th cloud. Spawned workers import it. Calls are made
    here, not in workers: those of gradients run autograd, which torch refuses in forked ones."""

    def __init__(self) -> None:
        self.calls = [[op.call(300, i) for op in OPS] for i in range(4)]

    def __len__(self) -> int:
        return len(self.calls)

    def __getitem__(self, i: int) -> dict[str, tuple[torch.Tensor, ...]]:
        return {str(op): run(op, call) for op, call in zip(OPS, self.calls[i], strict=True)}


def sample_inputs(op: OpInfo) -> dict[str, Callable[[], Call]]:
    """Every call of an op: the plain one, one point, none, and those of its OpInfo."""
    return {
        "plain": lambda: op.call(40, 0),
        "one point": lambda: op.call(1, 0),
        "empty": lambda: op.call(0, 0),
        **op.sample_inputs,
    }


DIFFERENTIABLE = [op for op in OPS if op.gradients]

each_op = pytest.mark.parametrize("op", OPS, ids=str)
each_public_op = pytest.mark.parametrize("op", [op for op in OPS if op.public], ids=str)
each_differentiable_op = pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
# Both passes: run gives the outputs of a call, gradients those of its leaves.
each_pass = pytest.mark.parametrize(
    ("op", "work"),
    [pytest.param(op, run, id=str(op)) for op in OPS]
    + [pytest.param(op, gradients, id=f"{op}-gradients") for op in DIFFERENTIABLE],
)
each_sample_input = pytest.mark.parametrize(
    ("op", "make"),
    [
        pytest.param(op, make, id=f"{op}-{name}")
        for op in OPS
        for name, make in sample_inputs(op).items()
    ],
)
each_module = pytest.mark.parametrize("name", MODULES)
