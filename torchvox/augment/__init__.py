# SPDX-License-Identifier: Apache-2.0
"""Changes of labelled scans for training, batched on the device of the scans."""

from torchvox.augment.nudge import Nudge
from torchvox.augment.objects import collect_objects
from torchvox.augment.paste import Paste
from torchvox.augment.whole import WholeScan, flip_x, flip_y, scale, shift, turn

__all__ = ["Nudge", "Paste", "WholeScan", "collect_objects"]
__all__ += ["flip_x", "flip_y", "scale", "shift", "turn"]
