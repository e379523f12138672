# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of tensors and plain types: nothing in them runs when they are read."""

import argparse
from pathlib import Path
from typing import Any, Dict, Union

import numpy as np
import torch
from torch import nn

from torchvox._errors import TorchvoxError
from torchvox.models.detection import CenterPointPillars, PointPillars
from torchvox.models.fold import fold_batch_norms, is_folded
from torchvox.models.merge import is_merged, merge_heads
from torchvox.models.pointnet2 import (
    PointNet2Classifier,
    PointNet2PartSegmenter,
    PointNet2Segmenter,
)

BUILDERS = {
    kind.__name__: kind
    for kind in (
        CenterPointPillars,
        PointNet2Classifier,
        PointNet2PartSegmenter,
        PointNet2Segmenter,
        PointPillars,
    )
}
FORMAT, VERSION = "torchvox.models", 1
OPS = (
    "anchor_decode_nms",
    "ball_query",
    "center_decode_nms",
    "furthest_point_sample",
    "gather_points",
    "group_mlp_max",
    "interpolate_features",
    "pillar_encode",
    "pillar_scatter",
    "query_and_group",
    "voxel_map",
)


class CheckpointError(TorchvoxError, ValueError):
    """A checkpoint is damaged, of another layout, or does not fit."""


def build(name: str, config: Dict[str, Any]) -> nn.Module:
    """A model by the name of its class, from the arguments that its config() gave."""
    if name not in BUILDERS:
        raise CheckpointError(f"no model {name!r}: there are {', '.join(sorted(BUILDERS))}")
    return BUILDERS[name](**config)


def save(model: nn.Module, path: Union[str, Path]) -> None:
    """Writes what `load` needs: class, arguments, tensors; and the versions they belong to."""
    from torchvox._build import BUILD_INFO

    dtype = next(model.parameters()).dtype
    torch.save(
        {
            "format": FORMAT,
            "version": VERSION,
            "model": type(model).__name__,
            "config": model.config(),
            "folded": str(dtype).split(".")[1] if is_folded(model) else "",
            "merged": is_merged(model),
            "state_dict": {k: v.detach().cpu().clone() for k, v in model.state_dict().items()},
            "torchvox": BUILD_INFO["version"],
            "revision": BUILD_INFO["commit"],
            "schemas": {op: str(getattr(torch.ops.torchvox, op).default._schema) for op in OPS},
        },
        path,
    )


def load(path: Union[str, Path]) -> nn.Module:
    """The model of a file that `save` wrote, on the CPU, in evaluation mode."""
    content = read(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is no checkpoint of torchvox.models: torchvox import converts other layouts"
        )
    try:
        if content["version"] > VERSION:
            later = content["torchvox"]
            raise CheckpointError(f"{path} was written by torchvox {later}, a later one")
        model = build(content["model"], content["config"])
        if content["folded"]:
            model = fold_batch_norms(model, getattr(torch, content["folded"]))
        if content.get("merged"):
            model = merge_heads(model)
    except CheckpointError:
        raise
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: its entries are incomplete ({error})") from None
    except (ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} is damaged: {_first_line(error)}") from None
    try:
        model.load_state_dict(content["state_dict"])
    except (RuntimeError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: {' '.join(str(error).split())}") from None
    return model.eval()


def read(path: Union[str, Path]) -> Any:
    """The content of a file by torch, on the CPU: tensors, NumPy values and plain types. Whatever
    else it names is refused, never run."""
    kinds = {type(np.dtype(code)) for code in "?bhilBHILefd"}
    scalar, array = np.float64(0).__reduce__()[0], np.zeros(1).__reduce__()[0]
    named = [  # NumPy renamed the module between versions
        (function, f"{module}.multiarray.{function.__name__}")
        for module in ("numpy.core", "numpy._core")
        for function in (scalar, array)
    ]
    known = [np.dtype, np.ndarray, argparse.Namespace, *kinds, *named]
    try:
        with torch.serialization.safe_globals(known):
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except Exception as error:  # damaged bytes lead torch to any of them
        raise CheckpointError(
            f"{path} cannot be read as tensors and plain types: {type(error).__name__}: "
            f"{_first_line(error) or 'it is empty or cut off'}"
        ) from None


def _first_line(error: Exception) -> str:
    """Without torch's advice to read the file without its guard."""
    return str(error).split("WeightsUnpickler error: ")[-1].split("\n")[0]
