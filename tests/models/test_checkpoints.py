# SPDX-License-Identifier: Apache-2.0
"""Our checkpoints: tensors and plain types, nothing that runs."""

import os
import pickle
import re
import warnings

import numpy as np
import pytest
import torch
from helpers import disk_of
from nets import SMALL

from torchvox.models import checkpoints
from torchvox.models.checkpoints import CheckpointError
from torchvox.models.importing.unpickling import read_foreign


def test_a_checkpoint_is_tensors_and_plain_types_and_says_what_made_it(tmp_path):
    values = {"accuracy": np.float64(0.92), "other": np.float32(0.5), "curve": np.arange(3.0)}
    torch.save(values, tmp_path / "log.pth")
    assert str(checkpoints.read(tmp_path / "log.pth")) == str(values)
    checkpoints.save(SMALL["classifier"](), tmp_path / "model.pt")
    content = torch.load(tmp_path / "model.pt", weights_only=True)
    assert content["model"] == "PointNet2Classifier" and content["config"]["preset"] == "pn2"
    assert content["torchvox"] and content["revision"]
    assert content["schemas"]["query_and_group"].startswith("torchvox::query_and_group(")


class Harmful:
    def __reduce__(self):
        return os.system, ("true",)


class Foreign:
    """Of a class that no reader knows."""


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: torch.save({"hook": Harmful()}, path), "it names posix.system, which"),
        (lambda path: torch.save({"a": Foreign()}, path), r"it names \S*Foreign, which"),
        (lambda path: path.write_bytes(b"\x80\x02\x95."), r"cannot be read .*: \w+"),
        (
            lambda path: torch.jit.script(torch.nn.ReLU()).save(str(path)),
            "is a program, as of torchvox export --format script",
        ),
    ],
    ids=["function", "class", "operand", "program"],
)
@pytest.mark.parametrize("reader", ["read", "load", "import", "train"])
def test_no_message_advises_to_read_a_file_unguarded(write, words, reader, tmp_path):
    read = {"read": checkpoints.read, "load": checkpoints.load, "import": read_foreign}.get(reader)
    if read is None:
        pytest.importorskip("lightning", reason="the extra train is not installed")
        from torchvox.train import load_checkpoint as read
    path = tmp_path / "file.pt"
    write(path)
    if reader == "import" and "Foreign" in words:
        assert read(path).keys() == {"a"}  # the object of an unknown class is left out
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*TorchScript.*")
        with pytest.raises(CheckpointError, match=words) as found:
            read(path)
    message = str(found.value)
    assert not re.search("weights_only|safe_globals|trust|arbitrary|file an issue", message)
    assert message.startswith(str(path)) and len(message.splitlines()) == 1


def test_a_full_disk_leaves_no_half_file_and_the_old_one_whole(tmp_path):
    path = tmp_path / "new" / "model.pt"
    with disk_of(5_000), pytest.raises(OSError):
        checkpoints.save(SMALL["classifier"](), path)
    assert not list(path.parent.iterdir())
    checkpoints.save(SMALL["classifier"](), path)
    before = path.read_bytes()
    with disk_of(5_000), pytest.raises(OSError):
        checkpoints.save(SMALL["segmenter"](), path)
    assert [p.name for p in path.parent.iterdir()] == ["model.pt"]
    assert path.read_bytes() == before


def test_other_files_are_refused_in_a_sentence(tmp_path):
    path = tmp_path / "file.pt"
    with pytest.raises(CheckpointError, match="does not exist"):
        checkpoints.load(path)
    torch.save({"state_dict": {}}, path)
    with pytest.raises(CheckpointError, match=r"no checkpoint of torchvox\.models"):
        checkpoints.load(path)
    for data in (b"not a checkpoint", b"\x80\x02.", b"", b"PK\3\4", pickle.dumps(print)):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=r"file\.pt cannot be read"):
            checkpoints.load(path)


@pytest.fixture
def written(tmp_path):
    """A checkpoint that was saved, with other entries; None: without."""
    path = tmp_path / "model.pt"
    checkpoints.save(SMALL["classifier"](), path)
    whole = torch.load(path, weights_only=True)

    def change(entries, **options):
        kept = {k: v for k, v in {**whole, **entries}.items() if v is not None}
        torch.save(kept, path, **options)
        return path

    return change


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "older layout"])
def test_any_damage_to_a_file_is_an_error_of_checkpoints(zipped, written):
    path = written({}, _use_new_zipfile_serialization=zipped)
    whole, random = path.read_bytes(), np.random.default_rng(0)
    for i in range(60):
        damaged = bytearray(whole)
        for at in random.integers(0, min(len(whole), 9000), 1 + i % 9):
            damaged[at] = int(random.integers(256))
        path.write_bytes(damaged if i % 3 else damaged[: int(random.integers(len(whole)))])
        try:
            checkpoints.load(path)  # damage may hit what nothing depends on
        except CheckpointError as error:
            assert "model.pt" in str(error)
    for at, value in ((6, 255), (9, 8)) if zipped else ():  # of the directory: version, flags
        damaged, entry = bytearray(whole), whole.index(b"PK\1\2")
        damaged[entry + at], damaged[entry + 46] = value, 255  # 46: the name begins
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            checkpoints.read(path)


LONG = "\x1b[2J" + "a" * 100_000


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"version": 99}, "a later one"),
        ({"version": 9, "torchvox": LONG}, "a later one"),
        ({"model": "PointNet3"}, "no model 'PointNet3'"),
        ({"model": LONG}, "no model"),
        ({"format": np.zeros(3)}, "is a checkpoint of torchvox train"),
        ({"config": {"num_classes": -1}}, "is damaged"),
        *(({entry: None}, "model.pt") for entry in ("version", "model", "config", "state_dict")),
        ({"config": {"num_classes": 10**18}}, "is damaged"),
        ({"fused": "int32"}, "is damaged"),
        ({"merged": True}, "is damaged: merge_heads: a detector is needed"),
        ({"state_dict": {1: torch.zeros(1)}}, "model.pt"),
        ({"state_dict": {LONG: torch.ones(1)}}, "model.pt"),
    ],
)
def test_entries_that_fit_no_model_are_refused_with_the_name_of_the_file(entries, words, written):
    with pytest.raises(CheckpointError, match=words) as error:
        checkpoints.load(written(entries))
    assert "model.pt" in str(error.value)
    assert len(str(error.value)) < 600 and str(error.value).isprintable()
