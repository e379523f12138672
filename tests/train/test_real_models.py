# SPDX-License-Identifier: Apache-2.0
"""The shipped configurations train, and learn what they should."""

import pytest
import torch

from torchvox.models import checkpoints
from torchvox.train import evaluate, fit, load_checkpoint
from torchvox.train.builders import build_data
from torchvox.train.config import config_names, load_config
from torchvox.train.metrics import scores

FEW = [
    "data.train_size=2",
    "data.val_size=1",
    "data.points=64",
    "train.epochs=1",
    "train.batch_size=2",
    "train.device=cpu",
]


NAMES = [n for n in config_names() if not hasattr(load_config(n).data, "root")]  # data are shipped
FAST = ("pointnet2_cls_shapes_small", "pointnet2_part_shapes")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in NAMES]
)
def test_every_shipped_configuration_trains_and_loads(name, tmp_path):
    config = load_config(name, FEW)
    found = fit(config, tmp_path / "run", quiet=True)
    trained = load_checkpoint(tmp_path / "run" / "best.ckpt")
    if config.task == "detect":
        assert "map" in found
    else:
        assert found["train_loss"] < 10
        matrix = evaluate(trained, build_data(config, "val"))
        assert matrix.sum() == (1 if config.task == "classify" else 64)
    again = checkpoints.load(tmp_path / "run" / "model.pt")
    for key, value in trained.model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "metric", "least"),
    [
        ("pointnet2_cls_shapes", "accuracy", 0.97),
        ("pointnet2_part_shapes", "miou", 0.92),
        ("pointnet2_rooms", "miou", 0.8),
        ("minkunet_world", "miou", 0.85),
    ],
)
@pytest.mark.slow
def test_full_nets_learn_on_the_gpu(name, metric, least, tmp_path):
    config = load_config(name, ["train.device=gpu"])
    fit(config, tmp_path / "run", quiet=True)
    trained = load_checkpoint(tmp_path / "run" / "best.ckpt", "cuda")
    assert scores(evaluate(trained, build_data(config, "val")))[metric] >= least
