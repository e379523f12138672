# SPDX-License-Identifier: Apache-2.0
"""Small scenes in which ties are common: boxes on a lattice of few positions, sizes and angles."""

import torch
from torch import Tensor

INF, NAN = float("inf"), float("nan")
XS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.25, -0.25, 7.75, 8.0, NAN)
LENGTHS = (1.0, 2.0, 0.5, 4.0, 0.0, -1.0, 1e-6)
YAWS = (0.0, 1.57, 0.7853982, -0.7853982, 3.1415927, 2.4, INF)
WEIGHTS = (1.0, 1.0, 1.0, 0.0, 0.5, -1.0)


def scene(count: int, seed: int, classes: int = 3) -> dict[str, Tensor]:
    """boxes, labels, weight and num_boxes of two samples."""
    g = torch.Generator().manual_seed(seed)

    def plane(values) -> Tensor:
        return torch.tensor(values)[torch.randint(len(values), (2, count), generator=g)]

    boxes = torch.full((2, count, 7), 1.5)
    for column, values in ((0, XS), (1, XS), (3, LENGTHS), (4, LENGTHS), (6, YAWS)):
        boxes[:, :, column] = plane(values)
    boxes[:, :, 2] = 0.0
    return {
        "boxes": boxes,
        "labels": plane(range(-1, classes)),
        "weight": plane(WEIGHTS),
        "num_boxes": torch.tensor([count, int(torch.randint(-1, count + 2, (), generator=g))]),
    }
