# SPDX-License-Identifier: Apache-2.0
"""Generated shapes and rooms: samples that are reproducible one by one, on surfaces that are evenly
covered."""

import hashlib
import math
import pickle

import pytest
import torch
from helpers import assert_same_bits
from torch.utils.data import DataLoader

from torchvox.data.counter_random import Draws
from torchvox.data.worlds.furniture import CLASSES as ROOM_CLASSES
from torchvox.data.worlds.rooms import Rooms, generate_rooms
from torchvox.data.worlds.shapes import PART_OFFSETS, PARTS, SHAPES, Shapes, generate_shapes
from torchvox.data.worlds.surfaces import (
    Slab,
    arc,
    dome,
    ellipsoid,
    patch,
    ring,
    sample,
    triangle,
)

# SHA-256 of the float32 points of training samples of 256 points, and of their labels.
SUMS = {
    Shapes: {0: "3255f2d1c9142554", 1: "cb8ec256b0c5218f", 7: "ef51a47128b40a13"}
    | {10: "715f746d58476f86", 11: "5493681ebcb165d8", 12: "9f152bdc88771949"}
    | {13: "36937eaf27dabd08", 63: "745f78eea13fdc32"},
    Rooms: {0: "e5e30610c23e3c6e", 5: "23a830553f2f683f"}
    | {8: "1a672e5d8dcc251b", 77: "17e66d0154172ae5"},
}
MAKERS = {Shapes: generate_shapes, Rooms: generate_rooms}
each = pytest.mark.parametrize("kind", MAKERS)


def digest(batch: dict) -> str:
    labels = batch["parts"] if "parts" in batch else batch["labels"]
    whole = batch["points"].cpu().numpy().tobytes() + labels.cpu().numpy().tobytes()
    return hashlib.sha256(whole).hexdigest()[:16]


@each
def test_a_sample_has_its_recorded_bits_alone_and_in_any_batch(kind, device):
    for number, checksum in SUMS[kind].items():
        assert digest(MAKERS[kind]([number], points=256, device=device)) == checksum
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


def surface(pieces, count=40_000):
    """Points of one cloud on the pieces."""
    xyz, part = sample(pieces, Draws(0, "test", torch.zeros(1, dtype=torch.int64)), count)
    return xyz[0], part[0]


UNIT = (0.0, 0.0, 0.0), (1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("pieces", "shares"),
    [
        ([ring(0.0, 2.0, 0.5, 0.5, 0), ring(0.0, 0.0, 0.0, 0.5, 1)], (2.0, 0.25)),
        ([dome(0.0, 0.4, 1, 0), ring(0.0, 1.0, 0.4, 0.4, 1)], (0.32, 0.8)),
        (
            [patch(*UNIT, (0.0, 1.0, 0.0), 0), triangle(*UNIT, (0.5, 0.5, 1.0), 1)],
            (1.0, math.sqrt(1.25) / 2),
        ),
        (
            [Slab(UNIT[0], (1.0, 1.0, 1.0), 0), Slab((0.0, 0.0, 1.0), (1.0, 1.0, 3.0), 1)],
            (5, 9),
        ),
    ],
)
def test_parts_get_points_by_the_area_that_shows(pieces, shares):
    share = (surface(pieces)[1] == 0).double().mean().item()
    assert abs(share - shares[0] / sum(shares)) < 0.012


def test_curved_surfaces_are_evenly_covered():
    """radius^2 is evenly spread over a cone's side; the inner half of a torus holds pi - 2 r/R of 2
    pi; a disc of half the radius nearly a quarter of a flat ellipsoid, nearly two discs."""
    xyz, _ = surface([ring(0.0, 1.0, 0.2, 0.8, 0)])
    counts = torch.histc(((xyz[:, 0] ** 2 + xyz[:, 1] ** 2 - 0.04) / 0.6).float(), 10, 0, 1)
    assert (counts / 4000 - 1).abs().max() < 0.08
    torch.testing.assert_close(xyz[:, :2].norm(dim=1), 0.2 + 0.6 * xyz[:, 2])
    xyz, _ = surface([arc((0.0, 0.0, 0.0), 1.0, 0.4, (0.0, 1.0), 0)])
    reach = torch.hypot(xyz[:, 0], xyz[:, 2])
    torch.testing.assert_close((reach - 1) ** 2 + xyz[:, 1] ** 2, torch.full_like(reach, 0.16))
    assert abs((reach < 1).double().mean().item() - (0.5 - 0.4 / math.pi)) < 0.012
    xyz, _ = surface([ellipsoid((1.0, 1.0, 0.05), 0)])
    assert 0.235 < (xyz[:, :2].norm(dim=1) < 0.5).double().mean().item() < 0.26
    on = (xyz / torch.tensor([1, 1, 0.05])).norm(dim=1)
    torch.testing.assert_close(on, torch.ones_like(on))


@pytest.mark.parametrize("name", ["table", "chair", "cross", "bracket"])
def test_faces_between_slabs_do_not_show(name):
    pieces = SHAPES[name].build(list(torch.full((4, 1), 0.5, dtype=torch.float64)))
    xyz, part = surface(pieces)
    for slab in pieces:
        low, high = (torch.tensor([float(v) for v in end]) for end in (slab.low, slab.high))
        assert not ((xyz > low + 1e-6) & (xyz < high - 1e-6)).all(-1).any()
    if name == "table":  # the underside of the top is bare where the legs are
        under = xyz[(part == 0) & (xyz[:, 2] == pieces[0].low[2])]
        assert len(under) > 5000 and not (under[:, :2] < 0.0599).all(1).any()


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
    colors = []  # eight samples share a room, the next eight another
    for block in (generate_rooms([number], points=2048) for number in (0, 1, 8)):
        floor = block["labels"] == ROOM_CLASSES.index("floor")
        colors.append(block["points"][floor][:, 3:6].mean(0))
    assert (colors[0] - colors[1]).abs().max() < 0.01 < 0.02 < (colors[0] - colors[2]).abs().max()
