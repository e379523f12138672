# SPDX-License-Identifier: Apache-2.0
"""The generated rooms: reproducible sample by sample, and furnished."""

import hashlib

import pytest
import torch
from torch.utils.data import DataLoader

from torchvox.data.rooms import CLASSES, COLORS, Rooms, generate_rooms

CHECKSUMS = {
    0: "e5e30610c23e3c6e",
    5: "23a830553f2f683f",
    8: "1a672e5d8dcc251b",
    77: "17e66d0154172ae5",
}


def digest(batch: dict) -> str:
    whole = batch["points"].cpu().numpy().tobytes() + batch["labels"].cpu().numpy().tobytes()
    return hashlib.sha256(whole).hexdigest()[:16]


@pytest.fixture(scope="module")
def batch():
    return generate_rooms(range(96), points=1024)


@pytest.mark.parametrize("number", CHECKSUMS)
def test_reference_samples_have_their_recorded_bits(number, device):
    assert digest(generate_rooms([number], points=256, device=device)) == CHECKSUMS[number]


def test_a_sample_is_the_same_alone_and_in_any_batch():
    numbers = [9, 3, 9, 80]
    batch = generate_rooms(numbers, points=64)
    for row, number in enumerate(numbers):
        for name, value in generate_rooms([number], points=64).items():
            assert torch.equal(batch[name][row], value[0]), name


def test_workers_give_what_the_process_gives():
    data = Rooms(points=32, size=12)
    loader = DataLoader(data, batch_size=5, num_workers=2, multiprocessing_context="fork")
    there = torch.cat([batch["points"] for batch in loader])
    assert torch.equal(there, torch.stack([data[i]["points"] for i in range(12)]))


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


def test_bad_arguments_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match=r"block in \(0, 3\]"):
        generate_rooms([0], block=5.0)
    with pytest.raises(ValueError, match="split must be one of"):
        Rooms("test")
    with pytest.raises(IndexError, match="sample 2 of 2"):
        Rooms(size=2)[2]


@pytest.mark.gpu
def test_the_gpu_makes_the_same_bits():
    here, there = (generate_rooms(range(24), points=4096, device=d) for d in ("cpu", "cuda"))
    for name, value in here.items():
        assert torch.equal(there[name].cpu(), value), name
