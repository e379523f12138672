# SPDX-License-Identifier: Apache-2.0
"""Outputs are whole or absent, whatever ends the command; exit codes of whole processes."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT, disk_of

from torchvox.io import atomic_path

ARGUMENTS = ("scan.bin", "--layout", "kitti", "--device", "cpu")
GRID = ("--voxel", "0.5", "--bounds", "0,0,0,20,20,2")


@pytest.mark.parametrize(
    ("command", "output", "options"),
    [
        ("voxelize", "out/a.npz", GRID),
        ("voxelize", "out/a.npy", GRID),
        ("bev", "out/a.png", GRID),
        ("detect", "out/a.json", ("-m", "model.pt")),
        *(("map", f"out/a.{s}", ("--poses", "p.txt")) for s in ("npz", "png", "html", "ot", "ply")),
    ],
)
def test_a_disk_that_fills_leaves_nothing(
    torchvox_cli, detector_file, scan, tmp_path, command, output, options
):
    pytest.importorskip("matplotlib.font_manager", reason="the extra viz is not installed")
    (tmp_path / "p.txt").write_text("1 0 0 0 0 1 0 0 0 0 1 0\n")
    with disk_of(100):
        result = torchvox_cli(command, *ARGUMENTS, *options, "-o", output)
    result.assert_one_sentence(1, f"torchvox: {output}")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_that_vanishes_fails_one_file(torchvox_cli, scan, tmp_path, monkeypatch):
    (tmp_path / "b.bin").write_bytes(scan.read_bytes())
    replace = os.replace

    def vanish(one, other):
        if other.name == "b.voxels.npz":
            shutil.rmtree("out")
        replace(one, other)

    monkeypatch.setattr(os, "replace", vanish)
    result = torchvox_cli("voxelize", "b.bin", *ARGUMENTS, *GRID, "-o", "out")
    assert result.code == 1 and "1 of 2 files failed" in result.err
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["scan.voxels.npz"]


def test_what_a_killed_run_left_does_not_matter(torchvox_cli, scan, tmp_path):
    for folder in ("in", "out"):
        (tmp_path / folder / ".torchvox_abc").mkdir(parents=True)
        (tmp_path / folder / ".torchvox_abc" / "a.npz").write_bytes(b"half")
    shutil.move(scan, tmp_path / "in" / "scan.bin")
    result = torchvox_cli("voxelize", "in", "--layout", "kitti", *GRID, "-o", "out").ok()
    assert len(result.out.splitlines()) == 1
    assert len(np.load(tmp_path / "out" / "scan.voxels.npz")["features"]) > 0


def test_a_link_as_output_is_replaced_and_its_target_kept(torchvox_cli, scan, tmp_path):
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "a.npy").symlink_to("target")
    torchvox_cli("voxelize", *ARGUMENTS, *GRID, "-o", "a.npy").ok()
    assert not (tmp_path / "a.npy").is_symlink() and np.load(tmp_path / "a.npy").ndim == 2
    assert (tmp_path / "target").read_bytes() == b"old"


def test_a_termination_while_writing_leaves_nothing(torchvox_cli, scan, tmp_path, monkeypatch):
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    monkeypatch.setattr(os, "replace", lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        with pytest.raises(SystemExit) as ended:
            torchvox_cli("voxelize", *ARGUMENTS, *GRID, "-o", "out/a.npz")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143 and list((tmp_path / "out").iterdir()) == []


def test_a_second_interrupt_leaves_no_temporary_folder(tmp_path, monkeypatch):
    remove, calls = shutil.rmtree, []

    def interrupt(folder):
        calls.append(folder)
        if len(calls) == 1:
            raise KeyboardInterrupt
        remove(folder)

    monkeypatch.setattr("torchvox.io.writers.shutil.rmtree", interrupt)
    with pytest.raises(KeyboardInterrupt), atomic_path(tmp_path / "a.png") as path:
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


class Stop:
    """An interrupt while the commands are imported."""

    def find_spec(self, name, *_):
        if name == "torchvox.cli.app":
            signal.raise_signal(signal.SIGINT)


def test_an_interrupt_during_the_imports_is_one_word(monkeypatch, capsys):
    import torchvox.cli

    monkeypatch.delitem(sys.modules, "torchvox.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Stop(), *sys.meta_path])
    assert torchvox.cli.main(["--version"]) == 130
    assert capsys.readouterr().err == "torchvox: interrupted\n"


# ---- processes of their own ---------------------------------------------------------------------


def test_python_m_torchvox_works_on_a_file(real_process, scan, tmp_path):
    """And without a visible GPU `auto` is the CPU."""
    arguments = ("sample", scan, "--layout", "kitti", "-n", "5", "-o", "a.npz")
    real_process(*arguments, CUDA_VISIBLE_DEVICES="").ok("5 of 3,000 points")
    assert (tmp_path / "a.npz").exists()


@pytest.mark.parametrize("kind", ["full", "away"])
def test_a_stdout_that_takes_nothing_ends_a_process_without_a_traceback(kind):
    if kind == "full" and not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    read, out = (None, os.open("/dev/full", os.O_WRONLY)) if kind == "full" else os.pipe()
    if read is not None:
        os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "torchvox", "--version"],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    os.close(out)
    full = (1, "torchvox: [Errno 28] No space left on device\n")
    assert (done.returncode, done.stderr) == (full if kind == "full" else (141, ""))
