# SPDX-License-Identifier: Apache-2.0
"""A detector on scans from files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Tuple, Union

import numpy as np
import torch
from torch import Tensor

from torchvox._util.errors import WrongUseError
from torchvox.graphs import GraphRunner
from torchvox.io import PointCloud
from torchvox.models import checkpoints
from torchvox.models.checkpoints import CheckpointError
from torchvox.models.detection.detector import PillarDetector
from torchvox.models.export import load_program
from torchvox.models.fuse import can_merge, fuse_batch_norms, is_fused, merge_heads
from torchvox.models.registry import named_file

# What the columns of a detector past x, y and z are, and whether a scan must have them: one sweep
# alone has no age.
COLUMNS = (("intensity", True), ("time", False))
LEAST = 2  # rows of a buffer


@dataclass(frozen=True)
class Detections:
    """boxes [K, 7 or 9], scores [K], labels [K] of one scan, by falling score. overflow: candidates
    past the detector's cap."""

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    classes: Tuple[str, ...]
    overflow: int

    def above(self, score: float) -> "Detections":
        """Those with this score at least."""
        kept = self.scores >= score
        return Detections(
            self.boxes[kept], self.scores[kept], self.labels[kept], self.classes, self.overflow
        )


@dataclass(frozen=True)
class Runner:
    """A detector that runs. It sees points in point_cloud_range, (x0, y0, z0, x1, y1, z1)."""

    call: Callable[[Tensor, Tensor], Any]
    classes: Tuple[str, ...]
    columns: int
    point_cloud_range: Tuple[float, ...]
    device: torch.device

    @torch.inference_mode()
    def __call__(self, cloud: PointCloud) -> Detections:
        """Boxes in a scan. Raises WrongUseError when it lacks a column that the detector sees."""
        points = torch.zeros(max(LEAST, len(cloud)), self.columns)
        points[: len(cloud)] = torch.from_numpy(columns_of(cloud, self.columns))
        count = torch.tensor([len(cloud)], dtype=torch.int32)
        outputs = self.call(points[None].to(self.device), count.to(self.device))
        boxes, scores, labels, overflow = _of_one_scan(outputs, len(self.classes))
        order = np.argsort(-scores, kind="stable")
        return Detections(boxes[order], scores[order], labels[order], self.classes, overflow)


def _of_one_scan(outputs: object, classes: int) -> Tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """boxes, scores and labels in use, and the overflow. Raises CheckpointError for anything else
    that a foreign program gives."""
    tensors = tuple(outputs) if isinstance(outputs, (list, tuple)) else ()
    dims = [one.dim() if isinstance(one, Tensor) else -1 for one in tensors]
    if dims == [3, 2, 2, 1, 1] and tensors[0].size(2) in (7, 9):
        boxes, scores, labels, kept, overflow = (t[0].cpu().numpy() for t in tensors)
        n = int(kept)
        if 0 <= n <= min(len(boxes), len(scores), len(labels)):
            boxes, scores, labels = boxes[:n], scores[:n], labels[:n]
            labelled = ((labels >= 0) & (labels < classes)).all()
            if labelled and np.isfinite(boxes).all() and np.isfinite(scores).all():
                return boxes, scores, labels, int(overflow)
    raise CheckpointError(
        "the program must give boxes [1, K, 7 or 9], scores, labels, count and overflow, with "
        f"finite boxes and labels of its {classes} classes in the first rows"
    )


def columns_of(cloud: PointCloud, count: int) -> np.ndarray:
    """[N, count] float32, the columns that a detector sees."""
    rows = np.zeros((len(cloud), count), np.float32)
    rows[:, :3] = cloud.points[:, :3]
    for i, (name, needed) in enumerate(COLUMNS[: count - 3], start=3):
        column = cloud.column(name)
        if column is not None:
            rows[:, i] = column
        elif needed:
            raise WrongUseError(
                f"{cloud.path or 'the cloud'} has no {name} column, which the detector sees: check "
                "--layout"
            )
    return rows


def _script(path: Union[str, Path], device: torch.device) -> Any:
    try:
        return torch.jit.load(str(path), map_location=device).eval()
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(f"{path} cannot be read as a program: {reason}") from None


def load_form(path: Union[str, Path], device: torch.device, trust_code: bool = False) -> Any:
    """A detector as it is kept, unchanged: a checkpoint of torchvox.models, the name of a model
    with weights, a TorchScript program, or one of torch.export or AOTInductor, which may hold any
    code and so needs trust_code. Raises CheckpointError, WrongUseError."""
    path = named_file(path)
    kind = checkpoints.kind_of_program(path)
    if kind in ("export", "aoti"):
        if not trust_code:
            raise WrongUseError(f"{path} may hold any code: if you trust it, give --trust-code")
        return load_program(path, kind)
    model = _script(path, device) if kind else checkpoints.load(path).to(device)
    if not hasattr(model, "point_cloud_range"):
        raise CheckpointError(f"{path} is not a detector")
    return model


def load_runner(path: Union[str, Path], device: torch.device) -> Runner:
    """A detector from a checkpoint of torchvox.models, by the name of a model with weights, or from
    a TorchScript program.

    On a GPU a checkpoint runs through CUDA graphs. Raises CheckpointError.
    """
    path = named_file(path)
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist or is not a file")
    if checkpoints.kind_of_program(path) == "script":
        model = _script(path, device)
    else:
        model = checkpoints.load(path)
        if isinstance(model, PillarDetector):
            model = model if is_fused(model) else fuse_batch_norms(model)
            model = (merge_heads(model) if can_merge(model) else model).to(device)
    names = ("classes", "columns", "point_cloud_range")
    if not all(hasattr(model, name) for name in names):
        raise CheckpointError(f"{path} is not a detector")
    classes, columns, point_cloud_range = (getattr(model, name) for name in names)
    if not 3 <= int(columns) <= 3 + len(COLUMNS):
        raise CheckpointError(f"{path} sees {columns} columns, where 3 to 5 are known")
    graphs = device.type == "cuda" and isinstance(model, PillarDetector)
    call = GraphRunner(model, device=device) if graphs else model
    return Runner(call, tuple(classes), int(columns), tuple(point_cloud_range), device)
