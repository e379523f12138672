# SPDX-License-Identifier: Apache-2.0
"""The filter's benchmarks: how results are judged, the page and the jobs on files."""

import sys

import numpy as np
import pytest
import torch

import torchvox
from benchmarks import filter_files, filter_gpu_cpu
from benchmarks.baseline_filter import Rows
from benchmarks.filter import EPS, FilterCase, Filtered, LargeCase, compare
from benchmarks.suite import CaseSpec, Settings, WrongResult, run_case
from benchmarks.upstream import ALL
from torchvox.io import PointTable, create_points, open_points


@pytest.fixture
def case(clouds):
    """3,000 points of a street in voxels of 2 m."""
    return FilterCase(*clouds.street(3000), 2.0)


def result_of(case):
    found = torchvox.voxel_downsample(case.points, [case.size] * 3, trim=True)
    return Filtered(found.indices[:, 1:].long().flip(1), found.out, found.num_points)


def measure(case, upstream=()):
    settings = Settings("cpu", budget_s=0.001, upstream=list(upstream))
    return run_case(CaseSpec("a case", lambda _: case), None, settings)


def test_the_baselines_filter_as_torchvox_does(case):
    rows = measure(case)
    assert [row["implementation"] for row in rows] == [
        *("torchvox", "torch unique + index_add", "numpy unique + bincount", "voxelize")
    ]
    for row in rows[1:]:
        assert row["status"] == "timed", row["reason"]
        assert "voxels, counts, means" in row["check"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r._replace(means=r.means + 0.5), "means differ"),
        (lambda r: r._replace(count=r.count + 1), "counts of points differ"),
        (lambda r: Filtered(*(each[1:] for each in r)), "0 voxels are other ones, 1 are missing"),
        (lambda r: Filtered(*(torch.cat([e, e[:1]]) for e in r)), "more than one row"),
        (lambda r: r._replace(cells=r.cells + 500), "voxels are other ones"),
    ],
)
def test_other_results_are_wrong(case, change, words):
    result = result_of(case)
    assert "counts" in compare(case, result, eps=EPS["single"])
    with pytest.raises(WrongResult, match=words):
        compare(case, change(result), eps=EPS["single"])


def test_voxels_beside_a_face_with_a_point_are_left_out():
    points = torch.tensor([[2.0, 0.5, 0.5], [2.5, 0.5, 0.5], [9.5, 0.5, 0.5]])
    case = FilterCase(points, "by hand", 1.0)
    at_face = Filtered(torch.tensor([[1, 0, 0], [2, 0, 0], [9, 0, 0]]), points)
    assert "same 1 voxels" in (said := compare(case, at_face))
    assert "left out: 1 points at faces, 1 voxels" in said
    away = at_face._replace(cells=torch.tensor([[1, 0, 0], [2, 0, 0], [8, 0, 0]]))
    with pytest.raises(WrongResult):
        compare(case, away)


def test_rows_of_the_kernels_are_read_by_their_codes(case):
    lower = case.points[:, :3].amin(0).tolist()
    frame = {"origin": lower, "lower": [0, 0, 0], "bits": 21}
    keys = torchvox.voxel_keys(case.points, [case.size] * 3, **frame).keys
    groups = torchvox.voxel_group(keys)
    means = torchvox.voxel_mean(case.points, groups.offsets, groups.perm)
    counts = groups.offsets.diff()
    rows = Rows(groups.row_keys, means, counts, groups.counts[0])
    assert "counts" in case._check_rows(tuple(lower), rows)
    with pytest.raises(WrongResult):
        case._check_rows(tuple(lower), rows._replace(codes=groups.row_keys + 1))


@pytest.mark.parametrize("order", ["first", "key"])
def test_a_large_case_is_held_to_the_other_backend(case, order):
    large = LargeCase(case.points, "", 2.0, order)
    found = large.torchvox()
    assert "other backend" in large.check(found)
    with pytest.raises(WrongResult):
        large.check([found[0] + 1, *found[1:]])


FAKE_GICP = """
import numpy as np
class PointCloud:
    def __init__(self, points):
        self.found = points
    def points(self):
        return self.found
def voxelgrid_sampling(cloud, size, threads):
    cells, row = np.unique(np.floor(cloud.found / size), axis=0, return_inverse=True)
    means = np.stack([np.bincount(row.ravel(), c) for c in cloud.found.T], 1)
    means /= np.bincount(row.ravel())[:, None]
    return PointCloud({})
"""


@pytest.mark.parametrize(
    ("body", "alone", "threaded"),
    [
        ("means", "timed", "timed"),
        ("np.concatenate([means, means[:1]])", "wrong", "timed"),
        ("means[5:]", "wrong", "wrong"),
        ("means + 1e-3", "wrong", "wrong"),
    ],
)
def test_a_library_may_split_voxels_with_threads_alone(case, fake_package, body, alone, threaded):
    fake_package("small_gicp", FAKE_GICP.format(body))
    rows = measure(case, [each for each in ALL if each.package == "small_gicp"])
    found = {row["implementation"]: row["status"] for row in rows}
    assert (found["small_gicp"], found["small_gicp, 2 threads"]) == (alone, threaded), rows


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        ([1, 1, 1], "below 100 points"),
        ([9, 9, 99], "not up to 10,000 points"),
        ([8, 2, 1], "about 320 points"),
        ([1, 8, 4], "about 1,000 points"),
    ],
)
def test_break_even_is_the_last_crossing(gpu, said):
    cpu = [4, 4, 64] if gpu != [1, 8, 4] else [4, 8, 64]
    assert filter_gpu_cpu.break_even([100, 1000, 10_000], gpu, cpu) == said


def test_times_are_of_single_runs():
    seconds = iter([9.0, 1e-2, *(1e-3 * i for i in range(100, 0, -1))])
    found = filter_gpu_cpu.times(lambda: next(seconds), 1.0)
    assert found[:3] == pytest.approx((1e3, 50.5e3, 95e3))
    assert str(found) == "1,000 / 50,500 / 95,000"


def test_the_page_of_a_machine_without_a_gpu(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(filter_gpu_cpu.machine, "facts", lambda *_: FACTS)
    filter_gpu_cpu.main(["--points", "500", "--budget", "0.001"])
    page = capsys.readouterr().out
    assert page.startswith("# The filter on a GPU and on a CPU\n")
    assert page.count("| points | voxels | CPU |") == 2
    assert page.count("| 500 | ") == 2
    assert "{" not in page


FACTS = {"device": "cpu", "cpu": "a CPU", "threads": 2, "torch": "2", "torchvox": "0"}
FACTS |= {"commit": "abc", "dirty": False, "date": "today", "copy_gb_per_s": 1.0}


@pytest.fixture
def tile(tmp_path):
    """data/las/autzen_trim.laz with 100 points on the lattice of centimeters."""
    pytest.importorskip("lazrs")
    xyz = np.random.default_rng(0).integers(0, 20_000, (100, 3)).astype(np.int32)
    path = tmp_path / "las" / "autzen_trim.laz"
    lattice = {"scale": np.full(3, 0.01), "offset": np.zeros(3)}
    with create_points(path, like=PointTable(xyz, **lattice)) as writer:
        writer.append(PointTable(xyz, **lattice))
    return path


def test_copies_of_a_tile_stand_at_whole_cells(tile, tmp_path):
    (whole,) = open_points(tile).chunks()
    (found,) = open_points(filter_files.make_file(tile, 250, tmp_path)).chunks()
    assert len(found) == 250
    for copy in (found.xyz[100:200] - whole.xyz, found.xyz[200:] - whole.xyz[:50]):
        assert (copy == copy[0]).all()
        assert (copy[0] % 10_000 == 0).all()
        assert abs(copy[0]).max() >= 19_000


COPY = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[3]); print('filter 1,500.0 ms (cpu)')"


def test_jobs_on_files_are_measured_beside_their_parts(tile, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(filter_files, "IDLE", "")
    script = tmp_path / "copy.py"
    script.write_text(COPY)
    command = ["--command", f"{sys.executable} {script}", "--memory-limit", "1GiB"]
    filter_files.main([str(tmp_path), "--data", str(tmp_path), "--points", "120", *command])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:3] for line in lines[-2:]] == [
        ["| 120", "120", "none"],
        ["| 120", "120", "1GiB"],
    ]
    assert not (tmp_path / "out.laz").exists()
    with pytest.raises(RuntimeError, match="gave exit code 3"):
        filter_files.run([sys.executable, "-c", "raise SystemExit(3)"])


def test_the_time_of_the_filter_is_read_from_the_line():
    line = "a.laz: 9 points -> 1 voxels of 0.1 m; read 2 ms, filter 1,100.5 ms (cpu), write 3 ms"
    assert filter_files.filter_seconds(line) == pytest.approx(1.1005)
    assert filter_files.filter_seconds("wrote out.laz") is None


def test_the_most_memory_is_that_of_the_child():
    small, large = (
        filter_files.run([sys.executable, "-c", f"b'x' * {size}"]).peak for size in (1, 200 << 20)
    )
    assert 190 << 20 < large - small < 230 << 20
