# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


class Result(NamedTuple):
    code: int
    out: str
    err: str

    def ok(self, *words: str) -> "Result":
        """Itself, after a look at the exit code and for words on stdout."""
        assert self.code == 0, self.err
        for word in words:
            assert word in self.out, self.out
        return self

    def assert_one_sentence(self, code: int, *words: str) -> None:
        """The error contract: the exit code and one line on stderr with these words in it."""
        lines = [line for line in self.err.splitlines() if not line.startswith("device: ")]
        assert self.code == code, self.err
        assert len(lines) == 1, self.err
        assert lines[0].startswith("torchvox: ")
        for word in words:
            assert word in lines[0], lines[0]


for module in ("typer", "rich"):
    pytest.importorskip(module, reason="the extra cli is not installed")


@pytest.fixture(autouse=True)
def interruptible():
    """A process that a shell started in the background ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def torchvox_cli(capsys, monkeypatch, tmp_path):
    """Run the command line in this process, in an empty folder."""
    from torchvox.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments) -> Result:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def real_process(tmp_path):
    """Run `python -m torchvox` in a fresh process, in an empty folder."""

    def run(*arguments, **environment) -> Result:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-m", "torchvox", *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, "COLUMNS": "160", **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def scan(tmp_path):
    """A small KITTI file: 3000 points in a box of 20 x 20 x 2 m, of which 7 are not finite."""
    points = np.random.default_rng(0).uniform([0, 0, 0, 0], [20, 20, 2, 1], (3000, 4))
    points[:7, 2] = [np.nan, np.inf, -np.inf, np.nan, np.nan, np.inf, np.inf]
    path = tmp_path / "scan.bin"
    points.astype(np.float32).tofile(path)
    return path


@pytest.fixture(scope="session")
def detector_bytes(tmp_path_factory):
    pytest.importorskip("yaml", reason="the extra train is not installed")
    import torch

    from torchvox.models import checkpoints
    from torchvox.models.detection import detector

    torch.manual_seed(0)
    model = detector(
        "pointpillars_kitti",
        [
            "model.args.point_cloud_range=[0, -10.24, -3, 20.48, 10.24, 1]",
            "model.args.backbone={layers: [1, 1, 1], channels: [8, 8, 8]}",
            "model.args.neck={channels: [8, 8, 8]}",
            "model.args.detections={post: 20, score: 0.0}",
        ],
    )
    path = tmp_path_factory.mktemp("detector") / "model.pt"
    checkpoints.save(model.eval(), path)
    return path.read_bytes()


@pytest.fixture
def detector_file(detector_bytes, tmp_path):
    (tmp_path / "model.pt").write_bytes(detector_bytes)
    return tmp_path / "model.pt"
