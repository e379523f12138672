# SPDX-License-Identifier: Apache-2.0
"""Heads of a detector merged, for inference."""

import copy
from typing import TypeVar

from torch import nn

from torchvox.models.detection.detector import PillarDetector
from torchvox.models.fuse import is_fused

Model = TypeVar("Model", bound=nn.Module)


def merge_heads(model: Model) -> Model:
    """A copy of a fused detector with fewer and larger convolutions in its head: one for an
    `AnchorHead`, and for heads in tasks two behind the shared one, whatever the number of branches.
    Outputs differ by rounding.

    Raises ValueError for a model that is not a detector or not fused.
    """
    if not isinstance(model, PillarDetector):
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
