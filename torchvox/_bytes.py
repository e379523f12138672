# SPDX-License-Identifier: Apache-2.0
"""Numbers of bytes as people write them."""

import re

from torchvox._errors import WrongUseError

UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def number_of_bytes(text: str, what: str) -> int:
    """512MiB, 2GB or 4g as a number; `what` is named by the error for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", text.strip().lower())
    if not found:
        raise WrongUseError(f"{what} takes bytes, as 512MiB or 2GB, got {text!r}")
    return int(float(found[1]) * UNITS[found[2] or ""])
