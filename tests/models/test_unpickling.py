# SPDX-License-Identifier: Apache-2.0
"""Files of training programs: their tensors are read, their code is not."""

import collections
import os
import sys
import types

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
def saved(monkeypatch, tmp_path):
    """Saves content beside a state dict; the module of History is gone when the file is read."""
    module = types.ModuleType("some_trainer")
    monkeypatch.setitem(sys.modules, "some_trainer", module)
    monkeypatch.setattr(History, "__module__", "some_trainer")
    monkeypatch.setattr(module, "History", History, raising=False)

    def save(**content):
        path = tmp_path / "a.pth"
        torch.save({"state_dict": {"a": torch.ones(2)}, **content}, path)
        sys.modules.pop("some_trainer", None)
        return path

    yield save
    assert "some_trainer" not in sys.modules


def test_unknown_classes_and_functions_become_opaque_and_plain_values_stay(saved):
    log = collections.defaultdict(list, {"loss": [1]})
    content = read_foreign(saved(hub={"loss": History()}, call=Call(eval, "1 + 1"), log=log, n=3))
    assert torch.equal(content["state_dict"]["a"], torch.ones(2))
    assert type(content["hub"]["loss"]) is type(content["call"]) is Opaque
    assert not vars(content["hub"]["loss"])
    assert content["log"] == {"loss": [1]} and content["n"] == 3


@pytest.mark.parametrize("function", [os.system, os.mkdir])
def test_nothing_that_a_file_names_is_run(function, saved, tmp_path):
    target = tmp_path / "made"
    words = f"touch {target}" if function is os.system else str(target)
    with pytest.raises(CheckpointError):
        read_foreign(saved(x=Call(function, words)))
    assert not target.exists()
