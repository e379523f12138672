# SPDX-License-Identifier: Apache-2.0
"""Clouds to work with: a generated street scan, and batches of clouds."""

from torchvox.data.collate import collate_points
from torchvox.data.scene import generate_scan

__all__ = ["collate_points", "generate_scan"]
