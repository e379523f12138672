# SPDX-License-Identifier: Apache-2.0
"""Generated shapes and rooms: samples that are reproducible one by one, on surfaces that are evenly
covered."""

import hashlib
import pickle

import pytest
import torch
from helpers import assert_same_bits
from torch.utils.data import DataLoader

from torchvox.data.worlds.furniture import CLASSES as ROOM_CLASSES
from torchvox.data.worlds.rooms import Rooms, generate_rooms
from torchvox.data.worlds.shapes import PART_OFFSETS, PARTS, Shapes, generate_shapes

# SHA-256 of the float32 points of training samples of 256 points, and of their labels: every shape,
# and blocks of three rooms.
SUMS = {Shapes: (range(64), "025978eaf609d1ea"), Rooms: ([*range(9), 77], "800850f0f2255baf")}
MAKERS = {Shapes: generate_shapes, Rooms: generate_rooms}
each = pytest.mark.parametrize("kind", MAKERS)


def digest(batch: dict) -> str:
    labels = batch["parts"] if "parts" in batch else batch["labels"]
    whole = batch["points"].cpu().numpy().tobytes() + labels.cpu().numpy().tobytes()
    return hashlib.sha256(whole).hexdigest()[:16]


@each
def test_a_sample_has_its_recorded_bits_alone_and_in_any_batch(kind, device):
    numbers, checksum = SUMS[kind]
    assert digest(MAKERS[kind](numbers, points=256, device=device)) == checksum
    numbers = [31, 2, 2, 400, *range(16)]
    batch = MAKERS[kind](numbers, points=64, device=device)
    for row, number in enumerate(numbers):
        for name, value in MAKERS[kind]([number], points=64).items():
            assert_same_bits(batch[name][row].cpu(), value[0], name)


@each
def test_a_data_set_gives_the_samples_in_workers_too(kind):
    data = pickle.loads(pickle.dumps(kind(points=32)))
    assert (len(data), len(kind("val"))) == {Shapes: (3200, 640), Rooms: (1024, 256)}[kind]
    data.size = 12
    options = {"batch_size": 5, "num_workers": 2, "multiprocessing_context": "fork"}
    batches = list(DataLoader(data, **options))
    for name, value in MAKERS[kind](range(12), points=32).items():
        assert_same_bits(torch.cat([batch[name] for batch in batches]), value, name)


@each
def test_seeds_splits_and_samples_differ(kind):
    changes = [{}, {"seed": 1}, {"split": "val"}]
    sums = {digest(MAKERS[kind]([0], points=8, **change)) for change in changes}
    assert len(sums | {digest(MAKERS[kind]([16], points=8))}) == 4


@each
def test_bad_arguments_are_refused_in_a_sentence(kind):
    with pytest.raises(ValueError, match="split must be one of train, val"):
        kind("test")
    with pytest.raises(IndexError, match="sample 5 of 5"):
        kind(size=5)[5]
    with pytest.raises(ValueError, match="points must be >= 1"):
        MAKERS[kind]([0], points=0)
    with pytest.raises(ValueError, match="samples >= 0"):
        MAKERS[kind]([-1])
    with pytest.raises(ValueError, match=r"block in \(0, 3\]"):
        generate_rooms([0], block=5.0)
    assert generate_shapes([], points=4)["points"].shape == (0, 4, 3)


def test_shapes_fill_the_unit_sphere_with_the_parts_of_their_class():
    batch = generate_shapes(range(64), points=512)
    assert batch["points"].mean(1).abs().max() < 1e-6
    torch.testing.assert_close(batch["points"].norm(dim=-1).amax(1), torch.ones(64))
    assert torch.equal(batch["label"], torch.arange(64) % 16)
    first, last = (torch.tensor(PART_OFFSETS)[batch["label"] + i][:, None] for i in (0, 1))
    assert ((batch["parts"] >= first) & (batch["parts"] < last)).all()
    assert len(PARTS) == PART_OFFSETS[-1] == len(batch["parts"].unique()) == 30, "every part shows"


def test_rooms_have_features_in_their_ranges_and_classes_where_they_belong():
    batch = generate_rooms(range(96), points=1024)
    points, height = batch["points"], batch["points"][..., 2]
    assert points.shape == (96, 1024, 9) and points[..., :2].abs().max() < 0.55
    assert points[..., 3:6].min() >= 0 and points[..., 3:6].max() <= 1
    assert points[..., 6:].min() > -0.03 and points[..., 6:].max() < 1.03
    assert len(batch["labels"].unique()) == len(ROOM_CLASSES) == 13
    ranges = {"floor": (-0.05, 0.05), "ceiling": (2.4, 3.3), "table": (-0.05, 0.85)}
    for name, (low, high) in ranges.items():
        of_class = height[batch["labels"] == ROOM_CLASSES.index(name)]
        assert of_class.min() > low and of_class.max() < high
