# SPDX-License-Identifier: Apache-2.0
"""Sizes in bytes as people write them."""

import re

from torchvox._util.errors import WrongUseError

UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def number_of_bytes(text: str, what: str) -> int:
    """The number of bytes in "512MiB", "2GB" or "4g". what: the option that the error names."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", text.strip().lower())
    if not match:
        raise WrongUseError(f"{what} takes bytes, as 512MiB or 2GB, got {text!r}")
    return int(float(match[1]) * UNITS[match[2] or ""])
