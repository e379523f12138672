# SPDX-License-Identifier: Apache-2.0
"""A case becomes measurements: checked before they are timed, with a floor and verdicts."""

import time
from dataclasses import replace

import pytest
import torch

from benchmarks import machine, suite, timing
from benchmarks.bev import BEVCase
from benchmarks.clouds import Clouds
from benchmarks.sampling import SamplingCase
from benchmarks.suite import CaseSpec, Implementation, Settings, Target, run_case
from benchmarks.upstream import ALL, PACKAGES
from benchmarks.voxel import GRIDS, VoxelCase


@pytest.fixture
def settings():
    return Settings("cpu", budget_s=0.001)


@pytest.fixture
def voxels(clouds):
    """2,000 points of a street."""
    return VoxelCase(*clouds.street(2000), *GRIDS["0.2 m"], 3)


@pytest.fixture
def samples(clouds):
    """64 of 256 points of a cube."""
    return SamplingCase(*clouds.cube(1, 256), 64)


def measure(case, settings, *targets):
    return run_case(CaseSpec("a case", lambda _: case, targets), Clouds(None, "cpu"), settings)


def by_name(rows):
    return {row["implementation"]: row for row in rows}


@pytest.mark.parametrize("change", [{}, {"reduce": "none"}, {"max_points": -1}])
@pytest.mark.parametrize("dtype", [None, torch.half])
def test_baseline_voxels_are_those_of_torchvox(voxels, settings, change, dtype):
    rows = measure(replace(voxels, out_dtype=dtype, **change), settings)
    assert [row["implementation"] for row in rows] == [
        "torchvox",
        "torch unique + index_add",
        "numpy unique",
    ]
    for row in rows[1:]:
        assert row["status"] == "timed", row["reason"]
        assert "voxels, counts, features" in row["check"]


def test_baseline_samples_are_those_of_torchvox(samples, settings):
    rows = measure(samples, settings)
    assert {row["status"] for row in rows} == {"timed"}
    assert rows[1]["check"] == "same samples"


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
@pytest.mark.parametrize("index", [False, True])
def test_baseline_images_are_those_of_torchvox(clouds, settings, dtype, index):
    case = BEVCase(*clouds.street(3000), cells=64, dtype=dtype, index=index)
    rows = measure(case, settings)
    assert {row["status"] for row in rows} == {"timed"}, rows


def test_measurements_carry_sizes_and_figures(voxels, settings):
    row = measure(voxels, settings)[0]
    assert row["size"]["points"] == 2000
    assert row["size"]["read"] == 2000 * 4 * 4
    # features, indices, num_points, point_voxel and counts, at a capacity of one voxel per point
    assert row["size"]["written"] == 2000 * (16 + 16 + 4 + 4) + 2 * 8 * 4
    assert 0 < row["best_us"] <= row["wall_us"]
    times = row["best_us"] / row["floor_us"]  # which is printed with two decimals
    assert row["times_floor"] == pytest.approx(times, rel=0.02, abs=0.005)


def test_the_floor_is_the_bytes_at_copy_speed(monkeypatch):
    monkeypatch.setattr(machine, "copy_bandwidth", lambda device: 4e12)
    monkeypatch.setattr(machine, "empty_graph_us", lambda kernels: 1.0 + 0.5 * kernels)
    assert machine.floor_us("cpu", 8_000_000, 0) == 2.0
    assert machine.floor_us("cuda", 8_000_000, 4) == 5.0


def test_goals_are_judged(voxels, settings):
    rows = measure(
        voxels,
        settings,
        Target("best_us", 1e9),
        Target("best_us", 1e-3),
        Target("best_us", faster_than="no such library", factor=2.0),
        Target("best_us", faster_than="every other implementation", factor=1e-6),
    )
    assert [target["met"] for target in rows[0]["targets"]] == [True, False, None, True]
    assert rows[0]["targets"][3]["limit_us"] > 1e6 * 0.5 * min(r["best_us"] for r in rows[1:])


def test_a_goal_may_add_the_writing_of_the_features(voxels, settings, monkeypatch):
    monkeypatch.setattr(machine, "copy_bandwidth", lambda device: 1e9)
    target = measure(replace(voxels, reduce="none"), settings, Target("best_us", 10, 1.5))[0][
        "targets"
    ]
    assert target[0]["limit_us"] == pytest.approx(10 + 1.5 * 2000 * 3 * 4 * 4 * 1e-3)


def test_what_torchvox_cannot_do_is_reported(voxels, settings):
    class Broken(type(voxels)):
        def torchvox(self):
            raise RuntimeError("out of memory")

    broken = Broken(voxels.points, "", voxels.voxel_size, voxels.point_cloud_range, 3)
    (row,) = measure(broken, settings)
    assert (row["status"], row["reason"]) == ("failed", "RuntimeError: out of memory")


class Scripted:
    """A sampling case whose other implementation is the given call, and counts its calls."""

    def __init__(self, case, call, capturable=False):
        self.case, self.calls = case, []
        self.call, self.capturable = call, capturable

    def __getattr__(self, name):
        return getattr(self.case, name)

    def baselines(self, outputs):
        def call():
            self.calls.append(time.perf_counter())
            return self.call(len(self.calls))

        yield Implementation("other", call, lambda result: f"result {result}", self.capturable)


def test_a_first_call_is_never_a_measurement(samples, settings):
    scripted = Scripted(samples, lambda count: time.sleep(0.2 if count == 1 else 0.0))
    row = by_name(measure(scripted, settings))["other"]
    assert row["wall_us"] < 50_000


def test_a_slow_call_is_timed_once_after_a_warm_up(samples, settings, monkeypatch):
    monkeypatch.setitem(suite.SLOW_S, "cpu", 0.01)
    scripted = Scripted(samples, lambda count: time.sleep(0.02) or count)
    row = by_name(measure(scripted, settings))["other"]
    assert len(scripted.calls) == 2
    assert row["check"] == "result 2"
    assert 20_000 <= row["best_us"] == row["wall_us"] < 200_000


@pytest.mark.parametrize(
    ("seconds", "figures"),
    [
        (0.0, {"graph_us", "launches", "eager_us", "cpu_us", "floor_us", "times_floor"}),
        (0.03, {"eager_us"}),
        (0.3, {"eager_us"}),
    ],
)
def test_slow_ways_get_fewer_figures_on_a_gpu(samples, settings, monkeypatch, seconds, figures):
    """With the GPU's clocks replaced, so that it runs anywhere."""
    monkeypatch.setattr(timing, "graph_time", lambda call, budget: timing.GraphTime(5.0, 3))
    monkeypatch.setattr(timing, "eager_us", lambda call, budget: 6.0)
    monkeypatch.setattr(timing, "cpu_us", lambda call, budget, wall: 4.0)
    monkeypatch.setattr(machine, "floor_us", lambda device, moved, launches: 2.0)
    scripted = Scripted(samples, lambda count: time.sleep(seconds), capturable=True)
    rows = by_name(measure(scripted, replace(settings, device="cuda")))
    every = {"graph_us", "launches", "eager_us", "cpu_us", "floor_us", "times_floor"}
    assert {key for key in every if key in rows["torchvox"]} == every
    assert rows["torchvox"]["times_floor"] == 2.5
    assert {key for key in every if key in rows["other"]} == figures
    if seconds:
        assert 1e6 * seconds <= rows["other"]["eager_us"] < 2e6 * seconds
        assert len(scripted.calls) == (4 if seconds < 0.2 else 2)


def test_after_the_deadline_only_torchvox_is_measured(samples, settings):
    scripted = Scripted(samples, lambda count: count)
    rows = by_name(measure(scripted, replace(settings, deadline=time.perf_counter() - 1)))
    assert (rows["other"]["status"], rows["other"]["reason"]) == ("skipped", "out of time")
    assert rows["torchvox"]["status"] == "timed"
    assert scripted.calls == []


FAKE_FPSAMPLE = """
import numpy as np
def bucket_fps_kdline_sampling(cloud, count, h, start_idx):
    return {}
"""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("np.arange(count)", "coverage radius"),
        ("np.zeros(count, np.uint64)", "sampled twice"),
        ("np.arange(count) + len(cloud)", "outside the cloud"),
    ],
)
def test_a_sampler_with_a_wrong_result_is_not_timed(samples, settings, fake_package, body, reason):
    points = samples.points.sort(1).values  # the first ones huddle in a corner
    fake_package("fpsample", FAKE_FPSAMPLE.format(body))
    upstream = [a for a in ALL if a.package == "fpsample"]
    rows = by_name(measure(replace(samples, points=points), replace(settings, upstream=upstream)))
    (wrong,) = (
        row for implementation, row in rows.items() if implementation.startswith("fpsample")
    )
    assert wrong["status"] == "wrong"
    assert reason in wrong["reason"]
    assert "best_us" not in wrong


FAKE_GICP = """
import numpy as np
class PointCloud:
    def __init__(self, points):
        self.found = points
    def points(self):
        return self.found
def voxelgrid_sampling(cloud, size, threads):
    cells, row = np.unique(np.floor(cloud.found / size), axis=0, return_inverse=True)
    sums = np.stack([np.bincount(row.ravel(), c) for c in cloud.found.T], 1)
    return PointCloud({})
"""


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("sums / np.bincount(row.ravel())[:, None]", "timed"),
        ("sums / np.bincount(row.ravel())[:, None] + 0.01", "wrong"),
        ("cells * size", "wrong"),
        ("cloud.found[:10]", "wrong"),
    ],
)
def test_a_voxelizer_is_held_to_its_own_rule(voxels, settings, fake_package, body, status):
    fake_package("small_gicp", FAKE_GICP.format(body))
    upstream = [a for a in ALL if a.package == "small_gicp"]
    uncapped = replace(voxels, max_points=-1)
    rows = by_name(measure(uncapped, replace(settings, upstream=upstream)))
    assert rows["small_gicp"]["status"] == status


def test_a_broken_library_is_reported_and_the_others_go_on(samples, settings, fake_package):
    fake_package("fpsample", "raise OSError('no such library')")
    rows = by_name(
        measure(samples, replace(settings, upstream=[a for a in ALL if a.package == "fpsample"]))
    )
    assert rows["fpsample"] == {
        **rows["fpsample"],
        "status": "failed",
        "reason": "OSError: no such library",
    }
    assert rows["torch loop"]["status"] == "timed"


def test_peers_are_measured_without_baselines(samples, settings, fake_package):
    fake_package("fpsample", FAKE_FPSAMPLE.format("np.array([0, 0])"))
    upstream = [a for a in ALL if a.package == "fpsample"]
    alone = replace(settings, upstream=upstream, baselines=False)
    rows = measure(samples, alone)
    assert [row["implementation"].split(",")[0] for row in rows] == ["torchvox", "fpsample"]
    assert measure(samples, replace(alone, upstream=[])) == []


def test_another_library_that_cannot_be_captured_has_no_graph_time(monkeypatch):
    def graph_time(call, budget):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(timing, "graph_time", graph_time)
    monkeypatch.setattr(timing, "eager_us", lambda call, budget: 6.0)
    monkeypatch.setattr(timing, "cpu_us", lambda call, budget, wall: 4.0)
    waiting = Implementation("other", lambda: None, str, capturable=True)
    assert suite._figures_of_another(waiting, 0.1) == {"eager_us": 6.0, "cpu_us": 4.0}


def test_a_version_is_that_of_the_distribution_that_has_the_package(monkeypatch):
    assert machine.version("_pytest") == machine.version("pytest") == pytest.__version__
    assert machine.version("no_such_package") is None


def test_upstream_libraries_are_packages_by_name():
    assert {
        *("fpsample", "mmcv", "open3d", "pointnet2_ops", "pyoctomap"),
        *("pytorch3d", "scipy", "small_gicp", "spconv", "spconv_triton", "torch_cluster"),
        *("torch_fps", "torch_quickfps", "torch_scatter", "torchbvh"),
    } == set(PACKAGES)
    assert {library.op for library in ALL} == {
        *("voxelize", "furthest_point_sample", "ball_query", "knn", "three_nn"),
        *("group_points", "three_interpolate", "voxel_downsample", "occupancy_integrate_"),
        *("query_and_group", "radius_neighbors", "furthest_point_sample_with_dist"),
        *("segment_reduce", "rotated_iou", "rotated_nms", "points_in_boxes"),
    }
