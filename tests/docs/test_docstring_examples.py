# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings of what is used most run, on the CPU."""

import doctest
import operator

import pytest
import torch

import torchvox

EXAMPLES = (
    *("voxelize", "voxel_downsample", "furthest_point_sample", "knn", "ball_query"),
    *("radius_neighbors", "three_interpolate", "group_points", "gather_points", "segment_reduce"),
    *("rotated_iou", "rotated_nms", "points_in_boxes", "bev_max_height", "OccupancyMap"),
    *("collate_points", "io.read_cloud", "io.write_cloud", "models.get_model", "models.Detector"),
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_docstring_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, names = operator.attrgetter(name)(torchvox).__doc__, dict(torch=torch, torchvox=torchvox)
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    result = doctest.DocTestRunner().run(test)
    assert result.attempted >= 1 and result.failed == 0
