# SPDX-License-Identifier: Apache-2.0
"""What an occupancy map knows, and its file: an .npz with an array for each layer."""

from __future__ import annotations

import json
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from torchvox._util.errors import expect, explained, short
from torchvox.io.binary import check_claim
from torchvox.io.table import PointTable
from torchvox.io.writers import create_points, write_npz
from torchvox.mapping.regions import INDEX_LAYERS, SAMPLE_LAYERS, MapRegions
from torchvox.mapping.sensor import NDT_RULE, NdtModel
from torchvox.ops.occupancy import occupancy_layout

VERSION = 1
UNOBSERVED = -32768  # of logodds
LAYERS = {  # dtype, shape of a row
    layer.name: (torch.empty(0, dtype=layer.dtype).numpy().dtype, layer.shape[1:])
    for layer in occupancy_layout(0)[4:]
}
NEEDS = {name: set(INDEX_LAYERS) for name in (*INDEX_LAYERS, *SAMPLE_LAYERS)}  # layers of layers
NEEDS |= {"sample_row": {"sample_count", "sample_mean"}, "passes": {"sample_cov"}}
RULES = ("every_ray", "scan")
FACTS = ("voxel_size", "origin", "sensor", "rule", "ndt", "preset", "epoch", "version")


@dataclass
class MapContents:
    """What an occupancy map knows, whatever its slots, capacity and history.

    keys: [n] int64, ascending, of regions of 8 x 8 x 8 voxels. layers: "logodds" [n, 512] int16
    and maybe "hit_miss" [n, 512, 2] and "touch" [n, 512] int32 and "traversal" [n, 512] int64; with
    samples "sample_row" [n] int32, which numbers the regions that have some and is -1 elsewhere,
    "sample_count" [s, 512] int32, "sample_mean" [s, 512, 3] and maybe "sample_cov" [s, 512, 6] and
    "intensity" [s, 512, 2] float32 and "passes" [s, 512, 2] int32; docs/occupancy.md defines them.
    voxel_size, origin: meters; a corner of voxel (0, 0, 0).
    sensor: probabilities (hit, miss, lowest, highest), as of `torchvox.mapping.SensorModel`, and
        rule, preset: the name that they have together, or None.
    ndt: of maps with "sample_cov", the numbers of `torchvox.mapping.NdtModel`; None without.
    epoch: seconds from which times in layers count. version: of the file format.
    Raises ValueError for contents that a map cannot have.
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
        expect(self.version == VERSION, f"version must be {VERSION}", self.version)
        size = self.voxel_size
        expect(_numbers([size], 1) and size > 0, "voxel_size must be above 0", size)
        good = _numbers(self.origin, 3) and _numbers([self.epoch], 1)
        expect(good, "origin must be three numbers and epoch one", (self.origin, self.epoch))
        good = _numbers(self.sensor, 4) and all(0 < share < 1 for share in self.sensor)
        expect(good, "sensor must be four probabilities", self.sensor)
        good = self.rule in RULES and isinstance(self.preset, str | None)
        rule = f"rule must be one of {RULES} and preset a name"
        expect(good, rule, (self.rule, self.preset))
        self._check_layers()
        valid = _numbers(self.ndt, 5) and NdtModel._make(self.ndt or ()).is_valid(self.rule)
        good = valid if "sample_cov" in self.layers else self.ndt is None
        expect(good, f"ndt must be {NDT_RULE}, with sample_cov", self.ndt)

    def _check_layers(self) -> None:
        keys, layers, none = self.keys, self.layers, np.zeros((0, 512), np.int32)
        good = keys.ndim == 1 and keys.dtype == np.int64
        good = good and bool((np.diff(keys, prepend=-1) > 0).all())
        expect(good, "keys must be [n] int64, from 0 on and ascending", short(keys))
        good = {"logodds"} <= layers.keys() <= LAYERS.keys()
        expect(good, f"layers must be among {list(LAYERS)}", list(layers))
        rows, samples = len(keys), layers.get("sample_count", none)
        for name, layer in layers.items():
            if missing := NEEDS.get(name, set()) - layers.keys():
                raise ValueError(f"layers with {name} must have {sorted(missing)}")
            dtype, shape = LAYERS[name]
            shape = (len(samples) if name in SAMPLE_LAYERS else rows, *shape)
            if layer.dtype != dtype or layer.shape != shape:
                got = f"{list(layer.shape)} {layer.dtype}"
                raise ValueError(f"{name} must be {list(shape)} {dtype}, got {got}")
            if name in ("sample_mean", "sample_cov", "intensity") and not np.isfinite(layer).all():
                raise ValueError(f"{name} must be finite")
        row = layers.get("sample_row", none[:, 0])
        if not np.array_equal(row[row >= 0], np.arange(len(samples))) or (row < -1).any():
            raise ValueError("sample_row must number the regions that have samples, -1 elsewhere")
        if (samples < 0).any() or not samples.any(axis=1).all():
            raise ValueError("sample_count must be 0 or more, and above in every row")

    def voxels(self, regions: np.ndarray, cells: np.ndarray) -> np.ndarray:
        """Indices [n, 3] int64, x, y, z, of cells of regions: places in a row of logodds."""
        steps, bits = 21 * np.arange(3), 3 * np.arange(3)
        corners = (self.keys[:, None] >> steps & (1 << 21) - 1) - (1 << 20)
        return corners[regions] * 8 + (cells[:, None] >> bits & 7)

    def regions(self, device: torch.device) -> MapRegions:
        """What `OccupancyMap.insert` takes; stamps are 0."""
        keys = torch.from_numpy(self.keys).to(device)
        layers = {name: torch.from_numpy(layer).to(device) for name, layer in self.layers.items()}
        for tensor in occupancy_layout(0)[4:]:
            layers.setdefault(tensor.name, keys.new_zeros(tensor.shape, dtype=tensor.dtype))
        stamps, count = keys.new_zeros(len(keys), dtype=torch.int32), keys.new_tensor([len(keys)])
        return MapRegions(keys=keys, region_stamp=stamps, count=count, **layers)


def write_map(path: str | Path, contents: MapContents) -> None:
    """Write a map as .npz, atomically; the same contents give the same bytes.

    Arrays: `about`, the bytes of a JSON object with all that is not an array; `keys`; each layer.
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
        facts = json.loads(_array(archive, "about", np.dtype("u1"), ()).tobytes())
        if isinstance(facts, dict) and facts.get("version") != VERSION:
            raise ValueError(f"its version must be {VERSION}, got {facts.get('version')!r}")
        if not isinstance(facts, dict) or sorted(facts) != sorted(FACTS):
            raise ValueError(f"about must have {', '.join(FACTS)}, got {facts!r}")
        keys = _array(archive, "keys", np.dtype("i8"), ())
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

    points: [n, 3] float64, in meters. columns: [n], such as logodds. steps: resolution of places in
    a voxel; 1 for centers. It is that of the coordinates of a .las file, which count from the
    center of voxel (0, 0, 0). Raises ValueError for points more than 2^31 steps away.
    """
    offset, scale = np.array(origin) + voxel_size / 2, voxel_size / steps
    places = np.rint((points - offset) / scale)
    if len(places) and np.abs(places).max() >= 2**31:
        raise ValueError(f"{path}: voxels must be within 2^31 / {steps} voxels of the origin")
    table = PointTable(places.astype(np.int32), columns, np.full(3, scale), offset)
    with create_points(path, table) as writer:
        writer.append(table)


def _array(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype, shape: tuple[int, ...]
) -> np.ndarray:
    """An array [n, *shape] of an archive, allocated only if its header fits its bytes."""
    info = archive.getinfo(f"{name}.npy")
    check_claim(info, name)
    with archive.open(info) as file:
        np.lib.format.read_magic(file)
        claim, columns_first, kind = np.lib.format.read_array_header_1_0(file)
        size = file.tell() + math.prod(claim) * kind.itemsize
    good = kind == dtype and len(claim) > 0 and claim[1:] == shape and not columns_first
    if not good or size != info.file_size:
        rule = ", ".join(map(str, ("n", *shape)))
        got = f"{list(claim)} {kind} in {info.file_size} bytes"
        raise ValueError(f"{name} must be [{rule}] {dtype}, got {got}")
    with archive.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _numbers(values: object, count: int) -> bool:
    """Whether this is a list of `count` finite numbers."""
    if not isinstance(values, list) or len(values) != count:
        return False
    return all(type(v) in (int, float) and math.isfinite(v) for v in values)
