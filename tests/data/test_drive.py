# SPDX-License-Identifier: Apache-2.0
"""Scans of a drive: reproducible, like those of a 64-beam lidar, with poses and boxes that fit."""

import numpy as np
import pytest
import torch
from helpers import assert_same_bits

import torchvox
from torchvox.data import generate_drive, generate_scan

SCANS = 38


@pytest.fixture(scope="module")
def drive():
    return generate_drive(0, SCANS, azimuths=240)


def in_world(scan):
    return torchvox.transform_points(scan.points, scan.pose[None])


def test_a_scan_has_the_same_bits_whatever_follows_and_on_any_device(drive, device):
    for one, other in zip(generate_drive(0, 2, azimuths=240, device=device), drive, strict=False):
        assert_same_bits([tensor.cpu() for tensor in one], list(other))
    assert generate_drive(1, 1, azimuths=240)[0].points.shape != drive[0].points.shape


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
