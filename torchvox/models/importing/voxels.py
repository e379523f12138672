# SPDX-License-Identifier: Apache-2.0
"""Sparse convolutions in checkpoints of other programs: their names, sizes and weights."""

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Tuple

from torch import Tensor, nn

from torchvox.models.checkpoints import CheckpointError
from torchvox.models.importing.backbone_neck import (
    BevNames,
    Pair,
    State,
    conv,
    grid_of,
    norm,
    shape,
)
from torchvox.models.importing.published import NUSCENES, NUSCENES_VOXELS
from torchvox.models.importing.settings import SHAPES, Settings
from torchvox.nn.sparse import SparseBatchNorm
from torchvox.nn.sparse_conv import SparseConvolution

SHARED_ROWS = "backbone_3d.shared_conv.0.weight"


def is_old(state: State) -> bool:
    """Whether weights are [kz, ky, kx, Cin, Cout], those of spconv 1 and mmcv, not [Cout, kz, ky,
    kx, Cin] as of spconv 2: the last convolution tells, whose kernel has 3, 1, 1 cells."""
    return any(tuple(t.shape[:3]) == (3, 1, 1) for t in state.values() if t.dim() == 5)


def of_rows(state: State) -> bool:
    """Whether the network is VoxelNeXt, with sparse convolutions of two axes."""
    return SHARED_ROWS in state


def _of_one_cell(weight: Tensor) -> Tensor:
    """spconv 2 takes the memory of a weight [Cout, 1, 1, Cin] for [Cin, Cout]."""
    if weight.dim() != 4 or weight.shape[1:3] != (1, 1):
        return weight
    return weight.reshape(weight.size(3), weight.size(0)).t().reshape(weight.shape)


def in_our_order(state: State) -> State:
    """The tensors with weights of sparse convolutions as we take them: as spconv 2 has them, but
    for kernels of one cell."""
    if of_rows(state):
        return {key: _of_one_cell(tensor) for key, tensor in state.items()}
    if not is_old(state):
        return state
    return {k: t.permute(4, 0, 1, 2, 3) if t.dim() == 5 else t for k, t in state.items()}


@dataclass(frozen=True)
class VoxelNames(BevNames):
    """prefix: of the sparse convolutions. Below it, in all programs, conv_input is the first,
    conv_out or extra_conv the last, and numbers order the others."""

    prefix: str

    def convs(self, state: State) -> List[str]:
        """Names of the sparse convolutions in the order in which they run."""

        def place(name: str) -> Tuple[int, List[int]]:
            own = name[len(self.prefix) :]
            rank = 2 * own.startswith(("conv_out.", "extra_conv.")) + (own[:6] != "conv_i")
            return rank, [int(number) for number in re.findall(r"\d+", own)]

        sparse = (5, 4) if of_rows(state) else (5,)
        found = [name[:-7] for name, tensor in state.items() if tensor.dim() in sparse]
        found = [name for name in found if name.startswith(self.prefix)]
        found = sorted((name for name in found if f"{name}.weight" != SHARED_ROWS), key=place)
        if len(found) < 2 or not found[0].startswith(f"{self.prefix}conv_input."):
            raise CheckpointError(f"the checkpoint has no {self.prefix}conv_input and what follows")
        return found

    def inputs(self, state: State) -> int:
        """Columns of the points."""
        return shape(in_our_order(state), f"{self.convs(state)[0]}.weight", 5)[4]

    def describe(
        self,
        state: State,
        settings: Settings,
        grid: Mapping[str, Any],
        unknown: str,
        stride_one: str,
        **of_pillars: object,
    ) -> Dict[str, Any]:
        """As of `PillarNames`, some of whose arguments say nothing here."""
        names, ours = self.convs(state), in_our_order(state)
        widths = {name: shape(ours, f"{name}.weight", 4)[0] for name in names}
        in_blocks = [name for name in names if _in_block(name)]
        layers, channels, level = [0], [widths[names[0]]], 1
        for name in names[1:-1]:
            if name in in_blocks:
                layers[-1] += name.endswith("conv1")
                continue
            before, level = level, int(re.findall(r"\d+", name[len(self.prefix) :])[0])
            if in_blocks or level != before:
                layers.append(0)
                channels.append(widths[name])
            else:
                layers[-1] += 1
        place = grid_of(settings, {k: v for k, v in grid.items() if k != "max_rows"}, unknown)
        rows, last = [] if unknown else grid["max_rows"], {"last_pad": 0}
        behind: Dict[str, Any] = {}
        if of_rows(state):
            last = {"joined": 3}
        else:
            behind = self.backbone_neck(state, settings, stride_one, first_stride=1)
        return {
            **place,
            "columns": settings.choose("columns", self.inputs(state), SHAPES),
            "sparse": {
                "layers": layers,
                "channels": channels,
                "block": "residual" if in_blocks else "conv",
                "bias": any(f"{name}.bias" in state for name in in_blocks),
                "out_channels": widths[names[-1]],
                "max_rows": settings.choose("sparse.max_rows", rows),
                **settings.choices("sparse", last),
            },
            **behind,
        }

    def pairs(self, model: nn.Module, state: State) -> List[Pair]:
        modules = list(model.sparse_backbone.named_modules(prefix="sparse_backbone"))
        own = [[n for n, m in modules if isinstance(m, SparseConvolution)]]
        own += [[n for n, m in modules if isinstance(m, SparseBatchNorm)]]
        pairs: List[Pair] = []
        for theirs, layer, normed in zip(self.convs(state), *own, strict=True):
            pairs += conv(theirs, layer, bias=f"{theirs}.bias" in state)
            head, _, last = theirs.rpartition(".")
            name = last.replace("conv", "bn") if _in_block(theirs) else str(int(last) + 1)
            pairs += norm(f"{head}.{name}", normed)
        return pairs if of_rows(state) else pairs + self.bev_pairs(model.config()["config"])


def of_voxels(settings: Mapping[str, Any]) -> Dict[str, Any]:
    """What configurations declare for pillars, by the names of a detector on voxels."""
    names = {"pillar_size": "voxel_size", "max_pillars": "max_voxels"}
    kept = {k: v for k, v in settings.items() if not k.startswith("encoder.")}
    return {names.get(key, key): value for key, value in kept.items()}


def nuscenes_voxels(settings: Settings, max_voxels: List[int]) -> Dict[str, Any]:
    """The published grid for voxels of the size that is given or declared."""
    if not settings.has("voxel_size"):
        rule = "networks for voxels of .075 m and of .1 m have the same tensors"
        raise CheckpointError(f"{rule}: voxel_size must be given")
    grid = {**NUSCENES_VOXELS, "max_voxels": max_voxels}
    if settings.peek("voxel_size", [])[:1] == [0.1]:
        grid["point_cloud_range"] = NUSCENES["point_cloud_range"]
    return grid


def _in_block(name: str) -> bool:
    """Whether it is one of two convolutions in a residual block."""
    return name.endswith((".conv1", ".conv2"))
