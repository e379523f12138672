# SPDX-License-Identifier: Apache-2.0
"""Detectors that are trained: runs repeat and resume, their checkpoints are detectors."""

import copy
import json
import sys

import numpy as np
import pytest
import torch
from tiny import equal_weights, fit_until

from torchvox._util.errors import WrongUseError
from torchvox.cli.evaluate import _report_detections
from torchvox.data.readers.kitti import export_kitti
from torchvox.data.worlds.street import World
from torchvox.models import checkpoints
from torchvox.models.checkpoints import CheckpointError, load
from torchvox.models.fuse import fuse_batch_norms
from torchvox.train import fit, load_checkpoint
from torchvox.train.builders import build_data, build_model, labels_of
from torchvox.train.checkpoint import start_from
from torchvox.train.config import make_config
from torchvox.train.detecting import DetectionScores, evaluate_detector

MODEL = {
    "point_cloud_range": [0.0, -16.0, -3.0, 32.0, 16.0, 1.0],
    "pillar_size": [1.0, 1.0, 4.0],
    "max_pillars": [1024, 1024],
    "encoder": {"channels": [8]},
    "backbone": {"layers": [1], "strides": [2], "channels": [16]},
    "neck": {"strides": [1], "channels": [16]},
}
VOXELS = {
    "voxel_size": [1.0, 1.0, 0.2],
    "max_voxels": [2048, 2048],
    "sparse": {
        "layers": [1, 1, 1],
        "channels": [4, 8, 8],
        "out_channels": 8,
        "max_rows": [2048, 1024, 1024],
    },
    "neck": {"strides": [2], "channels": [16]},
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
HEADS |= {"center_voxel": HEADS["center_pointpillars"], "second": HEADS["pointpillars"]}
HEADS["voxelnext"] = HEADS["center_pointpillars"]


def content(kind="center_pointpillars", **train):
    some = {"epochs": 2, "batch_size": 4, "val_batch_size": 4, "lr": 3e-3, "log_every": 1}
    some |= {"precision": "32-true", "device": "cpu", "whole": {}, "nudge": {"tries": 3}}
    some |= {"paste": {"counts": {"Car": 2, "Pedestrian": 1}, "points": 512}, **train}
    data = {"kind": "world", "sensor": "vlp16", "points": 2048, "train_size": 8, "val_size": 6}
    args = {**MODEL, **HEADS[kind]}
    if kind in ("second", "center_voxel", "voxelnext"):
        kept = {k: v for k, v in args.items() if k not in ("encoder", "pillar_size", "max_pillars")}
        args = {**kept, **VOXELS}
    if kind == "voxelnext":
        kept = {k: v for k, v in args.items() if k not in ("backbone", "neck")}
        args = {**kept, "sparse": {**VOXELS["sparse"], "joined": 2}}
    model = {"kind": kind, "args": args}
    return {"task": "detect", "model": model, "data": data, "train": some}


def run(folder, resume=False, **options):
    found = fit(make_config(content(**options)), folder, resume=resume, quiet=True)
    return found, torch.load(folder / "last.ckpt", weights_only=True)


@pytest.mark.parametrize("kind", HEADS)
def test_a_run_leaves_a_detector_and_its_scores(kind, tmp_path):
    found, last = run(tmp_path / "a", kind=kind)
    again, same = run(tmp_path / "b", kind=kind)
    assert found == again and equal_weights(last["state_dict"], same["state_dict"])
    assert {"map", "map_strict", "train_loss", "loss", "boxes", "refused"} <= found.keys()
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
    assert 0 <= scores.scores["map"] <= 1 and len(scores.scores) > 30


def test_the_age_of_sweeps_is_a_column_and_a_class_without_objects_is_named(tmp_path):
    sweeps, few = content(), content()
    sweeps["data"]["sweeps"] = 2
    config = make_config(sweeps)
    assert labels_of(config).columns == build_data(config, "val")[0]["points"].shape[1] == 5
    few["train"]["paste"]["min_points"] = 10**6
    with pytest.raises(WrongUseError, match=r"train.paste: .*of \(0, 0, 0\) objects, got"):
        fit(make_config(few), tmp_path, quiet=True)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, capsys):
    options = {"epochs": 3, "val_every": 2, "loggers": ["jsonl", "csv"]}
    validated = [3, 5]  # the last epoch always
    fit(make_config(content(**options)), tmp_path / "whole")
    lines = [s for s in capsys.readouterr().out.splitlines() if s.startswith("epoch ")]
    assert ["map" in line for line in lines] == [step in validated for step in range(1, 6, 2)]
    whole = torch.load(tmp_path / "whole" / "last.ckpt", weights_only=True)
    fit_until(3, make_config(content(**options)), tmp_path / "parts")
    _, resumed = run(tmp_path / "parts", resume=True, **options)
    assert equal_weights(whole["state_dict"], resumed["state_dict"])
    assert whole["torchvox"] == resumed["torchvox"]
    folders = ("whole", "parts")
    for name in ("csv/metrics.csv", "log.jsonl"):
        log, same_log = ((tmp_path / folder / name).read_text() for folder in folders)
        assert log == same_log
    steps = [line["step"] for line in map(json.loads, log.splitlines()) if "map" in line]
    assert steps == validated
    best, same = (torch.load(tmp_path / f / "best.ckpt", weights_only=True) for f in folders)
    assert best["global_step"] == same["global_step"]
    assert equal_weights(best["state_dict"], same["state_dict"])


def test_a_missing_logger_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        run(tmp_path, epochs=1, loggers=["tensorboard"])


def test_a_run_begins_with_weights_that_fit(tmp_path, capsys):
    _, last = run(tmp_path / "a", epochs=1)
    for file in ("last.ckpt", "model.pt"):  # of one epoch: equal weights
        model = build_model(config := make_config(content()), labels_of(config))
        assert start_from(model, tmp_path / "a" / file, model.classes) == []
        assert equal_weights(
            {f"model.{k}": v for k, v in model.state_dict().items()}, last["state_dict"]
        )
    whole = content(epochs=1, init=str(tmp_path / "a" / "model.pt"))
    whole["model"]["args"]["neck"] = {"strides": [1], "channels": [8]}
    fit(make_config(whole), tmp_path / "b")
    line = capsys.readouterr().out.splitlines()[0]
    assert "does not fit: neck.deblocks" in line and "head." in line and "backbone." not in line
    (tmp_path / "a" / "model.pt").unlink()
    fit(make_config(whole), tmp_path / "b", resume=True, quiet=True)  # which has its own


def test_a_head_of_other_classes_stays_and_what_does_not_fit_is_named(tmp_path):
    model = build_model(config := make_config(content()), labels_of(config))
    checkpoints.save(model, tmp_path / "model.pt")
    made = start_from(copy.deepcopy(model), tmp_path / "model.pt", ["Bus", "Pedestrian", "Cyclist"])
    assert made == [name for name in model.state_dict() if name.startswith("head.")]
    checkpoints.save(fuse_batch_norms(model.eval()), tmp_path / "fused.pt")
    for other, file, words in (
        (model, "fused", "take what"),
        (torch.nn.ReLU(), "model", "no tensor"),
    ):
        with pytest.raises(CheckpointError, match=words):
            start_from(other, tmp_path / f"{file}.pt", [])


def test_compiled_parts_learn_the_same_under_the_same_names(tmp_path, monkeypatch):
    _, plain = run(tmp_path / "plain", epochs=1)
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda call, **_: compiled.append(call) or call)
    _, last = run(tmp_path / "compiled", epochs=1, compile=True)
    assert [type(c.__self__).__name__ for c in compiled] == ["Backbone", "Neck", "CenterHead"]
    assert equal_weights(plain["state_dict"], last["state_dict"])


@pytest.mark.filterwarnings("ignore:.*has no images")
def test_a_run_learns_from_files_of_kitti(tmp_path):
    export_kitti(tmp_path / "made", 4, 2)
    data = {"kind": "kitti", "root": str(tmp_path / "made"), "in_memory": True}
    found = fit(make_config({**content(epochs=1), "data": data}), tmp_path / "run", quiet=True)
    assert np.isfinite(found["train_loss"]) and 0 <= found["map"] <= 1


def test_what_the_truth_holds_is_found_and_every_scene_counts_once():
    batch = World("val", sensor="vlp16", points=4096, size=6).batch(range(6))
    labels = batch["labels"]
    shown = labels.clamp(min=-1)
    exact = batch["boxes"], torch.linspace(0.5, 1.0, labels.numel()).view(labels.shape), shown
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
    scores.update(batch, (*exact[:2], shown + 1))  # of a program for other classes
    with pytest.raises(ValueError, match="detections must be below 3, the classes, got 3"):
        scores.compute()


def test_a_box_that_lies_in_another_counts_by_its_points():
    batch = World("val", sensor="vlp16", points=4096, size=1).batch([0])
    batch["boxes"][:, 1], batch["weight"] = batch["boxes"][:, 0], (batch["labels"] >= 0).float()
    scores = DetectionScores(["Car", "Pedestrian", "Cyclist"])
    scores.update(batch, (batch["boxes"], batch["weight"], batch["labels"]))
    first, second = scores.detected().truth[0]["points"][:2]
    assert first == second > 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train": {"nodes": 3}}, "4 must be a multiple of train.devices 1 x train.nodes 3"),
        ({"model": {"kind": "secnd"}}, "model.kind must be one of pointpillars, center_point"),
        (
            {"model": {"args": {"classes": ["Cyclist", "Car", "Pedestrian"]}}},
            r"model.args.classes must be \['Car', 'Ped",
        ),
        ({"model": {"args": {"columns": 5}}}, "model.args.columns must be 4 of data, got 5"),
        ({"model": {"args": {"loss": None}}}, "model.args.loss is required for training"),
        ({"data": {"kind": "shapes"}}, "the task detect learns from world or folder or kit"),
        ({"train": {"whole": {"scale": [1.1, 0.9]}}}, r"train.whole: WholeScan: scale .*, got"),
        ({"train": {"nudge": {"tries": 0}}}, r"train.nudge: Nudge: shift .* tries above 0, got"),
        ({"train": {"augment": {"yaw": True}}}, "train.augment is for clouds, not for detect"),
        ({"train": {"paste": {"counts": {"Cart": 1}}}}, "key train.paste.counts.Cart: did you m"),
    ],
)
def test_configurations_that_cannot_be_trained_are_refused(change, words):
    whole = content()
    for part, values in change.items():
        for key, value in values.items():
            old = whole[part].get(key)
            whole[part][key] = {**old, **value} if isinstance(old, dict) else value
    if "data" in change:
        whole["data"] = {"kind": "shapes"}
    with pytest.raises(WrongUseError, match=words):
        make_config(whole)


def test_a_network_without_dense_convolutions_is_not_compiled(tmp_path):
    with pytest.raises(WrongUseError, match=r"train.compile: VoxelNeXt has no dense"):
        fit(make_config(content("voxelnext", compile=True)), tmp_path, quiet=True)


@pytest.mark.parametrize("columns", [7, 9])
def test_velocities_are_scored_and_told_where_boxes_have_some(columns, capsys):
    boxes = torch.tensor([[[10.0, 0, 0, 4, 2, 2, 0, 3, 0], [20, 5, 0, 4, 2, 2, 0, 0, 0]]])
    found = boxes.clone()
    found[..., 8] += 0.25
    points = boxes[..., :3].repeat(1, 6, 1)
    labels, ones = torch.zeros(1, 2, dtype=torch.int32), torch.ones(1, 2)
    batch = {"id": torch.tensor([0]), "points": points, "weight": ones, "labels": labels}
    scores = DetectionScores(["Car"])
    scores.update({**batch, "boxes": boxes[..., :columns]}, (found, ones, labels))
    told = scores.compute()
    assert told["map_strict"] == 1
    assert told.get("3d/loose/Car/velocity") == (0.25 if columns == 9 else None)
    _report_detections("a title", told, ["Car"], {})
    assert ("0.25" in capsys.readouterr().out) == (columns == 9)
