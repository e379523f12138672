# SPDX-License-Identifier: Apache-2.0
"""What an occupancy map knows, and its file: an .npz with an array for each layer."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchvox._errors import explained, short
from torchvox.io.binary import check_claim
from torchvox.io.table import PointTable
from torchvox.io.writers import create_points, write_npz

VERSION = 1
UNOBSERVED = -32768  # of logodds
LAYERS = {  # type, shape of a region's
    "logodds": ("<i2", (512,)),
    "hit_miss": ("<i4", (512, 2)),
    "touch": ("<i4", (512,)),
    "traversal": ("<i8", (512,)),
    "sample_row": ("<i4", ()),
    "sample_count": ("<i4", (512,)),  # from here on of regions that sample_row gives one
    "sample_mean": ("<f4", (512, 3)),
    "sample_cov": ("<f4", (512, 6)),
    "intensity": ("<f4", (512, 2)),
    "passes": ("<i4", (512, 2)),
}
SAMPLES = ("sample_count", "sample_mean", "sample_cov", "intensity", "passes")
NEEDS = {"sample_row": SAMPLES[:2], "sample_count": ("sample_row",), "sample_mean": ("sample_row",)}
NEEDS |= {"sample_cov": ("sample_row",), "intensity": ("sample_row",), "passes": ("sample_cov",)}
RULES = ("every_ray", "scan")
FACTS = ("voxel_size", "origin", "sensor", "rule", "ndt", "preset", "epoch", "version")


@dataclass
class MapContents:
    """What an occupancy map knows, whatever its slots, capacity and history.

    keys: [n] int64, ascending, of regions of 8 x 8 x 8 voxels. layers: "logodds" [n, 512] int16
    and maybe "hit_miss" [n, 512, 2] and "touch" [n, 512] int32 and "traversal" [n, 512] int64; with
    samples "sample_row" [n] int32, which numbers the regions that have some and is -1 elsewhere,
    "sample_count" [s, 512] int32, "sample_mean" [s, 512, 3] and maybe "sample_cov" [s, 512, 6] and
    "intensity" [s, 512, 2] float32 and "passes" [s, 512, 2] int32; as docs/occupancy.md has them.
    voxel_size, origin: meters; a corner of voxel (0, 0, 0).
    sensor: probabilities (hit, miss, lowest, highest), as of `torchvox.mapping.SensorModel`, and
        rule, preset: the name that they have together, or None.
    ndt: of maps with "sample_cov", (noise in meters, adaptation, samples, reset probability, reset
        samples), as of `torchvox.mapping.NdtModel`; None without.
    epoch: seconds from which times in layers count. version: of the form of the file.
    Raises ValueError for what no map can be.
    """

    keys: np.ndarray
    layers: dict[str, np.ndarray]
    voxel_size: float
    origin: list[float]
    sensor: list[float]
    rule: str
    preset: str | None = None
    epoch: float = 0.0
    ndt: list[float] | None = None
    version: int = VERSION

    def __post_init__(self) -> None:
        keys, rows = self.keys, len(self.keys)
        if self.version != VERSION:
            raise ValueError(f"version must be {VERSION}, got {self.version!r}")
        ascending = keys.shape == (rows,) and keys.dtype == np.int64 and (np.diff(keys) > 0).all()
        if not ascending or (keys[:1] < 0).any():
            raise ValueError("keys must be [n] int64, from 0 on and ascending")
        if not {"logodds"} <= self.layers.keys() <= LAYERS.keys():
            raise ValueError(f"layers must be among {list(LAYERS)}, got {list(self.layers)}")
        sampled = len(self.layers.get("sample_count", ()))
        for name, layer in self.layers.items():
            if missing := set(NEEDS.get(name, ())) - self.layers.keys():
                raise ValueError(f"layers with {name} must have {sorted(missing)}")
            type_, shape = LAYERS[name]
            shape = (sampled if name in SAMPLES else rows, *shape)
            if layer.dtype != type_ or layer.shape != shape:
                raise ValueError(
                    f"{name} must be {list(shape)} {np.dtype(type_)}, got {list(layer.shape)} "
                    f"{layer.dtype}"
                )
        of = self.layers.get("sample_row", np.zeros(0, np.int32))
        if not np.array_equal(of[of >= 0], np.arange(sampled)) or (of < -1).any():
            raise ValueError("sample_row must number the regions that have samples, -1 elsewhere")
        counts = self.layers.get("sample_count", np.ones((0, 512), np.int32))
        if (counts < 0).any() or not counts.any(axis=1).all():
            raise ValueError("sample_count must be 0 or more, and above in every row")
        for name in ("sample_mean", "sample_cov", "intensity"):
            if name in self.layers and not np.isfinite(self.layers[name]).all():
                raise ValueError(f"{name} must be finite")
        if not _numbers([self.voxel_size], 1) or self.voxel_size <= 0:
            raise ValueError(f"voxel_size must be above 0, got {self.voxel_size!r}")
        if not _numbers(self.origin, 3) or not _numbers([self.epoch], 1):
            raise ValueError(
                f"origin must be three numbers and epoch one, got {self.origin!r}, {self.epoch!r}"
            )
        if not _numbers(self.sensor, 4) or not all(0 < share < 1 for share in self.sensor):
            raise ValueError(f"sensor must be four probabilities, got {self.sensor!r}")
        if self.rule not in RULES or not isinstance(self.preset, str | None):
            raise ValueError(
                f"rule must be one of {RULES} and preset a name, got {self.rule!r}, {self.preset!r}"
            )
        good = self.ndt is None or (_numbers(self.ndt, 5) and is_ndt(self.ndt, self.rule))
        if not good or (self.ndt is None) == ("sample_cov" in self.layers):
            raise ValueError(f"ndt must be {NDT_RULE}, with sample_cov, got {self.ndt!r}")


def write_map(path: str | Path, contents: MapContents) -> None:
    """Write a map as .npz, atomically; the same contents give the same bytes.

    Arrays: `about`, the bytes of a JSON object with what is no array; `keys`; each layer.
    """
    facts = {name: getattr(contents, name) for name in FACTS}
    facts["origin"] = [v + 0.0 for v in contents.origin]  # -0.0 is the same place
    about = np.frombuffer(json.dumps(facts, sort_keys=True).encode(), np.uint8)
    layers = {name: contents.layers[name] for name in LAYERS if name in contents.layers}
    write_npz(path, about=about, keys=contents.keys, **layers)


def read_map(path: str | Path) -> MapContents:
    """Read a map of `write_map`. Raises CloudFileError for every other file."""
    path = Path(path)
    with explained(path, "map file"), zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        facts = json.loads(_array(archive, "about", "|u1", ()).tobytes())
        if isinstance(facts, dict) and facts.get("version") != VERSION:
            raise ValueError(f"its version must be {VERSION}, got {facts.get('version')!r}")
        if not isinstance(facts, dict) or sorted(facts) != sorted(FACTS):
            raise ValueError(f"about must tell {', '.join(FACTS)}, got {facts!r}")
        keys = _array(archive, "keys", "<i8", ())
        layers = {k: _array(archive, k, *LAYERS[k]) for k in LAYERS if k in names}
        contents = MapContents(keys, layers, **facts)
        if more := set(names) - {"about", "keys", *LAYERS}:
            raise ValueError(f"a map has no array {short(sorted(more)[0])}")
        return contents


def write_voxels(
    path: str | Path,
    points: np.ndarray,
    columns: dict[str, np.ndarray],
    voxel_size: float,
    origin: list[float],
    steps: int = 1,
) -> None:
    """Write places in voxels as points, in a format of `create_points`.

    points: [n, 3] float64, in meters. columns: [n], such as logodds. steps: places in a voxel are
    told in so many; 1 for centers. So are the coordinates of a .las file, from the center of voxel
    (0, 0, 0) on. Raises ValueError for points more than 2^31 steps away.
    """
    offset, scale = np.array(origin) + voxel_size / 2, voxel_size / steps
    places = np.rint((points - offset) / scale)
    if len(places) and np.abs(places).max() >= 2**31:
        raise ValueError(f"{path}: voxels must be within 2^31 / {steps} voxels of the origin")
    table = PointTable(places.astype(np.int32), columns, np.full(3, scale), offset)
    with create_points(path, table) as writer:
        writer.append(table)


def _array(archive: zipfile.ZipFile, name: str, type_: str, shape: tuple[int, ...]) -> np.ndarray:
    """An array [n, *shape] of an archive, made only if its header fits its bytes."""
    info = archive.getinfo(f"{name}.npy")
    check_claim(info, name)
    with archive.open(info) as file:
        np.lib.format.read_magic(file)
        found, columns_first, dtype = np.lib.format.read_array_header_1_0(file)
        size = file.tell() + math.prod(found) * dtype.itemsize
    good = dtype == type_ and len(found) > 0 and found[1:] == shape and not columns_first
    if not good or size != info.file_size:
        wanted = ", ".join(map(str, ("n", *shape)))
        got = f"{list(found)} {dtype} in {info.file_size} bytes"
        raise ValueError(f"{name} must be [{wanted}] {np.dtype(type_)}, got {got}")
    with archive.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


NDT_RULE = (
    "noise > 0, adaptation from 0 to 1, samples >= 1, reset between 0 and 1, reset_samples >= 1 "
    "with the rule every_ray"
)


def is_ndt(model: Sequence[float], rule: str) -> bool:
    """Whether a map can have this model of distributions."""
    noise, adaptation, samples, reset, reset_samples = model
    good = 0 <= adaptation <= 1 <= min(samples, reset_samples) and 0 < reset < 1
    return all(map(math.isfinite, model)) and noise > 0 and good and rule == "every_ray"


def _numbers(values: Any, count: int) -> bool:
    """Whether this is a list of so many finite numbers."""
    if not isinstance(values, list) or len(values) != count:
        return False
    return all(type(v) in (int, float) and math.isfinite(v) for v in values)
