# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of tensors and plain types: nothing in them runs when they are read."""

import argparse
import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

import numpy as np
import torch
from torch import nn

from torchvox._util.errors import TorchvoxError, short
from torchvox.io.writers import write_whole
from torchvox.models.detection.files import KINDS
from torchvox.models.fuse import fuse_batch_norms, is_fused, is_merged, merge_heads, weight_dtype
from torchvox.models.minkunet import MinkUNet
from torchvox.models.pointnet2 import (
    PointNet2Classifier,
    PointNet2PartSegmenter,
    PointNet2Segmenter,
)
from torchvox.models.sizes import check_network, check_values

CLASSES = (MinkUNet, PointNet2Classifier, PointNet2PartSegmenter, PointNet2Segmenter)
DETECTORS = tuple(network for network, _ in KINDS.values())
BUILDERS = {kind.__name__: kind for kind in (*CLASSES, *DETECTORS)}
ADVICE = re.compile("weights_only|WeightsUnpickler|safe_globals|trust")
FORMAT, VERSION = "torchvox.models", 1
PROGRAMS = {"script": "/code/", "export": "/models/", "aoti": "/data/aotinductor/"}  # entries
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
    "sparse_conv",
    "sparse_conv_map",
    "sparse_subm_map",
    "voxel_map",
    "voxelize",
)


class CheckpointError(TorchvoxError, ValueError):
    """A checkpoint is damaged, of another layout, or does not fit."""


def build(name: str, config: Dict[str, Any]) -> nn.Module:
    """A model by the name of its class, from the arguments that its config() gave."""
    if name not in BUILDERS:
        raise CheckpointError(
            f"no model {short(repr(name))}: there are {', '.join(sorted(BUILDERS))}"
        )
    return BUILDERS[name](**config)


def save(model: nn.Module, path: Union[str, Path]) -> None:
    """Writes what `load` needs: class, arguments, tensors; and the versions they belong to. The
    file appears whole or not at all."""
    from torchvox._build import BUILD_INFO

    content = {
        "format": FORMAT,
        "version": VERSION,
        "model": type(model).__name__,
        "config": model.config(),
        "fused": str(weight_dtype(model)).split(".")[1] if is_fused(model) else "",
        "merged": is_merged(model),
        "state_dict": {k: v.detach().cpu().clone() for k, v in model.state_dict().items()},
        "torchvox": BUILD_INFO["version"],
        "revision": BUILD_INFO["commit"],
        "schemas": {op: str(getattr(torch.ops.torchvox, op).default._schema) for op in OPS},
    }
    write_whole(path, lambda buffer: torch.save(content, buffer))


def load(path: Union[str, Path]) -> nn.Module:
    """The model of a file that `save` wrote, on the CPU, in evaluation mode."""
    content = read(path)
    if not isinstance(content, dict) or str(content.get("format")) != FORMAT:
        if isinstance(content, dict) and {"torchvox", "state_dict"} <= content.keys():
            raise CheckpointError(
                f"{path} is a checkpoint of torchvox train: give the model.pt that a finished run "
                "leaves beside it"
            )
        raise CheckpointError(
            f"{path} holds no checkpoint of torchvox.models: torchvox import converts other layouts"
        )
    try:
        if content["version"] > VERSION:
            later = short(content["torchvox"])
            raise CheckpointError(f"written by torchvox {later}, a later one")
        check_values(content["config"])
        check_network(lambda: build(content["model"], content["config"]), content["state_dict"])
        model = build(content["model"], content["config"])
        if content["fused"]:
            model = fuse_batch_norms(model, getattr(torch, content["fused"]))
        if content.get("merged"):
            model = merge_heads(model)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: its entries are incomplete ({error})") from None
    except (ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} is damaged: {short(error)}") from None
    try:
        model.load_state_dict(content["state_dict"])
    except (RuntimeError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: {short(error)}") from None
    return model.eval()


def read(path: Union[str, Path]) -> Any:
    """The content of a file by torch, on the CPU: tensors, NumPy values and plain types. Whatever
    else it names is refused, never run."""
    kinds = {type(np.dtype(code)) for code in "?bhilBHILefd"}
    builders: List[Any] = [np.float64(0).__reduce__()[0], np.zeros(1).__reduce__()[0]]
    named = [
        (function, f"{module}.multiarray.{function.__name__}")
        for module in ("numpy.core", "numpy._core")  # renamed between versions
        for function in builders
    ]
    allowed = [np.dtype, np.ndarray, argparse.Namespace, *kinds, *named]
    refused = f"{path} cannot be read as tensors and plain types"
    if kind := kind_of_program(path):
        raise CheckpointError(f"{refused}: it is a program, as of torchvox export --format {kind}")
    unpacked = sum(entry.file_size for entry in _entries(path))
    if unpacked and unpacked > 4 * Path(path).stat().st_size:  # torch compresses nothing
        raise CheckpointError(f"{refused}: its entries unpack to {unpacked} bytes")
    try:
        with torch.serialization.safe_globals(allowed), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected pickle protocol")  # reported below
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except Exception as error:  # damaged bytes lead torch to any of them
        raise CheckpointError(f"{refused}: {_reason(error)}") from None


def kind_of_program(path: Union[str, Path]) -> Optional[str]:
    """The format of a program, as of torchvox.models.export, or None for any other file."""
    names = [entry.filename for entry in _entries(path)]
    kinds = (kind for kind, part in PROGRAMS.items() if any(part in name for name in names))
    return next(kinds, None)


def _entries(path: Union[str, Path]) -> List[zipfile.ZipInfo]:
    """Of an archive; none of any other file, or of a damaged one, which torch reports."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.infolist()
    except Exception:  # no archive, not there, or damaged in any way
        return []


def _reason(error: Exception) -> str:
    """What torch reports, without its advice to read the file unguarded."""
    named = re.search(r"GLOBAL (\S+)", str(error))
    if named:
        return f"it names {short(named[1])}, which is neither"
    lines = str(error).replace("Weights only load failed. ", "").splitlines()
    kept = [line.strip() for line in lines if line.strip() and not ADVICE.search(line)]
    if isinstance(error, (LookupError, AttributeError, TypeError, ValueError)):
        return "it is not a checkpoint, or damaged"  # torch names opcodes of the pickle
    kind = "" if isinstance(error, pickle.UnpicklingError) else f"{type(error).__name__}: "
    return kind + (short(kept[0]) if kept else "it is empty or cut off")
