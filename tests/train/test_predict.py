# SPDX-License-Identifier: Apache-2.0
"""What a model of rooms is shown of a cloud, against what it is shown in training."""

import numpy as np
import pytest
import torch
from tiny import content
from torch import nn

from torchvox.data import generate_rooms
from torchvox.data.worlds.furniture import CLASSES
from torchvox.io import PointCloud
from torchvox.train import runs
from torchvox.train.builders import Labels, build_data, build_model, labels_of
from torchvox.train.checkpoint import Checkpoint, load_checkpoint
from torchvox.train.config import load_config, make_config
from torchvox.train.lightning_module import predict
from torchvox.train.predict import label_points

COLUMNS = ("x", "y", "z", "red", "green", "blue")


class Shown(nn.Module):
    """Keeps the points that it is given."""

    def __init__(self):
        super().__init__()
        self.weight, self.points = nn.Parameter(torch.zeros(1)), []

    def forward(self, points):
        self.points.append(points[0])
        return torch.zeros(*points.shape[:2], len(CLASSES))


def shown(cloud):
    """The features of all points of a room, in the order of their place in it."""
    config = make_config({**content("segment"), "data": {"kind": "rooms", "points": 64}})
    trained = Checkpoint(Shown(), config, Labels(CLASSES, 9), {})
    label_points(trained, PointCloud(cloud.astype(np.float32), COLUMNS))
    rows = torch.cat(trained.model.points).numpy()
    return np.unique(rows[:, [6, 7, 8, 0, 1, 2, 3, 4, 5]], axis=0)[:, [3, 4, 5, 6, 7, 8, 0, 1, 2]]


def test_a_column_of_a_room_is_shown_as_in_training():
    block = generate_rooms([0], points=300, seed=1)["points"][0].numpy()
    inside = (np.abs(block[:, :2]) < 0.5).all(1)  # noise may carry a point out of the column
    block = block[inside]
    low, high = block[:, 2].min(), block[:, 2].max()
    ends = np.array([[-0.5, -0.5, low, 0, 0, 0], [0.4999, 0.4999, high, 0, 0, 0]])
    rows = np.concatenate([block[:, :6], ends])
    features = shown(rows + np.array([0.5, 0.5, 0, 0, 0, 0]))
    expected = rows - [0, 0, low, 0, 0, 0]
    place = (expected[:, :3] + [0.5, 0.5, 0]) / [0.9999, 0.9999, high - low]
    expected = np.concatenate([expected, place], 1)[np.lexsort(place.T[::-1])]
    np.testing.assert_allclose(features, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("highest", "scale"), [(1, 1), (255, 255), (256, 65535), (65535, 65535)])
def test_colors_are_shown_between_0_and_1(highest, scale):
    color = np.array([[0, 0.5, 1], [highest, highest / 2, 0]], np.float32)
    room = np.concatenate([[[0, 0, 0], [0.25, 0.5, 1]], color], 1)
    np.testing.assert_array_equal(shown(room)[:, 3:6], color / np.float32(scale))
    room[0, 3] = np.nan  # a color that is not finite counts as 0
    np.testing.assert_array_equal(shown(room)[:, 3:6], color / np.float32(scale))


def test_class_weights_are_the_cube_root_of_how_rare_a_class_is():
    class Counted:
        """Of one sample: 8000, 1000 and 64 points of three classes, none of the others."""

        def __len__(self):
            return 1

        def batch(self, samples):
            assert list(samples) == [0]
            return {"labels": torch.arange(3).repeat_interleave(torch.tensor([8000, 1000, 64]))}

    labels = Labels(("a", "b", "c", "d"), 9)
    weights = runs.class_weights(Counted(), labels, make_config(content("segment")))
    torch.testing.assert_close(weights, torch.tensor([1.0, 2.0, 5.0, 10.0]))


def test_a_scan_is_labelled_whole_and_as_it_is_in_the_range_of_the_model():
    config = load_config("minkunet_world", ["data.points=500"])
    trained = Checkpoint(build_model(config, labels_of(config)).eval(), config, config.labels(), {})
    batch = build_data(config, "val").batch([0])
    rows = np.concatenate([batch["points"][0].numpy(), [[-5, 0, 0, 0], [np.nan, 0, 0, 0]]])
    columns = ("x", "y", "z", "intensity")
    found = label_points(trained, PointCloud(rows.astype(np.float32), columns))
    with torch.no_grad():
        expected = predict(trained.model, config, trained.labels, batch)[0].numpy()
    assert (found[:-2] == expected).all() and (found[-2:] == -1).all()


@pytest.mark.parametrize("block", [None, 2.0])
def test_a_cloud_of_your_own_is_labelled_as_it_was_learned(block, tmp_path):
    rng = np.random.default_rng(0)
    for i in range(6):
        rows = rng.uniform(0, 3, (400, 3)).astype(np.float32)
        labels = np.where(rng.random(400) < 0.2, -1, rows[:, 2] > 1.5)
        np.savez(tmp_path / f"{i}.npz", xyz=rows, label=labels)
    data = {"kind": "segments", "root": str(tmp_path), "classes": ["low", "high"], "block": block}
    train = {"epochs": 30, "class_weights": True, "label_smoothing": 0.1, "batch_size": 4}
    config = make_config({**content("segment", **train), "data": {**data, "points": 64}})
    runs.fit(config, tmp_path / "run", quiet=True)
    trained = load_checkpoint(tmp_path / "run" / "best.ckpt", trust_code=True)
    found = label_points(trained, PointCloud(rows, ("x", "y", "z")))
    assert (found == (rows[:, 2] > 1.5)).mean() > 0.9
