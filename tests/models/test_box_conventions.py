# SPDX-License-Identifier: Apache-2.0
"""Boxes between conventions: the same corners, and back to the same numbers."""

import math

import pytest
import torch

from torchvox.models.box_conventions import CONVENTIONS, boxes_from, boxes_to


def boxes(columns, count=50):
    generator = torch.Generator().manual_seed(0)
    table = torch.rand(count, columns, generator=generator, dtype=torch.float64) * 6 - 3
    table[:, 3:6] = table[:, 3:6].abs() + 0.1
    return table


@pytest.mark.parametrize("columns", [7, 9])
@pytest.mark.parametrize("name", CONVENTIONS)
def test_boxes_come_back_as_they_were(name, columns):
    ours = boxes(columns)
    torch.testing.assert_close(boxes_from(boxes_to(ours, name), name), ours, atol=1e-14, rtol=0)
    torch.testing.assert_close(boxes_to(boxes_from(ours, name), name), ours, atol=1e-14, rtol=0)


@pytest.mark.parametrize(
    ("name", "ours", "theirs"),
    [
        ("openpcdet", [1, 2, 3, 4, 2, 1.5, 0.3, 7, 8], [1, 2, 3, 4, 2, 1.5, 0.3, 7, 8]),
        ("mmdet3d", [1, 2, 3, 4, 2, 1.5, 0.3], [1, 2, 2.25, 4, 2, 1.5, 0.3]),
        # The older angle is 0 at -y and falls towards +x.
        ("mmdet3d_0", [0, 0, 0, 4, 2, 1, 0], [0, 0, -0.5, 2, 4, 1, -math.pi / 2]),
        ("zhulf0804", [0, 0, 0, 4, 2, 1, -math.pi / 2], [0, 0, -0.5, 2, 4, 1, 0]),
        ("mmdet3d_0", [0, 0, 0, 4, 2, 1, math.pi / 2], [0, 0, -0.5, 2, 4, 1, -math.pi]),
        # det3d has the angle behind the velocities.
        ("det3d", [1, 2, 3, 4, 2, 1.5, 0.25, 7, 8],
         [1, 2, 3, 2, 4, 1.5, 7, 8, -0.25 - math.pi / 2]),
    ],
)  # fmt: skip
def test_boxes_of_other_programs_by_hand(name, ours, theirs):
    assert boxes_to(torch.tensor(ours), name).tolist() == pytest.approx(theirs)


def test_conversion_is_differentiable_and_keeps_leading_dimensions():
    ours = boxes(9).reshape(5, 10, 9).requires_grad_()
    boxes_to(ours, "zhulf0804").sum().backward()
    assert ours.grad.shape == (5, 10, 9)


@pytest.mark.parametrize(
    ("table", "name", "words"),
    [
        (torch.zeros(2, 7), "kitti", "convention must be one of"),
        (torch.zeros(2, 8), "mmdet3d", r"boxes must be \[..., 7\] or \[..., 9\], got \[2, 8\]"),
        (torch.zeros(()), "mmdet3d", "boxes must be"),
    ],
)
def test_tensors_that_are_not_boxes_are_refused(table, name, words):
    with pytest.raises(ValueError, match=words):
        boxes_from(table, name)
