# SPDX-License-Identifier: Apache-2.0
"""torchvox eval of detectors: whatever form they are in, by the data's own measure, in pictures."""

import copy
import json

import pytest
import torch
import yaml
from test_detecting import content

from torchvox.cli import main
from torchvox.data.lidar import World
from torchvox.models import checkpoints
from torchvox.models.export import export_model
from torchvox.train import builders, fit
from torchvox.train.config import make_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A detector that knows four scans by heart, in several forms."""
    folder = tmp_path_factory.mktemp("run")
    whole = copy.deepcopy(content(epochs=40, lr=2e-2, whole=None, val_every=40))
    whole["data"] |= {"points": 4096, "train_size": 4, "val_size": 1}
    for part in ("encoder", "backbone", "neck"):
        whole["model"]["args"][part]["momentum"] = 0.2
    fit(make_config(whole), folder, quiet=True)
    (folder / "run.yaml").write_text(yaml.safe_dump(whole))
    model = checkpoints.load(folder / "model.pt")
    for kind in ("script", "export"):
        export_model(model, folder / f"model.{kind}.pt2", kind)
    return folder


@pytest.fixture
def scored(folder, capsys, monkeypatch, tmp_path):
    """Evaluates a file: (exit code, the numbers, stdout, stderr)."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "160")

    def run(name, *more):
        target = tmp_path / "found.json"
        target.unlink(missing_ok=True)
        given = ["eval", name, "--split", "train", "--device", "cpu", "--json", str(target)]
        code = main([*given, *(str(one) for one in more)])
        found = json.loads(target.read_text()) if target.exists() else {}
        found.pop("seconds", None)
        return code, found, *capsys.readouterr()

    return run


def test_every_form_of_a_detector_has_the_same_numbers(scored):
    code, wanted, out, _ = scored("best.ckpt")
    assert code == 0 and wanted["map"] > 0.5 and "4 scans of world (train)" in out
    for name in ("model.pt", "model.script.pt2", "model.export.pt2"):
        code, found, other, err = scored(name, "--config", "run.yaml", "--trust-code")
        assert code == 0, err
        assert found == pytest.approx(wanted, abs=1e-4)
        assert other.splitlines()[1:] == out.splitlines()[1:], name  # but the file and the seconds


def test_what_cannot_be_evaluated_is_said(scored, folder):
    data = "data={kind: folder, root: none, classes: [Car]}"
    for given, words in (
        (("model.pt",), "is not a checkpoint of torchvox train"),
        (("model.export.pt2", "--config", "run.yaml"), "may hold any code: if you trust it"),
        (("model.pt", "--config", "run.yaml", data), "must find Car in 4 columns, as the data"),
        (("best.ckpt", data), "finds ('Car', 'Pedestrian', 'Cyclist'), not ('Car',)"),
        (("best.ckpt", "--config", "pointnet2_cls_shapes"), "are for detectors, not for classify"),
        (("best.ckpt", "--write", "out"), "--write: world has no form of results of its own"),
    ):
        code, found, _, err = scored(*given)
        assert code in (1, 2) and words in err and not found, err
    script = torch.jit.script(torch.nn.Identity())
    torch.jit.save(script, folder / "other.pt")
    assert "got None in None" in scored("other.pt", "--config", "run.yaml")[3]


class Measured(World):
    """A set with a measure and a form of results of its own."""

    def measure(self, found):
        self.check(found)
        return {"scans": float(len(found)), "NDS": 0.25, "car/none": float("nan")}

    def write(self, found, folder):
        self.check(found)
        folder.mkdir()
        (folder / "boxes.txt").write_text(f"{len(found)}")

    def check(self, found):
        for i, one in enumerate(found):
            boxes, scores, labels = one["boxes"], one["scores"], one["labels"]
            assert boxes.shape == (len(scores), 7) and boxes.dtype == "float32"
            assert len(labels) == len(scores) and set(labels.tolist()) <= {0, 1, 2}
            truth = self.batch(
                [i]
            )  # in the order of the split: some box is near one of the scene's
            near = torch.cdist(truth["boxes"][0, :, :2], torch.from_numpy(boxes[:, :2]))
            assert near[: truth["num_boxes"][0]].amin() < 1

    def generate(self, indices, device):
        batch = super().generate(indices, device)
        return {**batch, "id": 7 - batch["id"]}  # numbers of files that do not rise


def test_the_measure_of_the_data_is_printed_gated_and_written(scored, monkeypatch, tmp_path):
    monkeypatch.setitem(builders.DATA, "world", Measured)
    gates = "--at-least", "NDS=0.2", "--at-least", "3d/loose/Car=0.1"
    code, found, out, err = scored("best.ckpt", *gates, "--write", tmp_path / "out")
    assert code == 0, err
    assert "NDS 0.2500" in out and out.index("map_strict") < out.index("NDS")
    assert found["scans"] == 4 and found["NDS"] == 0.25 and found["car/none"] is None
    assert (tmp_path / "out" / "boxes.txt").read_text() == "4"
    assert scored("best.ckpt", "--at-least", "NDS=0.3")[0] == 1
    code, _, _, err = scored("best.ckpt", "--at-least", "NDX=0.3")
    assert code == 2 and "NDX: did you mean NDS?" in err


def test_pictures_show_curves_and_the_worst_scans(scored, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra viz is not installed")
    code, _, out, err = scored("last.ckpt", "--pictures", tmp_path)
    assert code == 0, err
    names = sorted(path.name for path in tmp_path.glob("*.png"))
    scans = [f"scan_{i}.png" for i in range(4)]
    assert names == ["precision_recall.png", "recall_by_range.png", *scans]
    assert all(f"wrote {tmp_path / name}" in out.replace("\n", "") for name in names)
