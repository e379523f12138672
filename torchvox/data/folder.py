# SPDX-License-Identifier: Apache-2.0
"""Public names of the reader of folders of scans."""

from torchvox.data.readers.folder import ScanBoxes, ScanFolder, find_scans, read_boxes

__all__ = ["ScanBoxes", "ScanFolder", "find_scans", "read_boxes"]
