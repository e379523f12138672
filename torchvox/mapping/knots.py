# SPDX-License-Identifier: Apache-2.0
"""Poses of a moving sensor, for deskewing."""

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from torchvox._util.errors import expect
from torchvox.io.poses import Trajectory


def pose_knots(times: ArrayLike, poses: ArrayLike, at: ArrayLike) -> Tensor:
    """The poses [.., 3, 4] float64 of odometry at the times `at` [..], on the CPU: positions are
    linear between two poses, rotations turn evenly about one axis (slerp).

    times: [T] seconds, in any order. poses: [T, 3, 4] or [T, 4, 4]. at: seconds, such as the knots
        [S, K] of `torchvox.merge_sweeps`; a few milliseconds between two knots are close enough.

    Raises ValueError: shapes, poses that are not rigid, a time outside of the odometry.
    """
    odometry, at = Trajectory(times, poses, max_gap=np.inf), np.asarray(at, np.float64)
    first, last = odometry.times[[0, -1]]
    outside = ~((at >= first) & (at <= last))  # NaN, too
    rule = f"pose_knots: at must be from {first} to {last} s, as the odometry"
    expect(not outside.any(), rule, at[outside][:1])
    return torch.from_numpy(odometry.at(at.ravel()).poses.reshape(*at.shape, 3, 4))
