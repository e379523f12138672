# SPDX-License-Identifier: Apache-2.0
"""Outputs are whole or absent, whatever happens while they are written."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT, disk_of

ARGUMENTS = ("scan.bin", "--layout", "kitti", "--device", "cpu")
GRID = ("--voxel-size", "0.5", "--range", "0,0,0,20,20,2")


@pytest.mark.parametrize(
    ("command", "output", "options"),
    [
        ("voxelize", "out/a.npz", GRID),
        ("voxelize", "out/a.npy", GRID),
        ("bev", "out/a.png", GRID),
        ("sample", "out/a.npz", ()),
        ("detect", "out/a.json", ("-m", "model.pt")),
        ("demo", "out", ("-n", "9")),
    ],
)
def test_a_disk_that_fills_leaves_nothing(
    torchvox_cli, detector_file, scan, tmp_path, command, output, options
):
    pytest.importorskip("matplotlib.font_manager", reason="the extra viz is not installed")
    with disk_of(500):
        result = torchvox_cli(command, *ARGUMENTS, *options, "-o", output)
    result.assert_one_sentence(1, f"torchvox: {output}")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_that_vanishes_fails_one_file(torchvox_cli, scan, tmp_path, monkeypatch):
    (tmp_path / "b.bin").write_bytes(scan.read_bytes())
    replace = os.replace

    def vanished(one, other):
        if other.name == "b.voxels.npz":
            shutil.rmtree("out")
        replace(one, other)

    monkeypatch.setattr(os, "replace", vanished)
    result = torchvox_cli("voxelize", "b.bin", *ARGUMENTS, *GRID, "-o", "out")
    assert result.code == 1 and "1 of 2 files failed" in result.err
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["scan.voxels.npz"]


def test_what_a_killed_run_left_does_not_matter(torchvox_cli, scan, tmp_path):
    for folder in ("in", "out"):
        (tmp_path / folder / ".torchvox_abc").mkdir(parents=True)
        (tmp_path / folder / ".torchvox_abc" / "a.npz").write_bytes(b"half")
    shutil.move(scan, tmp_path / "in" / "scan.bin")
    result = torchvox_cli("voxelize", "in", "--layout", "kitti", *GRID, "-o", "out")
    assert result.code == 0 and len(result.out.splitlines()) == 1, result.err
    assert len(np.load(tmp_path / "out" / "scan.voxels.npz")["features"]) > 0


def test_a_link_as_output_is_replaced_and_its_target_kept(torchvox_cli, scan, tmp_path):
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "a.npy").symlink_to("target")
    assert torchvox_cli("voxelize", *ARGUMENTS, *GRID, "-o", "a.npy").code == 0
    assert not (tmp_path / "a.npy").is_symlink() and np.load(tmp_path / "a.npy").ndim == 2
    assert (tmp_path / "target").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("voxelize", *ARGUMENTS, "-o", "taken"), "--output must be a folder or .npz"),
        (("sample", *ARGUMENTS, "-o", "/dev/null"), "--output must be a folder or .npz"),
        (("import", "none.pth", "-o", "folder"), "--output must be a file, got folder, a folder"),
        (("import", "none.pth", "--report", "/dev/null"), "--report must be a file, got /dev/null"),
    ],
)
def test_an_output_that_is_something_else_is_wrong_use(
    torchvox_cli, scan, tmp_path, arguments, words
):
    (tmp_path / "folder").mkdir()
    (tmp_path / "taken").write_bytes(b"old")
    torchvox_cli(*arguments).assert_one_sentence(2, words)
    assert (tmp_path / "taken").read_bytes() == b"old" and Path("/dev/null").is_char_device()


def test_a_full_stdout_is_one_sentence(torchvox_cli, tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "torchvox", "--version"],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
        )
    assert (done.returncode, done.stderr) == (1, "torchvox: [Errno 28] No space left on device\n")


def test_a_termination_while_writing_leaves_nothing(torchvox_cli, scan, tmp_path):
    ended = (
        "import os, signal, sys; from torchvox.cli import main\n"
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.exit(main())\n"
    )
    command = [sys.executable, "-c", ended, "voxelize", scan, *ARGUMENTS[1:], *GRID]
    command += ["-o", tmp_path / "out" / "a.npz"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (143, ""), done.stderr
    assert "Traceback" not in done.stderr and list((tmp_path / "out").iterdir()) == []
