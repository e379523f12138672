# SPDX-License-Identifier: Apache-2.0
"""Scenes to label: nuScenes, folders of scans with boxes, and recordings."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch

from torchvox._util.errors import CloudFileError, WrongUseError, explained, short
from torchvox.data.labels import Camera
from torchvox.data.portable_math import atan2, sin_cos
from torchvox.data.readers.folder import SUFFIXES, ScanBoxes, find_scans, read_boxes
from torchvox.data.readers.nuscenes_files import CATEGORIES
from torchvox.data.readers.nuscenes_scenes import read_scenes
from torchvox.io import PointReader, cloud_stem, is_recording, open_points, open_recording
from torchvox.io.poses import inverse
from torchvox.io.readers import read_cloud
from torchvox.io.recording import TrackedBoxes
from torchvox.mapping.job import ScanRays
from torchvox.mapping.options import RayOptions
from torchvox.mapping.recorded import NO_RETURN
from torchvox.ops import transform_points

RANGE = (-40.0, -40.0, -1.0, 40.0, 40.0, 5.4)  # of Occ3D
# Numbers of Occ3D; others are 0. First nuScenes' own names, then those of lidarseg, then Argoverse.
OCC3D = ("barrier", "bicycle", "bus", "car", "construction_vehicle", "motorcycle", "pedestrian",
         "traffic_cone", "trailer", "truck")  # fmt: skip
NUMBERS = {name: number for number, name in enumerate(OCC3D, 1)}
NUMBERS |= {name: NUMBERS.get(kind, 0) for name, kind in CATEGORIES.items()}
NUMBERS |= {"flat.driveable_surface": 11, "flat.other": 12, "flat.sidewalk": 13}
NUMBERS |= {"flat.terrain": 14, "static.manmade": 15, "static.vegetation": 16, "noise": -1}
NUMBERS |= {"regular_vehicle": 4, "articulated_bus": 3, "school_bus": 3, "box_truck": 10}
NUMBERS |= {"truck_cab": 10, "large_vehicle": 10, "vehicular_trailer": 9}
NUMBERS |= {"construction_cone": 8, "construction_barrel": 8}


@dataclass(frozen=True)
class LabelOptions:
    """How scenes become labels. The text of each field is the help of its option."""

    voxel_size: Annotated[float, "Edge of a cell, in meters."] = 0.4
    point_cloud_range: Annotated[tuple[float, ...], "Box, in the frame of the keyframe."] = RANGE
    sweeps: Annotated[tuple[int, int] | None, "Sweeps before and after keyframes."] = (10, 10)
    every: Annotated[int | None, "Each K-th keyframe or scan. Default: 1, of recordings 5."] = None
    cameras: Annotated[bool, "Also write what the cameras of nuScenes see."] = False
    classes: Annotated[tuple[str, ...] | None, "A class a line. Default: Occ3D's."] = None
    boxes: Annotated[Path | None, "Folder with files of boxes of a recording's scans."] = None
    topic: Annotated[str | None, "Topic of a recording, needed if it has several of clouds."] = None
    layout: Annotated[str | None, "Columns of .bin files: kitti, nuscenes, x,y,z,_, .."] = None
    poses: Annotated[Path | None, "Poses of scans. Default: poses.txt, or the recording's."] = None
    odom: Annotated[str | None, "Topic of a recording's poses, where there are several."] = None
    extrinsic: Annotated[Path | None, "Pose of the sensor in the frame of the poses."] = None

    def number(self, name: str) -> int:
        """The label of a class; 0 where it has none."""
        if self.classes is None:
            return NUMBERS.get(name, NUMBERS.get(name.lower(), 0))
        names = [each for each in (name, CATEGORIES.get(name)) if each in self.classes]
        return self.classes.index(names[0]) + 1 if names else 0


class Sweep(NamedTuple):
    """points: [N, 3] float32, finite, in a frame with the pose [3, 4] in the world. boxes: [k, 7]
    in the world, tracks: whose they are, labels: [k] int64. classes: [N] int16, of points, else
    those of the boxes that hold them. dropped: points without a return or not finite. origins:
    [1 or N, 3] float64, where rays start in the same frame."""

    points: np.ndarray
    pose: np.ndarray
    boxes: np.ndarray = np.empty((0, 7))
    tracks: Sequence[object] = ()
    labels: Sequence[int] = ()
    classes: np.ndarray | None = None
    dropped: int = 0
    origins: np.ndarray = np.zeros((1, 3))


@dataclass
class Scene:
    """keyframes: names of outputs -> numbers of sweeps. count: of sweeps. read: gives a sweep;
    raises WrongUseError for one without a pose, CloudFileError. cameras: of a keyframe, by its
    name."""

    keyframes: dict[str, int]
    count: int
    read: Callable[[int], Sweep]
    cameras: Callable[[str], list[Camera]] = lambda _: []


@dataclass
class Input:
    """What a path holds. digest: of all that labels depend on besides options and points. scenes:
    names -> how many keyframes. scene: opens one by its name."""

    digest: str
    scenes: dict[str, int]
    scene: Callable[[str], Scene]


@functools.lru_cache(maxsize=4)
def open_input(path: Path, options: LabelOptions) -> Input:
    """The scenes of a path. Raises WrongUseError, CloudFileError."""
    if (path / "sample.json").is_file() or any(path.glob("v1.0-*/sample.json")):
        kind, able, make = "nuScenes", {"cameras"}, _nuscenes
    elif is_recording(path):
        able = {"boxes", "topic", "poses", "odom", "extrinsic"}
        kind, make = "a recording", _recording
    elif (path / "points").is_dir():
        kind, able, make = "a folder", {"layout", "poses", "extrinsic"}, _folder
    else:
        kinds = "nuScenes (v1.0-*/), a folder with points/, boxes/ and poses.txt, nor a recording"
        raise WrongUseError(
            f"{path} {f'is neither {kinds}' if path.exists() else 'does not exist'}"
        )
    wrong = {"cameras", "boxes", "topic", "layout", "poses", "odom", "extrinsic"} - able
    if chosen := [f"--{name}" for name in sorted(wrong) if getattr(options, name)]:
        raise WrongUseError(f"{path} is {kind}, which takes no {', '.join(chosen)}")
    return make(path, options)


def _digest(*parts: Path | object) -> str:
    """Of the contents of files, and of other values as text."""
    total = hashlib.sha256()
    for part in parts:
        text = part.read_bytes() if isinstance(part, Path) else repr(part).encode()
        total.update(hashlib.sha256(text).digest())
    return total.hexdigest()


def clean_sweep(sweep: Sweep) -> Sweep:
    """The sweep without points that are not finite or without a return."""
    xyz, origins = sweep.points, sweep.origins
    columns = [(xyz[:, k], origins[:, k]) for k in range(3)]  # over rows of three NumPy is slow
    far = (np.abs(x - origin) >= NO_RETURN for x, origin in columns)
    good = functools.reduce(np.logical_or, far)
    for x, _ in columns:
        good &= np.isfinite(x)
    classes = None if sweep.classes is None else sweep.classes[good]
    dropped = sweep.dropped + int((~good).sum())
    points = np.ascontiguousarray(xyz[good], np.float32)
    origins = origins[good] if len(origins) == len(xyz) else origins
    return Sweep(points, *sweep[1:5], classes, dropped, origins)


def _boxed(
    sweep: Sweep, number: int, objects: TrackedBoxes | ScanBoxes | None, options: LabelOptions
) -> Sweep:
    """The sweep with boxes, which are given in its frame; without a track they are of it alone."""
    if objects is None or not len(objects.boxes):
        return sweep
    boxes, turn = torch.from_numpy(objects.boxes[:, :7].astype(np.float64)), sweep.pose
    place = transform_points(boxes[:, :3].contiguous(), torch.from_numpy(turn)[None])
    sine, cosine = sin_cos(boxes[:, 6] * (1 / math.tau))
    x, y = (turn[i, 0] * cosine + turn[i, 1] * sine for i in (0, 1))
    world = torch.cat([place, boxes[:, 3:6], atan2(y, x)[:, None]], 1)
    tracks = [track or (number, row) for row, track in enumerate(objects.tracks)]
    if len(set(tracks)) < len(tracks):
        twice = next(track for track in tracks if tracks.count(track) > 1)
        raise CloudFileError(f"scan {number} has two boxes of track {short(twice)}")
    return sweep._replace(
        boxes=world.numpy(), tracks=tracks, labels=[options.number(name) for name in objects.names]
    )


# ---- nuScenes ------------------------------------------------------------------------------------


def _nuscenes(path: Path, options: LabelOptions) -> Input:
    folders = [path] if (path / "sample.json").is_file() else sorted(path.glob("v1.0-*/"))
    if len(folders) > 1:
        names = ", ".join(folder.name for folder in folders)
        raise WrongUseError(f"{path} has several versions: give one of the folders {names}")
    folder, every = folders[0], options.every or 1
    scenes, categories = read_scenes(folder, options.cameras)
    segments, segmented = folder.parent / "lidarseg" / folder.name, np.full(256, -1, np.int16)
    for index, name in categories.items():
        if isinstance(index, int) and 0 <= index < 256:
            segmented[index] = options.number(name)

    def scene(name: str) -> Scene:
        own = scenes[name]
        labels = np.array([options.number(kind) for kind in own.objects.names], np.int64)

        def read(i: int) -> Sweep:
            points = read_cloud(folder.parent / own.files[i], "nuscenes").points
            (there, boxes), classes = own.objects.at(int(own.times[i])), None
            if segments.is_dir() and own.samples[i]:
                path = segments / f"{own.tokens[i]}_lidarseg.bin"
                with explained(path, "file of lidarseg"):
                    classes = segmented[np.fromfile(path, np.uint8)]
                if len(classes) != len(points):
                    raise CloudFileError(f"{path} has {len(classes)} labels, not {len(points)}")
            tracks = [own.objects.tracks[k] for k in there]
            mount, objects = own.mounts[i], (boxes, tracks, labels[there].tolist())
            points = transform_points(torch.from_numpy(points), torch.from_numpy(mount)[None])
            origins = mount[None, :, 3]
            return Sweep(points.numpy(), own.poses[i], *objects, classes, origins=origins)

        keys = [i for i, token in enumerate(own.samples) if token][::every]
        names = {own.samples[i]: i for i in keys}
        return Scene(names, len(own.times), read, lambda sample: own.cameras.get(sample, []))

    counts = {name: len(list(filter(None, own.samples))[::every]) for name, own in scenes.items()}
    return Input(_digest(segments.is_dir(), *sorted(folder.glob("*.json"))), counts, scene)


# ---- folders and recordings ----------------------------------------------------------------------


def _folder(path: Path, options: LabelOptions) -> Input:
    scans = find_scans(path)
    if options.classes is None:
        raise WrongUseError(f"{path}: --classes is needed: only nuScenes and Argoverse have names")
    asked = RayOptions(options.poses or path / "poses.txt", extrinsic=options.extrinsic)
    rays = ScanRays([scan.points for scan in scans], asked)
    files = [scan.boxes for scan in scans if scan.boxes is not None]
    digest = _digest([scan.name for scan in scans], *files, *_files(asked))

    def read(i: int) -> Sweep:
        boxes, reader = scans[i].boxes, open_points(scans[i].points, options.layout)
        objects = None if boxes is None else read_boxes(boxes)
        return _boxed(_sweep(rays, i, reader), i, objects, options)

    keys = {scan.name: i for i, scan in enumerate(scans) if i % (options.every or 1) == 0}
    scene, name = Scene(keys, len(scans), read), path.resolve().name
    return Input(digest, {name: len(keys)}, lambda _: scene)


def _recording(path: Path, options: LabelOptions) -> Input:
    recording = open_recording(path, options.topic)
    scans = recording.paths()
    names = range(len(scans)) if recording.stamps is None else recording.stamps.tolist()
    keys = {f"{names[i]:06d}": i for i in range(0, len(scans), options.every or 5)}
    files = {}
    if options.boxes is not None:
        ends = [f"{middle}{end}" for middle in ("", ".boxes") for end in SUFFIXES]
        places = ((i, options.boxes / f"{cloud_stem(s)}{end}") for i, s in enumerate(scans)
                  for end in ends)  # fmt: skip
        files = {i: place for i, place in places if place.is_file()}
        if not files:
            what = f"no file of boxes, such as {cloud_stem(scans[0])}.csv"
            raise WrongUseError(f"--boxes {options.boxes} has {what}")
    asked = RayOptions(options.poses, extrinsic=options.extrinsic, odom=options.odom)
    parts = [path] if path.is_file() else filter(Path.is_file, path.rglob("*"))
    size = sum(part.stat().st_size for part in parts)
    known = [size, recording.start, len(scans), list(files), *files.values(), *_files(asked)]

    def scene(_: str) -> Scene:
        rays = ScanRays(list(scans), asked)

        def read(i: int) -> Sweep:
            objects = read_boxes(files[i]) if i in files else recording.boxes(i)
            return _boxed(_sweep(rays, i, open_points(scans[i])), i, objects, options)

        return Scene(keys, len(scans), read)

    name = path.resolve().name if path.is_dir() else path.stem
    return Input(_digest(*known), {name: len(keys)}, scene)


def _files(options: RayOptions) -> list[Path]:
    return [path for path in options.pose_files if path is not None and path.is_file()]


def _sweep(rays: ScanRays, i: int, reader: PointReader) -> Sweep:
    """Scan i, whose points, deskewed, are in its frame at the stamp."""
    batch, pose = rays.batch(i, reader), rays.pose(i, reader)
    sweep = Sweep(batch.points, pose, dropped=sum(batch.dropped.values()))
    if batch.origins is None:
        return sweep
    both, back = (batch.points, batch.origins), torch.from_numpy(inverse(pose))[None]
    points, origins = (transform_points(torch.from_numpy(own), back).numpy() for own in both)
    return sweep._replace(points=points, origins=origins)
