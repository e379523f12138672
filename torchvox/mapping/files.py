# SPDX-License-Identifier: Apache-2.0
"""Maps as files: which format a name stands for, and what a map gives it."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchvox._errors import WrongUseError, explained
from torchvox.io.maps import MapContents, read_map, write_map, write_voxels
from torchvox.io.octomap import read_octomap, write_octomap
from torchvox.mapping.regions import MapRegions, tensors_of
from torchvox.ops.annotations import Select
from torchvox.ops.occupancy import occupancy_layout

if TYPE_CHECKING:
    from torchvox.mapping.map import MapVoxels, OccupancyMap

VOXELS = (".ply", ".las", ".laz")
FIRST_LAYER = 4  # of a state


def contents_of(made: OccupancyMap, preset: str | None) -> MapContents:
    """What a map knows, on the CPU. preset: the name of its model."""
    regions = made.whole()
    layers = {name: getattr(regions, name).cpu().numpy() for name in tensors_of(made.layers)}
    return MapContents(regions.keys.cpu().numpy(), layers, **facts_of(made), preset=preset)


def facts_of(made: OccupancyMap) -> dict[str, Any]:
    """What its files tell of a map besides."""
    facts: dict[str, Any] = {"voxel_size": made.voxel_size, "origin": list(made.origin)}
    facts["sensor"] = [float(share) for share in made.model[:4]]
    return {**facts, "rule": made.model.rule, "ndt": None if made.ndt is None else [*made.ndt]}


def regions_of(contents: MapContents, device: torch.device) -> MapRegions:
    """What `OccupancyMap.insert` takes; stamps are 0."""
    keys = torch.from_numpy(contents.keys).to(device)
    layers = {name: torch.from_numpy(layer).to(device) for name, layer in contents.layers.items()}
    for tensor in occupancy_layout(0)[FIRST_LAYER:]:
        layers.setdefault(tensor.name, keys.new_zeros(tensor.shape, dtype=tensor.dtype))
    stamps, count = keys.new_zeros(len(keys), dtype=torch.int32), keys.new_tensor([len(keys)])
    return MapRegions(keys=keys, region_stamp=stamps, count=count, **layers)


def read(path: str | Path) -> MapContents:
    """A file of a map, by what it begins with."""
    path = Path(path)
    return read_octomap(path) if _is_tree(path) else read_map(path)


def is_map(path: str | Path) -> bool:
    """Whether a file is a map by its content: an OctoMap tree, or an .npz that tells about one."""
    try:
        if _is_tree(path):
            return True
        with zipfile.ZipFile(path) as archive:
            return {"about.npy", "keys.npy"} <= set(archive.namelist())
    except Exception:  # no .npz, or one that cannot be read: its reader says what is wrong
        return False


def _is_tree(path: str | Path) -> bool:
    with explained(Path(path), "map file"), Path(path).open("rb") as file:
        return file.read(9) == b"# Octomap"


def write(made: OccupancyMap, path: str | Path, preset: str | None, select: Select) -> None:
    suffix = Path(path).suffix.lower()
    if suffix == ".npz":
        write_map(path, contents_of(made, preset))
    elif suffix in (".bt", ".ot"):
        write_octomap(path, contents_of(made, preset), made.threshold)
    elif suffix in VOXELS:
        write_points(made, path, made.extract(select))
    else:
        known = ", ".join((".npz", ".bt", ".ot", *VOXELS))
        raise WrongUseError(f"{path}: maps are written as {known}")


def write_points(made: OccupancyMap, path: str | Path, found: MapVoxels) -> None:
    """Voxels of a map as points: means of samples to 1/1024 of a voxel, or centers."""
    columns, steps = {"logodds": found.logodds.cpu().numpy()}, 1
    if "sample_mean" in made.layers:
        columns, steps = {**columns, "num_samples": found.num_samples.cpu().numpy()}, 1024
    write_voxels(path, found.points.cpu().numpy(), columns, made.voxel_size, made.origin, steps)
