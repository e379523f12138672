# SPDX-License-Identifier: Apache-2.0
"""The filter as stages of Ray Data, or of a plain `map`: rows name files, points stay in files.

    ray.data.from_items(file_rows(paths)).map(Downsample("out", options))           # file by file

    stage = Accumulate("states", options, paths)                                    # many to one
    rows = ray.data.from_items(range_rows(paths, 10_000_000)).map(stage).take_all()
    merge_states(rows, paths, "all.laz", options)

A stage holds no torch object and pickles before CUDA starts; give GPU stages `num_gpus`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torchvox._util.errors import TorchvoxError, file_errors, short
from torchvox.filter.job import FilterJob
from torchvox.filter.stages import digest_of, raise_row_errors, try_row
from torchvox.io import cloud_stem, create_points, open_points

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torchvox.filter.job import FilterOptions
    from torchvox.filter.stages import Row

VERSION = 2  # of rules and states; outputs of another version are made again


def file_rows(paths: Iterable[str | Path]) -> list[Row]:
    """One row for each file."""
    return [{"path": str(path)} for path in paths]


def range_rows(
    paths: Iterable[str | Path], points: int, options: FilterOptions | None = None
) -> list[Row]:
    """One row for each range of `points` points: path, first, count, number of the first point.

    options: of the job; its layout and salvage decide how many points a file has.
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
    """A stage that turns a row's file into a file in `folder`, named by its path, size, time and
    the options.

    The row gets `output`, `points` and `voxels`, or `error`: a sentence. An output that exists is
    not made again. file_format: such as "laz"; "" keeps the input's.
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

        return _try_file(row, self.options, work, {"output": "", "points": -1, "voxels": -1})


class Accumulate:
    """A stage that turns a row's range of points into a saved state in `folder`, for
    `merge_states`.

    sources: all files of the job. Read here: their headers, columns of floats that may hold
    classes, and with `scan` all coordinates of files whose headers have a box, as it may be wrong;
    without `scan` points outside such a box are an error of their row.
    The row gets `state` and `box`, or `error`. A state that exists is not made again.
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

        failed, more = {"state": "", "box": ""}, (self.first, self._job, int(row["number"]))
        return _try_file(row, self.options, work, failed, *more)


def merge_states(
    rows: Iterable[Row], sources: Iterable[str | Path], target: str | Path, options: FilterOptions
) -> int:
    """Write one file from the rows of `Accumulate`, and return its number of voxels.

    It is the file that FilterJob(sources, options).run(target) writes.
    Raises TorchvoxError when a row has an error, or the rows do not add up to the files.
    """
    rows = raise_row_errors(rows)
    job = FilterJob(sources, options)
    _check_ranges(rows, job)
    if len(boxes := {row["box"] for row in rows}) > 1:
        raise TorchvoxError(f"the rows are of jobs with other boxes: {short(sorted(boxes))}")
    box = json.loads(boxes.pop()) if boxes else None
    box = job.box if box is None else np.array(box)
    with job.accumulator(box, Path(target).parent) as cells:
        for row in rows:
            before = cells.points
            cells.merge(row["state"])
            points, count = cells.points - before, int(row["count"])
            if points > count or (points < count and not (options.bounds or options.drop_withheld)):
                raise TorchvoxError(f"{row['state']} holds {points} points, its row {count}")
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
                f"the rows {what} points {low} to {high} of all {job.points}: accumulate them again"
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
                f"{number}: accumulate them again"
            )


def _try_file(
    row: Row, options: FilterOptions, work: Callable[[str], Row], failed: Row, *more: object
) -> Row:
    """The row with what `work` makes; its name depends on the file, the options and `more`."""
    path = Path(row["path"])

    def named_work() -> Row:
        with file_errors(path):
            stat = path.stat()
            file = str(path.absolute()), stat.st_size, stat.st_mtime_ns
            digest = digest_of(*file, options.of_result, VERSION, *more)
            return work(f"{cloud_stem(path)}.{digest}")

    return try_row(row, named_work, failed)
