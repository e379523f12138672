# SPDX-License-Identifier: Apache-2.0
"""The programs whose checkpoints can be imported, one file each: which tensors are theirs, what
network they describe, where each tensor belongs, and what a configuration of the program says."""

from typing import List

from torchvox.models.importing.layouts import Layout
from torchvox.models.importing.sources import det3d, mmdet3d, openpcdet, pn2, yanx27

LAYOUTS: List[Layout] = [
    yanx27.LAYOUT,
    pn2.LAYOUT,
    openpcdet.LAYOUT,
    det3d.LAYOUT,
    mmdet3d.LAYOUT_0,
    mmdet3d.LAYOUT,
]
