# SPDX-License-Identifier: Apache-2.0
"""Every program of examples/ runs and says what it should."""

import sys

import pytest
import torch
from shipping import ROOT, call, clean_env

from torchvox.reference.boxes_plain import AnchorClass
from torchvox.reference.pillars_plain import Grid
from torchvox.reference.pointpillars_openpcdet import SingleHead

EXAMPLES = ROOT / "examples"


def run(name: str, *arguments) -> str:
    env = clean_env(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="2")
    return call(sys.executable, EXAMPLES / name, *arguments, env=env).stdout


@pytest.mark.parametrize(
    "kind",
    [
        "eager",
        "export",
        "torchscript",
        pytest.param("compile", marks=pytest.mark.slow),
        pytest.param("aoti", marks=pytest.mark.slow),
    ],
)
def test_one_module_gives_the_same_results_in_every_format(kind):
    said = run("pillar_features.py", "--formats", kind)
    assert said.count("same as eager") == 3, said


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_dataloader_workers_run_ops(start):
    said = run("dataloader.py", "--start", start)
    assert said.count("batch ") == 2
    assert ("on cuda" in said) == torch.cuda.is_available()


def test_batches_do_not_depend_on_workers():
    fork, none = run("dataloader.py", "--workers", "2"), run("dataloader.py", "--workers", "0")
    assert fork == none


def test_cuda_graph_says_why_it_is_skipped():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: test_cuda_graph_replays_equal_eager runs")
    assert "skipped, there is no CUDA GPU" in run("cuda_graph.py")


@pytest.mark.gpu
def test_cuda_graph_replays_equal_eager():
    assert run("cuda_graph.py").count("same bits") == 4


def test_published_detectors_are_listed():
    assert "pointpillar_7728" in run("published_detectors.py")


@pytest.mark.slow
def test_a_file_of_published_size_is_checked(tmp_path):
    grid = Grid((0.16, 0.16, 4.0), (0.0, -39.68, -3.0, 69.12, 39.68, 1.0), 32, 40_000)
    classes = [AnchorClass(name, (1.0, 1.0, 1.0), -1.0) for name in ("Car", "Ped", "Cyc")]
    torch.manual_seed(0)
    state = SingleHead(4, grid, classes).state_dict()
    state["dense_head.conv_cls.bias"] -= 2.5  # few boxes
    torch.save({"model_state": state}, tmp_path / "pointpillar_7728.pth")
    said = run("published_detectors.py", tmp_path / "pointpillar_7728.pth")
    assert "127 of 127 used, each once" in said
    assert "same as the original" in said


def test_a_published_file_with_another_hash_than_its_name_is_refused(tmp_path):
    path = tmp_path / "hv_pointpillars-0badc0de.pth"
    path.write_bytes(b"half a file")
    with pytest.raises(Exception, match="download it again"):
        run("published_detectors.py", path)


def test_every_example_is_run_by_a_test():
    tests = "".join(f.read_text() for f in (ROOT / "tests" / "packaging").glob("test_*.py"))
    programs = [f.name for f in EXAMPLES.glob("*.py")]
    programs += [f.parent.name for f in (EXAMPLES / "cpp").glob("*/main.cpp")]
    assert [name for name in programs if f'"{name}"' not in tests] == []
