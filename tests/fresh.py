# SPDX-License-Identifier: Apache-2.0
"""Runs Python code in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def fresh_process(code: str, *arguments: str, timeout: float = 120, **environment: str) -> str:
    """The output of `python -c code arguments`, with torchvox and the tests importable.

    A failure shows the process's own traceback.
    """
    paths = [str(TESTS.parent), str(TESTS), str(TESTS / "core"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()
