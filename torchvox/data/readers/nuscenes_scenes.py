# SPDX-License-Identifier: Apache-2.0
"""nuScenes' tables scene by scene: sweeps of the lidar, objects through time, cameras."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from torchvox._util.errors import explained
from torchvox.data.labels import Camera
from torchvox.data.portable_math import atan2
from torchvox.data.readers.nuscenes_files import (
    LIDAR,
    Known,
    column_of,
    poses_of,
    read_rows,
    read_table,
)
from torchvox.io.poses import joined

APART = 1 << 40  # microseconds between the times of two objects in a list of both


class Objects(NamedTuple):
    """Annotations [n] by object, then time: times in microseconds, boxes [n, 7] in the world.
    first: [K + 1] of each object; tracks, names: of the objects and their categories."""

    times: np.ndarray
    boxes: np.ndarray
    first: np.ndarray
    tracks: list[str]
    names: list[str]

    def at(self, time: int) -> tuple[np.ndarray, np.ndarray]:
        """Numbers [k] of the objects that are there, and their boxes [k, 7]: between annotations
        linear in time, the yaw by the shorter arc."""
        begin, end = self.times[self.first[:-1]], self.times[self.first[1:] - 1]
        there = np.flatnonzero((begin <= time) & (time <= end))
        own = np.repeat(np.arange(len(begin)), np.diff(self.first))
        keys = own * APART + self.times - (start := self.times.min(initial=time))
        before = np.searchsorted(keys, there * APART + (time - start), "right") - 1
        after = np.minimum(before + 1, self.first[there + 1] - 1)
        step = (self.times[after] - self.times[before]).clip(1)
        way = self.boxes[after] - self.boxes[before]
        way[:, 3:6] = 0  # sizes are those of the annotation before
        way[:, 6] -= math.tau * np.floor(way[:, 6] / math.tau + 0.5)
        return there, self.boxes[before] + ((time - self.times[before]) / step)[:, None] * way


class NuScene(NamedTuple):
    """Sweeps of the lidar by time. samples: tokens of keyframes, "" of other sweeps; times: [S]
    int64 in microseconds; poses: [S, 3, 4], of the vehicle in the world; mounts: [S, 3, 4], of the
    lidar in the vehicle; cameras: by the token of the keyframe."""

    tokens: list[str]
    files: list[str]
    samples: list[str]
    times: np.ndarray
    poses: np.ndarray
    mounts: np.ndarray
    objects: Objects
    cameras: dict[str, list[Camera]]


def read_scenes(folder: Path, cameras: bool) -> tuple[dict[str, NuScene], dict[object, str]]:
    """The scenes of a version, root / v1.0-*, by name; and the categories of lidarseg by index.

    cameras: whether to read those of keyframes. Raises CloudFileError.
    """
    with explained(folder, "version of nuScenes"):
        sensors, scenes, samples, mounts, kinds = (
            read_table(folder, name)
            for name in ("sensor", "scene", "sample", "calibrated_sensor", "category")
        )
        channels = {t: sensors[m["sensor_token"]]["channel"] for t, m in mounts.items()}
        lidar: dict[str, list[Known]] = {token: [] for token in scenes}
        images: dict[str, list[tuple[str, Known]]] = {token: [] for token in scenes}
        objects: dict[str, list[tuple[str, int, Known]]] = {token: [] for token in scenes}
        times = Known(f"among the key frames, {folder}/sample_data.json", {})
        for row in read_rows(folder, "sample_data"):
            channel = channels[row["calibrated_sensor_token"]]
            scene = samples[row["sample_token"]]["scene_token"]
            if channel == LIDAR:
                lidar[scene].append(row)
                times |= {row["sample_token"]: row["timestamp"]} if row["is_key_frame"] else {}
            elif cameras and row["is_key_frame"] and channel.startswith("CAM_"):
                images[scene].append((channel, row))
        used = {row["ego_pose_token"] for rows in lidar.values() for row in rows}
        used |= {row["ego_pose_token"] for rows in images.values() for _, row in rows}
        egos = read_table(folder, "ego_pose", used)
        instances = read_rows(folder, "instance")
        names = {row["token"]: kinds[row["category_token"]]["name"] for row in instances}
        for row in read_rows(folder, "sample_annotation"):
            one = Known(row.what, {k: row[k] for k in ("translation", "rotation", "size")})
            own = objects[samples[sample := row["sample_token"]]["scene_token"]]
            own.append((row["instance_token"], times[sample], one))

        def placed(rows: list[Known]) -> tuple[np.ndarray, np.ndarray]:
            mount = poses_of([mounts[row["calibrated_sensor_token"]] for row in rows])
            return poses_of([egos[row["ego_pose_token"]] for row in rows]), mount

        def scene_of(token: str) -> NuScene:
            rows = sorted(lidar[token], key=lambda row: row["timestamp"])
            keys = [row["sample_token"] if row["is_key_frame"] else "" for row in rows]
            stamps = column_of(rows, "timestamp", 1)[:, 0].astype(np.int64)
            seen: dict[str, list[Camera]] = defaultdict(list)
            for _, row in sorted(images[token], key=lambda pair: pair[0]):
                mount = mounts[row["calibrated_sensor_token"]]
                lens = torch.from_numpy(column_of([mount], "camera_intrinsic", 9).reshape(3, 3))
                pose = torch.from_numpy(joined(*placed([row]))[0])
                seen[row["sample_token"]].append(Camera(lens, pose, (row["width"], row["height"])))
            files, tokens = ([row[name] for row in rows] for name in ("filename", "token"))
            own = _objects(objects[token], names)
            return NuScene(tokens, files, keys, stamps, *placed(rows), own, seen)

        indices = {row.get("index"): row["name"] for row in kinds.values()}
        return {row["name"]: scene_of(token) for token, row in scenes.items()}, indices


def _objects(rows: list[tuple[str, int, Known]], names: dict[str, str]) -> Objects:
    rows.sort(key=lambda row: row[:2])
    own = [row[2] for row in rows]
    poses, size = poses_of(own), column_of(own, "size", 3)[:, [1, 0, 2]]
    yaw = atan2(*(torch.from_numpy(poses[:, i, 0].copy()) for i in (1, 0))).numpy()
    tracks, first = np.unique(np.array([row[0] for row in rows], str), return_index=True)
    times = np.array([row[1] for row in rows], np.int64)
    boxes = np.column_stack([poses[:, :, 3], size, yaw])
    kinds = [names[track] for track in tracks]
    return Objects(times, boxes, np.append(first, len(rows)), tracks.tolist(), kinds)
