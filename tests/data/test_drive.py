# SPDX-License-Identifier: Apache-2.0
"""Scans of a drive: equal bits for equal seeds; poses and boxes fit what the sensor saw."""

import pytest
import torch

import torchvox
from torchvox.data import generate_drive

SCANS = 38


@pytest.fixture(scope="module")
def drive():
    return generate_drive(0, SCANS, azimuths=240)


def test_equal_seeds_give_equal_bits_whatever_follows(drive):
    for one, other in zip(generate_drive(0, 2, azimuths=240), drive, strict=False):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert generate_drive(1, 1, azimuths=240)[0].points.shape != drive[0].points.shape


def test_the_sensor_moves_turns_and_stops(drive):
    poses = torch.stack([scan.pose for scan in drive])
    way = (poses[1:, :, 3] - poses[:-1, :, 3]).norm(dim=1)
    assert ((way > 0.38) & (way <= 0.4 + 1e-9)).all()
    assert poses[0, 0, 0] > 0.99 and poses[-1, 1, 0] < -0.99  # along x, then against y
    turn = poses[:, :, :3]
    torch.testing.assert_close(turn @ turn.mT, torch.eye(3).double().expand_as(turn))
    assert torch.equal(*(scan.pose for scan in generate_drive(0, 50, azimuths=8)[-2:]))


def test_the_road_lies_flat_in_the_world(drive):
    for scan in drive[::12]:
        near = scan.points[scan.points[:, :2].norm(dim=1) < 6]
        z = torchvox.transform_points(near, scan.pose[None])[:, 2]
        assert z.median().abs() < 0.02


def test_points_of_one_house_front_agree_between_scans(drive):
    """The world stands still: most points of a late scan lie near points of an early one."""
    first, last = (
        torchvox.transform_points(drive[i].points, drive[i].pose[None]) for i in (12, 13)
    )
    apart = torch.cdist(last[::20], first).amin(1)
    assert apart.median() < 0.15


def test_boxes_hold_their_cars_and_two_of_them_move(drive):
    boxes = torch.stack([scan.boxes for scan in drive])
    assert boxes.dtype == torch.float64 and boxes.shape[2] == 7
    moving = (boxes != boxes[0]).any(2).any(0)
    assert moving.tolist() == [True, True] + [False] * (boxes.shape[1] - 2)
    assert boxes[-1, 0, 6] < -1.5  # the car ahead has turned
    for scan in drive[::12]:
        world = torchvox.transform_points(scan.points, scan.pose[None])
        inside = torchvox.points_in_boxes(world[None], scan.boxes[None])[0]
        assert (inside == 0).sum() > 50 and (inside == 1).sum() > 10
        # Around a moving car there is nothing above the road.
        wide = scan.boxes[:2].clone()
        wide[:, 3:5] += 1.0
        around = torchvox.points_in_boxes(world[None], wide[None])[0] >= 0
        assert not (around & (inside < 0)).any()
