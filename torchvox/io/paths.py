# SPDX-License-Identifier: Apache-2.0
"""Paths of scans of recordings, and the stems of files that are made of clouds."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from torchvox.io.bags import format_of


class ScanPath(NamedTuple):
    """What the path of a scan says. topic: with its leading slash, or ""."""

    recording: Path
    topic: str
    number: int


def scan_of(path: str | Path) -> ScanPath | None:
    """The parts of the path of a scan; None for other paths."""
    path = Path(path)
    if not re.fullmatch("[0-9]{6,18}", path.name):
        return None
    recording = next(filter(os.path.exists, path.parents), None)
    if recording is None or format_of(recording) is None:
        return None
    topic = "/".join(["", *path.relative_to(recording).parts[:-1]])
    return ScanPath(recording, topic, int(path.name))


def cloud_stem(path: str | Path) -> str:
    """The file name without its format suffix; .pcd.bin (nuScenes) and .copc.laz are one suffix.
    Of a scan of a recording drive.000123, with a topic drive.ouster_points.000123."""
    path = Path(path)
    if (scan := scan_of(path)) is not None:
        name = scan.recording.name if scan.recording.is_dir() else scan.recording.stem
        return ".".join([name, *scan.topic.split("/", 1)[1:], path.name]).replace("/", "_")
    double = next((s for s in (".pcd.bin", ".copc.laz") if path.name.lower().endswith(s)), "")
    return path.name[: -len(double)] if double else path.stem
