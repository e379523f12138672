# SPDX-License-Identifier: Apache-2.0
"""torchvox bench: shows results, runs the benchmark of the source tree, says when there is none."""

import json

import pytest

from torchvox.cli.bench import SCHEMA

ROWS = [
    ["FPS [a] 16k -> 4k", "torchvox", "1,583", "", "graph <= 1600 us: met"],
    ["", "other", "", "wrong: a point is sampled twice", ""],
]
HEADER = ["case", "implementation", "graph us", "vs torchvox", "target"]
RESULTS = {
    "schema": SCHEMA,
    "machine_line": "A GPU, driver 1.2; torchvox 0.1.0 at 0123456789ab with changes",
    "tables": [{"title": "furthest_point_sample", "header": HEADER, "rows": ROWS}],
}


def test_bench_shows_results(torchvox_cli, tmp_path):
    (tmp_path / "bench.json").write_text(json.dumps(RESULTS))
    words = ("FPS [a] 16k -> 4k", "1,583", "met", "a point is sampled twice")
    torchvox_cli("bench", tmp_path / "bench.json").ok(*words, RESULTS["machine_line"])


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 99}', "broken"])
def test_bench_refuses_other_files(torchvox_cli, tmp_path, content):
    (tmp_path / "other.json").write_text(content)
    torchvox_cli("bench", "other.json").assert_one_sentence(1, "other.json")


def test_bench_without_the_source_tree_says_where_it_is(torchvox_cli, tmp_path, monkeypatch):
    from torchvox.cli import bench

    monkeypatch.setattr(bench, "ROOT", tmp_path)
    torchvox_cli("bench", "--device", "cpu").assert_one_sentence(1, "source tree", "make bench")


def test_bench_runs_the_benchmark_and_shows_it(torchvox_cli, tmp_path):
    from torchvox.cli import bench

    if not (bench.ROOT / "benchmarks").exists():
        pytest.skip("no benchmarks in this tree")
    run = ("bench", "--device", "cpu", "--alone", "--only", "1024 -> 512")
    torchvox_cli(*run).ok("FPS 1024 -> 512")
    assert json.loads((tmp_path / "bench.json").read_text())["schema"] == SCHEMA
