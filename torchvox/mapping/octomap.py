# SPDX-License-Identifier: Apache-2.0
"""OctoMap's files: trees .bt (labels) and .ot (log-odds), read and written; scan graphs, read.

A tree has 16 levels below its root. Its nodes are in pre-order, children by x + 2 y + 4 z; so
leaves are in the order of their Morton codes, 3 bits per level. A leaf above the last level is a
pruned cube.
Source: Hornung et al., OctoMap, Autonomous Robots 2013.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from torchvox._util.errors import WrongUseError, explained
from torchvox.io.poses import rigid, rotations
from torchvox.io.writers import write_whole
from torchvox.mapping.contents import UNOBSERVED, MapContents
from torchvox.mapping.sensor import PRESETS

DEPTH = 16
HALF = 1 << (DEPTH - 1)  # voxels from the origin to the end of a tree
MAX_REGIONS = 1 << 20
HEADER_BYTES = 1 << 16
KINDS = {"# Octomap OcTree file": False, "# Octomap OcTree binary file": True}  # is it .bt?
NODES = {  # of .ot files, by id; "1" is an old name
    "OcTree": np.dtype([("value", "<f4"), ("children", "u1")]),
    "ColorOcTree": np.dtype([("value", "<f4"), ("color", "u1", 3), ("children", "u1")]),
}
SENSOR = PRESETS["octomap"]
MODEL: dict[str, Any] = {"sensor": [*SENSOR[:4]], "rule": SENSOR.rule, "preset": "octomap"}
FREE, OCCUPIED = -2048, 3595  # log-odds of the labels of .bt files: the clamps of this model
LEAVES = 0x5555, 0xAAAA  # children that are all free leaves, all occupied leaves

POINT = np.dtype([("values", "<i4"), ("xyz", "<f8", 3)])
POSE = np.dtype([("moved", POINT), ("values", "<i4"), ("wxyz", "<f8", 4)])
EDGE_BYTES = 4 + 4 + POSE.itemsize + 8  # two nodes, pose, weight


class GraphScan(NamedTuple):
    """points [n, 3] float64 in the sensor frame; pose [3, 4] float64, of the sensor in the map."""

    points: np.ndarray
    pose: np.ndarray


class Leaves(NamedTuple):
    """Of a tree, in pre-order: depth [n], Morton code [n] at that depth, log-odds [n] in 1/1024."""

    depths: np.ndarray
    codes: np.ndarray
    units: np.ndarray


def read_octomap(path: str | Path, max_regions: int = MAX_REGIONS) -> MapContents:
    """Read an OctoMap tree, .bt or .ot, of the type OcTree or ColorOcTree (without its colors).

    The first line says the format. Log-odds are rounded to 1/1024; those of a .bt file, which has
    only labels, are -2 and 3.51, OctoMap's clamps. The model is the preset "octomap".
    max_regions: of 8 x 8 x 8 voxels, to which pruned cubes may expand; each takes 1 KB.
    Raises CloudFileError for a damaged file and for one that expands to more.
    """
    path = Path(path)
    with explained(path, "OctoMap file"):
        with path.open("rb") as file:
            is_binary, tree, size, resolution = _read_header(file)
            start = file.tell()
        body = path.stat().st_size - start
        type_ = np.dtype("<u2") if is_binary else NODES[tree]
        if size and (body % type_.itemsize or (not is_binary and body != size * type_.itemsize)):
            raise ValueError(f"its {size} nodes do not fit the {body} bytes after its header")
        if not size and body:
            raise ValueError(f"it has no nodes, but {body} bytes after its header")
        if size:
            nodes = np.fromfile(path, type_, offset=start)
            leaves = _labels(nodes, size) if is_binary else _values(nodes)
        else:
            leaves = Leaves(*np.zeros((3, 0), np.int64))
        keys, logodds = _regions(leaves, max_regions)
        return MapContents(keys, {"logodds": logodds}, resolution, [0.0, 0.0, 0.0], **MODEL)


def write_octomap(path: str | Path, contents: MapContents, threshold: float = 0.0) -> None:
    """Write a map as a pruned OctoMap tree: .ot has log-odds; .bt labels, by log-odds threshold.

    Inner nodes have the largest value below them. Raises WrongUseError for another suffix, a map
    that reaches beyond 32,768 voxels from the origin, and one whose origin is not a corner of
    OctoMap's voxels, to 1e-6 voxels.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".bt", ".ot"):
        raise WrongUseError(f"{path}: OctoMap trees are written as .bt or .ot")
    codes, units = _voxels(contents, path)
    occupied = units / 1024 >= threshold
    values, children = _tree(
        codes, occupied.astype(np.int16) if suffix == ".bt" else units, occupied
    )
    if suffix == ".bt":
        first, body = "# Octomap OcTree binary file", children[children > 0].astype("<u2")
    else:
        first, body = "# Octomap OcTree file", np.zeros(len(values), NODES["OcTree"])
        body["value"] = values / 1024
        each = children[:, None] >> 2 * np.arange(8) & 3
        body["children"] = np.packbits(each > 0, axis=1, bitorder="little")[:, 0]
    resolution = float(contents.voxel_size)
    header = f"{first}\nid OcTree\nsize {len(values)}\nres {resolution!r}\ndata\n"
    write_whole(path, lambda file: file.write(header.encode() + body.tobytes()))


def read_graph(path: str | Path) -> list[GraphScan]:
    """Read the scans of an OctoMap graph file; its edges are ignored. Raises CloudFileError."""
    path = Path(path)
    with explained(path, "OctoMap graph"):
        data, at, scans = path.read_bytes(), 0, []

        def take(type_: np.dtype | str, count: int = 1) -> np.ndarray:
            nonlocal at
            type_, begin = np.dtype(type_), at
            at += type_.itemsize * count
            if at > len(data):
                raise ValueError(f"byte {begin} promises {at - begin} bytes, it has {len(data)}")
            return np.frombuffer(data, type_, count, begin)

        for _ in range(int(take("<u4")[0])):
            points, pose = take(POINT, int(take("<u4")[0])), take(POSE)[0]
            numbers = points["values"], pose["moved"]["values"]
            if any((n != 3).any() for n in numbers) or pose["values"] != 4:
                raise ValueError("its points do not have 3 values, or its rotations not 4")
            turned = rotations(pose["wxyz"][None, [1, 2, 3, 0]])
            place = pose["moved"]["xyz"][None, :, None]
            pose = rigid(np.concatenate([turned, place], axis=2))[0]
            scans.append(GraphScan(points["xyz"].astype(np.float64), pose))
            take("<u4")  # its number
        edges = int(take("<u4")[0])
        if len(data) - at != edges * EDGE_BYTES:
            raise ValueError(f"{len(data) - at} bytes after its scans are not {edges} edges")
        return scans


def _read_header(file: BinaryIO) -> tuple[bool, str, int, float]:
    """(is it .bt, id, number of nodes, size of a voxel); the file stands behind them."""
    lines: list[str] = []
    while not lines or lines[-1].split()[:1] != ["data"]:
        raw = file.readline(HEADER_BYTES - file.tell() + 1)
        if not raw.endswith(b"\n") or file.tell() > HEADER_BYTES:
            raise ValueError("its header does not end with a line data")
        lines.append(raw.decode("utf-8", "replace").strip())
        if lines[0] not in KINDS:
            raise ValueError(f"its first line must be one of {list(KINDS)}")
    words = {line.split()[0]: line.split()[1:] for line in lines[1:] if line and line[0] != "#"}
    tree, size, resolution = (" ".join(words.get(name, [])) for name in ("id", "size", "res"))
    tree = "OcTree" if tree == "1" else tree
    if tree not in NODES:
        raise ValueError(f"its id must be one of {list(NODES)}, got {tree!r}")
    if not re.fullmatch(r"\d{1,18}", size):
        raise ValueError(f"its size must be a number of nodes, got {size!r}")
    return KINDS[lines[0]], tree, int(size), float(resolution)


def _values(nodes: np.ndarray) -> Leaves:
    """Leaves of an .ot file."""
    depths, codes = _placed(nodes["children"], DEPTH)
    is_leaf = nodes["children"] == 0
    with np.errstate(invalid="ignore"):  # a signaling NaN
        logodds = nodes["value"][is_leaf].astype(np.float64)
    if not np.isfinite(logodds).all():
        raise ValueError("a leaf has log-odds that are not finite")
    units = np.copysign(np.floor(np.abs(logodds) * 1024 + 0.5), logodds)
    return Leaves(depths[is_leaf], codes[is_leaf], np.clip(units, -32767, 32767))


def _labels(nodes: np.ndarray, size: int) -> Leaves:
    """Leaves of a .bt file, whose inner nodes these are."""
    if (nodes == 0).any():  # a root too
        raise ValueError("a node without children does not say whether it is free or occupied")
    kinds = nodes[:, None] >> 2 * np.arange(8, dtype=np.uint16) & 3
    inner = np.packbits(kinds == 3, axis=1, bitorder="little")[:, 0]
    depths, codes = _placed(inner, DEPTH - 1)
    parent, child = ((kinds == 1) | (kinds == 2)).nonzero()
    if len(nodes) + len(parent) != size:
        raise ValueError(f"it has {len(nodes) + len(parent)} nodes, its header promises {size}")
    units = np.where(kinds[parent, child] == 2, OCCUPIED, FREE)
    return Leaves(depths[parent] + 1, codes[parent] << 3 | child, units)


def _placed(children: np.ndarray, deepest: int) -> tuple[np.ndarray, np.ndarray]:
    """Depth [n] and Morton code [n] of nodes in pre-order, from the masks [n] of their children."""
    count, bits = len(children), np.unpackbits(children[:, None], axis=1, bitorder="little")
    degrees = bits.sum(axis=1, dtype=np.int64)
    # Nodes that are still to come at each node, of those that the ones before have named. A node's
    # last child begins where all others are done: at the next place with as many as at the node.
    open_ = np.concatenate([[1], 1 + np.cumsum(degrees - 1)])
    if (open_[:-1] < 1).any() or open_[-1] != 0:
        raise ValueError(f"its {count} nodes are not one tree")
    if open_.max() > 7 * deepest + 1:
        raise ValueError(f"it has more than {DEPTH} levels")
    open_ = open_[:-1]
    by_open = np.argsort(open_.astype(np.int8), kind="stable")  # 113 at most
    sought = open_[by_open] * count + by_open
    depths, codes = np.zeros(count, np.int64), np.zeros(count, np.int64)
    at = np.zeros(1, np.int64)
    for depth in range(1, deepest + 2):
        parent, child = bits[at].nonzero()
        if len(parent) == 0:
            return depths, codes
        number = degrees[at]
        nth = np.arange(len(parent)) - (np.cumsum(number) - number)[parent]
        left = open_[at][parent] - 1 + number[parent] - nth
        above = at[parent]
        at = by_open[np.searchsorted(sought, left * count + above + 1)]
        depths[at], codes[at] = depth, codes[above] << 3 | child
    raise ValueError(f"it has more than {DEPTH} levels")


def _regions(leaves: Leaves, max_regions: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys [r] and log-odds [r, 512] of the regions that leaves fill."""
    depths, codes, units = leaves
    starts = codes << 3 * (DEPTH - depths)
    small = depths > DEPTH - 3  # than a region
    cubes = np.where(small, 1, 8 ** (DEPTH - 3 - np.minimum(depths, DEPTH - 3)))  # regions of each
    count = int(cubes[~small].sum()) + len(np.unique(starts[small] >> 9))
    if count > max_regions:
        raise ValueError(f"its pruned cubes expand to {count} regions, more than {max_regions}")
    first = np.cumsum(cubes) - cubes
    within = np.arange(cubes.sum()) - np.repeat(first, cubes)
    starts = np.repeat(starts, cubes) + 512 * within
    depths, units = (np.repeat(v, cubes) for v in (np.maximum(depths, DEPTH - 3), units))
    regions, rows = np.unique(starts >> 9, return_inverse=True)
    cells = np.full((len(regions), 512), UNOBSERVED, np.int16)
    for depth in range(DEPTH - 3, DEPTH + 1):
        edge3, taken = 8 ** (DEPTH - depth), depths == depth
        places = (rows[taken] * 512 + (starts[taken] & 511)) // edge3
        cells.reshape(-1, edge3)[places] = units[taken, None]
    x, y, z = (axis - HALF // 8 + (1 << 20) for axis in _axes(regions, DEPTH - 3))
    keys = z << 42 | y << 21 | x
    order = np.argsort(keys)
    return keys[order], cells[order[:, None], MORTON]


def _voxels(contents: MapContents, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Morton codes and units of the observed voxels."""
    steps = np.array(contents.origin) / contents.voxel_size
    if (np.abs(steps - np.rint(steps)) > 1e-6).any():
        raise WrongUseError(
            f"{path}: OctoMap's voxels begin at 0, so the origin of a map must be whole voxels of "
            f"{contents.voxel_size} m away, got {contents.origin}"
        )
    row, cell = (contents.layers["logodds"] != UNOBSERVED).nonzero()
    code = np.zeros(len(row), np.int64)
    voxels = contents.voxels(row, cell) + np.rint(steps).astype(np.int64)
    for axis, voxel in enumerate(voxels.T):
        if (np.abs(voxel + 0.5) > HALF).any():
            got = f"{voxel.min()} to {voxel.max()}"
            raise WrongUseError(f"{path}: OctoMap's voxels are within +-{HALF}, got {got}")
        shifted = voxel + HALF
        code |= (SPREAD[shifted >> 8] << 24 | SPREAD[shifted & 255]) << axis
    return code, contents.layers["logodds"][row, cell]


def _tree(
    codes: np.ndarray, values: np.ndarray, occupied: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Values [n] and children [n] of the pruned tree over voxels, in pre-order.

    Children have 2 bits each, as in a .bt file: 1 a free leaf, 2 an occupied one, 3 an inner node.
    """
    if len(codes) == 0:
        return values, np.zeros(0, np.int64)
    order = np.argsort(codes)
    codes, values, children = codes[order], values[order], np.zeros(len(codes), np.int64)
    kinds, kept = 1 + occupied[order].astype(np.int64), []
    for depth in range(DEPTH, 0, -1):
        first = np.flatnonzero(np.diff(codes >> 3, prepend=-1))
        named = np.bitwise_or.reduceat(kinds << 2 * (codes & 7), first)
        largest, smallest = (f.reduceat(values, first) for f in (np.maximum, np.minimum))
        pruned = np.isin(named, LEAVES) & (largest == smallest)
        stays = np.repeat(~pruned, np.diff(first, append=len(codes)))
        places = (codes << 3 * (DEPTH - depth)) * 32 + depth
        kept.append([array[stays] for array in (places, values, children)])
        kinds = np.where(pruned, kinds[first], 3)
        codes, values, children = codes[first] >> 3, largest, np.where(pruned, 0, named)
    kept.append([np.zeros(1, np.int64), values, children])
    places, values, children = (np.concatenate(level) for level in zip(*kept, strict=True))
    order = np.argsort(places)
    return values[order], children[order]


def _axes(codes: np.ndarray, bits: int) -> list[np.ndarray]:
    """x, y and z of Morton codes with `bits` bits per axis."""
    axes = [np.zeros_like(codes) for _ in range(3)]
    for i in range(3 * bits):
        axes[i % 3] |= (codes >> i & 1) << i // 3
    return axes


# The bits of a byte three apart; the Morton code of each voxel of a region, of which x is fastest.
SPREAD = np.sum([(np.arange(256) >> i & 1) << 3 * i for i in range(8)], axis=0)
MORTON = np.sum([SPREAD[np.arange(512) >> 3 * axis & 7] << axis for axis in range(3)], axis=0)
