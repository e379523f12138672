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
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchvox._errors import TorchvoxError, file_errors, short
from torchvox.filter.job import FilterJob
from torchvox.io import cloud_stem, create_points, open_points

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torchvox.filter.job import FilterOptions

    Row = dict[str, Any]


VERSION = 2  # of rules and states; outputs of another are made again


def file_rows(paths: Iterable[str | Path]) -> list[Row]:
    """A row a file."""
    return [{"path": str(path)} for path in paths]


def range_rows(
    paths: Iterable[str | Path], points: int, options: FilterOptions | None = None
) -> list[Row]:
    """A row for every so many points: path, first, count, and the number of its first point.

    options: of the job, whose layout and salvage decide how many points a file has.
    """
    rows: list[Row] = []
    number = 0
    layout, salvage = (options.layout_of_file, options.salvage) if options else (None, False)
    for path in sorted(map(Path, paths)):
        count = open_points(path, layout, salvage=salvage).count
        for first in range(0, count, points):
            size = min(points, count - first)
            rows.append(
                {"path": str(path), "first": first, "count": size, "number": number + first}
            )
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

    sources: all files of the job. Their headers are read here, columns of floats that may hold
    classes, and with `scan` all coordinates of files whose headers say a box, as it may be wrong;
    without it points outside of such a box are an error of their row.
    The row gets `state` and `box`, or `error`. A state that is there is not made again.
    """

    def __init__(
        self,
        folder: str | Path,
        options: FilterOptions,
        sources: Iterable[str | Path],
        scan: bool = True,
    ) -> None:
        job = FilterJob(sources, options)
        self.folder, self.options = str(folder), replace(options, policy=job.rules)
        self.box = job.frame_box() if scan else job.box
        self.first = str(job.readers[0].path)
        with job.accumulator(self.box) as cells:
            self._job = cells.fingerprint()

    def __call__(self, row: Row) -> Row:
        def work(name: str) -> Row:
            state = Path(self.folder) / f"{name}.{row['first']}.{row['count']}"
            if not state.exists():
                with FilterJob([self.first], self.options).accumulator(self.box) as cells:
                    job = FilterJob([row["path"]], self.options)
                    job.accumulate(cells, row["number"] - row["first"], row["first"], row["count"])
                    cells.save(state)
            box = None if self.box is None else self.box.tolist()
            return {"state": str(state), "box": json.dumps(box)}

        failed = {"state": "", "box": ""}
        return _tried(row, self.options, work, failed, self.first, self._job, int(row["number"]))


def merge_states(
    rows: Iterable[Row], sources: Iterable[str | Path], target: str | Path, options: FilterOptions
) -> int:
    """Write one file from the rows of `Accumulate`, and return its number of voxels.

    It is the file that FilterJob(sources, options).run(target) writes.
    Raises TorchvoxError when a row has an error, or the rows do not add up to the files.
    """
    rows = list(rows)
    for row in rows:
        if row.get("error"):
            raise TorchvoxError(row["error"])
    job = FilterJob(sources, options)
    _check_ranges(rows, job)
    if len(boxes := {row["box"] for row in rows}) > 1:
        raise TorchvoxError(f"the rows are of jobs with other boxes: {short(sorted(boxes))}")
    box = json.loads(boxes.pop()) if boxes else None
    box = job.box if box is None else np.array(box)
    with job.accumulator(box, spill_dir=Path(target).parent) as cells:
        for row in rows:
            before = cells.points
            cells.merge(row["state"])
            held, count = cells.points - before, int(row["count"])
            if held > count or (held < count and not (options.bounds or options.drop_withheld)):
                raise TorchvoxError(f"{row['state']} holds {held} points, its row {count}")
        with create_points(target, like=cells.result_schema) as writer:
            for table, *_ in cells.finish():
                writer.append(table)
        return writer.count


def _check_ranges(rows: list[Row], job: FilterJob) -> None:
    """Raises TorchvoxError unless each point of the job is in one row, by its file and number."""
    ranges = sorted((int(row["number"]), int(row["number"]) + int(row["count"])) for row in rows)
    for (_, end), (start, _) in pairwise([(0, 0), *ranges, (job.points, job.points)]):
        if start != end:
            what = "lack" if start > end else "have twice, or past the end,"
            low, high = sorted((start, end))
            raise TorchvoxError(
                f"the rows {what} points {low} to {high} of all {job.points}: accumulate them anew"
            )
    places, start = {}, 0
    for reader in job.readers:
        places[reader.path, start] = reader.count
        start += reader.count
    for row in rows:
        path, number, first = Path(row["path"]), int(row["number"]), int(row["first"])
        end = first + int(row["count"])
        if end > places.get((path, number - first), 0):
            raise TorchvoxError(
                f"points {first} to {end} of {path} are not those that its row numbers from "
                f"{number}: accumulate them anew"
            )


def _tried(
    row: Row, options: FilterOptions, work: Callable[[str], Row], failed: Row, *more: Any
) -> Row:
    """The row with what `work` makes; its name depends on the file, the options and `more`."""
    path = Path(row["path"])
    try:
        with file_errors(path):
            about = path.stat()
            identity = [str(path.absolute()), about.st_size, about.st_mtime_ns, options.of_result]
            identity += [VERSION, *more]
            digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
            return {**row, **work(f"{cloud_stem(path)}.{digest}"), "error": ""}
    except TorchvoxError as error:
        return {**row, **failed, "error": str(error)}
