# SPDX-License-Identifier: Apache-2.0
"""Configurations: bases, overrides, and errors that say what to write instead."""

import dataclasses
import pickle
from pathlib import Path

import pytest
import yaml
from tiny import content

from torchvox._util.errors import WrongUseError
from torchvox.train.builders import build_data, build_model, labels_of
from torchvox.train.config import config_names, load_config, make_config

ROOT = Path(__file__).resolve().parents[2]


def write(folder, name, **changes):
    path = folder / name
    path.write_text(yaml.safe_dump(changes))
    return str(path)


@pytest.mark.parametrize("name", config_names())
def test_every_shipped_configuration_resolves_and_builds(name):
    config = load_config(name)
    assert make_config(yaml.safe_load(config.text())) == config
    labels = labels_of(config)
    model = build_model(config, labels)
    assert sum(p.numel() for p in model.parameters()) > 10_000
    assert hasattr(config.data, "root") or len(build_data(config, "val")) > 0
    if config.task != "detect":
        with pytest.raises(WrongUseError, match="needs two classes or more, got one"):
            build_model(config, dataclasses.replace(labels, classes=("one",)))


def test_a_base_is_merged_key_by_key_and_lists_are_replaced(tmp_path):
    write(tmp_path, "base.yaml", **content(epochs=7))
    child = write(
        tmp_path,
        "child.yaml",
        base="base.yaml",
        train={"lr": 0.5, "augment": {"scale": [0.5, 2.0]}},
        model={"kind": "tiny:TinyClassifier", "args": {"width": 8}},
    )
    config = load_config(child)
    assert (config.train.epochs, config.train.lr) == (7, 0.5)
    assert config.train.augment.scale == (0.5, 2.0)
    assert config.model.args == {"width": 8} and config.data.points == 32


def test_another_kind_of_data_replaces_the_whole_entry(tmp_path):
    write(tmp_path, "base.yaml", **content("segment"))
    child = write(tmp_path, "c.yaml", base="base.yaml", data={"kind": "s3dis", "root": "somewhere"})
    assert load_config(child).data.root == "somewhere"


def test_overrides_are_dotted_and_typed(tmp_path):
    path = write(tmp_path, "a.yaml", **content())
    config = load_config(path, ["train.lr=1e-3", "data.in_memory=false", "model.args.width=4"])
    assert config.train.lr == 1e-3 and config.data.in_memory is False
    assert config.model.args == {"width": 4}


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("train.epoch=3", r"unknown key train\.epoch: did you mean epochs\?"),
        ("train.augment.sclae=[1, 2]", r"unknown key train\.augment\.sclae: did you mean scale\?"),
        ("model.args.widht=3", r"unknown key model\.args\.widht: did you mean width\?"),
        ("model.args.num_classes=3", r"model\.args\.num_classes comes from the data"),
        ("model.kind=pointnet", r"model\.kind 'pointnet' is unknown: choose pointnet2_classifier"),
        ("model.kind=tiny:Large", r"model\.kind 'tiny:Large' cannot be loaded"),
        ("data.kind=cubes", r"data\.kind must be one of shapes, rooms, modelnet40, s3dis"),
        ("data.kind=rooms", r"task classify learns from shapes or modelnet40 or objects, not"),
        ("train.epochs=0", r"train\.epochs must be above 0, got 0"),
        ("train.nudge={}", r"train\.nudge is for detectors, not for classify"),
        ("train.devices=3", r"batch_size 16 must be a multiple of train\.devices 3"),
        ("task", r"must be key=value"),
        ("task.a=1", r"task holds no keys"),
    ],
)
def test_errors_are_sentences_that_help(tmp_path, override, sentence):
    path = write(tmp_path, "a.yaml", **content())
    with pytest.raises(WrongUseError, match=sentence):
        load_config(path, [override])


def test_missing_and_unknown_files_are_named(tmp_path):
    with pytest.raises(WrongUseError, match=r"did you mean pointnet2_rooms\?"):
        load_config("pointnet2_room")
    with pytest.raises(WrongUseError, match="does not exist"):
        load_config(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1,")
    with pytest.raises(WrongUseError, match="is not readable YAML"):
        load_config(broken)
    write(tmp_path, "a.yaml", base="b.yaml")
    write(tmp_path, "b.yaml", base="a.yaml")
    with pytest.raises(WrongUseError, match="is its own base"):
        load_config(tmp_path / "a.yaml")
    with pytest.raises(WrongUseError, match="task is missing"):
        load_config(write(tmp_path, "c.yaml", train={"epochs": 1}))


def test_a_configuration_is_frozen_and_pickles():
    config = make_config(content())
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.train.epochs = 3
    assert pickle.loads(pickle.dumps(config)) == config
