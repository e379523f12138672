# SPDX-License-Identifier: Apache-2.0
"""What a newcomer's slips are answered with."""

import os
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ROOT

from torchvox.io import atomic_path

KITTI = ("--layout", "kitti")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("voxelize", "scan.bin", *KITTI, "--format", "png", "-o", "x.npz"), 2, "contradict"),
        (("bev", "scan.bin", *KITTI, "--format", "npz", "-o", "x.png"), 2, "contradict"),
        (("convert", "scan.bin", *KITTI, "--format", "ply", "-o", "x.xyz"), 2, "contradict"),
        (("sample", "scan.bin", *KITTI, "--start", "3000"), 2, "past the 3,000 points"),
        (("bev", "scan.bin", *KITTI, "--voxel-size", "1e-9"), 2, "at most 2^24 voxels"),
        (("detect", "scan.bin", *KITTI, "-m", "none.pt"), 2, "model none.pt does not exist"),
        (("predict", "scan.bin", *KITTI, "-m", "."), 2, "model . is no file"),
        (("import", "none.pth"), 2, "model none.pth does not exist"),
        (("export", "none.pt"), 2, "model none.pt does not exist"),
        (("sample", "scan.bin", *KITTI, "-o", "scan.bin/x.npz"), 1, "scan.bin/x.npz: cannot be"),
        (("info", "text.npy"), 1, "text.npy is no .npy file"),
        (("info", "bare.pcd"), 1, "its header has no FIELDS, SIZE"),
        (("export", "text.npy"), 1, "it is not a checkpoint, or damaged"),
        (("info", "above"), 2, "folders in it are not searched"),
        (("demo", "--device", "tpu"), 2, "'--device': 'tpu' is not one of"),
    ],
)
def test_one_sentence(torchvox_cli, scan, tmp_path, arguments, code, words):
    (tmp_path / "text.npy").write_text("hello")
    (tmp_path / "bare.pcd").write_text("VERSION 0.7\nDATA ascii\n1 2 3\n")
    (tmp_path / "above" / "below").mkdir(parents=True)
    if arguments[0] == "predict":
        pytest.importorskip("lightning", reason="the extra train is not installed")
    result = torchvox_cli(*arguments)
    result.assert_one_sentence(code, words)
    assert ".torchvox" not in result.err


def test_memory_that_is_not_there_is_told_in_gigabytes(torchvox_cli, scan):
    from torchvox.cli.work import sentence

    with pytest.raises(RuntimeError) as refused:
        torch.empty(1 << 60, dtype=torch.uint8)
    if "tried to allocate" not in str(refused.value):
        pytest.skip("another allocator than torch's own")
    assert sentence(refused.value) == "1.15e+09 GB do not fit into memory"


def test_a_link_to_nothing_in_a_folder_is_a_file_that_fails(torchvox_cli, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 3)))
    (tmp_path / "b.npy").symlink_to("nowhere")
    result = torchvox_cli("info", ".")
    assert result.code == 1 and "a.npy  3 points" in result.out
    assert "b.npy: No such file or directory" in result.err and "1 of 2 files" in result.err


def test_samples_of_all_points_leave_none_over(torchvox_cli, scan):
    assert "every point is a sample" in torchvox_cli("sample", scan, *KITTI, "-n", "4000").out
    assert " m of a sample" in torchvox_cli("sample", scan, *KITTI, "-n", "40").out


def test_the_help_names_every_grid(torchvox_cli):
    from torchvox.io import grid_names

    shown = torchvox_cli("voxelize", "--help").out
    assert all(name in shown for name in grid_names())


def test_foreign_letters_in_a_name_draw_without_a_warning(torchvox_cli, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra viz is not installed")
    np.save(tmp_path / "點雲.npy", np.random.default_rng(0).random((50, 3)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torchvox_cli("bev", "點雲.npy", "-o", "a.png").code == 0


BAD = "\x1b[31m\x9b2J\u202e\x07"


@pytest.mark.parametrize(
    "arguments",
    [
        *[
            ("info",),
            ("info", "."),
            ("convert", "-o", f"{BAD}.ply"),
            ("downsample", "--voxel", "1"),
        ],
        *[("voxelize", "-o", "a.npz"), ("sample", "-o", "a.npz"), ("bev", "-o", "a.npz")],
    ],
)
@pytest.mark.parametrize("kind", ["names", "wrong", "layout"])
def test_control_sequences_of_files_do_not_reach_the_terminal(
    torchvox_cli, tmp_path, arguments, kind
):
    columns = [*"xyz", f"a\n{BAD}"] if kind == "names" else ["x", BAD]
    np.savez(
        tmp_path / f"{BAD}.npz",
        **{"points": np.ones((3, 4)), "columns": columns, BAD: np.ones(7), "colors": np.ones(3)},
    )
    layout = ("--layout", f"x,y,z,{BAD}") if kind == "layout" else ()
    result = torchvox_cli(arguments[0], f"{BAD}.npz", *arguments[1:], *layout)
    assert result.out + result.err
    assert [c for c in result.out + result.err if not (c.isprintable() or c == "\n")] == []
    if kind == "names":
        assert "are no columns" in result.err or "info" in arguments


def test_checkpoints_are_refused_without_the_notices_of_torch(tmp_path):
    import pickle

    from torchvox.models import checkpoints

    (tmp_path / "a.pt").write_bytes(pickle.dumps({"a": os.system}, protocol=4))
    with warnings.catch_warnings(), pytest.raises(checkpoints.CheckpointError):
        warnings.simplefilter("error")
        checkpoints.read(tmp_path / "a.pt")


def test_a_reader_that_goes_away_is_exit_code_141():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "torchvox", "--help"],
        cwd=ROOT,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_interrupt_during_the_imports_is_one_word(monkeypatch, capsys):
    import torchvox.cli

    monkeypatch.delitem(sys.modules, "torchvox.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Stop(), *sys.meta_path])
    assert torchvox.cli.main(["--version"]) == 130
    assert capsys.readouterr().err == "torchvox: interrupted\n"


class _Stop:
    """An interrupt while the commands are imported."""

    def find_spec(self, name, *_):
        if name == "torchvox.cli.app":
            signal.raise_signal(signal.SIGINT)


def test_a_second_interrupt_leaves_no_temporary_folder(tmp_path, monkeypatch):
    removed = tempfile.TemporaryDirectory.cleanup
    calls = []

    def interrupted(folder):
        calls.append(folder)
        if len(calls) == 1:
            raise KeyboardInterrupt
        removed(folder)

    monkeypatch.setattr(tempfile.TemporaryDirectory, "cleanup", interrupted)
    with pytest.raises(KeyboardInterrupt), atomic_path(tmp_path / "a.png") as path:
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
