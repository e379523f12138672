# SPDX-License-Identifier: Apache-2.0
"""The command line. main() needs typer and rich (extra: cli) and says so when they are missing."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torchvox._util.errors import MissingExtraError
from torchvox._util.extras import require


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `torchvox` and return its exit code: 0 done, 1 failed work, 2 wrong use,
    130 interrupted, 141 output not read."""
    try:
        require("typer", "for the command line")
        require("rich", "for the command line")
    except MissingExtraError as error:
        print(f"torchvox: {error}", file=sys.stderr)
        return 1
    try:
        from torchvox.cli.app import run
    except KeyboardInterrupt:  # imports take a second
        print("torchvox: interrupted", file=sys.stderr)
        return 130
    return run(arguments)
