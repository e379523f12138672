# SPDX-License-Identifier: Apache-2.0
"""The picture and the page of results."""

import json

import pytest
from helpers import ROOT

from benchmarks import picture
from benchmarks.__main__ import HEAD, page

MACHINE = {"device": "cpu", "cpu": "a CPU", "threads": 2, "torch": "2.11", "torchvox": "0.1"}
MACHINE |= {"commit": "c0ffee", "dirty": False, "date": "a day", "copy_gb_per_s": 10.0}


def row(op, case, implementation, status="timed", **figures):
    said = {"reason": "why"} if status != "timed" else {}
    common = {"op": op, "case": case, "implementation": implementation, "status": status}
    return {**common, **said, **figures}


RESULTS = {
    "schema": 2,
    "machine": MACHINE,
    "growth": [],
    "measurements": [
        row("knn", "small", "torchvox", best_us=10.0),
        row("knn", "small", "slow", best_us=80.0),
        row("knn", "small", "fast", best_us=40.0),
        row("knn", "small", "lies", status="wrong", best_us=1.0),
        row("knn", "large", "torchvox", graph_us=10.0, eager_us=30.0),
        row("knn", "large", "eager only", eager_us=15.0),
        row("bev", "one", "torchvox", graph_us=10.0, eager_us=30.0),
        row("bev", "one", "both", graph_us=120.0, eager_us=30.0),
        row("alone", "one", "torchvox", best_us=10.0),
    ],
}


def test_factors_are_those_of_the_fastest_other_right_implementation():
    assert picture.factors(RESULTS) == {
        "bev": [(12.0, "both", "one")],
        "knn": [(0.5, "eager only", "large"), (4.0, "fast", "small")],
    }


def test_the_picture_names_ops_factors_and_implementations(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra viz is not installed")
    for name in ("a.svg", "b.svg"):
        picture.draw(RESULTS, tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    for word in ("knn", "bev", "12x  both", "2.25x  eager only", "a CPU, 2 threads"):
        assert word in text, word
    assert ">alone<" not in text
    with pytest.raises(ValueError, match="alone"):
        picture.draw(RESULTS, tmp_path / "c.svg", ["alone"])


def test_the_page_has_a_part_for_each_run():
    second = json.loads(json.dumps(RESULTS))
    second["machine"] |= {"device": "cuda", "gpu": "a GPU", "driver": "1", "cuda": "13"}
    text = page([json.loads(json.dumps(RESULTS)), second])
    assert text.startswith(HEAD)
    assert text.index("## a CPU, 2 threads") < text.index("## a GPU")
    assert text.count("| fast |") == 2 and text.endswith("\n")


def test_the_page_of_the_docs_has_the_head():
    assert (ROOT / "docs" / "benchmark_results.md").read_text().startswith(HEAD)
