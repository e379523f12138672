# SPDX-License-Identifier: Apache-2.0
"""Streets in motion: frames fit each other, velocities are those of the boxes, sweeps merge."""

import math

import pytest
import torch
from helpers import assert_same_bits

import torchvox
from torchvox.data import World, generate_world
from torchvox.data.counter_random import Draws
from torchvox.data.worlds.street import SENSORS, motion
from torchvox.data.worlds.street.cast import NOISE_BOUND, RANGE_NOISE
from torchvox.data.worlds.street.objects import KINDS
from torchvox.data.worlds.street.placement import ground, phases
from torchvox.data.worlds.street.sensors import View

NOISE = NOISE_BOUND * RANGE_NOISE[1] + 0.001  # meters, of every point along its ray
VIEW = View(SENSORS["vlp16"], "full")
OPTIONS = {"sensor": "vlp16", "view": "full", "seed": 2}


@pytest.fixture(scope="module")
def world():
    return generate_world(range(18), frames=6, **OPTIONS)


def test_objects_persist_and_velocities_are_differences_of_positions(world):
    there, instance = world["labels"] >= 0, world["instance"]
    known = torch.cat([world["boxes"].double(), world["labels"][..., None]], 2)
    known[..., :3] += world["pose"][:, None, :, 3]
    tracks = torch.full((3, 6, instance.max() + 1, 10), torch.nan, dtype=torch.float64)
    frame = torch.arange(18)[:, None].expand_as(there)[there]
    tracks[frame // 6, frame % 6, instance[there]] = known[there]
    assert (tracks[..., 0].isfinite().any(1).sum(0) <= 1).all()  # of one sequence each
    three = tracks[:, :-2], tracks[:, 1:-1], tracks[:, 2:]
    before, now, after = (v[sum(three).isfinite().all(3)] for v in three)
    same, speed = [3, 4, 5, 9], now[:, 7:9].norm(dim=1)
    assert torch.equal(now[:, same], before[:, same]) and torch.equal(now[:, same], after[:, same])
    assert ((after - before)[:, :2] / 0.2 - now[:, 7:9]).abs().max() < 2e-3
    ahead = torch.stack([now[:, 6].cos(), now[:, 6].sin()], 1) * speed[:, None]
    assert (now[:, 7:9] - ahead).abs().max() < 1e-5
    assert (after - before)[speed == 0].abs().max() < 1e-4
    assert (speed == 0).sum() > 60 and (speed > 0.5).sum() > 60


def test_the_ego_drives_ahead_to_where_the_world_begins_over_ground_that_stands():
    batch = generate_world([80, 81, 119], frames=40, **OPTIONS)
    x = batch["pose"][:, 0, 3]
    assert x[0] < -30 and x[2] == 0 and abs(x[1] - x[0] * 38 / 39) < 1e-4
    assert (batch["pose"][..., :3] == torch.eye(3)).all() and (batch["pose"][:, 1:, 3] == 0).all()
    some = (batch["owner"][0] == -2) & (batch["points"][0, :, :2].norm(dim=1) < 30)
    x, y, z = (batch["points"][0, some, :3].double() + batch["pose"][0, :, 3]).T[:, None]
    base = ground(x, y, phases(Draws(2, "train", torch.tensor([2]))))
    assert (z - base + VIEW.sensor.height).abs().mean() < 0.005


def test_boxes_stay_apart_and_off_the_way_of_the_ego(world):
    overlap = torchvox.rotated_iou(world["boxes"][..., :7], world["boxes"][..., :7])
    assert (overlap - torch.diag_embed(overlap.diagonal(dim1=1, dim2=2))).max() == 0
    objects, traffic = motion.drive(Draws(1, "train", torch.arange(20)), 70.0, VIEW, 20)
    for x, y, _ in (traffic.at(-0.1 * turn) for turn in range(20)):
        assert torch.hypot(x[:, 1:] - x[:, :1], y[:, 1:])[objects.kept].min() > 1.2


@pytest.mark.parametrize("rolling", [True, False])
def test_points_are_where_their_box_is_at_their_time(rolling):
    batch = generate_world(range(12, 18), frames=6, rolling=rolling, **OPTIONS)
    some, owner = batch["owner"] >= 0, batch["owner"].clamp(min=0).long()[..., None]
    box = batch["boxes"].gather(1, owner.expand(-1, -1, 9))[some].T
    x, y, z, _ = batch["points"][some].T
    late = torch.atan2(y, x) / (20 * math.pi) * rolling  # seconds

    def outside(x, y):
        """Meters on the worst axis."""
        x, y, c, s = x - box[0], y - box[1], box[6].cos(), box[6].sin()
        apart = torch.stack([x * c + y * s, y * c - x * s, z - box[2]]).abs()
        return (apart - box[3:6] / 2).amax(0)

    limit = NOISE + 0.01
    assert (outside(x, y) < limit + box[7:].norm(dim=0) * 0.05 * rolling).all()
    assert (outside(x, y).max() > limit + 0.1) == rolling
    far = torch.hypot(x, y) > 8  # the angle is seen from where the sensor is by then
    assert (outside(x - box[7] * late, y - box[8] * late)[far] < limit + 0.02).all()


@pytest.mark.parametrize("rolling", [True, False])
def test_a_pole_of_ten_sweeps_is_one_pole(rolling, monkeypatch):
    """Alone, beside the way of the ego, 1 m a turn."""
    objects, traffic = motion.drive(Draws(1, "train", torch.arange(1)), 70.0, VIEW, 10)
    column = objects.kinds.index(KINDS[4])
    objects.kept[:] = torch.arange(objects.kept.shape[1]) == column
    objects.length[:], traffic.x[:, 1 + column], traffic.y[:, 1 + column] = 0.5, -3.0, 6.0
    monkeypatch.setattr(motion, "drive", lambda *_: (objects, traffic))
    key = 1, "train", torch.zeros(1, dtype=torch.int64)
    _, scan, _ = motion.watch(key, 70.0, VIEW, (1, 10), rolling)
    hit = scan.returned & (scan.owner == column)
    away = (scan.xyz[hit][:, :2] - torch.tensor([-3.0, 6.0])).norm(dim=1)
    assert (away - 0.25).abs().max() < NOISE + 1e-3 and traffic.speed[0, 0] > 10
    per_sweep = hit.view(10, VIEW.columns, -1).any(2).sum(1)
    at = torch.hypot(-3 + traffic.speed[0, 0] * 0.1 * torch.arange(10), torch.tensor(6.0))
    assert (per_sweep - 2 * torch.asin(0.25 / at) / math.tau * VIEW.columns).abs().max() < 3


def test_sweeps_hold_the_points_of_earlier_frames():
    batch = generate_world([2, 3], frames=2, sweeps=3, **OPTIONS)
    points, ages = batch["points"], (batch["points"][..., 4] * 10).round()
    assert points.shape == (2, 3 * VIEW.rays, 5) and (batch["points_cut"] == 0).all()
    assert all(ages[b].unique_consecutive()[:3].tolist() == [0, 1, 2] for b in range(2))
    places = points[..., :3] + batch["pose"][:, None, :, 3]
    for age in (0, 1):  # in frame 0, one more in frame 1
        one, other = ages[0] == age, ages[1] == age + 1
        assert torch.equal(points[0, one, 3], points[1, other, 3]) and one.sum() > 14_000
        torch.testing.assert_close(places[0, one], places[1, other], atol=1e-4, rtol=0)
    assert torch.equal(((batch["owner"] >= 0) & (ages == 0)).sum(1), batch["box_points"].sum(1))


def test_a_frame_is_the_same_alone_in_any_batch_and_on_any_device(world, device):
    for name, value in generate_world([8, 1, 8], frames=6, **OPTIONS, device=device).items():
        assert_same_bits(value.cpu(), world[name][[8, 1, 8]], name)
    options = {**OPTIONS, "frames": 3, "sweeps": 2, "points": 5000}
    for name, value in generate_world([4], **options, device=device).items():
        assert_same_bits(value[0].cpu(), World(size=9, **options)[4][name], name)
    assert all(len(value) == 0 for value in generate_world([], **options).values())
