# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs of more than 2^31 elements: every address is 64 bits wide.

Each case puts what it looks for behind element 2^31 and checks counts by sums. A case takes some
seconds and less than 100 GiB on the GPU.
"""

import pytest
import torch

marks = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.usefixtures("memory_of_one_case")]

MANY = 240_000_000  # rows of 9 columns: 2.16e9 elements, 8.6 GB
BOX = {"point_cloud_range": [0.0, 0.0, 0.0, 64.0, 64.0, 8.0], "size": [64, 64]}
LAST = (63, 62)  # the cell (x, y) of the last point, alone in it


def many_points() -> torch.Tensor:
    """[MANY, 9]: points over the cells of columns 0 to 31, and the last one alone in LAST."""
    points = torch.zeros(MANY, 9)
    index = torch.arange(MANY, dtype=torch.int32)
    points[:, 0] = (index % 32).float() + 0.5
    points[:, 1] = (index // 32 % 64).float() + 0.5
    points[:, 2] = 1.0
    points[:, 3] = 2.0
    points[-1, :4] = torch.tensor([LAST[0] + 0.5, LAST[1] + 0.5, 7.0, 5.0])
    return points
