# SPDX-License-Identifier: Apache-2.0
"""Replaces the compiled modules under `pcdet.ops` 0.6 (OpenPCDet), on request for their Python.

The compiled functions take their arguments by position, sizes first, write into the caller's
tensors and return 1, a count or None, as the peer's. The sizes are not read: the tensors have them.
"""
