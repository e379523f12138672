# SPDX-License-Identifier: Apache-2.0
"""Replaces `spconv` itself, its `core` and its `constants`, of 2.3.8: the version that codebases
compare, and a setting that they assign. Neither it nor an algorithm means anything here."""

from enum import Enum

__all__ = ["SPCONV_USE_DIRECT_TABLE", "SPCONV_VERSION_NUMBERS", "ConvAlgo", "__version__"]
__version__ = "2.3.8"
SPCONV_VERSION_NUMBERS = [2, 3, 8]
SPCONV_USE_DIRECT_TABLE = True


class ConvAlgo(Enum):
    Native = 0
    MaskImplicitGemm = 1
    MaskSplitImplicitGemm = 2
