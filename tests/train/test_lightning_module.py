# SPDX-License-Identifier: Apache-2.0
"""What is done to a batch: parts of the known category alone, and augmentation."""

import torch
from tiny import content

from torchvox.train.builders import labels_of
from torchvox.train.config import AugmentConfig, make_config
from torchvox.train.lightning_module import augment, predict


def test_only_parts_of_the_category_are_predicted():
    config = make_config(content("parts"))
    labels = labels_of(config)
    categories = torch.arange(len(labels.categories))
    batch = {"points": torch.zeros(len(categories), 2, 3), "label": categories}
    for sign, parts in (
        (1.0, [end - 1 for end in labels.offsets[1:]]),
        (-1.0, list(labels.offsets[:-1])),
    ):
        scores = sign * torch.arange(float(len(labels.classes)))

        def model(points, category, scores=scores):
            return scores.expand(*points.shape[:2], -1)

        found = predict(model, config, labels, batch)
        assert found.tolist() == [[part, part] for part in parts]


def test_a_yaw_turns_about_z_and_does_not_mirror():
    torch.manual_seed(0)
    axes = torch.eye(3).expand(50, 3, 3)
    turned = augment(axes, AugmentConfig(yaw=True))
    assert torch.allclose(turned @ turned.mT, axes, atol=1e-6)
    assert torch.allclose(torch.linalg.det(turned), torch.ones(50))
    assert torch.equal(turned[:, 2], axes[:, 2])
    assert len(torch.unique(turned[:, 0, 0])) > 40


def test_scale_and_shift_stay_in_their_ranges():
    torch.manual_seed(0)
    points = torch.zeros(500, 4, 5)
    points[..., 0], points[..., 4] = 1.0, 7.0
    scaled = augment(points, AugmentConfig(scale=(0.5, 2.0)))[:, 0, 0]
    assert 0.5 <= scaled.min() < 0.55 and 1.95 < scaled.max() <= 2.0
    moved = augment(points, AugmentConfig(shift=0.25)) - points
    assert -0.25 <= moved.min() < -0.24 and 0.24 < moved.max() <= 0.25
    assert (moved[..., 3:] == 0).all() and (moved == moved[:, :1]).all()


def test_dropped_points_become_the_first():
    torch.manual_seed(0)
    points = torch.rand(200, 100, 3)
    found = augment(points, AugmentConfig(dropout=0.5))
    kept, first = (found == points).all(-1), (found == points[:, :1]).all(-1)
    assert (kept | first).all()
    assert 0.2 < (~kept).float().mean() < 0.3
