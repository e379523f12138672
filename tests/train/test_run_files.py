# SPDX-License-Identifier: Apache-2.0
"""The files of a run: whole or as before, and nothing in them is obeyed but numbers."""

import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from helpers import disk_of
from tiny import Before, content, equal_weights, fit_until, fit_with

from torchvox._util.errors import WrongUseError
from torchvox.models.checkpoints import CheckpointError
from torchvox.train import fit, load_checkpoint
from torchvox.train.config import make_config

LEVELS = [
    {"points": 8, "radii": [0.4], "neighbors": [4], "channels": [[8]]},
    {"points": None, "radii": [], "neighbors": [], "channels": [[8]]},
]
REAL = {"model": {"kind": "pointnet2_classifier", "args": {"levels": LEVELS, "head": [8]}}}


def run(folder, resume=False, model=None, **train):
    config = make_config(content(**train) | (model or {}))
    return fit(config, folder, resume=resume, quiet=True)


def changed(path, change):
    whole = torch.load(path, weights_only=True)
    change(whole)
    torch.save(whole, path)


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that leaves a mark when it is imported."""
    mark = tmp_path / "imported"
    (tmp_path / "evil_module.py").write_text(
        f"open({str(mark)!r}, 'w')\nimport torch\nclass M(torch.nn.Module):\n"
        "    def __init__(self, num_classes=1): super().__init__()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield mark
    sys.modules.pop("evil_module", None)


@pytest.mark.parametrize("model", [REAL, None], ids=["of torchvox", "of the user"])
def test_resuming_runs_no_code_that_the_best_checkpoint_names(evil, tmp_path, model):
    run(tmp_path / "run", model=model, epochs=1)

    def name_evil(whole):
        whole["torchvox"]["config"]["model"] = {"kind": "evil_module:M", "args": {}}
        whole["state_dict"] = {}

    changed(tmp_path / "run" / "best.ckpt", name_evil)
    if model is REAL:
        with pytest.raises(CheckpointError, match="does not fit its configuration"):
            run(tmp_path / "run", resume=True, model=model, epochs=1)
    else:
        run(tmp_path / "run", resume=True, epochs=1)
    assert not evil.exists()


def test_resuming_runs_no_code_that_the_configuration_in_the_folder_names(evil, trained, tmp_path):
    trained(tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("tiny:TinyClassifier", "evil_module:M"))
    with pytest.raises(WrongUseError, match="of another configuration"):
        run(tmp_path / "run", resume=True, epochs=1)
    assert not evil.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w["torchvox"].pop("format"),
        lambda w: w["torchvox"].update(format=torch.zeros(2)),
        lambda w: w["torchvox"]["labels"].update(classes=[["a"]]),
        lambda w: w["torchvox"].update(version="v" * 100_000, format=99),
        lambda w: w["state_dict"].update({"model." + "k" * 100_000: torch.ones(1)}),
    ],
    ids=["no format", "format", "names", "version", "weights"],
)
def test_odd_entries_of_a_checkpoint_are_short_errors_of_checkpoints(trained, tmp_path, change):
    folder = trained(tmp_path / "run")
    changed(folder / "best.ckpt", change)
    with pytest.raises(CheckpointError) as found:
        load_checkpoint(folder / "best.ckpt", trust_code=True)
    assert len(str(found.value)) < 600


@pytest.mark.parametrize("steps", [float("inf"), "many", None, "cut"])
def test_a_last_checkpoint_of_no_steps_is_an_error_of_checkpoints(trained, tmp_path, steps):
    folder = trained(tmp_path / "run")
    changed(folder / "last.ckpt", lambda whole: whole.update(global_step=steps))
    if steps == "cut":
        (folder / "last.ckpt").write_bytes(b"cut")
    with pytest.raises(CheckpointError, match="no checkpoint to resume from"):
        run(folder, resume=True, epochs=1)


@pytest.mark.parametrize("text", ["{", "task: classify", "- 1", "base: ../private.yaml"])
def test_a_damaged_configuration_in_the_folder_is_named_and_its_base_not_read(
    trained, tmp_path, text
):
    folder = trained(tmp_path / "run")
    (tmp_path / "private.yaml").write_text("train: {epochs: secret}")
    (folder / "config.yaml").write_text(text)
    with pytest.raises(WrongUseError, match=r"config\.yaml") as error:
        run(folder, resume=True, epochs=1)
    assert "secret" not in str(error.value)


def test_resuming_removes_no_file_that_the_last_checkpoint_names(tmp_path):
    folder, victim = tmp_path / "run", tmp_path / "victim"
    victim.write_text("mine")
    fit_until(4, make_config(content()), folder)

    def name_victim(whole):
        for state in whole["callbacks"].values():
            if "best_model_path" in state:
                state["best_model_path"] = str(folder / ".." / "victim")

    changed(folder / "last.ckpt", name_victim)
    run(folder, resume=True)
    assert victim.read_text() == "mine"


@pytest.fixture
def other_disk():
    """A folder on another file system than that of temporary files."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK) or shm.stat().st_dev == os.stat(tempfile.gettempdir()).st_dev:
        pytest.skip("/dev/shm is not a file system here")
    with tempfile.TemporaryDirectory(dir=shm) as folder:
        yield Path(folder)


def test_a_new_checkpoint_replaces_the_old_one_on_every_file_system(other_disk):
    """Written over the old one it would change what a hard link to that holds."""
    folder, links, before = other_disk / "run", {}, {}

    def link():
        for name in ("best.ckpt", "last.ckpt"):
            links[name] = other_disk / name
            links[name].hardlink_to(folder / name)
            before[name] = links[name].read_bytes()

    fit_with(Before(4, link), make_config(content(lr=0.1)), folder)
    for name, linked in links.items():
        assert linked.read_bytes() == before[name] != (folder / name).read_bytes()
    assert sorted(p.name for p in folder.iterdir()) == [
        "best.ckpt", "config.yaml", "last.ckpt", "log.jsonl"
    ]  # fmt: skip


def test_a_disk_that_fills_up_leaves_the_old_state_to_resume_from(tmp_path):
    whole = run(tmp_path / "whole")
    folder = tmp_path / "parts"
    with disk_of(1 << 40) as limit, pytest.raises(OSError):
        fit_with(Before(4, lambda: limit(2_000)), make_config(content()), folder)
    assert torch.load(folder / "last.ckpt", weights_only=True)["epoch"] == 0
    assert not list(folder.glob(".torchvox_*"))
    assert run(folder, resume=True) == whole
    for name in ("best.ckpt", "last.ckpt"):
        weights = [torch.load(tmp_path / r / name)["state_dict"] for r in ("whole", "parts")]
        assert equal_weights(*weights)
