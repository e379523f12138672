# SPDX-License-Identifier: Apache-2.0
"""The commands train, eval and predict, on nets that learn in seconds."""

import json
import shutil

import numpy as np
import pytest
import yaml
from tiny import content

pytest.importorskip("typer", reason="the extra cli is not installed")

from torchvox.cli import main
from torchvox.data import generate_rooms, generate_shapes
from torchvox.data.worlds import shapes


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    """Runs the command in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def model(request, trained, tmp_path):
    """The checkpoint of a task."""
    return trained(tmp_path / "out", getattr(request, "param", "classify")) / "best.ckpt"


def of(task):
    return pytest.mark.parametrize("model", [task], indirect=True)


@pytest.mark.parametrize("task", ["classify", "parts", "segment"])
def test_train_then_eval_with_pictures(command, tmp_path, task):
    pytest.importorskip("matplotlib", reason="the extra viz is not installed")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(content(task)))
    code, out, err = command("train", "run.yaml", "train.epochs=1", "-o", "out")
    assert code == 0, err
    assert "epoch 1/1" in out and "wrote out/best.ckpt" in out
    model = "out/best.ckpt"
    code, out, err = command(
        *("eval", model, "--trust-code", "data.val_size=5", "--device", "cpu"),
        *("--pictures", "pictures", "--json", "result.json"),
    )
    assert code == 0, err
    assert "accuracy" in out and "mean IoU" in out
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["samples"] == 5 and 0 <= found["accuracy"] <= 1
    assert np.array(found["matrix"]).sum() == {"classify": 5, "parts": 160, "segment": 320}[task]
    for name in ("predictions", "confusion"):
        assert (tmp_path / "pictures" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


def test_predict_names_the_likeliest_classes(command, model, tmp_path):
    for i, count in enumerate((300, 5)):  # more and fewer points than in training
        np.save(f"{i}.npy", generate_shapes([i], points=count)["points"][0].numpy())
    code, out, err = command("predict", "0.npy", "1.npy", "--model", model, "--trust-code")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith("0.npy: ") and lines[0].count("%") == 3
    assert lines[1].startswith("1.npy: ")


@of("segment")
def test_predict_labels_every_finite_point_of_a_room(command, model, tmp_path):
    room = generate_rooms([0], points=500, block=3.0)["points"][0, :, :6].numpy()
    room[7, 0] = np.nan
    np.savez("room.npz", points=room, columns=["x", "y", "z", "red", "green", "blue"])
    code, out, err = command("predict", "room.npz", "--trust-code", "-m", model, "-o", "labels.npz")
    assert code == 0, err
    assert "; wrote labels.npz" in " ".join(out.split())
    written = np.load(tmp_path / "labels.npz")
    assert written["labels"].shape == (500,) and written["labels"][7] == -1
    assert (np.delete(written["labels"], 7) >= 0).all() and written["names"][0] == "ceiling"
    code, _, err = command("predict", "room.npz", "--trust-code", "-m", model, "-o", "room.npz")
    assert code == 2 and "would replace the file that it is made from" in err


@of("parts")
def test_predict_labels_parts_of_a_known_category(command, model, tmp_path):
    np.save("table.npy", generate_shapes([11], points=100)["points"][0].numpy())
    code, out, err = command(
        *("predict", "table.npy", "--trust-code", "-m", model, "--category", "table", "-o", "t.npz")
    )
    assert code == 0, err
    assert "table" in out
    labels = np.load(tmp_path / "t.npz")
    assert {str(labels["names"][i]).split()[0] for i in labels["labels"]} == {"table"}
    code, _, err = command("predict", "table.npy", "--trust-code", "-m", model)
    assert code == 2 and "--category must be one of sphere" in err
    (tmp_path / "a.npy").write_bytes(b"broken")  # a wrong category stops before the first file
    code, _, err = command("predict", "a.npy", "--trust-code", "-m", model, "--category", "sofa")
    assert code == 2 and "--category must be one of sphere" in err and "a.npy" not in err
    assert not (tmp_path / "torchvox_out").exists()


@of("segment")
def test_a_room_without_colors_stops_no_other(command, model, tmp_path):
    room = generate_rooms([0], points=50)["points"][0, :, :6].numpy()
    np.save("a.npy", room[:, :3])
    np.save("b.npy", np.full_like(room, np.nan))
    np.savez("c.npz", points=room, columns=["x", "y", "z", "red", "green", "blue"])
    code, out, err = command("predict", *("a.npy", "b.npy", "c.npz"), "--trust-code", "-m", model)
    assert code == 1 and "2 of 3 files failed" in err
    assert "a.npy must have the columns" in err and "b.npy has no finite point" in err
    assert out.startswith("c.npz: 50 points") and len(out.splitlines()) == 1


def test_wrong_use_is_one_sentence_and_exit_code_2(command, model, tmp_path):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(content()))
    (tmp_path / "new").mkdir()
    shutil.copy(model, tmp_path / "new")
    weights = "new/best.ckpt"
    for arguments, words in (
        (("train", "run.yaml", f"train.init={weights}", "-o", "new"), "would replace the file"),
        (("train",), "which configuration? There are center_world_small"),
        (("train", "run.yaml", "train.epoch=2"), "did you mean epochs?"),
        (("train", "run.yaml", "-o", "out"), "give --resume"),
        (("eval", "none.ckpt"), "does not exist"),
        (("eval", "out/best.ckpt", "--json", "out"), "--json must be a file, got out, a folder"),
        (("eval", "out/best.ckpt", "--split", "test"), "--split must be train or val"),
        (
            ("eval", "out/best.ckpt", "--trust-code", "--at-least", "iou=1"),
            "the metrics are accuracy",
        ),
        (("eval", "out/best.ckpt", "--at-least", "miou=nan"), "'nan' is no number"),
        (("eval", "out/best.ckpt"), "names code of its own as its model, 'tiny:Tiny"),
        (("predict", "none.npy", "-m", "out/best.ckpt", "--trust-code"), "none.npy does not exist"),
    ):
        code, _, err = command(*arguments)
        lines = [line for line in err.splitlines() if not line.startswith("device:")]
        assert code == 2 and len(lines) == 1 and words in lines[0], err


def test_data_of_other_classes_are_refused(command, model, monkeypatch):
    monkeypatch.setattr(shapes, "CLASSES", (*shapes.CLASSES, "teapot"))
    code, _, err = command("eval", model, "--trust-code")
    assert code == 2 and "its classes must be ['sphere'" in err


def test_a_gate_that_is_missed_is_exit_code_1(command, model, tmp_path):
    assert command("eval", model, "--trust-code", "--at-least", "miou=0")[0] == 0
    code, _, err = command("eval", model, "--trust-code", "--at-least", "accuracy=0.99")
    assert code == 1 and "is below 0.99" in err


def test_configuration_and_schema_are_printed(command):
    code, out, _ = command("train", "pointnet2_cls_shapes_small", "train.lr=0.5", "--print-config")
    assert code == 0 and yaml.safe_load(out)["train"]["lr"] == 0.5
    code, out, _ = command("train", "--print-schema")
    schema = json.loads(out)
    rate = schema["$defs"]["TrainConfig"]["properties"]["lr"]
    assert code == 0 and schema["title"] == "Config" and not schema["additionalProperties"]
    assert rate["exclusiveMinimum"] == 0
