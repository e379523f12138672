# SPDX-License-Identifier: Apache-2.0
"""torchvox downsample: lines, outputs, reports, and the same files by processes and by stages."""

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import DATA
from helpers import assert_same_points as same
from helpers import read_points as read
from helpers import write_points as write

from torchvox.filter import FilterJob, FilterOptions, downsample
from torchvox.filter.ray import Downsample, file_rows
from torchvox.io import PointTable
from torchvox.io.table import join

V = ("--voxel", "0.5")
CPU = ("--device", "cpu")


def cloud(points=3000, seed=0, low=0.0):
    rng = np.random.default_rng(seed)
    attributes = {
        "intensity": rng.random(points).astype(np.float32),
        "label": rng.integers(0, 4, points, np.int32),
    }
    return PointTable((low + 6 * rng.random((points, 3))).astype(np.float32), attributes)


def test_a_file_becomes_one_point_per_voxel(torchvox_cli, tmp_path):
    table = cloud()
    write(tmp_path / "a.ply", table)
    arguments = ("downsample", "a.ply", *V, *CPU, "-o", "b.ply", "--policy", "label=max")
    torchvox_cli(*arguments, "--dry-run").ok("3,000 points, keys of ", "would write b.ply")
    assert [path.name for path in tmp_path.iterdir()] == ["a.ply"]
    result = torchvox_cli(*arguments, "--json", "r.json", "--trace", "t.npz").ok()
    small, row = downsample(table, 0.5, policy={"label": "max"}, trace=True)
    same(read(tmp_path / "b.ply"), small)
    np.testing.assert_array_equal(np.load(tmp_path / "t.npz")["point_voxel"], row)
    assert result.out.startswith(f"a.ply: 3,000 points -> {len(small):,} voxels of 0.5 m (")
    assert "dropped: none; averaged: intensity; read" in result.out
    assert result.out.endswith("wrote b.ply\n")
    report = json.loads((tmp_path / "r.json").read_text())
    (facts,) = report["files"]
    assert report["schema"] == 1 and facts["points"] == 3000 and facts["voxels"] == len(small)
    assert facts["output"] == "b.ply" and facts["dropped"] == {} and facts["exact_cells"]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_one_bad_file_of_many(torchvox_cli, tmp_path, jobs):
    (tmp_path / "in").mkdir()
    for name, seed in (("a", 1), ("c", 2)):
        write(tmp_path / "in" / f"{name}.ply", cloud(seed=seed))
    (tmp_path / "in" / "b.ply").write_bytes(b"ply\nformat")
    arguments = ("downsample", "in", *V, *CPU, "-o", "out", "--jobs", str(jobs))
    result = torchvox_cli(*arguments, "--json", "r.json")
    assert result.code == 1
    assert [line.split(":")[0] for line in result.out.splitlines()] == ["a.ply", "c.ply"]
    assert "b.ply" in result.err and "1 of 3 files failed" in result.err
    outputs = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in outputs] == ["a.downsampled.ply", "c.downsampled.ply"]
    for path, seed in zip(outputs, (1, 2), strict=True):
        same(read(path), downsample(cloud(seed=seed), 0.5))
    facts = json.loads((tmp_path / "r.json").read_text())["files"]
    assert sum("error" in entry for entry in facts) == 1 and len(facts) == 3
    (tmp_path / "in" / "b.ply").unlink()
    times = [path.stat().st_mtime_ns for path in outputs]
    assert torchvox_cli(*arguments, "--skip-existing").ok().out.count("skipped") == 2
    assert times == [path.stat().st_mtime_ns for path in outputs]


def test_many_files_become_one_by_every_way(torchvox_cli, tmp_path):
    parts = [cloud(seed=i, low=2.0 * i) for i in range(3)]
    for i, part in enumerate(parts):
        write(tmp_path / f"{i}.npz", part)
    arguments = ("downsample", ".", *V, *CPU, "--merge", "-o")
    assert torchvox_cli(*arguments, "all.ply").ok().out.startswith("3 files: 9,000 points -> ")
    same(read(tmp_path / "all.ply"), downsample(join(parts), 0.5))
    (tmp_path / "all.ply").rename(tmp_path / "all.kept")
    torchvox_cli(*arguments, "small.ply", "--memory-limit", "200kB").ok()
    assert (tmp_path / "small.ply").read_bytes() == (tmp_path / "all.kept").read_bytes()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".torchvox")]


def test_stages_name_outputs_by_input_and_options(tmp_path):
    path = write(tmp_path / "a.ply", cloud())
    stage = Downsample(tmp_path / "out", FilterOptions((0.5, 0.5, 0.5)))
    rows = file_rows([path, tmp_path / "gone.ply"])
    copy = pickle.loads(pickle.dumps(stage))  # as Ray sends it
    (first, gone), (again, _) = list(map(stage, rows)), list(map(copy, rows))
    assert first == again and first["error"] == "" and first["points"] == 3000
    FilterJob([path], stage.options).run(tmp_path / "b.ply")
    assert (tmp_path / "b.ply").read_bytes() == Path(first["output"]).read_bytes()
    assert gone["output"] == "" and "gone.ply" in gone["error"]
    other = Downsample(tmp_path / "out", FilterOptions((0.25, 0.5, 0.5)))(rows[0])
    assert other["output"] != first["output"]


@pytest.mark.slow
def test_ray_gives_the_files_of_a_loop(tmp_path):
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    pytest.importorskip("ray.data")
    paths = [write(tmp_path / f"{i}.ply", cloud(seed=i)) for i in range(2)]
    options = FilterOptions((0.5, 0.5, 0.5))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        rows = ray.data.from_items(file_rows(paths))
        results = rows.map(Downsample(tmp_path / "ray", options)).take_all()
    finally:
        ray.shutdown()
    for row in map(Downsample(tmp_path / "loop", options), file_rows(paths)):
        (other,) = (r for r in results if r["path"] == row["path"])
        assert Path(other["output"]).read_bytes() == Path(row["output"]).read_bytes()


def processes_of(session):
    """Numbers of the processes of a session that have not ended."""
    numbers = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, own = path.read_text().rpartition(")")[2].split()[:4]
            numbers += [path.parent.name] * (int(own) == session and state != "Z")
    return numbers


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_processes_that_are_ended_leave_nothing(tmp_path, end):
    """Two that work, one that waits for its input, and one without any."""
    for i in range(2):
        write(tmp_path / f"{i}.npz", cloud(400_000, i))
    os.mkfifo(tmp_path / "2.xyz")
    inputs = [tmp_path / "2.xyz", tmp_path / "0.npz", tmp_path / "1.npz"]
    command = [sys.executable, "-m", "torchvox", "downsample", *inputs, "-o", tmp_path / "out"]
    command += ["--voxel", "0.01", "--jobs", "4", *CPU]
    running = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    while running.poll() is None and not (tmp_path / "out").exists():
        pass
    os.kill(running.pid, end)
    _, err = running.communicate(timeout=60)
    codes = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL}
    assert running.returncode == codes[end], err
    assert "Traceback" not in err
    last = time.monotonic() + 20
    while alive := processes_of(running.pid):
        assert time.monotonic() < last, alive
    left = [path.name for path in (tmp_path / "out").iterdir()]
    assert all(not name.startswith(".") for name in left), left


def test_an_airborne_tile(torchvox_cli, tmp_path):
    tile = DATA / "las" / "autzen_trim.laz"
    if not tile.exists():
        pytest.skip(f"{tile} is not there")
    pytest.importorskip("lazrs", reason="the extra las is not installed")
    command = ("downsample", "--voxel", "5", *CPU)
    result = torchvox_cli(*command, tile, "-o", "b.laz")
    result.ok("110,000 points -> 25,968 voxels of 5 ft (4.2x)")
    torchvox_cli(*command, "b.laz", "-o", "c.laz").ok("25,968 points -> 25,968 voxels")
    same(read(tmp_path / "b.laz"), read(tmp_path / "c.laz"))
