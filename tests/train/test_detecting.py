# SPDX-License-Identifier: Apache-2.0
"""Detectors that are trained: runs repeat and resume, their checkpoints are detectors."""

import json

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from tiny import equal_weights

from torchvox._errors import WrongUseError
from torchvox.data.lidar import World
from torchvox.models.checkpoints import load
from torchvox.train import fit, load_checkpoint, runs
from torchvox.train.builders import build_data
from torchvox.train.config import config_names, load_config, make_config
from torchvox.train.detecting import DetectionScores, evaluate_detector

MODEL = {
    "point_cloud_range": [0.0, -16.0, -3.0, 32.0, 16.0, 1.0],
    "pillar_size": [1.0, 1.0, 4.0],
    "max_pillars": [1024, 1024],
    "encoder": {"channels": [8]},
    "backbone": {"layers": [1], "strides": [2], "channels": [16]},
    "neck": {"strides": [1], "channels": [16]},
}
HEADS = {
    "center_pointpillars": {
        "head": {"tasks": [["Car"], ["Pedestrian", "Cyclist"]], "shared": 8, "width": 8,
                 "velocity": False},
    },
    "pointpillars": {
        "head": {"anchors": [{"size": [3.9, 1.6, 1.56], "bottom": -1.73}] * 3},
        "loss": {"matched": [0.5, 0.2, 0.2], "unmatched": [0.3, 0.1, 0.1]},
    },
}  # fmt: skip


def content(kind="center_pointpillars", **train) -> dict:
    train = {"epochs": 2, "batch_size": 4, "val_batch_size": 4, "lr": 3e-3, **train}
    train |= {"precision": "32-true", "device": "cpu", "log_every": 1}
    data = {"kind": "world", "sensor": "vlp16", "points": 2048, "train_size": 8, "val_size": 6}
    model = {"kind": kind, "args": {**MODEL, **HEADS[kind]}}
    return {"task": "detect", "model": model, "data": data, "train": {"whole": {}, **train}}


def run(folder, resume=False, **options):
    found = fit(make_config(content(**options)), folder, resume=resume, quiet=True)
    return found, torch.load(folder / "last.ckpt", weights_only=True)


@pytest.mark.parametrize("kind", HEADS)
def test_a_run_leaves_a_detector_and_its_scores(kind, tmp_path):
    found, last = run(tmp_path / "a", kind=kind)
    again, same = run(tmp_path / "b", kind=kind)
    assert found == again and equal_weights(last["state_dict"], same["state_dict"])
    assert {"map", "map_strict", "train_loss", "loss", "boxes"} <= found.keys()
    log = [json.loads(line) for line in (tmp_path / "a" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log if "map" in line] == [1, 3]
    trained = load_checkpoint(tmp_path / "a" / "best.ckpt")
    assert list(trained.labels.classes) == ["Car", "Pedestrian", "Cyclist"]
    batch = World("val", sensor="vlp16", points=2048, size=2).batch([0, 1])
    boxes = trained.model(batch["points"], batch["num_points"])
    kept = load(tmp_path / "a" / "model.pt")
    assert all(
        torch.equal(a, b)
        for a, b in zip(boxes, kept(batch["points"], batch["num_points"]), strict=True)
    )
    scores = evaluate_detector(trained.model, build_data(trained.config, "val"), kept.classes, 4)
    assert 0 <= scores["map"] <= 1 and len(scores) > 30


class Interrupt(Callback):
    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 3:
            raise KeyboardInterrupt


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, monkeypatch):
    _, whole = run(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(runs, "screen", lambda: [Interrupt()])
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            fit(make_config(content()), tmp_path / "parts")
    _, resumed = run(tmp_path / "parts", resume=True)
    assert equal_weights(whole["state_dict"], resumed["state_dict"])
    logs = [(tmp_path / name / "log.jsonl").read_text() for name in ("whole", "parts")]
    assert logs[0] == logs[1]


def test_what_the_truth_holds_is_found_and_every_scene_counts_once():
    batch = World("val", sensor="vlp16", points=4096, size=6).batch(range(6))
    labels = batch["labels"]
    shown = labels.clamp(min=-1)
    exact = batch["boxes"], torch.rand(labels.shape) * 0.5 + 0.5, shown
    scores = DetectionScores(["Car", "Pedestrian", "Cyclist"])
    scores.update(batch, exact)
    perfect = scores.compute()
    assert perfect["map"] == perfect["map_strict"] == 1
    again = {name: tensor[:2] for name, tensor in batch.items()}
    scores.update(again, [tensor[:2] for tensor in exact])
    assert scores.compute() == pytest.approx(perfect, nan_ok=True)
    scores.reset()
    shifted = batch["boxes"].clone()
    shifted[..., 0] += 0.4 * shifted[..., 3]
    scores.update(batch, (shifted, *exact[1:]))
    moved = scores.compute()
    assert moved["map"] < 0.2 and np.isfinite(moved["map_strict"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": {"kind": "second"}}, "model.kind must be one of pointpillars, center_point"),
        ({"model": {"args": {"classes": ["Car"]}}}, r"model.args.classes must be \['Car', 'Ped"),
        ({"model": {"args": {"columns": 5}}}, "model.args.columns must be 4 of data, got 5"),
        ({"model": {"args": {"loss": None}}}, "model.args.loss is missing"),
        ({"model": {"args": {"heads": 1}}}, "unknown key heads"),
        ({"data": {"kind": "shapes"}}, "the task detect learns from world or folder or nusc"),
        ({"train": {"whole": {"flip": 1}}}, "unknown key train.whole.flip"),
    ],
)
def test_what_cannot_be_trained_is_said(change, words):
    whole = content()
    for part, values in change.items():
        for key, value in values.items():
            old = whole[part].get(key)
            whole[part][key] = {**old, **value} if isinstance(old, dict) else value
    if "data" in change:
        whole["data"] = {"kind": "shapes"}
    with pytest.raises(WrongUseError, match=words):
        make_config(whole)


def test_the_shipped_configurations_are_both_detectors_and_runs():
    names = [name for name in config_names() if load_config(name).task == "detect"]
    assert names == ["centerpoint_pillars_nuscenes", "pointpillars_world"]


def test_eval_tells_average_precision_by_class(tmp_path, capsys, monkeypatch):
    from torchvox.cli import main

    monkeypatch.setenv("COLUMNS", "160")
    run(tmp_path / "a", epochs=1)
    checkpoint = str(tmp_path / "a" / "best.ckpt")
    given = ["eval", checkpoint, "--device", "cpu", "--json", str(tmp_path / "found.json")]
    assert main([*given, "--at-least", "3d/loose/Car=0"]) == 0
    out = capsys.readouterr().out
    assert "6 scans of world (val)" in out and "Pedestrian" in out and "map_strict" in out
    assert "3d/strict/Car" in json.loads((tmp_path / "found.json").read_text())
    assert main([*given, "--at-least", "map=1.5"]) == 1
    assert main([*given, "--at-least", "miou=0.1"]) == 2
    assert "the metrics are map, map_strict, 3d/strict/Car" in capsys.readouterr().err
