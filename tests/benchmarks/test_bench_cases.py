# SPDX-License-Identifier: Apache-2.0
"""The list of cases: every row of the targets is there, and each target can be judged."""

import pytest

from benchmarks.__main__ import cases
from benchmarks.detection import gpu_cases

FIGURES = {"cuda": {"graph_us", "eager_us", "cpu_us", "times_floor"}, "cpu": {"best_us"}}


def all_cases(device):
    return cases(device)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_names_are_unique(device):
    names = [spec.name for spec in all_cases(device)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_goals_are_about_figures_that_the_device_has(device):
    for spec in all_cases(device):
        for target in spec.targets:
            assert target.figure in FIGURES[device], spec.name
            assert (target.at_most_us is None) != (target.faster_than is None), spec.name


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize(
    "op",
    [
        *("voxelize", "FPS", "ball", "knn", "three_nn", "group", "interpolate", "BEV"),
        *("radius_neighbors", "chamfer_distance", "furthest_point_sample_with_dist"),
        *("rotated_nms", "rotated_iou", "points_in_boxes", "box_query", "head"),
        *("anchor_targets", "anchor_loss", "center_targets", "place_boxes"),
        *("voxel_downsample", "voxel_group", "voxel_mean"),
        *("serialize", "unique_cells", "grid_sample"),
        *("occupancy_integrate_", "occupancy_query", "occupancy_crop", "ray_visibility"),
    ],
)
def test_every_op_has_cases(device, op):
    assert any(spec.name.startswith(op) for spec in all_cases(device))


def test_cases_without_data_run_on_generated_clouds(clouds):
    case = next(c for c in all_cases("cpu") if "KITTI pillars" in c.name).build(clouds)
    assert case.source.startswith("generated")
    assert 10_000 < case.points.size(0) < 40_000


@pytest.mark.parametrize("points", [1000, 250_000])
def test_a_street_has_as_many_points_as_requested(clouds, points):
    assert clouds.street(points).points.shape == (points, 4)


def test_jittered_sweeps_differ_from_each_other(clouds):
    twice = clouds.sweep(2).points
    half = len(twice) // 2
    assert not (twice[:half] == twice[half:]).all(1).any()
    assert (twice[:half, :3] - twice[half:, :3]).abs().max() < 1.0


def test_the_baseline_way_by_class_finds_the_boxes_of_the_op(clouds):
    case = next(c for c in gpu_cases() if "by class" in c.name).build(clouds)
    implementation = next(case.baselines(case.torchvox()))
    assert "same" in implementation.check(implementation.call())
