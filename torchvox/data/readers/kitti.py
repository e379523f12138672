# SPDX-License-Identifier: Apache-2.0
"""KITTI's objects as a data set of detection, and generated streets in its folders:

ROOT/training/velodyne/000000.bin, calib/000000.txt, label_2/000000.txt, image_2/000000.png
ROOT/ImageSets/train.txt    frames of a split, one per line; without it the split of most
                            publications, 3,712 frames for training and 3,769 for validation
"""

from __future__ import annotations

import base64
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchvox._util.errors import WrongUseError, expect
from torchvox.data.readers import kitti_files as files
from torchvox.data.readers.folder import Scan, ScanBoxes, ScanFolder, detections, listed_scans
from torchvox.data.worlds.street.sensors import CENTER_U, CENTER_V, FOCAL
from torchvox.data.worlds.street.world import World
from torchvox.evaluation.kitti import evaluate
from torchvox.io.writers import atomic_path, write_text

CLASSES = ("Car", "Pedestrian", "Cyclist")
TYPES = (*CLASSES, "Van", "Person_sitting", "Truck")  # of KITTI's measure
SIMILAR = {"Van": "Car", "Person_sitting": "Pedestrian"}
FOLDERS = ("velodyne", "calib", "label_2")
# A bit for each frame, the first frame in the highest bit: 1 for training, 0 for validation.
TRAINING = """
kX7iJqpeU8if8b+Z3Ufx1XSm7ja+GPjEQqbjXljC3Af0kTyni7miTiYycoxCGZMIlgCGOOXh821ArvMgOaBOUWq2W3iWzDQn+vDv
N8DHFcbSXofp2sflRVfxmi0zlFe4Ic39bQCHbt75JhXs+4Czua9qY01HxHM1pIlqFv7cQMmP6s3I3oDh5TwpRoVqoEIhDc7zBOIM
7PkZFUKBoKKAD7SkfgfZ/4EtDSbr9DFC6f7Ga25oiU/a2vk6Prnmk5B6HYtrUrksgFNJ2iuqj2rdVQ3vR7mpCBics/GYbdNlUM/L
FnmUNu91YEjjaTBTlzv+YCEwn158t4Qa4hdBqaPBwRUd9oSYqfDmLSZOBf48KRusp7ccvkczHulMld9yRMDGRc56lRMHstiXVA44
8+zEMx5d3JD/kO1WpBr2OQXC13HDFLId3AXy65SlMes624s50G3IKxAetQMpIvL+y5MxhNfEtjB7Ws/gK4BwttLzXL0mqAXtDTaK
IM/tKA3MUFmOl15daMlV9Kg5Fbaa1KDtWsbNKRI2XsSvm2cvdlEVJMPPmswp8Frvn4KAB6mRT+4bewjdBgY8Xuo2Du5tGM9p9Hf/
Mi1QaA/qssni8McH/KZk7X4PxKfHronnnVIl9cXLvvVnWRwpxYmrx2XlnpX1k5axX3UGD3vHFRsu6jdaiqZTILARBxTxAQdg/6Dn
2JjwV3qNDGb86RMIwopcpJ4UsT9GGb42MYT8wBmIZtVVuU8IiXn2sjwF8eKz3BlZovTvBtVZFXYGl4M+SCCHkIER1IQXNsUbPOR6
dMg5uG7tB8Bmj7piXCvZNCTYQ5RN/WqRhJdYq1dRO5AcJQgd2PqxPxJ6QiuhhFRhMNi9+YnJkxWudeaGVrcPYiSLGBip/mkmi5j/
8/r8yNuiE8OOEpS837zP62VVHmB5wzFB5w/bDryMT5NFczNqvsZDG/IuYg7bS/+8DZco58HL3i/0L3u0irHiiBCI6s9jbYuW2RfS
ixF+QJSAVZDEyeh6FM3BiNtvVleqOz2Nxdda7eM9dJ/eiQVcf7GfQ5fhxDKDdQejlofojjYPghHh/TEJhWseh0IzgLXypSsdGNUj
x+HeExGujkdJ0NnwWvgOaaGbLgQSQ5CaUWRiTfMzppBU1RaSroLFm9tfHDWGV2uR6VppRGzAGc4yaqJUAi7W+Wpbwk8b2YE1FO/c
ElSrqS1U8lGOCGYF5HjsyI8sKD53rDA64YqCYF2CWhtcQakA
"""


def standard_split(split: str) -> list[str] | None:
    """Names of the frames of train or val."""
    if split not in ("train", "val"):
        return None
    bits = np.unpackbits(np.frombuffer(base64.b64decode(TRAINING), np.uint8))[:7481]
    return [f"{frame:06}" for frame in np.flatnonzero(bits == (split == "train"))]


def find_frames(root: str | Path, split: str | None = None) -> list[Scan]:
    """The frames of a split, or all that have labels. Raises WrongUseError."""
    training, listed = Path(root) / "training", Path(root) / "ImageSets" / f"{split}.txt"
    for name in FOLDERS:
        if not (training / name).is_dir():
            raise WrongUseError(f"{training / name} does not exist, a folder of KITTI's objects")
    labels = sorted((training / "label_2").glob("*.txt"))
    scans = [Scan(p.stem, training / "velodyne" / f"{p.stem}.bin", p) for p in labels]
    return scans if split is None else listed_scans(scans, listed, standard_split(split))


class Kitti(ScanFolder):
    """KITTI's objects as a data set of detection, in the lidar's frame.

    classes: of Car, Pedestrian, Cyclist, Van, Person_sitting, Truck, in the order of the labels.
    ignored: how Van counts for Car and Person_sitting for Pedestrian: "ignore", as boxes of weight
        0, or "background", as no boxes. DontCare and other types are no boxes.
    points, boxes: capacities N and G of a sample, as of ScanFolder.
    point_cloud_range: x, y, z from and to in meters, bounds included; points outside are dropped,
        and boxes whose center is outside. None: everywhere.
    crop: keep only points that fall into the image, which is where objects are labelled.

    A batch is that of ScanFolder, with x, y, z, intensity and boxes [B, G, 7]; boxes without a size
    have weight 0. Raises WrongUseError and CloudFileError that name the file and the line.
    """

    width, find = 7, staticmethod(find_frames)

    def __init__(
        self,
        root: str | Path,
        split: str | None = "train",
        *,
        classes: Sequence[str] = CLASSES,
        ignored: str = "ignore",
        points: int = 32768,
        boxes: int = 64,
        point_cloud_range: Sequence[float] | None = None,
        crop: bool = True,
    ) -> None:
        rule = f"Kitti: classes must be of {', '.join(TYPES)}, ignored ignore or background"
        good = len(classes) > 0 and set(classes) <= set(TYPES)
        expect(good and ignored in ("ignore", "background"), rule, (tuple(classes), ignored))
        similar = {k: v for k, v in SIMILAR.items() if v in classes and k not in classes}
        super().__init__(
            root,
            split,
            classes=classes,
            similar=similar if ignored == "ignore" else {},
            others="drop",
            points=points,
            boxes=boxes,
            layout="kitti",
        )
        self.training, self.crop = Path(root) / "training", crop
        if not (self.training / "image_2").is_dir():
            warnings.warn(f"{root} has no images: {files.IMAGE} pixels are assumed", stacklevel=2)
        ends = [-np.inf] * 3 + [np.inf] * 3 if point_cloud_range is None else point_cloud_range
        self.low, self.high = np.array(ends, np.float64).reshape(2, 3)
        rule = "Kitti: point_cloud_range must be x, y, z from and, above these, to"
        expect(bool((self.low < self.high).all()), rule, point_cloud_range)

    def camera(self, index: int) -> files.Camera:
        return files.read_camera(self.training, self.scans[index].name)

    def objects(self, index: int) -> files.Objects:
        """The labels of a frame as its file has them. Raises CloudFileError."""
        return files.read_objects(self.training / "label_2" / f"{self.scans[index].name}.txt")

    def read_points(self, index: int) -> np.ndarray:
        points = super().read_points(index)
        points = points[np.isfinite(points).all(1) & self._in_range(points[:, :3])]
        return points[self.camera(index).sees(points[:, :3])] if self.crop else points

    def read_labels(self, index: int) -> ScanBoxes:
        objects = self.objects(index)
        boxes = files.boxes_of(objects, self.camera(index)).astype(np.float32)
        kept = (objects["name"] != "DontCare") & self._in_range(boxes[:, :3])
        flat = np.any(boxes[:, 3:6] <= 0, axis=1)
        return ScanBoxes(boxes[kept], objects["name"][kept].tolist(), flat[kept])

    def measure(self, found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """KITTI's measure of detections, see torchvox.evaluation.kitti.evaluate.

        found: for each frame of the split, in its order, boxes [n, 7] in the lidar's frame (more
        columns are not used), their scores [n] and labels [n]. Raises ValueError.
        """
        results = self._results(found)
        return evaluate([self.objects(i) for i in range(len(self))], results, self.classes)

    def write(self, found: Sequence[Mapping[str, Any]], folder: str | Path) -> None:
        """Write detections, as of `measure`, as KITTI's result files, one per frame."""
        for scan, objects in zip(self.scans, self._results(found), strict=True):
            write_text(Path(folder) / f"{scan.name}.txt", files.objects_text(objects, 4))

    def _results(self, found: Sequence[Mapping[str, Any]]) -> list[files.Objects]:
        results: list[files.Objects] = []
        names = np.array(self.classes)
        for boxes, scores, labels in detections(found, len(self), len(names)):
            camera = self.camera(len(results))
            objects = files.objects_of(boxes[:, :7], names[labels], camera)
            results.append({**objects, "score": scores})
        return results

    def _in_range(self, xyz: np.ndarray) -> np.ndarray:
        return np.all((xyz >= self.low) & (xyz <= self.high), axis=1)


IMAGE = f"{FOCAL} 0 {CENTER_U} 0 0 {FOCAL} {CENTER_V} 0 0 0 1 0"
# All lines of such a file in the usual order, which some programs rely on.
CALIBRATION = "".join(f"P{i}: {IMAGE}\n" for i in range(4)) + (
    "R0_rect: 1 0 0 0 1 0 0 0 1\nTr_velo_to_cam: 0 -1 0 0 0 0 -1 0 1 0 0 0\n"
    "Tr_imu_to_velo: 1 0 0 0 0 1 0 0 0 0 1 0\n"
)


def export_kitti(folder: str | Path, train: int = 80, val: int = 20, seed: int = 0) -> None:
    """Write scenes of both splits of World, seen as by KITTI's camera at the lidar's place, as a
    folder that Kitti reads, without images, whole or not at all. Raises WrongUseError if the folder
    holds files."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WrongUseError(f"{folder} must be a new or an empty folder")
    with atomic_path(folder) as root:
        for name in (*(f"training/{part}" for part in FOLDERS), "ImageSets"):
            (root / name).mkdir(parents=True)
        for split, frames in (("train", range(train)), ("val", range(train, train + val))):
            world = World(split, view="camera", min_points=0, size=len(frames), seed=seed)
            for i, frame in enumerate(frames):
                scene = {key: value.numpy() for key, value in world[i].items()}
                _write(root / "training", f"{frame:06}", scene)
            lines = "".join(f"{frame:06}\n" for frame in frames)
            (root / "ImageSets" / f"{split}.txt").write_text(lines)


def _write(training: Path, name: str, scene: dict[str, np.ndarray]) -> None:
    points = scene["points"][: scene["num_points"]].astype("<f4")
    points.tofile(training / "velodyne" / f"{name}.bin")
    (training / "calib" / f"{name}.txt").write_text(CALIBRATION)
    boxes = {key: value[: scene["num_boxes"]] for key, value in scene.items() if value.ndim}
    names = np.where(boxes["weight"] > 0, np.array(CLASSES)[boxes["labels"]], "Van")
    objects = files.objects_of(boxes["boxes"], names, files.read_camera(training, name))
    objects |= {"truncated": boxes["truncation"], "occluded": boxes["occlusion"]}
    (training / "label_2" / f"{name}.txt").write_text(files.objects_text(objects, decimals=6))
