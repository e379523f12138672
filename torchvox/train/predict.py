# SPDX-License-Identifier: Apache-2.0
"""A trained model on the user's clouds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from torchvox._util.errors import WrongUseError
from torchvox.data.counter_random import permutation
from torchvox.data.readers import objects
from torchvox.io import PointCloud
from torchvox.io.roles import COLORS
from torchvox.models.detection.running import columns_of
from torchvox.train.checkpoint import Checkpoint
from torchvox.train.config import ObjectsData, RoomsData, S3DISData, SegmentsData, WorldData
from torchvox.train.lightning_module import forward, predict


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
    points = _object(trained, objects.finite_points(cloud))
    chosen = next(_groups(np.arange(len(points)), _size(trained)))
    batch = {"points": _device_batch(trained, points[chosen])}
    logits = forward(trained.model, trained.config, batch).float()
    return logits[0].softmax(-1).cpu()


@torch.inference_mode()
def label_points(trained: Checkpoint, cloud: PointCloud, category: str | None = None) -> np.ndarray:
    """Labels [N] int64 of all points, -1 where a point is not finite, or of a scan out of range. A
    color or normal that is not finite counts as 0.

    category: of the object, for a model of parts. Rooms and blocks are taken column by column,
    scans of a lidar as they are.
    """
    clean = objects.finite_points(cloud)
    whole = np.full(len(cloud), -1, np.int64)
    if isinstance(trained.config.data, WorldData):
        whole[cloud.finite()] = _label_scan(trained, clean)
        return whole
    more: dict[str, Tensor] = {}
    if trained.config.task == "parts":
        device = next(trained.model.parameters()).device
        more["label"] = torch.tensor([number_of_category(trained, category)], device=device)
    if trained.config.task == "parts" or getattr(trained.config.data, "block", None) is None:
        table, groups = _object(trained, clean), [np.arange(len(clean))]
        offsets = np.zeros((1, 3), np.float32)
    else:
        table, groups, offsets = _room(trained, clean)
    result = np.full(len(clean), -1, np.int64)
    for members, offset in zip(groups, offsets, strict=True):
        for chosen in _groups(members, _size(trained)):
            points = table[chosen].copy()
            points[:, :3] -= offset
            batch = {"points": _device_batch(trained, points), **more}
            labels = predict(trained.model, trained.config, trained.labels, batch)
            result[chosen] = labels[0].cpu().numpy()
    whole[cloud.finite()] = result
    return whole


def _label_scan(trained: Checkpoint, scan: PointCloud) -> np.ndarray:
    """Labels [N] of a scan, as it is and at once; -1 out of the range that the model sees."""
    points = _device_batch(trained, columns_of(scan, trained.labels.columns))
    scores = forward(trained.model, trained.config, {"points": points})[0]
    seen = (scores != 0).any(-1)
    return torch.where(seen, scores.argmax(-1), -1).cpu().numpy()


def number_of_category(trained: Checkpoint, category: str | None) -> int:
    """Of a model of parts. Raises WrongUseError for a category that it does not know."""
    names = trained.labels.categories
    if category not in names:
        raise WrongUseError(f"--category must be one of {', '.join(names)}, got {category!r}")
    return names.index(category)


def _object(trained: Checkpoint, cloud: PointCloud) -> np.ndarray:
    """[N, C] float32 in the unit sphere, with the further columns that the model takes."""
    names: tuple[str, ...] = objects.NORMALS if trained.labels.columns > 3 else ()
    data = trained.config.data
    if isinstance(data, (ObjectsData, SegmentsData)):
        names = objects.feature_names(data.columns, data.normals)
    table = [objects.unit_sphere(cloud), objects.features(cloud, names)]
    return np.concatenate(table, 1).astype(np.float32)


def _room(
    trained: Checkpoint, cloud: PointCloud
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Features [N, C] with absolute coordinates, the points of each column, and its middle."""
    xyz = cloud.points[:, :3].astype(np.float64)
    xyz -= xyz.min(0)
    data = trained.config.data
    assert isinstance(data, (RoomsData, S3DISData, SegmentsData))  # all that the task learns from
    if isinstance(data, SegmentsData):
        parts = [xyz, objects.features(cloud, objects.feature_names(data.columns, data.normals))]
    else:
        parts = [xyz, objects.features(cloud, COLORS), xyz / np.maximum(xyz.max(0), 1e-6)]
    block = data.block
    assert block is not None
    cells = np.floor(xyz[:, :2] / block).astype(np.int64)
    cells, member = np.unique(cells, axis=0, return_inverse=True)
    order = np.argsort(member.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(member.reshape(-1)))
    groups = np.split(order, ends[:-1])
    middles = np.concatenate([(cells + 0.5) * block, np.zeros((len(cells), 1))], 1)
    return np.concatenate(parts, 1).astype(np.float32), groups, middles.astype(np.float32)


def _groups(members: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """The members in random groups of `count`; the last group repeats some of them."""
    order = members[permutation(len(members), "predict").numpy()]
    for first in range(0, len(order), count):
        group = order[first : first + count]
        missing = count - len(group)
        yield np.concatenate([group, np.resize(order, missing)]) if missing else group


def _device_batch(trained: Checkpoint, points: np.ndarray) -> Tensor:
    return torch.from_numpy(points)[None].to(next(trained.model.parameters()).device)
