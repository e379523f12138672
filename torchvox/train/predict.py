# SPDX-License-Identifier: Apache-2.0
"""A trained model on the user's clouds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from torchvox._util.errors import CloudFileError, WrongUseError
from torchvox.data.counter_random import permutation
from torchvox.io import PointCloud
from torchvox.train.checkpoint import Checkpoint
from torchvox.train.config import RoomsData, S3DISData
from torchvox.train.lightning_module import forward, predict

COLORS = ("red", "green", "blue")


def _size(trained: Checkpoint) -> int:
    """Points of a sample that the model has learned from. Raises WrongUseError for detectors."""
    if trained.config.task == "detect":
        raise WrongUseError("a detector gives no labels to points: find its boxes, torchvox detect")
    assert trained.config.data.points is not None
    return trained.config.data.points


@torch.inference_mode()
def classify_cloud(trained: Checkpoint, cloud: PointCloud) -> Tensor:
    """Probabilities [C] of the classes of one object, z up.

    The cloud is centered and scaled to the unit sphere, as the training data are; of a cloud with
    more points than those a random choice is taken, always the same.
    """
    points = _object(trained, _finite(cloud))
    chosen = next(_groups(np.arange(len(points)), _size(trained)))
    batch = {"points": _device_batch(trained, points[chosen])}
    logits = forward(trained.model, trained.config, batch).float()
    return logits[0].softmax(-1).cpu()


@torch.inference_mode()
def label_points(trained: Checkpoint, cloud: PointCloud, category: str | None = None) -> np.ndarray:
    """Labels [N] int64 of all points, -1 where a point is not finite. A color or normal that is
    not finite counts as 0.

    category: of the object, for a model of parts. Rooms are taken column by column.
    """
    clean = _finite(cloud)
    more: dict[str, Tensor] = {}
    if trained.config.task == "parts":
        device = next(trained.model.parameters()).device
        more["label"] = torch.tensor([number_of_category(trained, category)], device=device)
        features, groups = _object(trained, clean), [np.arange(len(clean))]
        offsets = np.zeros((1, 3), np.float32)
    else:
        features, groups, offsets = _room(trained, clean)
    result = np.full(len(clean), -1, np.int64)
    for members, offset in zip(groups, offsets, strict=True):
        for chosen in _groups(members, _size(trained)):
            points = features[chosen].copy()
            points[:, :3] -= offset
            batch = {"points": _device_batch(trained, points), **more}
            labels = predict(trained.model, trained.config, trained.labels, batch)
            result[chosen] = labels[0].cpu().numpy()
    whole = np.full(len(cloud), -1, np.int64)
    whole[cloud.finite()] = result
    return whole


def number_of_category(trained: Checkpoint, category: str | None) -> int:
    """Of a model of parts. Raises WrongUseError for a category that it does not know."""
    names = trained.labels.categories
    if category not in names:
        raise WrongUseError(f"--category must be one of {', '.join(names)}, got {category!r}")
    return names.index(category)


def _finite(cloud: PointCloud) -> PointCloud:
    kept = cloud.finite()
    if not kept.any():
        raise CloudFileError(f"{cloud.path or 'the cloud'} has no finite point")
    return replace(cloud, points=cloud.points[kept])


def _object(trained: Checkpoint, cloud: PointCloud) -> np.ndarray:
    """[N, C] float32 in the unit sphere, with normals if the model takes them."""
    xyz = cloud.points[:, :3].astype(np.float64)
    xyz -= xyz.mean(0)
    xyz /= max(np.linalg.norm(xyz, axis=1).max(), 1e-12)
    if trained.labels.columns == 3:
        return xyz.astype(np.float32)
    return np.concatenate([xyz, _columns(cloud, ("nx", "ny", "nz"))], 1).astype(np.float32)


def _room(
    trained: Checkpoint, cloud: PointCloud
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Features [N, 9] with absolute coordinates, the points of each column, and its middle."""
    xyz = cloud.points[:, :3].astype(np.float64)
    xyz -= xyz.min(0)
    size = np.maximum(xyz.max(0), 1e-6)
    color = _columns(cloud, COLORS)
    highest = color.max()
    color = color / (1.0 if highest <= 1 else 255.0 if highest <= 255 else 65535.0)
    features = np.concatenate([xyz, color, xyz / size], 1).astype(np.float32)
    data = trained.config.data
    assert isinstance(data, (RoomsData, S3DISData))  # all that the task learns from
    block = data.block
    cells = np.floor(xyz[:, :2] / block).astype(np.int64)
    cells, member = np.unique(cells, axis=0, return_inverse=True)
    order = np.argsort(member.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(member.reshape(-1)))
    groups = np.split(order, ends[:-1])
    middles = np.concatenate([(cells + 0.5) * block, np.zeros((len(cells), 1))], 1)
    return features, groups, middles.astype(np.float32)


def _groups(members: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """The members in random groups of `count`; the last group repeats some of them."""
    order = members[permutation(len(members), "predict").numpy()]
    for first in range(0, len(order), count):
        group = order[first : first + count]
        missing = count - len(group)
        yield np.concatenate([group, np.resize(order, missing)]) if missing else group


def _columns(cloud: PointCloud, names: tuple[str, ...]) -> np.ndarray:
    columns = [column for name in names if (column := cloud.column(name)) is not None]
    if len(columns) < len(names):
        raise WrongUseError(
            f"{cloud.path or 'the cloud'} must have the columns {', '.join(names)} for this model, "
            f"it has {', '.join(cloud.columns)}: check --layout"
        )
    stacked = np.stack(columns, 1).astype(np.float32)
    return np.where(np.isfinite(stacked), stacked, np.float32(0))


def _device_batch(trained: Checkpoint, points: np.ndarray) -> Tensor:
    return torch.from_numpy(points)[None].to(next(trained.model.parameters()).device)
