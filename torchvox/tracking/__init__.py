# SPDX-License-Identifier: Apache-2.0
"""Which boxes of a frame are the objects of the frames before."""

from torchvox.tracking.centers import DISTANCES, Tracker

__all__ = ["DISTANCES", "Tracker"]
