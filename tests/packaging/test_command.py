# SPDX-License-Identifier: Apache-2.0
"""`make` leaves a Python and a command `torchvox` that work in every folder."""

import sys
from pathlib import Path

import pytest
from shipping import ROOT, call, clean_env, tool


def test_make_leaves_a_python_and_a_command_for_every_folder(tmp_path):
    dry = (tool("make"), "-C", ROOT, "-o", "build/.built", "--dry-run", "demo")
    assert "the command is .venv/bin/torchvox" in call(*dry, env=clean_env()).stdout
    if Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
        pytest.skip("not in the environment that make set up")
    programs = ROOT / ".venv" / "bin"
    program = "import torchvox; print(torchvox.__file__)"
    said = call(programs / "python", "-c", program, cwd=tmp_path, env=clean_env()).stdout
    assert said.strip() == str((ROOT / "torchvox" / "__init__.py").resolve())
    said = call(programs / "torchvox", "doctor", "--help", cwd=tmp_path, env=clean_env()).stdout
    assert "Usage: torchvox doctor" in said
