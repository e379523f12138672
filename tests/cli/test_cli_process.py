# SPDX-License-Identifier: Apache-2.0
"""The command as a process of its own."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_python_m_torchvox_works_on_a_file(real_process, scan, tmp_path):
    """And without a visible GPU `auto` is the CPU."""
    arguments = ("sample", scan, "--layout", "kitti", "-n", "5", "-o", "a.npz")
    result = real_process(*arguments, CUDA_VISIBLE_DEVICES="")
    assert result.code == 0, result.err
    assert "5 of 3,000 points" in result.out
    assert "device: cpu" in result.err
    assert (tmp_path / "a.npz").exists()


def test_exit_codes_reach_the_shell(real_process, scan):
    """Of wrong use; that of failed work: test_a_full_stdout_is_one_sentence."""
    real_process("sample", scan).assert_one_sentence(2, "--layout")


def test_importing_torchvox_imports_no_extra():
    extras = (
        "{'typer', 'rich', 'yaml', 'matplotlib', 'laspy', 'lazrs', 'pypcd4', 'h5py',"
        " 'lightning', 'torchmetrics', 'pydantic'}"
    )
    code = (
        "import sys, torch; before = set(sys.modules); import torchvox, torchvox.io, torchvox.data;"
        f" found = (set(sys.modules) - before) & {extras}; assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
