# SPDX-License-Identifier: Apache-2.0
"""nuScenes as a data set of detection: sweeps joined in the frame of the lidar, boxes with
velocities, its measure and its file of results.

    ROOT/v1.0-trainval/*.json               tables
    ROOT/samples/LIDAR_TOP/*.pcd.bin        and sweeps/LIDAR_TOP: float32 x, y, z, intensity, ring
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from torchvox._util.errors import WrongUseError, expect
from torchvox.data.counter_random import Draws, permutation
from torchvox.data.generated import Device, Generated
from torchvox.data.readers.folder import detections
from torchvox.data.readers.nuscenes_files import CLASSES, KINDS, read_index
from torchvox.evaluation.nuscenes import MOST, evaluate
from torchvox.io import read_cloud
from torchvox.io.poses import quaternions, rotations
from torchvox.io.writers import write_text
from torchvox.ops.rays import transform_points

# Numbers of the scenes that nuScenes holds back; all others of a version are for training.
VAL = """3 12-18 35-36 38-39 92-110 221 268-278 329-332 344-346 519-524 552-565 625-627 629-630
632-638 770-771 775 777-778 780-784 794-800 802 904-917 919-931 962-963 966-969 971-972 1059-1073"""
HELD_BACK = {"v1.0-mini": "103 916"}
NEAR = 1.0  # m: in earlier sweeps nearer points are of the vehicle itself
MOVING = 0.2  # m/s
DRIVEN, RIDDEN = ["vehicle.moving", "vehicle.parked"], ["cycle.with_rider", "cycle.without_rider"]
WALKING, BUS = ["pedestrian.moving", "pedestrian.standing"], ["vehicle.moving", "vehicle.stopped"]
# The likeliest attribute of what moves, and of what stands, for each of CLASSES.
ATTRIBUTES = [DRIVEN] * 3 + [BUS, DRIVEN, ["", ""], RIDDEN, RIDDEN, WALKING, ["", ""]]
RESULT = {  # columns of detections
    **{"translation": "xyz", "size": "wlh", "rotation": "rotation", "velocity": "velocity"},
    **{"detection_name": "name", "detection_score": "score", "attribute_name": "attribute"},
}
Found = Sequence[Mapping[str, Any]]


def held_back(version: str) -> set[str]:
    """Names of the scenes for validation."""
    spans = [part.partition("-") for part in HELD_BACK.get(version, VAL).split()]
    numbers = (n for low, _, high in spans for n in range(int(low), int(high or low) + 1))
    return {f"scene-{number:04}" for number in numbers}


class NuScenes(Generated):
    """The keyframes of a split, in the order of the tables.

    split: train or val. sweeps: number of sweeps that are joined, the keyframe and earlier ones.
        short_history: what replaces missing earlier sweeps: the oldest one ("repeat"), the keyframe
        ("keyframe"), or nothing ("none").
    points: capacity N; samples with more points are thinned at random, the same each time.
    min_points: boxes with fewer points of lidar and radar are dropped.
    balanced: an epoch of training takes equally many keyframes for each class.
    cache: a folder that keeps the index of the tables; without it every start reads the tables.

    A batch is that of torchvox.data.folder.ScanFolder, with points [B, N, 5] (x, y, z, intensity
    0..255, seconds before the keyframe) and boxes [B, G, 9], G the most that a keyframe has; labels
    are those of CLASSES. Raises WrongUseError and CloudFileError.
    """

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        *,
        version: str = "v1.0-trainval",
        sweeps: int = 10,
        short_history: str = "repeat",
        points: int = 350_000,
        min_points: int = 1,
        balanced: bool = False,
        cache: str | Path | None = None,
    ) -> None:
        expect(split in ("train", "val"), "NuScenes: split must be train or val", split)
        good = short_history in ("repeat", "keyframe", "none")
        expect(good, "NuScenes: short_history must be repeat, keyframe or none", short_history)
        self.sweeps, self.short_history, self.points = sweeps, short_history, points
        self.root, self.index = Path(root), read_index(Path(root), version, cache)
        val = np.isin(self.index["scene"], sorted(held_back(version)))
        self.samples = np.flatnonzero(val == (split == "val"))
        if len(self.samples) == 0:
            raise WrongUseError(f"{self.root / version} has no sample of {split}")
        super().__init__(len(self.samples))
        labelled = (self.index["kind"] < len(CLASSES)) & (self.index["points"] >= min_points)
        self.label = np.where(labelled, self.index["kind"], -1)
        self.boxes = max(1, *(len(self._rows(i)) for i in range(len(self))))
        self.order = self._balanced if balanced else None

    def generate(self, indices: Sequence[int], device: Device) -> dict[str, Tensor]:
        points = torch.full((len(indices), self.points, 5), math.nan, device=device)
        batch, counts = default_collate([self.labels(i) for i in indices]), []
        for sample, index in enumerate(indices):
            cloud, sweep, poses = (torch.from_numpy(x).to(device) for x in self.read_sweeps(index))
            points[sample, : len(cloud), 3:] = cloud[:, 3:]
            points[sample, : len(cloud), :3] = transform_points(cloud, poses, pose_index=sweep)
            counts.append(len(cloud))
        batch["num_points"] = torch.tensor(counts, dtype=torch.int32)
        batch["id"] = torch.tensor(list(indices))
        return {"points": points, **{name: tensor.to(device) for name, tensor in batch.items()}}

    def read_sweeps(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Points [n, 5] float32 of a sample, each in the frame of its sweep; the numbers [n] of
        their sweeps, and the poses [S, 3, 4] of sweeps in the keyframe's. Raises CloudFileError."""
        history, time, tables = self._history(index), self.index["time"], []
        for number, sweep in enumerate(history):
            path = self.root / self.index["filename"][sweep].decode()
            table = read_cloud(path, "nuscenes").points
            kept = (np.abs(table[:, :2]) >= NEAR).any(1) | (number == 0)
            tables.append(table[kept & np.isfinite(table[:, :4]).all(1)])
            tables[-1][:, 4] = (time[history[0]] - time[sweep]) * 1e-6
        points, poses = np.concatenate(tables), self.index["pose"][history]
        which = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
        if len(points) > self.points:
            draws = Draws(0, "thin", torch.tensor([index])).bits("points", len(points))[0]
            taken = draws.argsort()[: self.points].sort().values.numpy()
            points, which = points[taken], which[taken]
        turn, place = self._pose(index)
        poses[:, :, 3] -= place
        poses = turn.T @ poses
        poses[np.array(history) == history[0]] = np.eye(3, 4)  # its points keep their bits
        return points, which, poses

    def _history(self, index: int) -> list[int]:
        """The sweeps of a sample, the keyframe first."""
        history = [int(self.index["key"][self.samples[index]])]
        while len(history) < self.sweeps and (before := int(self.index["prev"][history[-1]])) >= 0:
            history.append(before)
        other = {"repeat": history[-1:], "keyframe": history[:1], "none": []}[self.short_history]
        return history + other * (self.sweeps - len(history))

    def labels(self, index: int) -> dict[str, Tensor]:
        """boxes, labels, num_boxes and weight of a sample."""
        rows = self._rows(index)
        boxes, labels = torch.zeros(self.boxes, 9), torch.full((self.boxes,), -1).int()
        boxes[: len(rows)] = torch.from_numpy(self.index["boxes"][rows])
        labels[: len(rows)] = torch.from_numpy(self.label[rows])
        used = labels >= 0
        counts = {"weight": used.float(), "num_boxes": used.sum().int()}
        return {"boxes": boxes, "labels": labels, **counts}

    def _balanced(self, seed: int, epoch: int) -> Tensor:
        """Keyframes in random order: for each class equally many that have it, with repeats, in all
        as many as there are pairs of a keyframe and a class that it has."""
        count, (first, label) = len(self), (self.index["first"], self.label)
        sample = np.repeat(np.arange(len(first) - 1), np.diff(first))
        mine = (label >= 0) & np.isin(sample, self.samples)
        pairs = np.unique(label[mine] * count + np.searchsorted(self.samples, sample[mine]))
        draws, drawn = Draws(seed, "balanced", torch.tensor([epoch])), [torch.empty(0).long()]
        for one in (classes := np.unique(pairs // count)):
            frames = torch.from_numpy(pairs[pairs // count == one] % count)
            share = draws.uniform(f"class {one}", len(pairs) // len(classes))[0]
            drawn.append(frames[(share * len(frames)).long()])
        samples = torch.cat(drawn)
        return samples[permutation(len(samples), "order", seed, epoch)]

    def measure(self, found: Found) -> dict[str, float]:
        """nuScenes' measure of detections, see torchvox.evaluation.nuscenes.evaluate.

        found: for each sample of the split, in its order, boxes [n, 9] in the lidar's frame, or
        [n, 7] that stand still, scores [n] and labels [n]; the 500 highest scores count. Attributes
        are the likeliest ones by class and speed. Raises ValueError.
        """
        truth, racks = [], []
        for i in range(len(self)):
            rows = self._rows(i, labelled=False)
            columns = ("xyz", "lwh", "yaw", "velocity", "points")
            frame = {name: self.index[name][rows] for name in columns}
            frame["attribute"] = self.index["attribute"][rows].astype(str)
            frame["name"] = np.array(KINDS)[self.index["kind"][rows]]
            is_rack = frame["name"] == KINDS[-1]
            truth.append({name: values[~is_rack] for name, values in frame.items()})
            racks.append({name: values[is_rack] for name, values in frame.items()})
        ego = self.index["ego"][self.index["key"][self.samples]]
        return evaluate(truth, self._in_world(found), ego=ego, racks=racks)

    def write(self, found: Found, folder: str | Path) -> None:
        """Write detections, as of `measure`, as nuScenes' result file, results_nusc.json."""
        results = {}
        for i, frame in enumerate(self._in_world(found)):
            token = str(self.index["token"][self.samples[i]])
            rows = zip(*(frame[name].tolist() for name in RESULT.values()), strict=True)
            named = (dict(zip(RESULT, row, strict=True)) for row in rows)
            results[token] = [{"sample_token": token, **row} for row in named]
        sensors = ("camera", "lidar", "radar", "map", "external")
        meta = {f"use_{name}": name == "lidar" for name in sensors}
        text = json.dumps({"meta": meta, "results": results}, allow_nan=False)
        write_text(Path(folder) / "results_nusc.json", text)

    def _in_world(self, found: Found) -> list[dict[str, np.ndarray]]:
        """Columns of detections for `evaluate`, and those of RESULT."""
        frames: list[dict[str, np.ndarray]] = []
        for i, one in enumerate(detections(found, len(self), len(CLASSES))):
            best = np.argsort(-one[1], kind="stable")[:MOST]
            boxes, score, label = (column[best] for column in one)
            (turn, place), half, no = self._pose(i), boxes[:, 6] / 2, np.zeros(len(boxes))
            turned = turn @ rotations(np.stack([no, no, np.sin(half), np.cos(half)], 1))
            velocity = boxes[:, 7:] @ turn[:2, :2].T
            stands = (np.hypot(*velocity.T) <= MOVING).astype(np.int64)
            frame = {"name": np.array(CLASSES)[label], "score": score}
            frame |= {"attribute": np.array(ATTRIBUTES)[label, stands], "velocity": velocity}
            frame |= {"xyz": boxes[:, :3] @ turn.T + place, "lwh": boxes[:, 3:6]}
            frame |= {"wlh": boxes[:, [4, 3, 5]], "rotation": quaternions(turned)[:, [3, 0, 1, 2]]}
            frames.append({**frame, "yaw": np.arctan2(turned[:, 1, 0], turned[:, 0, 0])})
        return frames

    def _pose(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Rotation [3, 3] and place [3] of the lidar in the world at a keyframe."""
        pose = self.index["pose"][self.index["key"][self.samples[index]]]
        return pose[:, :3], pose[:, 3]

    def _rows(self, index: int, labelled: bool = True) -> np.ndarray:
        """Numbers of the boxes of a sample, those with a label or all of them."""
        rows = np.arange(*self.index["first"][self.samples[index] + np.arange(2)])
        return rows[self.label[rows] >= 0] if labelled else rows
