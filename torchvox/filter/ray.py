# SPDX-License-Identifier: Apache-2.0
"""The filter as stages of Ray Data, or of a plain `map`: rows name files, points stay in files.

    ray.data.from_items(file_rows(paths)).map(Downsample("out", options))           # file by file

    stage = Accumulate("states", options, paths)                                    # many to one
    rows = ray.data.from_items(range_rows(paths, 10_000_000)).map(stage).take_all()
    merge_states(rows, paths, "all.laz", options)

A stage holds no torch object and pickles before CUDA starts; give GPU stages `num_gpus`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchvox._errors import TorchvoxError
from torchvox.filter.job import FilterJob
from torchvox.io import cloud_stem, create_points, open_points

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torchvox.filter.job import FilterOptions

    Row = dict[str, Any]


def file_rows(paths: Iterable[str | Path]) -> list[Row]:
    """A row a file."""
    return [{"path": str(path)} for path in paths]


def range_rows(paths: Iterable[str | Path], points: int) -> list[Row]:
    """A row for every so many points: path, first, count, and the number of its first point."""
    rows: list[Row] = []
    number = 0
    for path in sorted(map(str, paths)):
        count = open_points(path).count
        for first in range(0, count, points):
            size = min(points, count - first)
            rows.append({"path": path, "first": first, "count": size, "number": number + first})
        number += count
    return rows


class Downsample:
    """A row's file -> a file in `folder`, named by its path, size, time and the options.

    The row gets `output`, `points` and `voxels`, or `error`: a sentence. An output that is there is
    not made again. file_format: as "laz"; "" keeps the input's.
    """

    def __init__(self, folder: str | Path, options: FilterOptions, file_format: str = "") -> None:
        self.folder, self.options, self.file_format = str(folder), options, file_format

    def __call__(self, row: Row) -> Row:
        def work(name: str) -> Row:
            path = Path(row["path"])
            suffix = f".{self.file_format}" if self.file_format else path.suffix.lower()
            target = Path(self.folder) / f"{name}{suffix}"
            job = FilterJob([path], self.options)
            if not target.exists():
                job.run(target)
            voxels = open_points(target).count
            return {"output": str(target), "points": job.points, "voxels": voxels}

        return _tried(row, self.options, work, {"output": "", "points": -1, "voxels": -1})


class Accumulate:
    """A row's range of points -> a saved state in `folder`, for `merge_states`.

    sources: all files of the job; their headers are read here, once.
    The row gets `state`, or `error`.
    """

    def __init__(
        self, folder: str | Path, options: FilterOptions, sources: Iterable[str | Path]
    ) -> None:
        job = FilterJob(sources, options)
        self.folder, self.options, self.box = str(folder), options, job.box
        self.first = str(job.readers[0].path)

    def __call__(self, row: Row) -> Row:
        def work(name: str) -> Row:
            state = Path(self.folder) / f"{name}.{row['first']}.{row['count']}"
            if not state.exists():
                with FilterJob([self.first], self.options).accumulator(self.box) as cells:
                    job = FilterJob([row["path"]], self.options)
                    job.accumulate(cells, row["number"] - row["first"], row["first"], row["count"])
                    cells.save(state)
            return {"state": str(state)}

        return _tried(row, self.options, work, {"state": ""})


def merge_states(
    rows: Iterable[Row], sources: Iterable[str | Path], target: str | Path, options: FilterOptions
) -> int:
    """Write one file from the rows of `Accumulate`, and return its number of voxels.

    It is the file that FilterJob(sources, options).run(target) writes.
    Raises TorchvoxError when a row has an error.
    """
    job = FilterJob(sources, options)
    with job.accumulator(job.box, spill_dir=Path(target).parent) as cells:
        for row in rows:
            if row.get("error"):
                raise TorchvoxError(row["error"])
            cells.merge(row["state"])
        with create_points(target, like=cells.result_schema) as writer:
            return cells.finish_to(writer)


def _tried(row: Row, options: FilterOptions, work: Callable[[str], Row], failed: Row) -> Row:
    path = Path(row["path"])
    try:
        about = path.stat()
        identity = [str(path.absolute()), about.st_size, about.st_mtime_ns, options.of_result]
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
        return {**row, **work(f"{cloud_stem(path)}.{digest}"), "error": ""}
    except (TorchvoxError, OSError) as error:
        reason = f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error)
        return {**row, **failed, "error": reason}
