# SPDX-License-Identifier: Apache-2.0
"""Small scenes in which ties are common: boxes on a lattice of few positions, sizes and angles."""

import torch
from hypothesis import strategies as st
from torch import Tensor

XS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.25, -0.25, 7.75, 8.0, float("nan"))
LENGTHS = (1.0, 2.0, 0.5, 4.0, 0.0, -1.0, 1e-6)
YAWS = (0.0, 1.57, 0.7853982, -0.7853982, 3.1415927, 2.4, float("inf"))
WEIGHTS = (1.0, 1.0, 1.0, 0.0, 0.5, -1.0)


@st.composite
def scenes(draw, most: int = 8, classes: int = 3, columns: int = 7) -> dict[str, Tensor]:
    """boxes, labels, weight and num_boxes of two samples."""
    count = draw(st.integers(0, most))

    def plane(values) -> list:
        rows = st.lists(st.sampled_from(values), min_size=count, max_size=count)
        return [draw(rows), draw(rows)]

    boxes = torch.zeros(2, count, columns)
    for column, values in ((0, XS), (1, XS), (3, LENGTHS), (4, LENGTHS), (6, YAWS)):
        boxes[:, :, column] = torch.tensor(plane(values)).reshape(2, count)
    boxes[:, :, 5] = 1.5
    return {
        "boxes": boxes,
        "labels": torch.tensor(plane(range(-1, classes)), dtype=torch.int64).reshape(2, count),
        "weight": torch.tensor(plane(WEIGHTS)).reshape(2, count),
        "num_boxes": torch.tensor([count, draw(st.integers(-1, count + 1))]),
    }
