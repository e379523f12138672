# SPDX-License-Identifier: Apache-2.0
"""The list of cases: every row of the targets is there, and each goal can be judged."""

import pytest

FIGURES = {"cuda": {"graph_us", "eager_us", "cpu_us"}, "cpu": {"best_us"}}


def all_cases(device):
    from benchmarks.__main__ import cases

    return cases(device)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_names_are_unique(device):
    names = [case.name for case in all_cases(device)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_goals_are_about_figures_that_the_device_has(device):
    for case in all_cases(device):
        for goal in case.goals:
            assert goal.figure in FIGURES[device], case.name
            assert (goal.at_most_us is None) != (goal.faster_than is None), case.name


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize(
    "op",
    [
        *("voxelize", "FPS", "ball", "knn", "three_nn", "group", "interpolate", "BEV"),
        *("rotated_nms", "rotated_iou", "points_in_boxes", "head"),
    ],
)
def test_every_op_has_cases(device, op):
    assert any(case.name.startswith(op) for case in all_cases(device))


def test_cases_without_data_run_on_generated_clouds(clouds):
    problem = next(c for c in all_cases("cpu") if "KITTI pillars" in c.name).build(clouds)
    assert problem.source.startswith("generated")
    assert 10_000 < problem.points.size(0) < 40_000


@pytest.mark.parametrize("points", [1000, 250_000])
def test_a_street_has_as_many_points_as_asked_for(clouds, points):
    assert clouds.street(points).points.shape == (points, 4)


def test_jittered_sweeps_differ_from_each_other(clouds):
    twice = clouds.sweep(2).points
    half = len(twice) // 2
    assert not (twice[:half] == twice[half:]).all(1).any()
    assert (twice[:half, :3] - twice[half:, :3]).abs().max() < 1.0


def test_the_textbook_way_by_class_finds_the_boxes_of_the_op(clouds):
    from benchmarks.detection import gpu_cases

    problem = next(c for c in gpu_cases() if "by class" in c.name).build(clouds)
    way = next(problem.textbook(problem.torchvox()))
    assert "same" in way.check(way.call())
