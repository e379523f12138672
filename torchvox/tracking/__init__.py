# SPDX-License-Identifier: Apache-2.0
"""Tracking: which boxes of a frame are the objects of earlier frames."""

from torchvox.tracking.centers import DISTANCES, Tracker

__all__ = ["DISTANCES", "Tracker"]
