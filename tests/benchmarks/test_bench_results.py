# SPDX-License-Identifier: Apache-2.0
"""What a run writes, and how it is shown."""

import json
import subprocess
import sys

import pytest
from helpers import ROOT

from benchmarks import growth
from benchmarks.peers import peer_table
from benchmarks.suite import Settings
from torchvox.cli.bench_table import markdown, tables

FACTS = {
    *("date", "device", "commit", "dirty", "torchvox", "build", "torch", "cuda", "python"),
    *("cpu", "cores", "threads", "load", "upstream", "copy_gb_per_s"),
}

FACTS_OF_A_CPU = {
    **{"cpu": "a CPU", "threads": 2, "torch": "2", "device": "cpu", "dirty": False},
    **{"torchvox": "0", "commit": "c", "date": "d", "copy_gb_per_s": 1.0},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A small real run, in its own process as always."""
    path = tmp_path_factory.mktemp("run") / "bench.json"
    command = [sys.executable, "-m", "benchmarks", "--device", "cpu", "--budget", "0.001"]
    command += ["--only", "1024 -> 512,no such case", "--out", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "FPS 1024 -> 512 | torchvox | best_us" in done.stdout
    return json.loads(path.read_text())


def test_the_head_says_where_the_figures_come_from(results):
    assert results["schema"] == 2
    assert set(results["machine"]) >= FACTS
    assert results["machine"]["copy_gb_per_s"] > 0


def test_measurements_have_one_form(results):
    assert {row["case"] for row in results["measurements"]} == {"FPS 1024 -> 512"}
    for row in results["measurements"]:
        assert {"case", "op", "device", "implementation", "status", "size"} <= set(row)
        assert row["status"] in ("timed", "wrong", "failed", "skipped")
        timed = row["status"] == "timed"
        assert ("best_us" in row) == ("check" in row) == timed
        assert ("reason" in row) != timed
        assert ("targets" in row) == (row["implementation"] == "torchvox")


def test_markdown_has_a_row_for_each_implementation(results):
    text = markdown(results)
    assert results["machine"]["commit"] in text
    for row in results["measurements"]:
        assert f"| {row['implementation']} |" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1


def test_a_miss_and_a_wrong_result_are_loud():
    size = {"read": 1_000_000, "written": 500_000}
    target = {"figure": "graph_us", "text": "<= 9 us", "limit_us": 9, "met": False}
    common = {"case": "c", "op": "voxelize", "size": size}
    timed = {"implementation": "torchvox", "status": "timed", "graph_us": 10.0, "targets": [target]}
    wrong = {"implementation": "other", "status": "wrong", "reason": "3 voxels, not 4"}
    slower = {"implementation": "third", "status": "timed", "graph_us": 25.0}
    rows = [{**common, **row} for row in (timed, wrong, slower)]
    (table,) = tables({"measurements": rows, "growth": []})
    assert table.header == ["case", "implementation", "graph us", "MB", "vs torchvox", "target"]
    assert table.rows == [
        ["c", "torchvox", "10", "1.50", "", "graph <= 9 us: MISSED"],
        ["", "other", "", "", "wrong: 3 voxels, not 4", ""],
        ["", "third", "25", "", "2.50x", ""],
    ]


def test_the_peer_table_has_the_best_other_library_of_each_case():
    versions = {"mmcv": "2.2.0", "torch_cluster": "1.6.3", "spconv": None}

    def row(case, implementation, **figures):
        status = "wrong" if "reason" in figures else "timed"
        size = {"read": 1, "written": 1}
        common = {"case": case, "op": "knn", "implementation": implementation, "size": size}
        return {**common, "status": status, "check": "same", **figures}

    rows = [
        row("knn a", "torchvox", graph_us=10.0, eager_us=20.0),
        row("knn a", "cdist, topk", graph_us=1.0, eager_us=1.0),  # a baseline
        row("knn a", "mmcv", graph_us=30.0, eager_us=31.0),
        row("knn a", "torch_cluster", eager_us=50.0),
        row("knn b", "torchvox", graph_us=10.0, eager_us=20.0),
        row("knn b", "mmcv", reason="a neighbor is farther away"),
        row("knn c", "torchvox", graph_us=10.0),
        row("knn c", "cdist, topk", graph_us=1.0),
    ]
    results = {"machine": {"upstream": versions}, "measurements": rows}
    assert peer_table(results).rows == [
        ["knn", "a", "eager", "20", "50", "torch_cluster", "1.6.3", "2.50x", "same"],
        ["knn", "b", *[""] * 6, "mmcv wrong: a neighbor is farther away"],
    ]
    assert "| knn | a | eager |" in markdown(
        {**results, "machine": FACTS_OF_A_CPU | results["machine"]}, [peer_table(results)]
    )


def test_growth_curves_become_tables_and_pictures(clouds, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra viz is not installed")
    tiny = [
        growth.Curve(curve.name, curve.axis, curve.sizes[:2], curve.sizes[1], curve.build)
        for curve in growth.curves()
        if curve.name in ("voxelize-points", "fps-points")
    ]
    rows = growth.run(clouds, Settings("cpu", 0.001), tiny)
    results = {"measurements": [], "growth": rows, "machine": {"cpu": "a CPU", "threads": 2}}
    paths = growth.draw(results, tmp_path)
    assert {path.name for path in paths} == {"voxelize-points.png", "fps-points.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    shown = tables(results)
    assert [row[0] for row in shown[0].rows] == ["10,000", "30,000"]
    assert shown[1].header[-1] == "torchvox, us per sample"


def test_a_way_that_became_slow_is_left_out_at_larger_sizes(clouds, monkeypatch):
    monkeypatch.setitem(growth.SLOW_S, "cpu", 1e-9)
    curve = next(c for c in growth.curves() if c.name == "fps-points")
    tiny = growth.Curve(curve.name, curve.axis, [256, 512], 512, curve.build)
    rows = growth.run(clouds, Settings("cpu", 0.001), [tiny])
    assert {row["implementation"] for row in rows if row["at"] == 512} == {"torchvox"}
