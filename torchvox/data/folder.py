# SPDX-License-Identifier: Apache-2.0
"""Public names of the readers of your own files: labelled scans, objects, clouds with labels."""

from torchvox.data.readers.folder import ScanBoxes, ScanFolder, find_scans, read_boxes
from torchvox.data.readers.objects import Objects
from torchvox.data.readers.segments import Segments

__all__ = ["Objects", "ScanBoxes", "ScanFolder", "Segments", "find_scans", "read_boxes"]
