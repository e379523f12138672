# SPDX-License-Identifier: Apache-2.0
"""What `torchvox info` shows of maps and scan graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from torchvox.mapping import MapContents, files, read_graph
from torchvox.mapping.contents import UNOBSERVED
from torchvox.mapping.job import is_graph
from torchvox.mapping.regions import INDEX_LAYERS


def is_known(path: Path) -> bool:
    """Whether this is a map, by its content, or a scan graph, by its name."""
    return is_graph(path) or files.is_map(path)


def described(path: Path, short: bool) -> str:
    """One line per fact, or one for all. Raises CloudFileError for a damaged file."""
    facts = _graph_facts(path) if is_graph(path) else _map_facts(path, files.read(path))
    if short:
        return f"{path.name}  " + "  ".join(f"{name} {text}" for name, text in facts[1:])
    return "\n".join(f"{name:<12}{text}" for name, text in facts)


def _map_facts(path: Path, contents: MapContents) -> list[tuple[str, str]]:
    logodds = contents.layers["logodds"]
    regions, cells = np.nonzero(logodds != UNOBSERVED)
    occupied = int((logodds >= 0).sum())
    extent = "nothing observed"
    if len(cells):
        voxels = contents.voxels(regions, cells)
        corners = np.array([voxels.min(axis=0), voxels.max(axis=0) + 1]) * contents.voxel_size
        extent = _extent(*(np.array(contents.origin) + corners))
    facts = [
        ("format", f"occupancy map, {path.suffix[1:].upper()}, {path.stat().st_size:,} bytes"),
        ("voxel size", f"{contents.voxel_size:g} m"),
        ("origin", " ".join(f"{v:.12g}" for v in contents.origin)),
        ("extent", extent),
        ("regions", f"{len(contents.keys):,} of 8 x 8 x 8 voxels"),
        ("voxels", f"{occupied:,} occupied, {len(cells) - occupied:,} free"),
        ("layers", ", ".join(name for name in contents.layers if name not in INDEX_LAYERS)),
    ]
    if "sample_count" in contents.layers:
        counts = contents.layers["sample_count"]
        facts.append(("samples", f"{counts.sum():,} in {(counts > 0).sum():,} voxels"))
    hit, miss, lowest, highest = (f"{share:.3g}" for share in contents.sensor)
    model = f"hit {hit}, miss {miss}, from {lowest} to {highest}, {contents.rule}"
    return [*facts, ("preset", f"{contents.preset or 'custom'}: {model}")]


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
