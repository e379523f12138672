# SPDX-License-Identifier: Apache-2.0
"""Files of training programs: their tensors are read, their code is not."""

import collections
import os
import random
import sys
import types
import zipfile

import pytest
import torch

from torchvox.models.checkpoints import CheckpointError
from torchvox.models.importing.unpickling import Opaque, read_foreign


class History:
    def __init__(self):
        self.values = torch.ones(3)


class Call:
    """Pickled as the call of a function."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.fixture
def trainer(monkeypatch):
    """A module of a training program, with a class; gone when the file is read."""
    module = types.ModuleType("some_trainer")
    monkeypatch.setitem(sys.modules, "some_trainer", module)
    monkeypatch.setattr(History, "__module__", "some_trainer")
    monkeypatch.setattr(module, "History", History, raising=False)
    yield module
    assert "some_trainer" not in sys.modules


def saved(content: dict, path) -> None:
    torch.save({"state_dict": {"a": torch.ones(2)}, **content}, path)
    sys.modules.pop("some_trainer", None)


def test_an_object_of_an_unknown_class_is_left_opaque(trainer, tmp_path):
    saved({"hub": {"loss": History()}}, tmp_path / "epoch_20.pth")
    content = read_foreign(tmp_path / "epoch_20.pth")
    assert torch.equal(content["state_dict"]["a"], torch.ones(2))
    assert type(content["hub"]["loss"]) is Opaque
    assert not vars(content["hub"]["loss"])


def test_default_dictionaries_are_dictionaries(tmp_path):
    saved({"log": collections.defaultdict(list, {"loss": [1]})}, tmp_path / "a.pth")
    assert read_foreign(tmp_path / "a.pth")["log"] == {"loss": [1]}


def test_plain_files_are_read_as_ever(tmp_path):
    saved({"epoch": 3, "meta": {"config": "text"}}, tmp_path / "a.pth")
    content = read_foreign(tmp_path / "a.pth")
    assert (content["epoch"], content["meta"]) == (3, {"config": "text"})


@pytest.mark.parametrize("function", [os.system, os.mkdir])
def test_nothing_that_a_file_names_is_run(function, tmp_path):
    target = tmp_path / "made"
    words = f"touch {target}" if function is os.system else str(target)
    saved({"x": Call(function, words)}, tmp_path / "a.pth")
    with pytest.raises(CheckpointError):
        read_foreign(tmp_path / "a.pth")
    assert not target.exists()


def test_a_call_of_an_unknown_function_gives_an_opaque_object(tmp_path):
    saved({"x": Call(eval, "1 + 1")}, tmp_path / "a.pth")
    assert type(read_foreign(tmp_path / "a.pth")["x"]) is Opaque


def test_a_damaged_pickle_is_refused_in_a_sentence_wherever_it_is_damaged(tmp_path):
    saved({"epoch": 3, "hub": [History.__name__, {"a": 1}]}, tmp_path / "a.pth")
    with zipfile.ZipFile(tmp_path / "a.pth") as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    pickled = next(name for name in entries if name.endswith("data.pkl"))
    generator = random.Random(0)
    refused = 0
    for _ in range(200):
        content = bytearray(entries[pickled])
        content[generator.randrange(len(content))] = generator.randrange(256)
        with zipfile.ZipFile(tmp_path / "b.pth", "w") as archive:
            for name, value in entries.items():
                archive.writestr(name, bytes(content) if name == pickled else value)
        try:
            read_foreign(tmp_path / "b.pth")
        except CheckpointError as error:
            refused += 1
            assert "cannot be read" in str(error)
    assert refused > 50


def test_an_archive_in_an_archive_and_a_program_are_refused(tmp_path):
    saved({}, tmp_path / "a.pth")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.write(tmp_path / "a.pth", "a.pth")
    torch.jit.trace(torch.nn.ReLU(), torch.ones(1)).save(str(tmp_path / "c.pt"))
    for name in ("b.zip", "c.pt"):
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_foreign(tmp_path / name)
