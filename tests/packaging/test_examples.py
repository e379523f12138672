# SPDX-License-Identifier: Apache-2.0
"""Every program of examples/ runs and says what it should."""

import re
import runpy
import sys

import pytest
import torch
from shipping import ROOT
from upstream.boxes import AnchorClass
from upstream.openpcdet import SingleHead
from upstream.pillars import Grid

from torchvox.mapping import OccupancyMap

EXAMPLES = ROOT / "examples"


@pytest.fixture
def run(capfd, monkeypatch):
    """Runs a program in this process, as Python does a script, and returns what it prints."""

    def program(name: str, *arguments) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        try:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        except SystemExit as end:
            assert not end.code, capfd.readouterr()
        return capfd.readouterr().out

    return program


GPU = torch.cuda.is_available()


@pytest.mark.parametrize(
    ("command", "words", "times"),
    [
        ("pillar_features.py --formats eager export torchscript", "same as eager", 9),
        pytest.param(
            *("pillar_features.py --formats eager compile aoti", "same as eager", 9),
            marks=pytest.mark.slow,
        ),
        ("cuda_graph.py", *(("same bits", 4) if GPU else ("skipped, there is no CUDA GPU", 1))),
        ("published_detectors.py", "pointpillar_7728", 1),
        ("sensor_to_boxes.py --scans 3", "of 2 sweeps", 2),
    ],
)
def test_it_prints_what_it_should(run, command, words, times):
    printed = run(*command.split())
    assert printed.count(words) == times, printed


def test_dataloader_workers_run_ops_and_do_not_change_a_batch(run):
    said = run("dataloader.py", "--workers", "0")
    assert said.count("batch ") == 2
    assert ("on cuda" in said) == GPU
    assert (
        said == run("dataloader.py", "--start", "fork") == run("dataloader.py", "--start", "spawn")
    )


def test_a_drive_is_mapped(run, tmp_path):
    path = tmp_path / "a.npz"
    said = run("map_a_drive.py", "--scans", 2, "--device", "cpu", "--save", path)
    assert "2 scans, 99," in said
    assert len(OccupancyMap.load(path).extract("occupied").points) > 10_000


@pytest.mark.slow
def test_a_file_of_published_size_is_checked(run, tmp_path):
    grid = Grid((0.16, 0.16, 4.0), (0.0, -39.68, -3.0, 69.12, 39.68, 1.0), 32, 40_000)
    classes = [AnchorClass(name, (1.0, 1.0, 1.0), -1.0) for name in ("Car", "Ped", "Cyc")]
    torch.manual_seed(0)
    state = SingleHead(4, grid, classes).state_dict()
    state["dense_head.conv_cls.bias"] -= 2.5  # few boxes
    torch.save({"model_state": state}, tmp_path / "pointpillar_7728.pth")
    said = run("published_detectors.py", tmp_path / "pointpillar_7728.pth")
    assert "127 of 127 used, each once" in said
    assert "same as the original" in said


def test_a_published_file_with_another_hash_than_its_name_is_refused(run, tmp_path):
    path = tmp_path / "hv_pointpillars-0badc0de.pth"
    path.write_bytes(b"half a file")
    with pytest.raises(AssertionError, match="download it again"):
        run("published_detectors.py", path)


def test_every_example_is_run_by_a_test():
    folders = ("packaging", "deployment")
    tests = "".join(f.read_text() for d in folders for f in (ROOT / "tests" / d).glob("test_*.py"))
    programs = [f.name for f in EXAMPLES.glob("*.py")]
    programs += [f.stem for f in (EXAMPLES / "cpp").glob("*.cpp")]
    assert [name for name in programs if not re.search(f'"{name}[ "]', tests)] == []
