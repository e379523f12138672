# SPDX-License-Identifier: Apache-2.0
"""Training runs: reproducible, resumable, and their checkpoints hold plain things."""

import json
import subprocess
import sys

import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from tiny import content, equal_weights, fit_until

from torchvox._util.errors import TorchvoxError, WrongUseError
from torchvox.train import evaluate, fit, load_checkpoint, runs
from torchvox.train.builders import build_data
from torchvox.train.config import load_config, make_config
from torchvox.train.logs import JsonLines
from torchvox.train.metrics import scores

DROPOUT = {"model": {"kind": "tiny:TinyClassifier", "args": {"dropout": 0.3}}}
AUGMENT = {"scale": [0.8, 1.25], "shift": 0.1, "dropout": 0.5, "yaw": True}


def run(folder, resume=False, task="classify", **train):
    augment = AUGMENT if task == "classify" else {}
    train["class_weights"] = task == "segment"
    whole = content(task, augment=augment, **train) | (DROPOUT if task == "classify" else {})
    fit(make_config(whole), folder, resume=resume, quiet=True)
    return torch.load(folder / "last.ckpt", weights_only=True), (folder / "log.jsonl").read_text()


@pytest.mark.parametrize("task", ["classify", "parts", "segment"])
def test_equal_seeds_give_equal_bits(task, tmp_path):
    first, log = run(tmp_path / "a", task=task)
    second, same_log = run(tmp_path / "b", task=task)
    other, _ = run(tmp_path / "c", task=task, seed=1)
    assert equal_weights(first["state_dict"], second["state_dict"])
    assert log == same_log
    assert not equal_weights(first["state_dict"], other["state_dict"])


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    whole, log = run(tmp_path / "whole")
    config = make_config(content(augment=AUGMENT) | DROPOUT)
    fit_until(6, config, tmp_path / "parts")  # in the middle of its second epoch
    stopped = torch.load(tmp_path / "parts" / "last.ckpt", weights_only=True)
    assert stopped["global_step"] == 4
    resumed, same_log = run(tmp_path / "parts", resume=True)
    assert equal_weights(whole["state_dict"], resumed["state_dict"])
    assert same_log == log


def test_the_best_so_far_is_kept_where_a_run_has_moved_and_of_equal_ones_the_last(tmp_path):
    config = make_config(content())
    with runs._quiet_and_deterministic():
        trainer, other = (runs.make_trainer(config, tmp_path / name, []) for name in "ab")
    best, moved = trainer.checkpoint_callbacks[0], other.checkpoint_callbacks[0]
    best.best_model_score = torch.tensor(0.9)
    best.kth_best_model_path = best.best_model_path = str(tmp_path / "a" / "best.ckpt")
    best.best_k_models = {best.best_model_path: best.best_model_score}
    moved.load_state_dict(best.state_dict())
    saved = [moved.check_monitor_top_k(other, torch.tensor(score)) for score in (0.8, 0.9, 0.95)]
    assert saved == [False, True, True]


def test_a_log_is_json_where_a_loss_is_not_finite(tmp_path):
    JsonLines(tmp_path / "log").log_metrics({"loss": float("nan"), "map": 0.5, "epoch": 2}, 7)
    line = json.loads((tmp_path / "log").read_text(), parse_constant=pytest.fail)
    assert line == {"step": 7, "loss": None, "map": 0.5, "epoch": 2}


@pytest.mark.parametrize("rest", ['{"step": 3, "epo', "{}\n", "3\n"])
def test_a_log_that_was_cut_off_is_resumed(tmp_path, rest):
    _, whole = run(tmp_path)
    log = tmp_path / "log.jsonl"
    log.write_text(log.read_text() + rest)
    _, resumed = run(tmp_path, resume=True)
    assert resumed == whole


def test_a_device_that_is_not_there_is_refused_in_a_sentence(tmp_path, monkeypatch):
    def fails(*_):
        raise MisconfigurationException("No supported gpu backend found!")

    monkeypatch.setattr(runs, "make_trainer", fails)
    with pytest.raises(WrongUseError, match="cannot train as configured: No supported gpu"):
        run(tmp_path)


def test_a_run_learns_and_its_best_checkpoint_evaluates_to_the_metrics_of_the_best_epoch(tmp_path):
    _, log = run(tmp_path / "run", task="parts", epochs=8, lr=0.1)
    lines = [json.loads(line) for line in log.splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 8 * 4 and losses[-1] < 0.6 * losses[0]
    epochs = [line for line in lines if "miou" in line]
    assert [line["epoch"] for line in epochs] == list(range(8))
    best = max(line["miou"] for line in epochs)
    trained = load_checkpoint(tmp_path / "run" / "best.ckpt", trust_code=True)
    assert trained.about["metrics"]["miou"] == best
    assert not trained.model.training
    found = scores(evaluate(trained, build_data(trained.config, "val"), batch_size=5))
    assert found["miou"] == pytest.approx(best, abs=1e-6)


def test_a_checkpoint_says_what_made_it(tmp_path):
    whole, _ = run(tmp_path / "run", epochs=1)
    about = whole["torchvox"]
    assert about["format"] == 1 and len(about["op_schemas"]) == 16
    assert about["config"] == make_config(content(epochs=1, augment=AUGMENT) | DROPOUT).plain()
    assert about["revision"] and about["version"]
    assert about["labels"]["classes"][0] == "sphere"
    assert json.dumps(about)


def test_a_run_is_never_written_over_and_leaves_torch_as_it_was(tmp_path):
    run(tmp_path / "run", epochs=1)
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(WrongUseError, match="holds a run: give --resume"):
        run(tmp_path / "run", epochs=1)
    with pytest.raises(WrongUseError, match="of another configuration"):
        run(tmp_path / "run", resume=True, epochs=2)
    with pytest.raises(WrongUseError, match=r"no last\.ckpt to resume from"):
        run(tmp_path / "none", resume=True)


def test_a_configuration_that_a_person_wrote_is_kept(tmp_path):
    (tmp_path / "config.yaml").write_text("base: pointnet2_cls_shapes_small # mine\n")
    with pytest.raises(WrongUseError, match=r"config\.yaml"):
        run(tmp_path, epochs=1)
    assert "mine" in (tmp_path / "config.yaml").read_text()


@pytest.mark.parametrize(("devices", "first"), [(1, True), (2, False)])
def test_the_processes_of_one_training_share_its_folder(monkeypatch, devices, first):
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert runs._is_first(make_config(content(devices=devices))) == first


def test_one_training_at_a_time_has_a_folder(tmp_path):
    code = "import sys, time, pathlib; from torchvox._util.locks import lock\n"
    code += "with lock(pathlib.Path(sys.argv[1]), wait=False): print(flush=True), time.sleep(99)"
    other = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"\n"
    with pytest.raises(WrongUseError, match="a training that runs now"):
        run(tmp_path, epochs=1)
    other.kill()  # which frees the folder
    other.communicate()
    run(tmp_path, epochs=1)


@pytest.mark.parametrize("trust_code", [False, True])
def test_a_checkpoint_cannot_name_what_it_likes_to_be_called(tmp_path, trust_code):
    run(tmp_path / "run", epochs=1)
    content = torch.load(tmp_path / "run" / "best.ckpt", weights_only=True)
    done = tmp_path / "done"
    content["torchvox"]["config"]["model"] = {"kind": "os:mkdir", "args": {"path": str(done)}}
    torch.save(content, tmp_path / "evil.ckpt")
    with pytest.raises(WrongUseError, match="os:mkdir"):
        load_checkpoint(tmp_path / "evil.ckpt", trust_code=trust_code)
    assert not done.exists()


def test_a_split_without_samples_is_refused_before_the_first_epoch(tmp_path):
    for name in ("points", "boxes"):
        (tmp_path / name).mkdir()
    (tmp_path / "points" / "0.npy").touch()
    data = {"kind": "folder", "root": str(tmp_path), "classes": ["Car", "Pedestrian", "Cyclist"]}
    config = make_config(load_config("pointpillars_kitti").plain() | {"data": data})
    with pytest.raises(WrongUseError, match="has no scans of val"):
        fit(config, tmp_path / "run", quiet=True)


def test_scans_without_boxes_are_named_before_training(tmp_path, monkeypatch, capsys):
    for name in ("points", "boxes"):
        (tmp_path / name).mkdir()
    for i in range(10):
        (tmp_path / "points" / f"{i}.npy").touch()
        if i > 6:
            (tmp_path / "boxes" / f"{i}.json").touch()
    data = {"kind": "folder", "root": str(tmp_path), "classes": ["Car", "Pedestrian", "Cyclist"]}
    config = make_config(load_config("pointpillars_kitti").plain() | {"data": data})
    monkeypatch.setattr("torchvox.train.runs.build_model", lambda *_: 1 / 0)
    for quiet, words in ((False, "7 scans without boxes: trained as empty (0, 1, 2, 3, 5, ..)\n"),
                         (True, "")):  # fmt: skip
        with pytest.raises(ZeroDivisionError):
            fit(config, tmp_path / "run", quiet=quiet)
        assert capsys.readouterr().out == words


def test_a_run_that_never_began_leaves_its_folder_free(tmp_path):
    missing = content(epochs=1) | {"data": {"kind": "modelnet40", "root": str(tmp_path / "none")}}
    with pytest.raises(TorchvoxError):
        fit(make_config(missing | DROPOUT), tmp_path / "run", quiet=True)
    run(tmp_path / "run", epochs=1)
