# SPDX-License-Identifier: Apache-2.0
"""What `torchvox info` tells about maps and scan graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from torchvox.io import MapContents, read_graph
from torchvox.io.maps import UNOBSERVED
from torchvox.mapping import files

SAMPLED = ("sample_row", "sample_count")  # of layers, where samples are kept


def is_graph(path: Path) -> bool:
    return path.suffix.lower() == ".graph"


def is_known(path: Path) -> bool:
    """Whether this is a map, by its content, or a scan graph, by its name."""
    return is_graph(path) or files.is_map(path)


def described(path: Path, short: bool) -> str:
    """A line for each fact, or one for all. Raises CloudFileError for a damaged file."""
    facts = _graph_facts(path) if is_graph(path) else _map_facts(path, files.read(path))
    if short:
        return f"{path.name}  " + "  ".join(f"{name} {text}" for name, text in facts[1:])
    return "\n".join(f"{name:<12}{text}" for name, text in facts)


def _map_facts(path: Path, held: MapContents) -> list[tuple[str, str]]:
    logodds = held.layers["logodds"]
    regions, cells = np.nonzero(logodds != UNOBSERVED)
    occupied = int((logodds >= 0).sum())
    facts = [
        ("format", f"occupancy map, {path.suffix[1:].upper()}, {path.stat().st_size:,} bytes"),
        ("voxel size", f"{held.voxel_size:g} m"),
        ("origin", " ".join(f"{v:.12g}" for v in held.origin)),
        ("extent", _extent(*_box(held, regions, cells)) if len(cells) else "nothing observed"),
        ("regions", f"{len(held.keys):,} of 8 x 8 x 8 voxels"),
        ("voxels", f"{occupied:,} occupied, {len(cells) - occupied:,} free"),
        ("layers", ", ".join(name for name in held.layers if name not in SAMPLED)),
    ]
    if "sample_count" in held.layers:
        counts = held.layers["sample_count"]
        facts.append(("samples", f"{counts.sum():,} in {(counts > 0).sum():,} voxels"))
    hit, miss, lowest, highest = (f"{share:.3g}" for share in held.sensor)
    model = f"hit {hit}, miss {miss}, from {lowest} to {highest}, {held.rule}"
    return [*facts, ("preset", f"{held.preset or 'of its own'}: {model}")]


def _box(held: MapContents, regions: np.ndarray, cells: np.ndarray) -> tuple[np.ndarray, ...]:
    """Lowest and highest corner [3] of voxels, in meters."""
    low, high = np.empty(3), np.empty(3)
    for axis in range(3):
        region = (held.keys >> 21 * axis & (1 << 21) - 1) - (1 << 20)
        voxels = region[regions] * 8 + (cells >> 3 * axis & 7)
        low[axis], high[axis] = voxels.min(), voxels.max() + 1
    origin = np.array(held.origin)
    return origin + low * held.voxel_size, origin + high * held.voxel_size


def _graph_facts(path: Path) -> list[tuple[str, str]]:
    scans = read_graph(path)
    counts = [len(scan.points) for scan in scans]
    facts = [
        ("format", f"OctoMap scan graph, {path.stat().st_size:,} bytes"),
        ("scans", f"{len(scans):,}"),
        ("points", f"{sum(counts):,}"),
    ]
    if scans:
        places = np.array([scan.pose[:, 3] for scan in scans])
        facts.append(("sensor", _extent(places.min(axis=0), places.max(axis=0))))
        ends = np.concatenate([s.points @ s.pose[:, :3].T + s.pose[:, 3] for s in scans])
        if len(ends := ends[np.isfinite(ends).all(axis=1)]):
            facts.append(("extent", _extent(ends.min(axis=0), ends.max(axis=0))))
    return facts


def _extent(low: np.ndarray, high: np.ndarray) -> str:
    spans = zip("xyz", low, high, strict=True)
    return ", ".join(f"{axis} {a:,.3f} to {b:,.3f}" for axis, a, b in spans)
