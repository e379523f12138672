# SPDX-License-Identifier: Apache-2.0
"""Stands for the compiled modules under `pcdet.ops` 0.6 (OpenPCDet), on request for their Python.

The compiled functions take their arguments by position, sizes first, write into tensors of the
caller's and return 1, a count or None, as there. The sizes are those of the tensors, and not read.
"""
