# SPDX-License-Identifier: Apache-2.0
"""Generated shapes and rooms: samples that are reproducible one by one, on surfaces that are evenly
covered. Scans of a drive: like those of a 64-beam lidar, with poses and boxes that fit."""

import hashlib
import pickle

import numpy as np
import pytest
import torch
from helpers import assert_same_bits
from torch.utils.data import DataLoader

import torchvox
from torchvox.data import generate_drive, generate_scan
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


@pytest.fixture(scope="module")
def drive():
    return generate_drive(0, 38, azimuths=240)


def in_world(scan):
    return torchvox.transform_points(scan.points, scan.pose[None])


def test_a_scan_has_the_same_bits_whatever_follows_and_on_any_device(drive, device):
    for one, other in zip(generate_drive(0, 2, azimuths=240, device=device), drive, strict=False):
        assert_same_bits([tensor.cpu() for tensor in one], list(other))
    assert generate_drive(1, 1, azimuths=240)[0].points.shape != drive[0].points.shape


def test_walkers_walk_and_their_points_are_in_their_boxes():
    first, *_, last = scans = generate_drive(0, 9, azimuths=600, step=0.8, walkers=5)
    way = (last.boxes[-5:, :2] - first.boxes[-5:, :2]).norm(dim=1)
    assert (way > 0.1).all() and (way <= 8 * 0.35 * 0.8 + 1e-5).all()
    seen = [torchvox.points_in_boxes(in_world(scan), scan.boxes[-5:]) for scan in scans]
    assert torch.cat(seen).unique().tolist() == [-1, 0, 1, 2, 3, 4]
    alone = generate_drive(0, 1, azimuths=600, step=0.8)[0]
    assert torch.equal(alone.boxes[:2], first.boxes[:2])


def test_a_scan_looks_like_that_of_a_lidar_with_64_beams():
    scan = generate_scan(0)
    xyz, intensity = scan.points[:, :3].astype(np.float64), scan.column("intensity")
    assert 90_000 < len(scan) < 112_000 and scan.finite().all()
    assert np.array_equal(scan.points, generate_drive(0, 1)[0].points)
    assert intensity.min() >= 0 and intensity.max() <= 1 and len(np.unique(intensity)) > 50
    elevation = np.rad2deg(np.arctan2(xyz[:, 2], np.hypot(*xyz[:, :2].T)))
    assert elevation.min() > -26 and elevation.max() < 3
    assert 56 <= (np.diff(np.sort(elevation)) > 0.1).sum() + 1 <= 64  # some beams are silent
    near = np.hypot(*xyz[:, :2].T) < 6
    assert abs(np.median(xyz[near, 2]) + 1.73) < 0.09


def test_the_sensor_moves_turns_and_stops(drive):
    poses = torch.stack([scan.pose for scan in drive])
    way = (poses[1:, :, 3] - poses[:-1, :, 3]).norm(dim=1)
    assert ((way > 0.38) & (way <= 0.4 + 1e-9)).all()
    assert poses[0, 0, 0] > 0.99 and poses[-1, 1, 0] < -0.99  # along x, then against y
    turn = poses[:, :, :3]
    torch.testing.assert_close(turn @ turn.mT, torch.eye(3).double().expand_as(turn))
    assert torch.equal(*(scan.pose for scan in generate_drive(0, 50, azimuths=8)[-2:]))


def test_the_world_stands_still_and_its_ground_does_not_turn_with_the_sensor(drive):
    """Most points of a late scan lie near points of an early one, on the ground to 4 cm."""
    for i, apart in ((13, 0.15), (36, 0.4)):
        first, last = in_world(drive[12]), in_world(drive[i])[::20]
        assert torch.cdist(last, first).amin(1).median() < apart
    ground = [w[(w[:, 2].abs() < 0.2) & (w[:, :2].norm(dim=1) < 12)] for w in (first, last)]
    near = torch.cdist(ground[1][:, :2], ground[0][:, :2])
    step = (ground[1][:, 2] - ground[0][near.argmin(1), 2])[near.amin(1) < 0.3]
    assert len(step) > 100 and step.abs().median() < 0.01


def test_boxes_hold_their_cars_and_two_of_them_move(drive):
    boxes = torch.stack([scan.boxes for scan in drive])
    assert boxes.dtype == torch.float64 and boxes.shape[2] == 7
    moving = (boxes != boxes[0]).any(2).any(0)
    assert moving.tolist() == [True, True] + [False] * (boxes.shape[1] - 2)
    assert boxes[-1, 0, 6] < -1.5  # the car ahead has turned
    for scan in drive[6::12]:
        world = in_world(scan)
        inside = torchvox.points_in_boxes(world[None], scan.boxes[None])[0]
        assert (inside == 0).sum() > 50 and (inside == 1).sum() > 10
        # Around a moving car there is nothing above the road.
        wide = scan.boxes[:2].clone()
        wide[:, 3:5] += 1.0
        around = torchvox.points_in_boxes(world[None], wide[None])[0] >= 0
        assert not (around & (inside < 0)).any()
