# SPDX-License-Identifier: Apache-2.0
"""center_targets: cells, radii, slots, heat maps, ignored boxes."""

import math

import pytest
import torch
from helpers import check_op
from hypothesis import given, settings
from hypothesis import strategies as st
from op_infos.targets import center_call
from scenes import scene

import torchvox

MAP = {
    "point_cloud_range": [0.0, 0.0, -1.0, 16.0, 8.0, 1.0],
    "pillar_size": [0.25, 0.25, 2.0],
    "cells": 2,
    "size": [16, 32],
    "task_of_class": [0],
}


def box(x: float, y: float, l: float = 2.0, w: float = 1.0) -> list[float]:  # noqa: E741
    return [x, y, 0.0, l, w, 1.5, 0.3]


def targets(boxes, device="cpu", labels=None, weight=None, **options) -> torchvox.CenterTargets:
    return torchvox.center_targets(
        torch.tensor([boxes], device=device).reshape(1, -1, 7),
        torch.tensor([labels or [0] * len(boxes)], device=device, dtype=torch.int32),
        None if weight is None else torch.tensor([weight], device=device),
        None,
        **{**MAP, **options},
    )


def test_a_center_has_a_cell_a_slot_and_a_gaussian(device):
    out = targets([box(3.3, 2.2)], device, max_objects=3)
    assert out.cell.tolist() == [[[4 * 32 + 6, -1, -1]]]
    assert (out.box.tolist(), out.count.tolist()) == ([[[0, -1, -1]]], [[1]])
    plane = out.heatmap[0, 0].cpu()
    assert plane[4, 6] == 1
    sigma = 5 / 6  # radius 2
    want = torch.tensor([[math.exp(-(x * x + y * y) / (2 * sigma**2)) for x in range(-2, 3)]
                         for y in range(-2, 3)])  # fmt: skip
    torch.testing.assert_close(plane[2:7, 4:9], want, rtol=3e-7, atol=0)
    plane[2:7, 4:9] = 0
    assert not plane.any()


def test_centers_outside_and_boxes_without_a_size_have_no_target(device):
    """The edges of the range belong inside. Two objects in a cell take two slots and one peak."""
    nan, inf = math.nan, math.inf
    xs = [0.0, -0.01, 15.99, 16.0, nan, inf]
    sizes = [box(1, 1, l=0.0), box(1, 1, w=-1.0), box(1, 1, l=nan), box(1, 1, l=inf)]
    boxes = [*(box(x, 0.0) for x in xs), *sizes, box(2.0, 2.0), box(2.1, 2.1)]
    out = targets(boxes, device, max_objects=6)
    assert out.box[0, 0].tolist() == [0, 2, 10, 11, -1, -1] and out.count.tolist() == [[4]]
    assert out.cell[0, 0].tolist() == [0, 31, 4 * 32 + 4, 4 * 32 + 4, -1, -1]
    assert (out.heatmap == 1).sum() == 3


@settings(max_examples=150)
@given(
    st.integers(0, 8),
    st.integers(0, 2**30),
    st.sampled_from([[0, 0, 0], [0, 1, 0], [2, 0]]),
    st.integers(0, 4),
    st.sampled_from([0.0, 0.1, 0.7]),
    st.integers(0, 3),
    st.sampled_from([1, 3]),
)
def test_any_scene_has_the_targets_of_the_loops(count, seed, tasks, most, overlap, radius, cells):
    call = {
        **scene(count, seed),
        "point_cloud_range": [0.0, 0.0, -1.0, 8.0, 8.0, 1.0],
        "pillar_size": [0.5, 0.25],
        "cells": cells,
        "size": [9, 7],
        "task_of_class": tasks,
        "max_objects": most,
        "overlap": overlap,
        "min_radius": radius,
    }
    check_op("center_targets", "cpu", **call)


@pytest.mark.parametrize("most", [10, 200])
def test_many_boxes_have_the_targets_of_the_loops(most, device):
    """More boxes than a list takes, maps of several tiles."""
    call = center_call(300, max_objects=most, size=[24, 40], pillar_size=[0.1, 0.125], overlap=0.6)
    *_, count = check_op("center_targets", device, **call)
    assert count.max() == most if most == 10 else 10 < count.max() < most
