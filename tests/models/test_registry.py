# SPDX-License-Identifier: Apache-2.0
"""Models by name: the registry says what configs/models says, and shipped weights do what they
should."""

import hashlib
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch

from torchvox import models
from torchvox._util.errors import WrongUseError
from torchvox.models import CheckpointError, get_model, get_model_weights, list_models, registry
from torchvox.models.detection import DetectionNet

ROOT = Path(__file__).resolve().parents[2]
CLASSIFIER, DETECTOR = "pointnet2_cls_shapes_small", "center_world_small"
SHIPPED = {CLASSIFIER: "shapes_v1", DETECTOR: "world_v1"}


@pytest.fixture(scope="module")
def script():
    """configs/registry.py, which writes the registry."""
    pytest.importorskip("pydantic", reason="the extra train is not installed")
    spec = importlib.util.spec_from_file_location("registry_script", ROOT / "configs/registry.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_registry_and_page_are_those_of_the_configurations(script):
    content = json.loads(script.REGISTRY.read_text())
    assert script.registry(content) == content, "run python configs/registry.py"
    page = script.DOCS.read_text()
    assert script.documented(page, content) == page, "run python configs/registry.py"


def test_models_are_listed_by_task():
    names = {path.stem for path in (ROOT / "configs" / "models").glob("*.yaml")}
    assert set(list_models()) == names and list_models() == sorted(names)
    assert DETECTOR in list_models("detect") and DETECTOR not in list_models("classify")
    with pytest.raises(WrongUseError, match="classify, detect, parts, segment, got 'detects'"):
        list_models("detects")


def test_every_model_is_built(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)  # torch and NumPy are enough
    for name in list_models():
        model = get_model(name)
        assert type(model).__name__ == registry._registry()[name]["model"] and model.training


def test_editors_know_the_class_of_every_name():
    kinds = {
        "CenterPointPillars": registry.Centers,
        "CenterPointVoxel": registry.VoxelCenters,
        "PointNet2Classifier": registry.Classifiers,
        "PointNet2PartSegmenter": registry.Parts,
        "PointNet2Segmenter": registry.Segmenters,
        "MinkUNet": registry.UNets,
        "PointPillars": registry.Anchors,
        "Second": registry.VoxelAnchors,
        "VoxelNeXt": registry.VoxelRows,
    }
    named = {name: kind for kind, names in kinds.items() for name in get_args(names)}
    assert named == {name: one["model"] for name, one in registry._registry().items()}


def test_a_model_without_weights_follows_torchs_random_numbers():
    torch.manual_seed(3)
    one = get_model(CLASSIFIER, num_classes=5)
    torch.manual_seed(3)
    two = get_model(CLASSIFIER, num_classes=5)
    assert one.config()["num_classes"] == 5
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_weights_are_what_the_registry_says(name):
    (weights,) = get_model_weights(name).values()
    data = weights.path.read_bytes()
    assert weights.name == SHIPPED[name] and weights.license == "Apache-2.0"
    assert hashlib.sha256(data).hexdigest() == weights.sha256
    assert len(data) < 1_200_000  # the CPU wheel stays below 6 MB
    assert weights.command == f"torchvox train {name}" and weights.metrics
    model = models.load(weights.path)
    assert tuple(getattr(model, "classes", weights.classes)) == weights.classes
    assert {path.stem for path in weights.path.parent.iterdir()} == {
        f"{model}.{key}" for model, key in SHIPPED.items()
    }


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("how", ["default", "named", "path"])
def test_weights_by_any_name_are_the_same_at_every_load(name, how, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "yaml", None)
    file = get_model_weights(name)[SHIPPED[name]].path
    if how == "path":
        models.save(get_model(name, weights="default"), tmp_path / "again.pt")
        file = tmp_path / "again.pt"
    given = {"default": "default", "named": SHIPPED[name], "path": file}[how]
    model, again = get_model(name, given), get_model(name, weights="default")
    assert not model.training and model.config() == again.config()
    for (key, a), (_, b) in zip(
        model.state_dict().items(), again.state_dict().items(), strict=True
    ):
        assert torch.equal(a, b), key
        assert a.dtype in (torch.float32, torch.int64)


def test_the_classifier_knows_held_out_shapes():
    from torchvox.data.worlds.shapes import Shapes

    batch = Shapes(split="val", points=512, seed=2, size=96).batch(range(96))
    with torch.no_grad():
        found = get_model(CLASSIFIER, weights="default")(batch["points"]).argmax(1)
    assert (found == batch["label"]).float().mean() >= 0.9


def test_the_detector_finds_cars_in_a_held_out_street():
    pytest.importorskip("torchmetrics", reason="the extra train is not installed")
    from torchvox.train import load_checkpoint
    from torchvox.train.builders import build_data
    from torchvox.train.config import change_config
    from torchvox.train.detecting import evaluate_detector

    trained = load_checkpoint(DETECTOR)  # as torchvox eval does
    data = build_data(change_config(trained.config, ["data.seed=2", "data.val_size=8"]), "val")
    found = evaluate_detector(trained.model, data, trained.labels.classes).scores
    assert found["3d/loose/Car"] >= 0.6 and found["bev/loose/Car"] >= 0.6


def test_overrides_with_weights_change_what_has_no_tensor():
    strict = get_model(DETECTOR, weights="default", detections={"score": 0.5})
    config = get_model(DETECTOR, weights="default").config()["config"]
    assert strict.config()["config"] == {
        **config, "detections": {**config["detections"], "score": 0.5}
    }  # fmt: skip
    assert isinstance(strict, DetectionNet) and not strict.training
    with pytest.raises(CheckpointError, match="does not fit center_world_small with encoder"):
        get_model(DETECTOR, weights="default", encoder={"channels": [16]})


@pytest.mark.parametrize(
    ("name", "weights", "overrides", "words"),
    [
        ("center_world_smal", None, {}, "did you mean center_world_small"),
        ("pointpillar_kitti", "default", {}, "did you mean pointpillars_kitti"),
        (3, None, {}, "no model 3: choose"),
        (DETECTOR, "imagenet", {}, "must be None, default, world_v1 or the path of a .pt file"),
        (DETECTOR, 3, {}, "got 3"),
        ("pointpillars_world", "default", {}, "`torchvox train pointpillars_world -o DIR` makes"),
        ("pointpillars_nuscenes_multihead", "default", {}, "`torchvox import` makes"),
        (DETECTOR, None, {"max_point": 3}, "unknown key max_point: did you mean max_points"),
        (DETECTOR, "default", {"head": {"widht": 3}}, "unknown key head.widht: did you mean width"),
        (CLASSIFIER, "default", {"scale": "msg"}, "scale"),
    ],
)
def test_errors_about_wrong_names_suggest_the_nearest_ones(name, weights, overrides, words):
    with pytest.raises(WrongUseError) as error:
        get_model(name, weights, **overrides)
    assert words in str(error.value) and str(error.value).startswith("get_model: ")


def test_files_that_are_damaged_or_of_another_network_are_refused(monkeypatch, tmp_path):
    shutil.copytree(registry.FOLDER / "weights", tmp_path / "weights")
    shutil.copy(registry.FOLDER / "registry.json", tmp_path)
    monkeypatch.setattr(registry, "FOLDER", tmp_path)
    file = get_model_weights(CLASSIFIER)["shapes_v1"].path
    with pytest.raises(CheckpointError, match="must hold a CenterPointPillars to be"):
        get_model(DETECTOR, weights=file)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="digest must be"):
        get_model(CLASSIFIER, weights="default")
    file.unlink()
    with pytest.raises(CheckpointError, match="No such file"):
        get_model(CLASSIFIER, weights="shapes_v1")
