# SPDX-License-Identifier: Apache-2.0
"""`make` leaves a command `torchvox` that works in every folder."""

import sys

from shipping import ROOT, call, clean_env, tool


def test_make_leaves_a_command(tmp_path):
    clone, elsewhere = tmp_path / "clone", tmp_path / "elsewhere"
    programs = clone / ".venv" / "bin"
    programs.mkdir(parents=True)
    elsewhere.mkdir()
    (clone / "torchvox").symlink_to(ROOT / "torchvox")
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "python").chmod(0o755)
    (clone / ".venv" / ".ready").touch()
    make = (tool("make"), "-f", ROOT / "Makefile", "-C", clone, "-o", ".venv/.ready")
    call(*make, ".venv/bin/torchvox", env=clean_env())
    said = call(programs / "torchvox", "doctor", "--help", cwd=elsewhere, env=clean_env()).stdout
    assert "Usage: torchvox doctor" in said
    dry = call(*make, "-o", "build/.built", "--dry-run", "demo", env=clean_env()).stdout
    assert "the command is .venv/bin/torchvox" in dry
