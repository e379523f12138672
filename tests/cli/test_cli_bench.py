# SPDX-License-Identifier: Apache-2.0
"""torchvox bench: shows results, runs the benchmark of the source tree, says when there is none."""

import json

import pytest

MACHINE = {
    "device": "cuda",
    "gpu": "A GPU",
    "driver": "1.2",
    "cuda": "13.0",
    "cpu": "A CPU",
    "threads": 8,
    "torch": "2.11.0",
    "torchvox": "0.1.0",
    "commit": "0123456789ab",
    "dirty": True,
    "date": "2026-01-01T00:00:00+00:00",
    "copy_gb_per_s": 4260.0,
}
MEASUREMENT = {
    "case": "FPS [a] 16k -> 4k",
    "op": "furthest_point_sample",
    "implementation": "torchvox",
    "status": "timed",
    "graph_us": 1583.2,
    "launches": 6,
    "times_floor": 300.0,
    "size": {"read": 196608, "written": 32768},
    "targets": [{"figure": "graph_us", "text": "<= 1600 us", "limit_us": 1600, "met": True}],
}
WRONG = {
    **MEASUREMENT,
    "implementation": "other",
    "status": "wrong",
    "reason": "a point is sampled twice",
}


@pytest.fixture
def results(tmp_path):
    path = tmp_path / "bench.json"
    measured = [MEASUREMENT, {k: v for k, v in WRONG.items() if k not in ("graph_us", "targets")}]
    path.write_text(
        json.dumps({"schema": 2, "machine": MACHINE, "measurements": measured, "growth": []})
    )
    return path


def test_bench_shows_results(torchvox_cli, results):
    result = torchvox_cli("bench", results)
    assert result.code == 0, result.err
    for words in ("FPS [a] 16k -> 4k", "1,583", "0.23", "met", "a point is sampled twice"):
        assert words in result.out
    for words in ("A GPU", "driver 1.2", "0123456789ab with changes", "4,260 GB/s"):
        assert words in result.out


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 99}', "broken"])
def test_bench_refuses_what_is_no_result(torchvox_cli, tmp_path, content):
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
    result = torchvox_cli("bench", "--device", "cpu", "--alone", "--only", "1024 -> 512")
    assert result.code == 0, result.err
    assert "FPS 1024 -> 512" in result.out
    assert json.loads((tmp_path / "bench.json").read_text())["schema"] == 2
