# SPDX-License-Identifier: Apache-2.0
"""nuScenes' tables as one index of plain arrays: sweeps of the lidar, samples, their boxes."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from torchvox._util.errors import CloudFileError, explained, short
from torchvox.io.poses import joined, rotations
from torchvox.io.writers import write_npz

Index = dict[str, np.ndarray]
LIDAR, FORMAT = "LIDAR_TOP", 1  # of an index that is kept
WALKERS = ("adult", "child", "construction_worker", "police_officer")
CATEGORIES = {  # class by category; other categories are dropped
    **{"vehicle.car": "car", "vehicle.truck": "truck"},
    **{"vehicle.construction": "construction_vehicle"},
    **{"vehicle.bus.bendy": "bus", "vehicle.bus.rigid": "bus", "vehicle.trailer": "trailer"},
    **{"movable_object.barrier": "barrier", "vehicle.motorcycle": "motorcycle"},
    **{"vehicle.bicycle": "bicycle"},
    **{f"human.pedestrian.{name}": "pedestrian" for name in WALKERS},
    **{"movable_object.trafficcone": "traffic_cone", "static_object.bicycle_rack": "bicycle_rack"},
}
KINDS = tuple(dict.fromkeys(CATEGORIES.values()))
CLASSES = KINDS[:-1]
LONGEST = 1.5  # s between two boxes that give a velocity; twice that if they surround a third
BETWEEN = re.compile(r"[\s,\[]*")  # the objects of a table


def read_index(root: Path, version: str, cache: str | Path | None = None) -> Index:
    """The tables in root / version as arrays. The folder `cache` keeps them until a table changes.

    S samples: token, scene (its name), key (a sweep), first [S + 1] (sample s has the boxes
        first[s] .. first[s + 1]). F sweeps: filename, time (microseconds), prev (-1: none), pose
        [F, 3, 4] from the lidar's frame to the world's, ego [F, 2] of the vehicle.
    K boxes, in the world: kind (of KINDS), xyz, lwh, yaw, velocity [K, 2] (m/s, NaN: unknown),
        attribute, points (of lidar and radar); and boxes [K, 9] in the frame of the lidar.
    Raises CloudFileError that names the table, and the object or the line.
    """
    folder, source = root / version, str(FORMAT)
    if cache is None:
        return _index(folder)
    path = Path(cache).resolve() / f"nuscenes_{version}.npz"
    with explained(path, "index of nuScenes"):  # another file is not replaced
        for file in sorted(folder.glob("*.json")):
            source += f" {file.name} {file.stat().st_size} {file.stat().st_mtime_ns}"
        if path.exists():
            with np.load(path, allow_pickle=False) as arrays:
                if str(arrays["source"]) == source:
                    return dict(arrays)
        index = {"source": np.array(source), **_index(folder)}
        write_npz(path, **index)
    return index


class Known(dict):
    """A dict whose missing keys raise a CloudFileError that names `what`."""

    def __init__(self, what: str, content: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        self.what = what
        super().__init__(content)

    def __missing__(self, key: object) -> Any:
        raise CloudFileError(f"{self.what} has no {short(key)}")


def read_rows(folder: Path, name: str) -> Iterator[Known]:
    """The objects of a table, one by one: all at once would take much memory."""
    path, at, decoder = folder / f"{name}.json", 0, json.JSONDecoder()
    with explained(path, "table of nuScenes"):
        text = path.read_text(encoding="utf-8")
        for number in count():
            at = BETWEEN.match(text, at).end()  # type: ignore[union-attr]
            if text.startswith("]", at):
                return
            row, at = decoder.raw_decode(text, at)
            if not isinstance(row, dict):
                raise ValueError(f"object {number} is {short(row)}")
            yield Known(f"{path} object {number}", row)


def column_of(rows: list[Known], name: str, width: int) -> np.ndarray:
    """[n, width] float64. Raises CloudFileError that names the object."""
    values = [row[name] for row in rows]
    with contextlib.suppress(TypeError, ValueError):
        table = np.array(values, np.float64).reshape(-1, width)
        if len(table) == len(rows) and np.isfinite(table).all():
            return table
    if len(rows) > 1:
        return np.concatenate([column_of([row], name, width) for row in rows])
    rule = f"{name} must be {width} finite numbers"
    raise CloudFileError(f"{rows[0].what}: {rule}, got {short(values[0])}")


def read_table(folder: Path, name: str, tokens: Container[str] | None = None) -> Known:
    """The objects of a table by token, all or those of the tokens."""
    rows = ((row["token"], row) for row in read_rows(folder, name))
    kept = (row for row in rows if tokens is None or row[0] in tokens)
    return Known(f"{folder / name}.json", kept)


def _index(folder: Path) -> Index:
    with explained(folder, "version of nuScenes"):
        sensors, scenes, samples = (read_table(folder, n) for n in ("sensor", "scene", "sample"))
        mounts = read_table(folder, "calibrated_sensor")
        lidars = {t for t, m in mounts.items() if sensors[m["sensor_token"]]["channel"] == LIDAR}
        data = read_rows(folder, "sample_data")
        sweeps = [row for row in data if row["calibrated_sensor_token"] in lidars]
        keys = {row["sample_token"]: i for i, row in enumerate(sweeps) if row["is_key_frame"]}
        keys = Known(f"among the key frames, {folder}/sample_data.json", keys)
        for number, row in enumerate(samples.values()):
            row["number"] = number
        index = {
            "token": np.array(list(samples), str),
            "scene": np.array([scenes[r["scene_token"]]["name"] for r in samples.values()], str),
            "key": np.array([keys[token] for token in samples], np.int64),
            **_sweeps(folder, sweeps, mounts),
        }
        return {**index, **_boxes(folder, samples, index["pose"][index["key"]])}


def _sweeps(folder: Path, rows: list[Known], mounts: Known) -> Index:
    poses = read_table(folder, "ego_pose", {row["ego_pose_token"] for row in rows})
    numbers = {row["token"]: i for i, row in enumerate(rows)}
    ego = poses_of([poses[row["ego_pose_token"]] for row in rows])
    mount = poses_of([mounts[row["calibrated_sensor_token"]] for row in rows])
    return {
        "filename": np.array([row["filename"].encode() for row in rows], np.bytes_),
        "time": column_of(rows, "timestamp", 1)[:, 0].astype(np.int64),
        "prev": np.array([numbers.get(row["prev"], -1) for row in rows], np.int64),
        "pose": joined(ego, mount),
        "ego": ego[:, :2, 3],
    }


def poses_of(rows: list[Known]) -> np.ndarray:
    """[n, 3, 4] float64 of translations and quaternions w, x, y, z."""
    turns = column_of(rows, "rotation", 4)
    for row in np.flatnonzero(np.abs(np.linalg.norm(turns, axis=1) - 1) >= 1e-2):
        raise CloudFileError(f"{rows[row].what}: rotation must be a unit quaternion")
    places = column_of(rows, "translation", 3)[:, :, None]
    return np.concatenate([rotations(turns[:, [1, 2, 3, 0]]), places], axis=2)


def _boxes(folder: Path, samples: Known, keys: np.ndarray) -> Index:
    """keys: [S, 3, 4], poses of the lidar."""
    names = ("category", "attribute", "instance")
    (categories, attributes, instances), rows = (read_table(folder, n) for n in names), []
    for row in read_rows(folder, "sample_annotation"):
        category = categories[instances[row["instance_token"]]["category_token"]]["name"]
        if category in CATEGORIES:
            words = [attributes[token]["name"] for token in row["attribute_tokens"]]
            row |= {"kind": KINDS.index(CATEGORIES[category]), "word": (*words, "")[0].encode()}
            rows.append(row)
    rows.sort(key=lambda row: samples[row["sample_token"]]["number"])
    sample = np.array([samples[row["sample_token"]]["number"] for row in rows], np.int64)
    poses = poses_of(rows)
    xyz, ahead, velocity = poses[:, :3, 3], poses[:, :3, 0], _velocities(rows, poses, samples)
    lwh = column_of(rows, "size", 3)[:, [1, 0, 2]]
    lidar, radar = (column_of(rows, f"num_{of}_pts", 1)[:, 0] for of in ("lidar", "radar"))
    turn, place = keys[sample, :, :3], keys[sample, :, 3]
    local = [np.einsum("nij,ni->nj", turn, v) for v in (xyz - place, ahead, velocity)]
    yaw, own = (np.arctan2(v[:, 1], v[:, 0]) for v in (ahead, local[1]))
    return {
        **{"xyz": xyz, "lwh": lwh, "yaw": yaw, "velocity": velocity[:, :2]},
        "boxes": np.column_stack([local[0], lwh, own, local[2][:, :2]]),
        "first": np.searchsorted(sample, np.arange(len(samples) + 1)),
        "kind": np.array([row["kind"] for row in rows], np.int64),
        "attribute": np.array([row["word"] for row in rows], np.bytes_),
        "points": (lidar + radar).astype(np.int64),
    }


def _velocities(rows: list[Known], poses: np.ndarray, samples: Known) -> np.ndarray:
    """[K, 3], from the boxes of the same object before and after, else NaN."""
    own, at = np.arange(len(rows)), {row["token"]: i for i, row in enumerate(rows)}
    time = column_of([samples[row["sample_token"]] for row in rows], "timestamp", 1)[:, 0]
    before = np.array([at.get(row["prev"], i) for i, row in enumerate(rows)], np.int64)
    after = np.array([at.get(row["next"], i) for i, row in enumerate(rows)], np.int64)
    seconds = (time[after] - time[before]) * 1e-6
    longest = np.where((before != own) & (after != own), 2 * LONGEST, LONGEST)
    seconds = np.where((seconds > 0) & (seconds <= longest), seconds, np.nan)
    return (poses[after] - poses[before])[:, :3, 3] / seconds[:, None]
