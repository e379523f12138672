# SPDX-License-Identifier: Apache-2.0
"""Every program of examples/ runs and says what it should."""

import sys

import pytest
import torch
from shipping import ROOT, call, clean_env

EXAMPLES = ROOT / "examples"


def run(name: str, *arguments) -> str:
    env = clean_env(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="2")
    return call(sys.executable, EXAMPLES / name, *arguments, env=env).stdout


@pytest.mark.parametrize(
    "way",
    [
        "eager",
        "export",
        "torchscript",
        pytest.param("compile", marks=pytest.mark.slow),
        pytest.param("aoti", marks=pytest.mark.slow),
    ],
)
def test_one_module_gives_the_same_results_every_way(way):
    said = run("pillar_features.py", "--ways", way)
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


def test_every_example_is_run_by_a_test():
    tests = "".join(f.read_text() for f in (ROOT / "tests" / "packaging").glob("test_*.py"))
    programs = [f.name for f in EXAMPLES.glob("*.py")]
    programs += [f.parent.name for f in (EXAMPLES / "cpp").glob("*/main.cpp")]
    assert [name for name in programs if f'"{name}"' not in tests] == []
