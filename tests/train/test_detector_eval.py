# SPDX-License-Identifier: Apache-2.0
"""torchvox eval of detectors: whatever form they are in, by the data's own measure, in pictures."""

import copy
import json

import pytest
import torch
import yaml
from test_detecting import content

from torchvox.cli import main
from torchvox.data.readers.folder import Scan
from torchvox.data.worlds.street import World
from torchvox.models import checkpoints
from torchvox.models.export import export_model
from torchvox.train import builders, fit
from torchvox.train.config import make_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A detector that knows four scans by heart, in several forms."""
    folder = tmp_path_factory.mktemp("run")
    whole = copy.deepcopy(
        content(epochs=40, lr=2e-2, val_every=40, whole=None, nudge=None, paste=None)
    )
    whole["data"] |= {"points": 4096, "train_size": 4, "val_size": 1}
    for part in ("encoder", "backbone", "neck"):
        whole["model"]["args"][part]["momentum"] = 0.2
    fit(make_config(whole), folder, quiet=True)
    (folder / "run.yaml").write_text(yaml.safe_dump(whole))
    for kind in ("script", "export"):
        export_model(checkpoints.load(folder / "model.pt"), folder / f"{kind}.pt2", kind)
    return folder


@pytest.fixture
def scored(folder, capsys, monkeypatch, tmp_path):
    """Evaluates a file: (exit code, the numbers, stdout, stderr)."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "160")

    def run(name, *more):
        given = ["eval", name, "--split", "train", "--device", "cpu", "--json"]
        code = main([*given, str(tmp_path / "found.json"), *map(str, more)])
        found = json.loads((tmp_path / "found.json").read_text()) if code == 0 else {}
        found.pop("seconds", None)
        return code, found, *capsys.readouterr()

    return run


def test_every_form_of_a_detector_has_the_same_numbers(scored):
    code, wanted, out, _ = scored("best.ckpt")
    assert code == 0 and wanted["map"] > 0.5 and "4 scans of world (train)" in out
    assert "Pedestrian" in out and wanted["3d/strict/Car"] <= wanted["3d/loose/Car"]
    for name in ("model.pt", "script.pt2", "export.pt2"):
        code, found, other, err = scored(name, "--config", "run.yaml", "--trust-code")
        assert code == 0, err
        assert found == pytest.approx(wanted, abs=1e-4)
        assert other.splitlines()[1:] == out.splitlines()[1:]  # less the file and the seconds


def test_files_that_cannot_be_evaluated_are_refused(scored, folder):
    torch.jit.save(torch.jit.script(torch.nn.Identity()), folder / "other.pt")
    data = "data={kind: folder, root: none, classes: [Cyclist, Car, Pedestrian]}"
    for given, words in (
        (("model.pt",), "give the best.ckpt of its training run"),
        (("other.pt", "--config", "run.yaml"), "other.pt is not a detector"),
        (("export.pt2", "--config", "run.yaml"), "may hold any code: if you trust it"),
        (
            ("model.pt", "--config", "run.yaml", data),
            "its classes must be ['Cyclist', 'Car', 'Pedestrian'] of",
        ),
        (("best.ckpt", "--config", "pointnet2_cls_shapes"), "are for detectors, not for classify"),
        (("best.ckpt", "--at-least", "miou=0.1"), "the metrics are map, map_strict, 3d/strict/Car"),
        (("best.ckpt", "--output", "out"), "--output: world has no form of results of its own"),
    ):
        code, _, _, err = scored(*given)
        assert code in (1, 2) and words in err, err


class Measured(World):
    """A set with a measure and a form of results of its own."""

    def measure(self, found):
        for i, one in enumerate(found):
            assert one["boxes"].shape == (len(one["scores"]), 7) and len(one["labels"])
            truth = self.batch([i])  # in the order of the split: the boxes are near those of i
            centers = truth["boxes"][0, : truth["num_boxes"][0], :2]
            assert torch.cdist(centers, torch.from_numpy(one["boxes"][:, :2])).amin() < 1
        return {"scans": float(len(found)), "NDS": 0.25, "car/none": float("nan"), "car/a/b": 1.0}

    def write(self, found, folder):
        folder.write_text(f"{len(found)} {len(found[0]['boxes'])}")

    def generate(self, indices, device):
        batch = super().generate(indices, device)
        return {**batch, "id": 7 - batch["id"]}  # numbers of files that do not rise


def test_the_measure_of_the_data_is_printed_gated_and_written(scored, monkeypatch, tmp_path):
    monkeypatch.setitem(builders.DATA, "world", Measured)
    gates = "--at-least", "NDS=0.2", "--at-least", "3d/loose/Car=0.1"
    code, found, out, err = scored("best.ckpt", *gates, "--output", tmp_path / "out")
    assert code == 0, err
    assert out.index("map_strict") < out.index("car") < out.index("scans 4, NDS 0.25")
    assert found["scans"] == 4 and found["NDS"] == 0.25 and found["car/none"] is None
    assert (tmp_path / "out").read_text().startswith("4 ")
    assert scored("best.ckpt", "--at-least", "NDS=0.3")[0] == 1
    label = tmp_path / "7.txt"
    label.write_text("truth")
    monkeypatch.setattr(Measured, "scans", [Scan("7", label, label)], raising=False)
    code, _, _, err = scored("best.ckpt", "--output", tmp_path)
    assert code == 2 and "would replace" in err and label.read_text() == "truth"
    assert "NDX: did you mean NDS?" in scored("best.ckpt", "--at-least", "NDX=0.3")[3]


def test_pictures_show_curves_and_the_worst_scans(scored, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra viz is not installed")
    code, _, _, err = scored("last.ckpt", "--pictures", tmp_path)
    assert code == 0, err
    names = ["precision_recall", "recall_by_range", *(f"scan_{i}" for i in range(4))]
    assert sorted(path.stem for path in tmp_path.glob("*.png")) == names
