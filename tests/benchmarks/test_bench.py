# SPDX-License-Identifier: Apache-2.0
"""The benchmark: its table of cases runs, wrong results are refused, results become tables."""

import json
import subprocess
import sys

import pytest
import torch
from helpers import ROOT

from benchmarks import growth, neighbors, picture, results, sampling
from benchmarks.__main__ import DOMAINS, cases, chosen
from benchmarks.clouds import Clouds
from benchmarks.runner import Settings, run_case
from benchmarks.suite import PEERS, Case, Peer, Problem, Target, Way, WrongResult, faster

GPU = {"graph_us", "kernel_us", "eager_us", "cpu_us", "times_floor"}
FIGURES = {"cuda": GPU, "cpu": {"best_us"}}
# Whole networks, maps of gigabytes, files.
LARGE = ("Pillars", "Point", "SECOND", "canvas", "pillars of", "100 m", "ground", "75 m", "_file")
LARGE += ("ONNX",)


@pytest.fixture(scope="session")
def few():
    """Generated clouds on the CPU, of no more than 1,100 points."""
    return Clouds(None, "cpu", 1100)


@pytest.fixture
def settings():
    return Settings("cpu", budget_s=1e-4)


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.__name__.split(".")[1])
@pytest.mark.parametrize("device", FIGURES)
def test_every_row_of_the_table_runs(few, settings, device, domain):
    """Those of a GPU too, on the CPU, in small."""
    for case in domain.cases(device):
        if not any(word in case.name for word in LARGE):
            for row in run_case(case, few, settings):
                assert row["status"] == "timed", row
                assert 0 < row["best_us"] <= row["wall_us"] and row["times_floor"] >= 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["to canvas", "pillars of 8", "Net++", "Pillars", "Center", "SE", "world_small"]
)
def test_networks_run_in_small(few, settings, words):
    for case in cases("cpu"):
        if words in case.name:
            assert run_case(case, few, settings)[0]["status"] == "timed"


@pytest.mark.parametrize("device", FIGURES)
def test_names_are_unique_and_targets_can_be_judged(device):
    rows = cases(device)
    assert len({case.name for case in rows}) == len(rows) > 100
    for target in (target for case in rows for target in case.targets):
        assert target.figure in FIGURES[device]
        assert (target.at_most is None) != (target.faster_than is None)
    waiting = {case.name for case in rows} - {case.name for case in chosen(device, "")}
    assert waiting == {case.name for case in rows if case.on_demand} != set()
    assert {case.op for case in chosen(device, "serialize,KNN k16")} == {"serialize", "knn"}
    assert {peer.op for peer in PEERS} <= {case.op for name in FIGURES for case in cases(name)}


class Double(Problem):
    """torchvox doubles; another implementation does what the case says."""

    plain = "other"

    def run(self):
        return [2 * self["x"]]

    def in_torch(self):
        return self["other"](self["x"])

    def compare(self, result):
        if not torch.equal(result, self.outputs[0]):
            raise WrongResult("no double")
        return "the same"


def double(other, *targets):
    inputs = {"x": torch.ones(1000)}
    return Case("double", "double", lambda _: inputs, {"other": other}, targets, Double)


@pytest.mark.parametrize(
    ("other", "change", "status", "reason"),
    [
        (lambda x: x + x, {}, "timed", ""),
        (lambda x: 3 * x, {}, "wrong", "no double"),
        (lambda x: x.view(7), {}, "failed", "RuntimeError: shape"),
        (lambda x: x + x, {"deadline": 0.0}, "skipped", "out of time"),
    ],
)
def test_only_right_results_are_timed(few, settings, other, change, status, reason):
    mine, theirs = run_case(double(other), few, Settings(**{**vars(settings), **change}))
    assert (mine["status"], theirs["status"]) == ("timed", status)
    assert ("best_us" in theirs) == (status == "timed")
    assert theirs.get("reason", "").startswith(reason)


def test_targets_are_judged(few, settings):
    targets = [Target("best_us", 1e9), Target("best_us", 1e-3), faster("best_us", "nobody")]
    targets += [faster("best_us", "other", 1e9), faster("best_us", "other", 1e6, plus_us=1e9)]
    mine, theirs = run_case(double(lambda x: x + x, *targets), few, settings)
    assert [target["met"] for target in mine["targets"]] == [True, False, None, False, True]
    assert mine["targets"][3]["limit_us"] == theirs["best_us"] / 1e9


def of(kind, op, **arguments):
    """A problem that has its outputs."""
    problem = kind(op, arguments)
    problem.outputs = problem.run()
    return problem


POINTS = torch.tensor([[[1.0, 0, 0], [-1, 0, 0], [0, 2, 0], [0, 0, 3]]])
KNN = of(neighbors.Nearest, "knn", points=POINTS, query=torch.zeros(1, 1, 3), k=3)
CLOUD = torch.rand(1, 256, 3, generator=torch.Generator().manual_seed(0)).sort(1).values
FPS = of(sampling.Sampling, "furthest_point_sample", points=CLOUD, num_samples=64)


@pytest.mark.parametrize(
    ("problem", "result", "words"),
    [
        (KNN, torch.tensor([[[0, 1, 2]]]), "same neighbors"),
        (KNN, torch.tensor([[[1, 0, 2]]]), "33.33 % of the neighbors in the same place"),
        (KNN, torch.tensor([[[0, 1, 3]]]), WrongResult("a neighbor is farther away")),
        (KNN, torch.tensor([[[0, 1, 4]]]), WrongResult("outside the cloud")),
        (FPS, FPS.outputs[0], "same samples"),
        (FPS, torch.arange(64), WrongResult("coverage radius")),
        (FPS, torch.zeros(64), WrongResult("sampled twice")),
    ],
)
def test_results_of_libraries_are_judged(problem, result, words):
    if isinstance(words, str):
        assert problem.compare(result).startswith(words)
    else:
        with pytest.raises(WrongResult, match=str(words)):
            problem.compare(result)


def test_libraries_are_measured_and_a_broken_one_reported(few, settings):
    def doubles(module, problem):
        return Way(lambda: problem["x"].tolist(), lambda values: 2 * torch.tensor(values))

    def breaks(module, problem):
        raise OSError("no such library")

    ways = {"numpy": doubles, "yaml": breaks}  # in place of libraries that double
    settings.peers = [Peer(name, name, "double", way, None, False) for name, way in ways.items()]
    settings.plain = False
    mine, *others = run_case(double(None), few, settings)
    assert [row["status"] for row in (mine, *others)] == ["timed", "timed", "failed"]
    assert others[1]["reason"] == "OSError: no such library"


def row(op, case, implementation, status="timed", **figures):
    said = {"reason": "why"} if status != "timed" else {"check": "same"}
    figures |= {"op": op, "case": case, "implementation": implementation, "status": status}
    return {**said, "size": {"read": 1_000_000, "written": 500_000}, **figures}


MACHINE = {"device": "cpu", "cpu": "a CPU", "threads": 2, "torch": "2.11", "torchvox": "0.1"}
MACHINE |= {"commit": "c0ffee", "dirty": False, "date": "a day", "copy_gb_per_s": 10.0}
MACHINE["upstream"] = {"mmcv": "2.2.0", "fast": None}
MISS = {"figure": "graph_us", "text": "<= 9 us", "limit_us": 9, "met": False}
ROWS = [
    row("knn", "knn small", "torchvox", best_us=10.0),
    row("knn", "knn small", "slow", best_us=80.0),
    row("knn", "knn small", "mmcv", best_us=40.0),
    row("knn", "knn small", "lies", status="wrong"),
    row("knn", "knn large", "torchvox", graph_us=10.0, eager_us=30.0, targets=[MISS]),
    row("knn", "knn large", "eager only", eager_us=15.0),
    row("bev", "one", "torchvox", graph_us=10.0, eager_us=30.0),
    row("bev", "one", "mmcv", status="wrong"),
]
RUN = {"machine": MACHINE, "growth": [], "measurements": ROWS}


def test_results_become_tables_a_page_and_a_picture(tmp_path):
    knn, _ = results.tables(RUN)
    assert knn.header[-3:] == ["MB", "vs torchvox", "target"]
    assert [line[-2] for line in knn.rows] == ["", "8.00x", "4.00x", "wrong: why", "", "0.50x"]
    assert knn.rows[4][-3:] == ["1.50", "", "graph <= 9 us: MISSED"]
    assert results.peer_table(RUN).rows == [
        ["knn", "small", "best", "10", "40", "mmcv", "2.2.0", "4.00x", "same"],
        ["bev", "one", *[""] * 6, "mmcv wrong: why"],
    ]
    gpu = {**MACHINE, "device": "cuda", "gpu": "a GPU", "driver": "1", "cuda": "13"}
    page = results.page([RUN, {**RUN, "machine": gpu}])
    assert page.index("## a CPU, 2 threads") < page.index("## a GPU")
    assert page.count("| mmcv |") == 4 and page.startswith(results.HEAD)
    assert (ROOT / "docs" / "benchmark_results.md").read_text().startswith(results.HEAD)
    factors = [(0.5, "eager only", "knn large"), (4.0, "mmcv", "knn small")]
    assert picture.factors(RUN) == {"knn": factors}
    pytest.importorskip("matplotlib", reason="the extra viz is not installed")
    picture.draw(RUN, tmp_path / "a.svg")
    assert "2.25x  eager only" in (tmp_path / "a.svg").read_text()


def test_growth_curves_become_tables_and_pictures(few, settings, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra viz is not installed")
    curves = [curve._replace(sizes=curve.sizes[:2]) for curve in growth.curves()]
    run = {**RUN, "measurements": [], "growth": growth.run(few, settings, curves)}
    growth.draw(run, tmp_path)
    assert {path.stem for path in tmp_path.glob("*.png")} == {curve.name for curve in curves}
    assert [line[0] for line in results.tables(run)[0].rows] == ["10,000", "30,000"]


def test_a_run_writes_what_the_command_shows(tmp_path):
    """In its own process, as always."""
    out = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks", "--device", "cpu", "--budget", "0.001"]
    command += ["--only", "1024 -> 512,no such case", "--most", "600", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "FPS 1024 -> 512 | torchvox | best_us" in done.stdout
    run = json.loads(out.read_text())
    assert run["schema"] == results.SCHEMA and run["seconds"] > 0
    assert run["machine"]["commit"] in run["machine_line"]
    assert [table["title"] for table in run["tables"]] == ["furthest_point_sample"]
