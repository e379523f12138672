# SPDX-License-Identifier: Apache-2.0
"""Labels of whole scenes as a stage of Ray Data, or of a plain `map`: rows name scenes.

    rows = scene_rows(["nuscenes/"], "gts", options)
    ray.data.from_items(rows).map(LabelScene("gts", options), num_gpus=1)

A stage holds no torch object and pickles before CUDA starts.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchvox._util.errors import CloudFileError, TorchvoxError, WrongUseError, explained, short
from torchvox.data.label_scenes import LabelOptions, Scene, Sweep, clean_sweep, open_input
from torchvox.data.labels import label_arrays, occupancy_labels
from torchvox.filter.stages import Row, try_row
from torchvox.io import Grid
from torchvox.io.writers import write_npz, write_text
from torchvox.ops import points_in_boxes, transform_points

Arrays = dict[str, np.ndarray]  # of a file
VERSION = 1  # of the rules
NEAR, TURN = 0.1, 0.02  # m, rad: a box that near to that of the keyframe stands
AHEAD, WRITERS, WAITING = 40, 4, 8  # sweeps that are read ahead; threads; files that wait for them
NOT_IN_FACTS = ("poses", "extrinsic", "boxes")  # paths, whose contents are in the digest


class Loaded(NamedTuple):
    """A sweep, and its points and their classes on the device."""

    sweep: Sweep
    points: Tensor
    classes: Tensor


def scene_rows(
    paths: Iterable[str | Path],
    folder: str | Path,
    options: LabelOptions,
    names: Collection[str] | None = None,
) -> list[Row]:
    """One row for each scene, or for those of the names: path, scene, keyframes. Writes folder /
    labels.json: the options, and digests of what the inputs hold. Raises WrongUseError where it has
    others, or there is no such scene; CloudFileError."""
    Grid("labels", (options.voxel_size,) * 3, options.point_cloud_range)  # raises for a wrong one
    rows: list[Row] = []
    digests: dict[str, str] = {}
    for path in map(str, paths):
        known = open_input(Path(path), options)
        if twice := digests.keys() & known.scenes.keys():
            raise WrongUseError(f"two inputs would both write {min(twice)}: use other folders")
        digests |= dict.fromkeys(known.scenes, known.digest)
        rows += [{"path": path, "scene": name, "keyframes": n} for name, n in known.scenes.items()]
    if unknown := {*(names or ())} - digests.keys():
        raise WrongUseError(f"there is no scene {min(unknown)} in {short(', '.join(digests))}")
    target = Path(folder) / "labels.json"
    own = {k: v for k, v in vars(options).items() if k not in NOT_IN_FACTS}
    text = json.dumps({"rules": VERSION, "options": own, "scenes": digests})
    before = facts = json.loads(text)
    if target.exists():
        with explained(target, "file of torchvox labels"):
            before = json.loads(target.read_text())
            same = all(before[key] == facts[key] for key in ("rules", "options"))
            scenes = {**digests, **before["scenes"]}
        if not same or scenes != {**scenes, **digests}:
            what = "inputs" if same else "options or rules"
            raise WrongUseError(f"{folder} has labels of other {what}: give another folder")
        facts["scenes"] = scenes
    if not target.exists() or facts != before:
        write_text(target, json.dumps(facts, indent=1) + "\n")
    return [row for row in rows if names is None or row["scene"] in names]


class LabelScene:
    """A stage that writes the labels of a row's scene: folder / scene / keyframe / labels.npz.

    device: "cpu", "cuda", or "auto" for CUDA where it is. A keyframe whose file exists is not
    labelled again. The row gets `files` and `failed`, counts of keyframes, or `error`.
    """

    def __init__(self, folder: str | Path, options: LabelOptions, device: str = "auto") -> None:
        self.folder, self.options, self.device = Path(folder), options, device

    def __call__(self, row: Row) -> Row:
        def work() -> Row:
            errors = [frame["error"] != "" for frame in self.frames(row)]
            return {"files": errors.count(False), "failed": errors.count(True)}

        return try_row(row, work, {"files": 0, "failed": row["keyframes"]})

    def frames(self, row: Row) -> Iterator[Row]:
        """A row for each keyframe of a scene when its file is there: file, error, cells by label,
        sha256 of the arrays; and, unless the file existed before, which comes first, sweeps,
        points, no_return, carried, dropped, ms."""
        cuda = self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available())
        scene = open_input(Path(row["path"]), self.options).scene(row["scene"])
        if odd := [n for n in (row["scene"], *scene.keyframes) if Path(n).name != n]:
            raise CloudFileError(f"{row['path']}: {short(odd[0])!r} cannot be the name of a folder")
        files = {name: self.folder / row["scene"] / name / "labels.npz" for name in scene.keyframes}
        todo = {name: None for name, file in files.items() if not file.exists()}
        results = label_keyframes(
            scene, list(todo), self.options, torch.device("cuda" if cuda else "cpu")
        )
        waiting: deque[Future[Row]] = deque()
        with ThreadPoolExecutor(WRITERS) as writers:
            for name in sorted(files, key=lambda name: name in todo):  # stable
                arrays, facts = next(results) if name in todo else (None, {})
                waiting.append(writers.submit(_finish, files[name], arrays, facts))
                if len(waiting) > WAITING:
                    yield waiting.popleft().result()
            yield from (future.result() for future in waiting)


def _finish(file: Path, arrays: Arrays | None, facts: Row) -> Row:
    """The row of a keyframe, whose file is written, or read if it exists."""
    row: Row = {"file": str(file), "error": "", **facts}
    if arrays is not None:
        write_npz(file, **arrays)
    elif not row["error"]:
        with explained(file, "file of labels"), np.load(file) as old:
            arrays = dict(old)
    return row if arrays is None else {**row, **digest_of_arrays(arrays)}


def digest_of_arrays(arrays: Arrays) -> Row:
    """cells: how many of each label; sha256 over name, shape and bytes of each array."""
    total = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        total.update(f"{name} {array.shape}".encode() + array.tobytes())
    counts = np.bincount(arrays["semantics"].reshape(-1), minlength=256)
    cells = {str(label): int(counts[label]) for label in np.flatnonzero(counts)}
    return {"cells": cells, "sha256": total.hexdigest()}


def label_keyframes(
    scene: Scene, names: list[str], options: LabelOptions, device: torch.device
) -> Iterator[tuple[Arrays | None, Row]]:
    """The labels of keyframes, in their order, and what there is to say; None with an `error`.

    A thread reads each sweep once, ahead of its use; sweeps behind the window are dropped.
    """
    before, after = options.sweeps or (scene.count, scene.count)
    keys = [scene.keyframes[name] for name in names]
    windows = [range(max(0, k - before), min(scene.count, k + after + 1)) for k in keys]
    needed = deque(sorted({i for window in windows for i in window}))
    futures: dict[int, Future[Sweep]] = {}
    loaded: dict[int, Loaded | TorchvoxError] = {}
    with ThreadPoolExecutor(1) as reader:
        try:
            for name, window in zip(names, windows, strict=True):
                start = time.perf_counter()
                while needed and needed[0] <= window[-1] + AHEAD:
                    i = needed.popleft()
                    futures[i] = reader.submit(lambda i: clean_sweep(scene.read(i)), i)
                loaded = {i: loaded[i] if i in loaded else _load(futures.pop(i), device)
                          for i in window}  # fmt: skip
                arrays, facts = _labels(scene, name, loaded, options)
                yield arrays, {**facts, "ms": round(1e3 * (time.perf_counter() - start), 3)}
        finally:
            reader.shutdown(cancel_futures=True)


def _load(future: Future[Sweep], device: torch.device) -> Loaded | TorchvoxError:
    try:
        sweep = future.result()
    except TorchvoxError as error:
        return error
    points = torch.from_numpy(sweep.points).to(device)
    if sweep.classes is not None:
        return Loaded(sweep, points, torch.from_numpy(sweep.classes).to(device))
    labels = torch.tensor([*sweep.labels, -1], dtype=torch.int16).to(device)  # -1: in no box
    pose, boxes = (torch.from_numpy(a).to(device) for a in (sweep.pose, sweep.boxes))
    inside = points_in_boxes(transform_points(points, pose[None])[None], boxes[None])[0]
    return Loaded(sweep, points, labels[inside.long()])


def _labels(
    scene: Scene, name: str, loaded: dict[int, Loaded | TorchvoxError], options: LabelOptions
) -> tuple[Arrays | None, Row]:
    key, counts = scene.keyframes[name], {"carried": 0, "dropped": 0}
    own = {i: one for i, one in loaded.items() if isinstance(one, Loaded)}
    for i, error in loaded.items():  # other sweeps than the keyframe need no pose
        if not isinstance(error, Loaded) and (i == key or not isinstance(error, WrongUseError)):
            return None, {"error": str(error)}
    sweeps, points, classes = zip(*own.values(), strict=True)
    labels = occupancy_labels(
        points,
        torch.from_numpy(np.stack([sweep.pose for sweep in sweeps])),
        keyframe := list(own).index(key),
        [options.voxel_size] * 3,
        options.point_cloud_range,
        classes,
        boxes_of(sweeps, keyframe),
        scene.cameras(name) if options.cameras else None,
        origins=[torch.from_numpy(sweep.origins) for sweep in sweeps],
        counts=counts,
    )
    facts = {"sweeps": len(own), "points": sum(map(len, points))}
    return label_arrays(labels), {
        **facts, "no_return": sum(sweep.dropped for sweep in sweeps), **counts}  # fmt: skip


def boxes_of(sweeps: Sequence[Sweep], keyframe: int) -> Tensor:
    """The objects of sweeps as `occupancy_labels` takes them, [S, K, 7] float64.

    A box of the size of the keyframe's whose center is within 0.1 m and whose yaw is within 0.02 of
    it is the keyframe's: poses and annotations jitter, and things that stand also free space.
    """
    tracks = list(dict.fromkeys(track for sweep in sweeps for track in sweep.tracks))
    rows = {track: row for row, track in enumerate(tracks)}
    boxes = np.full((len(sweeps), len(tracks), 7), np.nan)
    for all_, sweep in zip(boxes, sweeps, strict=True):
        all_[[rows[track] for track in sweep.tracks]] = sweep.boxes
    off = boxes - (there := boxes[keyframe])
    x, y, z = np.moveaxis(off[..., :3], -1, 0)
    turn = np.abs(off[..., 6] - math.tau * np.floor(off[..., 6] / math.tau + 0.5))
    stands = (off[..., 3:6] == 0).all(-1) & (turn <= TURN) & (x * x + y * y + z * z <= NEAR * NEAR)
    return torch.from_numpy(np.where(stands[..., None], there, boxes))
