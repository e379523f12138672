# SPDX-License-Identifier: Apache-2.0
"""Batch norms fused into linear maps and convolutions, and heads merged, for inference."""

import copy
from typing import Optional, TypeVar

import torch
from torch import nn

from torchvox.models.detection.backbone import FusedNeck, Neck
from torchvox.models.detection.detector import DetectionNet
from torchvox.models.detection.sparse_backbone import FirstLayer
from torchvox.nn.conv import ConvBlock, FusedConv, channels_last, fused_conv, fused_norm
from torchvox.nn.set_abstraction import SetAbstraction
from torchvox.nn.shared_mlp import FusedLayer, SharedLayer
from torchvox.nn.sparse import SparseSequential
from torchvox.nn.sparse_blocks import (
    FusedSparseBlock,
    FusedSparseConv,
    SparseResidualBlock,
    fuse_sequence,
)
from torchvox.nn.sparse_conv import SparseConvolution

Model = TypeVar("Model", bound=nn.Module)
FUSED_WIDTH, HALVES = 256, (torch.bfloat16, torch.float16)


def fuse_batch_norms(model: Model, dtype: Optional[torch.dtype] = None) -> Model:
    """A copy for evaluation whose layers are one linear map or convolution and a ReLU each.

    dtype: of the weights and so of the arithmetic of the layers, torch.bfloat16 for example; None:
    as they are. Coordinates stay as they are given, scores float32. Weights are fused in float64
    and rounded once. A fused model cannot be trained on. On CUDA the balls of a model of half
    weights go through group_mlp_max, which writes no tensor of all their rows and differs from the
    layers by rounding.
    """
    fused = copy.deepcopy(model).eval()
    if isinstance(fused, DetectionNet):
        fused.fuse_scale()
    _fuse_children(fused, dtype)
    if dtype is not None:
        for parameter in fused.parameters():
            parameter.data = parameter.data.to(dtype)
        for module in fused.modules():
            if isinstance(module, FirstLayer):
                module.float()
    for parameter in fused.parameters():
        parameter.requires_grad_(False)
    return fused


def is_fused(model: nn.Module) -> bool:
    kinds = (FusedLayer, FusedConv, FusedSparseConv)
    return any(isinstance(module, kinds) for module in model.modules())


def weight_dtype(model: nn.Module) -> torch.dtype:
    """Of all layers but the first of a detector on voxels."""
    *_, last = model.parameters()
    return last.dtype


def merge_heads(model: Model) -> Model:
    """A copy of a fused detector with fewer and larger convolutions in its head: one for an
    `AnchorHead`, and for heads in tasks two behind the shared one, whatever the number of branches.
    Outputs differ by rounding.

    Raises ValueError for a model that is not a detector or not fused.
    """
    if not isinstance(model, DetectionNet):
        raise ValueError(f"merge_heads: a detector is needed, got {type(model).__name__}")
    if not is_fused(model):
        raise ValueError("merge_heads: batch norms must be fused first, by fuse_batch_norms")
    merged = copy.deepcopy(model)
    if not is_merged(merged):
        merged.head.merge()
    return merged


def can_merge(model: nn.Module) -> bool:
    """Whether the branches of a detector are of one layer each, as `merge_heads` needs them."""
    tasks = getattr(model.head, "tasks", ())
    return all(len(branch.layers) == 1 for task in tasks for branch in task.values())


def is_merged(model: nn.Module) -> bool:
    return getattr(getattr(model, "head", None), "merged", None) is not None


def _fuse_children(module: nn.Module, dtype: Optional[torch.dtype]) -> None:
    if isinstance(module, SparseSequential):
        fuse_sequence(module, dtype)
    for name, child in module.named_children():
        if isinstance(child, FusedSparseConv):
            continue
        if isinstance(child, SharedLayer):
            weight, bias = fused_norm(child.linear, child.norm, [-1, 1], dtype)
            setattr(module, name, FusedLayer(weight, bias, child.pad_front))
        elif isinstance(child, Neck):
            setattr(module, name, FusedNeck(child, dtype))
        elif isinstance(child, ConvBlock):
            setattr(module, name, fused_conv(child, dtype))
        elif isinstance(child, SparseConvolution):
            setattr(module, name, FusedSparseConv(child, None, False, dtype))
        elif isinstance(child, SparseResidualBlock):
            setattr(module, name, FusedSparseBlock(child, dtype))
        elif isinstance(child, nn.Conv2d):
            channels_last(child)
        else:
            if isinstance(child, SetAbstraction):
                child.dtype = dtype
                inner = [max(mlp.channels[:-1] or mlp.channels) for mlp in child.mlps]
                # group_mlp_max runs balls of this width on tensor cores.
                child.fused_op = dtype in HALVES and max(inner) <= FUSED_WIDTH
            _fuse_children(child, dtype)
