# SPDX-License-Identifier: Apache-2.0
"""Batch norm folded into the linear maps, for inference."""

import copy
from typing import Optional, TypeVar

import torch
from torch import nn

from torchvox.nn.set_abstraction import SetAbstraction
from torchvox.nn.shared_mlp import FoldedLayer, SharedLayer

Model = TypeVar("Model", bound=nn.Module)


def fold_batch_norms(
    model: Model, dtype: Optional[torch.dtype] = None, fused: bool = False
) -> Model:
    """A copy for evaluation whose layers are one linear map and a ReLU each.

    dtype: of the weights and so of the arithmetic of the layers, torch.bfloat16 for example; None:
    as they are. Coordinates stay as they are given, scores float32. Weights are folded in float64
    and rounded once. A folded model cannot be trained on.
    fused: on CUDA the balls of a model of half weights go through group_mlp_max, which writes no
    tensor of all their rows and differs from the layers by rounding.
    """
    folded = copy.deepcopy(model).eval()
    _fold_children(folded, dtype, fused)
    if dtype is not None:
        for parameter in folded.parameters():
            parameter.data = parameter.data.to(dtype)
    for parameter in folded.parameters():
        parameter.requires_grad_(False)
    return folded


def is_folded(model: nn.Module) -> bool:
    return any(isinstance(module, FoldedLayer) for module in model.modules())


def _fold_children(module: nn.Module, dtype: Optional[torch.dtype], fused: bool) -> None:
    for name, child in module.named_children():
        if isinstance(child, SharedLayer):
            setattr(module, name, _folded(child, dtype))
        else:
            if isinstance(child, SetAbstraction):
                child.dtype = dtype
                child.fused = fused and dtype in (torch.bfloat16, torch.float16)
            _fold_children(child, dtype, fused)


def _folded(layer: SharedLayer, dtype: Optional[torch.dtype]) -> FoldedLayer:
    norm, linear = layer.norm, layer.linear
    with torch.no_grad():
        scale = norm.weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
        shift = norm.bias.double() - norm.running_mean.double() * scale
        weight = linear.weight.double() * scale[:, None]
        if linear.bias is not None:
            shift = shift + linear.bias.double() * scale
    kind = linear.weight.dtype if dtype is None else dtype
    return FoldedLayer(weight.to(kind), shift.to(kind), layer.pad_front)
