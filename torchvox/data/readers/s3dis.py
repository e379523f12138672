# SPDX-License-Identifier: Apache-2.0
"""S3DIS in three forms: the raw `Area_x/room/Annotations/*.txt`, one `Area_x_room.npy` [N, 7] per
room (x, y, z, r, g, b, label), or `Area_x/room/{coord,color,segment}.npy`.

Each room is packed once into a file that later runs map into memory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from torchvox._util.errors import CloudFileError
from torchvox.data.counter_random import Draws
from torchvox.data.generated import Device, Generated
from torchvox.data.readers import stored
from torchvox.data.readers.stored import TRIES, Mapped, packed, read_table
from torchvox.data.worlds.furniture import CLASSES
from torchvox.io.binary import load_npy

HEAD, POINT = 12, 16  # bytes of a packed room's size in meters, and of each of its points
FEWEST = 1024  # points that a block should have
Room = tuple[np.ndarray, np.ndarray, np.ndarray]


class S3DIS(Generated):
    """Blocks of S3DIS as samples {points [N, 9], labels [N], id}, features as `rooms.FEATURES`.

    root: any of the three forms. split: val is the area `val_area`, train the others. size: blocks;
    block i of a split is a function of (seed, i): a column of `block` meters around a random point
    of a room, rooms by their number of points, N random points of it, with repeats when it has
    fewer. cache: a folder for the packed rooms, `<root>/torchvox_index` by default.
    """

    classes = CLASSES

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        *,
        points: int = 4096,
        block: float = 1.0,
        val_area: int = 5,
        size: int = 1024,
        seed: int = 0,
        cache: str | Path | None = None,
    ) -> None:
        if split not in ("train", "val"):
            raise ValueError(f"S3DIS: split must be train or val, got {split!r}")
        super().__init__(size)
        self.split, self.points, self.block, self.seed = split, points, block, seed
        folder = Path(cache) if cache else Path(root) / "torchvox_index"
        areas = _find(Path(root))
        self.rooms = [
            _pack_room(path, folder, "_".join(path.relative_to(root).parts).removesuffix(".npy"))
            for path, area in areas
            if (area == val_area) == (split == "val")
        ]
        if not self.rooms:
            raise CloudFileError(f"{root} has no room for {split} with val_area {val_area}")
        self.ends = np.cumsum([_count(room) for room in self.rooms])

    def generate(self, indices: Sequence[int], device: Device) -> dict[str, Tensor]:
        batch = default_collate([self._block(int(i)) for i in indices])
        return {name: tensor.to(device) for name, tensor in batch.items()}

    def _block(self, number: int) -> dict[str, np.ndarray | int]:
        draws = Draws(self.seed, self.split, torch.tensor([number]))
        middles = (draws.uniform("middle", TRIES)[0].numpy() * self.ends[-1]).astype(np.int64)
        room = self.rooms[int(np.searchsorted(self.ends, middles[0], side="right"))]
        ends = HEAD + _count(room) * np.array([12, 15])
        xyz = room[HEAD : ends[0]].view("<f4").reshape(-1, 3)
        rgb, label = room[ends[0] : ends[1]].reshape(-1, 3), room[ends[1] :]
        best, middle = stored.find_block(xyz, middles % len(xyz), self.block, FEWEST)
        chosen, at = stored.draw_points(draws, best, self.points), xyz[middle, :2]
        local = xyz[chosen] - np.array([*at, 0.0], np.float32)
        size = np.maximum(room[:HEAD].view("<f4"), 1e-6)
        color = rgb[chosen].astype(np.float32) / 255
        features = np.concatenate([local, color, xyz[chosen] / size], 1).astype(np.float32)
        return {"points": features, "labels": label[chosen].astype(np.int64), "id": number}


def _pack_room(source: Path, folder: Path, name: str) -> Mapped:
    """The bytes of a room, moved so that its lowest corner is the origin: its size [3] and the
    points' xyz [N, 3], both float32, rgb [N, 3] and label [N]."""

    def write(file: BinaryIO) -> None:
        xyz, rgb, label = _read_room(source)
        xyz = (xyz - xyz.min(0)).astype("<f4")
        parts = xyz.max(0), xyz, rgb.astype(np.uint8), label.astype(np.uint8)
        np.save(file, np.concatenate([part.ravel().view(np.uint8) for part in parts]))

    def fits(room: np.ndarray) -> bool:
        rows, rest = divmod(room.size - HEAD, POINT)
        return room.dtype == np.uint8 and room.ndim == 1 and rows > 0 and rest == 0

    return packed(folder / f"packed_{name}.npy", fits, write)


def _count(room: Mapped) -> int:
    return len(room) // POINT


def _find(root: Path) -> list[tuple[Path, int]]:
    """Rooms (a folder or a file) with their areas, sorted by name."""
    places = []
    for path in sorted(root.glob("Area_*")):
        if area := re.match(r"Area_(\d+)", path.name):
            rooms = sorted(path.iterdir()) if path.is_dir() else [path]
            places += [(room, int(area[1])) for room in rooms if _is_room(room, path)]
    if not places:
        forms = "Area_x/room/Annotations, Area_x/room/coord.npy nor Area_x_room.npy"
        raise CloudFileError(f"{root} is not an S3DIS folder: it has neither {forms}")
    return places


def _is_room(room: Path, area: Path) -> bool:
    if room == area:
        return room.suffix == ".npy"
    return (room / "Annotations").is_dir() or (room / "coord.npy").is_file()


def _read_room(path: Path) -> Room:
    if path.is_file():
        table = load_npy(path)
        if table.ndim != 2 or table.shape[1] != 7:
            raise CloudFileError(f"{path}: rooms are [N, 7], got {list(table.shape)}")
        room: tuple[np.ndarray, ...] = table[:, :3], table[:, 3:6], table[:, 6]
    elif (path / "coord.npy").is_file():
        room = tuple(load_npy(path / f"{name}.npy") for name in ("coord", "color", "segment"))
    else:
        room = _annotations(path / "Annotations")
    xyz, rgb, label = room
    label = label.reshape(-1)
    if any(values.dtype.kind not in "fiu" for values in room):
        raise CloudFileError(f"{path} must hold numbers")
    if len(label) == 0 or not xyz.shape == rgb.shape == (len(label), 3):
        raise CloudFileError(f"{path} is empty, or its columns differ in length")
    for name, values, last in (("labels", label, len(CLASSES) - 1), ("colors", rgb, 255)):
        if not ((values >= 0) & (values <= last)).all():  # neither is NaN
            raise CloudFileError(f"{path}: {name} must lie in 0..{last}")
    if not np.isfinite(xyz).all():
        raise CloudFileError(f"{path}: coordinates must be finite")
    return xyz, rgb, label


def _annotations(folder: Path) -> Room:
    """The objects of a raw room; a class that S3DIS does not list, stairs, counts as clutter."""
    tables, labels = [], []
    for path in sorted(folder.glob("*.txt")):
        kind = path.stem.split("_")[0]
        tables.append(read_table(path, 6))
        label = CLASSES.index(kind if kind in CLASSES else "clutter")
        labels.append(np.full(len(tables[-1]), label))
    if not tables:
        raise CloudFileError(f"{folder} has no .txt file")
    whole = np.concatenate(tables)
    return whole[:, :3], whole[:, 3:], np.concatenate(labels)
