# SPDX-License-Identifier: Apache-2.0
"""torchvox clean: scans of a sensor without what moved between them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import typer

from torchvox._util.errors import WrongUseError
from torchvox._util.extras import require
from torchvox.cli import options
from torchvox.cli.commands import STDOUT, write_json
from torchvox.cli.convert import LAS, scaled_columns
from torchvox.cli.mapping import RAYS, check_poses
from torchvox.cli.notes import noted_warnings, open_noted
from torchvox.cli.options import argument, declare, option, option_class
from torchvox.cli.work import amounts, attempt_each, choose_device, console, milliseconds, note
from torchvox.filter.selection import check_alike
from torchvox.io import PointReader, PointTable, PointWriter, create_points, open_points, write_npy
from torchvox.io.paths import scan_of
from torchvox.io.table import join
from torchvox.io.writers import POINT_SUFFIXES, point_writer
from torchvox.mapping.clean import BESIDE, LEFT, NOT_JUDGED, STAYS, Evidence
from torchvox.mapping.counts import IntegrateCounts
from torchvox.mapping.job import ScanRays, wrong_options
from torchvox.mapping.options import RayOptions
from torchvox.mapping.recorded import Batch, recorded
from torchvox.mapping.store import RegionStore
from torchvox.ops.rays import transform_points

OWN = ("scan", "reason", "hits", "empty")  # columns that outputs add
OUTSIDE = "out of the reach of the map"


@option_class
class CleanCommand(options.ScanOptions, RayOptions):
    paths: list[Path] = argument(..., "Scans, folders or recordings of them.", metavar="PATH...")
    output: Path | None = option(
        None, "What stayed: a file in the frame of the poses, or a folder.", "--output", "-o"
    )
    removed: Path | None = option(None, "What left, in one file.", metavar="FILE")
    labels: Path | None = option(None, "Folder of a label per point, .npy.", metavar="DIR")
    evidence: list[Path] | None = option(
        None, "What other scans saw, of --save-evidence. Repeatable.", metavar="FILE"
    )
    save_evidence: Path | None = option(None, "Also write what all scans saw.", metavar="FILE")
    file_format: str | None = option(None, "Format of the files in a folder.", "--format")
    json: options.Json = None
    device: options.Device = "auto"

    DECLARED: ClassVar = {**RAYS, "voxel_size": declare("--voxel", show_default="0.2")}


@options.command
def clean(args: CleanCommand) -> None:
    """Remove what moved from scans: cars, people and whatever left while a sensor looked.

    Examples:
        torchvox clean scans/ --layout kitti --poses poses.txt -o clean.laz
        torchvox clean drive.mcap --voxel 0.1 -o clean/ --removed moved.ply --json report.json
        torchvox clean monday/ --poses monday.txt --evidence tuesday.npz -o monday.laz
    """
    files = args.clouds(args.paths, setups=True)
    outputs = Outputs(args, files)
    check_poses(args, recorded(files) is not None)
    if recorded(files) is None and args.poses is None:
        raise WrongUseError("scans need --poses, one each or with --times")
    read = options.cloud_reader(files, args.layout, open_noted)
    where, device_name = choose_device(args.device)
    with noted_warnings():
        job = CleanJob(files, args, where, outputs)
    failed = attempt_each(files, lambda i: job.gather(i, read(files[i])), "evidence")
    if not job.good:
        raise typer.Exit(1)
    if args.save_evidence is not None:
        job.evidence.map.save(args.save_evidence)
    lines = [("scans", f"{len(job.good):,} of {len(files):,}, {job.points:,} points")]
    if outputs.takes_points:
        failed += job.judge_all(options.cloud_reader(files, args.layout, open_points))
        write_json(args.json, facts := job.report())
        points = {"stay": facts["kept"], **facts["removed"]}
        lines += [("points", amounts(points)), ("voxels", amounts(facts["voxels"]))]
    each = {k: milliseconds(1e3 * s / len(job.good)) for k, s in job.seconds.items()}
    pace = ", ".join(f"{each[k]} for {k}" for k in each)
    lines += [
        ("not judged", f" {amounts(job.left_out)}"),
        ("time", f"{pace}, per scan, without files"),
    ]
    wrote, out = ", ".join(map(str, outputs.names)), console()
    for word, text in [*lines, ("device", device_name), ("wrote", wrote)]:
        out.print(f"{word:<10}{text}", soft_wrap=True, markup=False)
    if failed:
        raise typer.Exit(1)


class CleanJob:
    """Scans whose evidence `gather` adds, each, before `judge_all` writes what their points did.

    good: numbers of the scans that have evidence. points: theirs; reasons: of each; left_out: why
    some are not judged. place: of the sensor at first. seconds: of both passes, without files.
    """

    def __init__(
        self, files: list[Path], args: CleanCommand, device: torch.device, outputs: Outputs
    ) -> None:
        self.files, self.outputs, self.rays = files, outputs, ScanRays(files, args)
        self.good: list[int] = []
        self.scans: list[dict[str, Any]] = []
        self.reasons, self.left_out = Counter[int](), Counter[str]()
        self.place, self.points = np.zeros(3), 0
        self.seconds = {"evidence": 0.0, "points": 0.0}
        chosen = args.chosen("voxel_size", "origin", "min_range", "max_range")
        if args.memory is not None:
            chosen |= {"capacity": args.memory, "store": RegionStore()}
        with wrong_options(args):
            self.evidence = Evidence(**chosen, device=device)
        for path in args.evidence or ():
            self.evidence.merge(path)

    def gather(self, i: int, reader: PointReader) -> None:
        """Adds the evidence of scan i."""
        self.outputs.check(reader)
        batch = self.rays.batch(i, reader)
        start = time.perf_counter()
        points, origins = self._world(batch)
        row = self.evidence.add(points, origins)[0].tolist()
        self.seconds["evidence"] += time.perf_counter() - start
        counts = IntegrateCounts._make(row[: len(IntegrateCounts._fields)])
        self.left_out.update(batch.dropped)
        self.left_out.update({"not finite": counts.not_finite, OUTSIDE: counts.outside,
                              "nearer than --min-range": counts.filtered})  # fmt: skip
        self.place = self.place if self.good else origins[:1].sum(0).cpu().numpy()
        self.points += reader.count
        self.good.append(i)

    def judge_all(self, read: Callable[[Path], PointReader]) -> int:
        """Writes what the points of good scans did; returns how many of these failed."""
        start = time.perf_counter()
        self.verdict = self.evidence.verdict()
        self.seconds["points"] = time.perf_counter() - start
        good = [self.files[i] for i in self.good]
        with ExitStack() as stack:
            self.outputs.open(stack, self.place)
            work = lambda i: self._judge(self.good[i], read(good[i]))  # noqa: E731
            failed = attempt_each(good, work, "points")
            if failed == len(good):  # which leaves no file behind
                raise typer.Exit(1)
        for path, writer in self.outputs.writers.items():
            for problem in writer.problems:
                note(f"{path.name}: {problem}")
        if self.points == self.reasons[NOT_JUDGED]:
            near = ",".join(f"{v:.0f}" for v in self.place)
            hint = f": give --origin, such as {near}" if self.left_out[OUTSIDE] else ""
            note(f"torchvox: warning: no point is judged{hint}")
        elif self.reasons[STAYS] == 0:
            note("torchvox: warning: all points are removed")
        return failed

    def _judge(self, i: int, reader: PointReader) -> None:
        batch = self.rays.batch(i, reader)
        start = time.perf_counter()
        points, origins = self._world(batch)
        judged = [each.cpu().numpy() for each in self.verdict.at(points, origins)]
        self.seconds["points"] += time.perf_counter() - start
        reason = np.full(reader.count, NOT_JUDGED, np.uint8)
        rows = np.arange(reader.count) if batch.rows is None else batch.rows
        reason[rows] = judged[0]
        self.outputs.write(i, reader, reason, rows, points.cpu().numpy(), judged[1:])
        numbers = np.bincount(reason, minlength=4).tolist()
        self.reasons.update(dict(enumerate(numbers)))
        removed = numbers[LEFT] + numbers[BESIDE]
        self.scans.append({"name": reader.name, "points": reader.count, "removed": removed})

    def _world(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Points [N, 3] float64 in the frame of the poses, and their origins [1 or N, 3]."""
        device = self.evidence.map.status.device
        points = torch.from_numpy(np.ascontiguousarray(batch.points)).to(device)
        if batch.origins is not None:
            return points.double(), torch.from_numpy(batch.origins).to(device)
        pose = torch.from_numpy(batch.pose)[None].to(device)
        return transform_points(points, pose), pose[:, :, 3]

    def report(self) -> dict[str, Any]:
        """What --json writes."""
        kept, left, beside, _ = (self.reasons[reason] for reason in range(4))
        left_out = {name: n for name, n in self.left_out.items() if n}
        return {
            **{"schema": 1, "points": self.points, "kept": kept},
            **{"removed": {"left": left, "beside": beside}, "not_judged": left_out},
            **{"voxels": self.verdict.voxels, "seconds": self.seconds, "scans": self.scans},
        }


class Outputs:
    """Files of `torchvox clean`. names: those that are written, folders as such.
    Raises WrongUseError for names that do not fit."""

    def __init__(self, args: CleanCommand, files: list[Path]) -> None:
        self.files, output, saved = files, args.output, args.save_evidence
        names = [output, args.removed, args.labels, saved, args.json]
        self.names = [path for path in names if path not in (None, STDOUT)]
        self.takes_points = any((output, args.removed, args.labels, args.json))
        if not any(names):
            every = "--output, --removed, --labels, --json, --save-evidence"
            raise WrongUseError(f"nothing would be written: give one of {every}")
        one = output is not None and output.suffix != "" and not output.is_dir()
        own = (output if one else None, OWN[:1]), (args.removed, OWN)
        self.merged = {path: columns for path, columns in own if path is not None}
        for path in self.merged:
            point_writer(path)
        self._in_las = any(path.suffix.lower() in LAS for path in self.merged)
        if self._in_las:
            require("laspy", "to write LAS files")
        self.each = self.labels = list[Path]()
        if output is not None and not one:
            kept = args.file_format or ""
            self.each = options.output_paths(files, output, "", POINT_SUFFIXES, kept)
        elif args.file_format is not None:
            raise WrongUseError("--format is for a folder as --output")
        if saved is not None and saved.suffix.lower() != ".npz":
            raise WrongUseError(f"--save-evidence must be .npz, got {saved}")
        if args.labels is not None:
            self.labels = options.output_paths(files, args.labels, "label", (".npy",), None)
        inputs = [*files, *(args.evidence or ()), *args.pose_files]
        inputs += [place.recording for place in recorded(files) or ()][:1]
        targets = {"--output": self.each or (output if one else None), "--json": args.json}
        targets |= {"--labels": self.labels, "--removed": args.removed, "--save-evidence": saved}
        options.check_outputs(inputs, targets)
        self._first: PointReader | None = None
        self._shares = self._whole = True  # of 0 to 1, or uint16, is intensity of floating point
        self._scaled = False
        self.writers: dict[Path, PointWriter] = {}

    def check(self, reader: PointReader) -> None:
        """Raises WrongUseError for columns that cannot be in one file with those before."""
        if not self.merged:
            return
        if clash := [name for name in OWN if name in reader.columns]:
            raise WrongUseError(f"{reader.path} has a column {clash[0]}, which outputs add")
        self._first = self._first or reader
        check_alike([self._first, reader], lattice=False)
        if self._in_las and reader.columns.get("intensity", np.dtype(int)).kind == "f":
            for chunk in reader.chunks(columns=("intensity",)):
                values = chunk.values("intensity")
                self._shares &= bool(((values >= 0) & (values <= 1)).all())
                self._whole &= bool((values == values.clip(0, 65535).round()).all())
            self._scaled = self._shares

    def open(self, stack: ExitStack, place: np.ndarray) -> None:
        """Opens the files of all scans. place: of the sensor at first. Raises WrongUseError."""
        if not (self._shares or self._whole):
            rule = "intensity must be from 0 to 1, or whole numbers from 0 to 65535"
            raise WrongUseError(f"in LAS files {rule}: write .ply or .pcd")
        if self._scaled:
            note("intensity is written to LAS files as 0 to 65535 for 0 to 1")
        for path in self.merged:
            is_las = path.suffix.lower() in LAS
            lattice = {"scale": 0.001, "offset": np.floor(place)} if is_las else {}
            assert self._first is not None
            none = self._first.schema.by_value(), np.zeros((0, 3)), np.zeros((4, 0))
            like = self._table(path, *none)
            self.writers[path] = stack.enter_context(create_points(path, like, **lattice))

    def write(
        self, i: int, reader: PointReader, reason: np.ndarray, rows: np.ndarray, world: np.ndarray,
        counts: list[np.ndarray],
    ) -> None:  # fmt: skip
        """Writes scan i. reason: of its points. world, counts: places of those in the rows, and the
        hits and seen empty of their voxels."""
        moved = (reason == LEFT) | (reason == BESIDE)
        if self.labels:
            write_npy(self.labels[i], reason)
        if not (self.each or self.merged):
            return
        table = join([reader.schema, *reader.chunks()])
        if self.each:
            with create_points(self.each[i], reader) as writer:
                writer.append(table.rows(~moved))
        place = scan_of(self.files[i])
        number = i if place is None else place.number
        own = np.stack([np.full(len(rows), number), reason[rows], *counts])
        for path, writer in self.writers.items():
            taken = moved[rows] if len(self.merged[path]) > 1 else reason[rows] == STAYS
            part = table.by_value().rows(rows[taken])
            writer.append(self._table(path, part, world[taken], own[:, taken]))

    def _table(
        self, path: Path, table: PointTable, world: np.ndarray, own: np.ndarray
    ) -> PointTable:
        """Points in the frame of the poses, with the columns of OWN that a file has."""
        if path.suffix.lower() in LAS and self._scaled:
            table = scaled_columns(table, ["intensity"])
        pairs = zip(self.merged[path], own, strict=False)
        added = {n: v.astype(np.uint8 if n == "reason" else np.uint32) for n, v in pairs}
        return PointTable(world, {**table.attributes, **added}, unit=table.unit, path=table.path)
