# SPDX-License-Identifier: Apache-2.0
"""Changes of labelled scans for training, batched on the device of the scans."""

from torchvox.augment.whole import WholeScan, flip_x, flip_y, scale, shift, turn

__all__ = ["WholeScan", "flip_x", "flip_y", "scale", "shift", "turn"]
