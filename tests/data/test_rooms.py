# SPDX-License-Identifier: Apache-2.0
"""The generated rooms: reproducible sample by sample, and furnished."""

import pytest

from torchvox.data.worlds.rooms import CLASSES, COLORS, generate_rooms


@pytest.fixture(scope="module")
def batch():
    return generate_rooms(range(96), points=1024)


def test_points_lie_in_their_block_and_features_in_their_ranges(batch):
    points = batch["points"]
    assert points.shape == (96, 1024, 9) and points.isfinite().all()
    assert points[..., :2].abs().max() < 0.55  # half a block and the noise
    assert points[..., 2].min() > -0.05 and points[..., 2].max() < 3.3
    assert points[..., 3:6].min() >= 0 and points[..., 3:6].max() <= 1
    assert points[..., 6:].min() > -0.03 and points[..., 6:].max() < 1.03


def test_every_class_shows_where_it_belongs(batch):
    height = batch["points"][..., 2]
    floor, ceiling = (batch["labels"] == CLASSES.index(name) for name in ("floor", "ceiling"))
    assert len(batch["labels"].unique()) == len(CLASSES) == len(COLORS) == 13
    assert height[floor].abs().max() < 0.05
    assert height[ceiling].min() > 2.4
    table = batch["labels"] == CLASSES.index("table")
    assert 0.6 < height[table].median() < 0.8


def test_blocks_of_a_room_share_its_colors():
    """Eight samples make a room, the next eight another."""
    floors = []
    for number in (0, 1, 8):
        block = generate_rooms([number], points=2048)
        floor = block["labels"] == CLASSES.index("floor")
        floors.append(block["points"][floor][:, 3:6].mean(0))
    assert (floors[0] - floors[1]).abs().max() < 0.01
    assert (floors[0] - floors[2]).abs().max() > 0.02
