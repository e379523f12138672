# SPDX-License-Identifier: Apache-2.0
"""Public names of the reader of KITTI's objects."""

from torchvox.data.readers.kitti import Kitti, export_kitti

__all__ = ["Kitti", "export_kitti"]
