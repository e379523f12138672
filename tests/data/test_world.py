# SPDX-License-Identifier: Apache-2.0
"""Generated streets: reproducible scenes, rays that end where geometry says, labels that fit; in
motion, frames fit each other, velocities are those of the boxes, sweeps merge."""

import hashlib
import math

import numpy as np
import pytest
import torch
from helpers import assert_same_bits

import torchvox
from torchvox.data import World, WorldSurfaces, generate_world
from torchvox.data.counter_random import Draws
from torchvox.data.worlds.street import CLASSES, SENSORS, SURFACES, VIEWS, motion
from torchvox.data.worlds.street.cast import NOISE_BOUND, RANGE_NOISE, cast
from torchvox.data.worlds.street.objects import CLUTTER, KINDS, Slab
from torchvox.data.worlds.street.placement import ground, phases, place
from torchvox.data.worlds.street.sensors import View
from torchvox.data.worlds.street.world import _truncation

NOISE = NOISE_BOUND * RANGE_NOISE[1] + 0.001  # meters, of every point along its ray
# SHA-256 of points and boxes in millimeters, and of labels, of training scenes.
SUMS = {0: "bb328872d2563c6b", 7: "d42debc77442003f", 100: "1911784dfecd2148"}
SUMS |= {1: "f710b9de6ea3bceb", 31: "070feaeb21f5bb59", 1999: "b824c1003ca9afe9"}
FRONT = View(SENSORS["hdl64"], "front")


@pytest.fixture(scope="module")
def world():
    return generate_world(range(48))


def digest(batch: dict) -> str:
    count = int(batch["num_points"][0])
    values = [batch["points"][0, :count], batch["boxes"][0], batch["labels"][0]]
    whole = [(v.cpu().double() * 1000).round().to(torch.int32).numpy().tobytes() for v in values]
    return hashlib.sha256(b"".join(whole)).hexdigest()[:16]


def scene_of(number: int = 0, view: View = FRONT):
    draws = Draws(0, "train", torch.tensor([number]))
    return place(draws, 70.0, view.slope, view.sensor.height), draws


def test_reference_scenes_have_their_recorded_bits(device):
    assert {n: digest(generate_world([n], device=device)) for n in SUMS} == SUMS


@pytest.mark.parametrize("numbers", [[31], [3, 40, 7, 7, 0, 12, 31]])
def test_a_scene_is_the_same_alone_and_in_any_batch(world, numbers):
    for name, value in generate_world(numbers).items():
        assert_same_bits(value, world[name][numbers], name)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("sensor", SENSORS)
def test_every_sensor_has_its_form_and_view(sensor, view, device):
    batch = generate_world([5], sensor=sensor, view=view, device=device)
    where = View(SENSORS[sensor], view)
    count = int(batch["num_points"][0])
    points = batch["points"][0].cpu()
    assert points.shape == (where.rays, 4) and count > where.rays / 4
    assert points[:count].isfinite().all() and points[count:].isnan().all()
    assert (batch["owner"][0, count:] == -3).all() and (batch["owner"][0, :count] > -3).all()
    x, y, z, intensity = points[:count].unbind(1)
    assert where.inside(x, y, z).float().mean() > 0.999  # except for rounding at the edge
    elevation = torch.rad2deg(torch.atan2(z, torch.hypot(x, y)))
    beams = torch.tensor(where.sensor.elevations)
    assert (elevation[:, None] - beams).abs().amin(1).max() < 0.01
    assert (points[:count, :3].norm(dim=1) < where.sensor.max_range + NOISE).all()
    assert intensity.min() >= 0 and intensity.max() < 1
    if device == "cuda":
        for name, value in generate_world([5], sensor=sensor, view=view).items():
            assert_same_bits(batch[name], value, name)


def test_labelled_points_lie_in_their_boxes_and_no_others_do(world):
    for b in range(len(world["id"])):
        points = world["points"][b, : int(world["num_points"][b]), :3]
        owner = world["owner"][b, : len(points)]
        boxes = world["boxes"][b, : int(world["num_boxes"][b])]
        for grow, wrong in ((NOISE, owner >= 0), (-NOISE, owner < 0)):
            sized = boxes.clone()
            sized[:, 3:6] += 2 * grow + 0.02
            inside = torchvox.points_in_boxes(points[None], sized[None])[0]
            assert (inside[wrong] == owner[wrong].clamp(min=-1)).all()
        counts = torch.bincount(owner[owner >= 0], minlength=len(boxes))
        assert torch.equal(counts, world["box_points"][b, : len(boxes)].long())
        assert counts.min() >= 1 and (counts.diff() <= 0).all()


def test_every_point_has_the_surface_of_its_box_or_lies_on_the_ground_or_on_neither(world):
    owner, surface = world["owner"].long(), world["surface"].long()
    assert torch.equal(surface < 0, owner == -3) and torch.equal(surface == 0, owner == -2)
    labels = world["labels"].long().gather(1, owner.clamp(min=0))
    assert torch.equal(surface[owner >= 0], 1 + labels[owner >= 0])
    assert torch.equal(surface > len(CLASSES), owner == -1)
    x, y, z = world["points"][..., :3].double().unbind(2)
    above = z - ground(x, y, phases(Draws(0, "train", world["id"]))) + FRONT.sensor.height
    assert above[surface == 0].abs().max() < NOISE + 0.05  # the ground's bumps take one step
    objects, _ = scene_of(0)
    radius = torch.hypot(objects.length, objects.width)[0] / 2
    for number in range(len(CLASSES) + 1, len(SURFACES)):
        mine = torch.tensor([kind.clutter == SURFACES[number] for kind in objects.kinds])
        mine &= objects.kept[0]
        places = torch.stack([objects.x[0, mine], objects.y[0, mine]], 1)
        away = torch.cdist(world["points"][0, surface[0] == number, :2], places) - radius[mine]
        assert away.amin(1).max() < NOISE + 0.01


def test_boxes_stand_on_the_ground(world):
    x, y, z, _, _, height, yaw = world["boxes"].double().unbind(2)
    base = ground(x, y, phases(Draws(0, "train", world["id"]))) - FRONT.sensor.height
    assert (z - height / 2 - base)[world["labels"] >= 0].abs().max() < 1e-5
    assert yaw.abs().max() <= np.pi + 1e-6 and base.std() > 0.02


def test_padding_and_ignored_boxes(world):
    there = torch.arange(32) < world["num_boxes"][:, None]
    assert torch.equal(world["labels"] >= 0, there)
    for name in ("boxes", "weight", "box_points", "occlusion", "truncation"):
        assert (world[name][~there] == 0).all()
    few, world = generate_world(range(9), min_points=0), {k: v[:9] for k, v in world.items()}
    van = (world["boxes"][..., 3] > 4.5) & (world["boxes"][..., 5] >= 1.9)
    assert torch.equal(few["weight"] > 0, there[:9] & ~van) and van.any()
    assert torch.equal(world["weight"], few["weight"] * (world["box_points"] >= 5))


def test_rays_end_on_the_nearest_box():
    """Of objects of upright boxes alone, by another definition."""
    objects, draws = scene_of(11)
    for column, kind in enumerate(objects.kinds):
        solids = [solid for solid, _ in kind.parts(*[torch.ones(1)] * 4)]
        objects.kept[:, column] &= all(isinstance(solid, Slab) for solid in solids)
    scan = cast(objects, FRONT, draws)
    away = scan.xyz[0].double().norm(dim=1)
    rays = (scan.xyz[0].double() / away[:, None]).numpy()
    nearest, owner = np.full(len(rays), 80.0), np.full(len(rays), -2)
    for column in objects.kept[0].nonzero()[:, 0].tolist():
        x, y, z, *size, yaw, _, _, albedo, _ = (v[:, column] for v in objects[1:])
        c, s = np.cos(float(yaw)), np.sin(float(yaw))
        turn = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]])
        local = rays @ turn.T
        for solid, _ in objects.kinds[column].parts(*size, albedo):
            x0, y0, low, high, *half = map(float, solid)
            start = turn @ -np.array([float(x), float(y), float(z)]) - [x0, y0, (low + high) / 2]
            half = np.array([*half, (high - low) / 2])
            times = np.sort([(-half - start) / local, (half - start) / local], axis=0)
            near, far = times[0].max(1), times[1].min(1)
            distance = np.where((near <= far) & (near > 0), near, np.inf)
            owner[distance < nearest] = column
            nearest = np.fmin(nearest, distance)
    got = scan.owner[0].numpy()
    hit = (got >= 0) & (got == owner)
    assert (got[got >= 0] == owner[got >= 0]).mean() > 0.998 and hit.sum() > 4000
    assert np.abs(away.numpy() - nearest)[hit].max() < NOISE + 0.002
    behind = (got == -2) & (owner >= 0)  # these must have met the ground before
    xyz = torch.from_numpy(rays * nearest[:, None])[None]
    below = xyz[..., 2] - ground(xyz[..., 0], xyz[..., 1], phases(draws)) + FRONT.sensor.height
    assert below[0].numpy()[behind & (nearest < 79)].max(initial=-1) < 0.05


@pytest.mark.parametrize("kind", [k for k in KINDS if k.label != CLUTTER], ids=lambda k: k.label)
def test_nothing_is_hidden_of_an_object_alone_and_all_of_it_behind_a_wall(kind):
    objects, draws = scene_of()
    column, wall = objects.kinds.index(kind), len(objects.kinds) - 1
    objects.kept[:] = False
    for value, here, there in ((objects.x, 20.0, 12.0), (objects.y, 1.0, 0.0)):
        value[:, column], value[:, wall] = here, there
    for value in (objects.length, objects.width, objects.height):
        value[:, wall] = 8.0
    objects.kept[:, column] = True
    scan = cast(objects, FRONT, draws)
    assert scan.hits[0, column] == scan.alone[0, column] > 50
    assert set(scan.owner.unique().tolist()) == {-2, column}
    objects.kept[:, wall] = True
    hidden = cast(objects, FRONT, draws)
    assert hidden.hits[0, column] == 0 and hidden.alone[0, column] == scan.alone[0, column]


def test_what_is_out_of_view_is_truncated_and_not_hidden():
    view = View(SENSORS["hdl64"], "camera")
    objects, draws = scene_of(0, view)
    objects.kept[:] = False
    objects.kept[:, 0] = True
    objects.x[:, 0], objects.y[:, 0] = 10.0, 8.45
    scan = cast(objects, view, draws)
    assert scan.hits[0, 0] == scan.alone[0, 0] > 50
    assert 0.1 < _truncation(objects, view)[0, 0] < 0.9
    places = (30.0, 20.0, 81.0), (0.0, 20.0, 0.0), (1.0,) * 3, (0.0,) * 3
    for name, values in zip(("x", "y", "cosine", "sine"), places, strict=True):
        getattr(objects, name)[0, :3] = torch.tensor(values)
    inside, edge, far = _truncation(objects, FRONT)[0, :3].tolist()
    assert inside == 0 and 0.4 < edge < 0.6 and 0.5 < far < 1


def test_what_the_capacities_cut_off_is_counted(world):
    """Points are thinned at random; of the boxes those with the fewest points go."""
    few, whole = generate_world(range(9), points=4000), {k: v[:9] for k, v in world.items()}
    assert (few["num_points"] == 4000).all() and few["points"].isfinite().all()
    assert torch.equal(few["points_cut"], whole["num_points"] - 4000)
    assert (whole["points_cut"] == 0).all() and (whole["boxes_cut"] == 0).all()
    for some, points in zip(few["points"], whole["points"], strict=True):
        assert {*map(tuple, some.tolist())} < {*map(tuple, points.tolist())}
    share = 4000 * 9 / whole["num_points"].sum()
    for part in (lambda p: p[..., :3].norm(dim=-1) > 20, lambda p: p[..., 1] > 0):  # far, left
        assert abs(part(few["points"]).sum() / part(whole["points"]).sum() / share - 1) < 0.06
    few = generate_world(range(9), boxes=10)
    assert torch.equal(few["boxes_cut"], (whole["num_boxes"] - 10).clamp(min=0))
    assert few["boxes_cut"].max() > 0 and torch.equal(few["boxes"], whole["boxes"][:, :10])
    owner = torch.where(whole["owner"] < 10, whole["owner"], -1)
    assert torch.equal(few["owner"], owner)


def test_it_is_a_data_set():
    data = World(points=1000)
    assert (len(data), len(World("val")), len(World("test", size=3))) == (2000, 400, 3)
    for name, value in generate_world([4], points=1000).items():
        assert_same_bits(data[4][name], value[0], name)
    assert torch.equal(WorldSurfaces(points=1000)[4]["labels"], data[4]["surface"].long())
    assert digest(World("val").batch([4])) != digest(World().batch([4]))
    assert all(len(value) == 0 for value in generate_world([]).values())


def test_bad_arguments_are_refused_in_a_sentence():
    zeros = dict.fromkeys(("points", "boxes", "frames", "sweeps"), 0)
    wrong = [*{"sensor": "hdl", "view": "back", "min_points": -1, **zeros}.items()]
    for name, value in [*wrong, ("reach", 19.0), ("reach", 71.0)]:
        for make in (World, lambda **options: generate_world([0], **options)):
            with pytest.raises(ValueError, match=f"generate_world: .*{name}.*, got"):
                make(**{name: value})
    with pytest.raises(ValueError, match="samples and min_points must be >= 0"):
        generate_world([-1])


VIEW = View(SENSORS["vlp16"], "full")
OPTIONS = {"sensor": "vlp16", "view": "full", "seed": 2}


@pytest.fixture(scope="module")
def frames():
    return generate_world(range(18), frames=6, **OPTIONS)


def test_objects_persist_and_velocities_are_differences_of_positions(frames):
    there, instance = frames["labels"] >= 0, frames["instance"]
    known = torch.cat([frames["boxes"].double(), frames["labels"][..., None]], 2)
    known[..., :3] += frames["pose"][:, None, :, 3]
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


def test_boxes_stay_apart_and_off_the_way_of_the_ego(frames):
    overlap = torchvox.rotated_iou(frames["boxes"][..., :7], frames["boxes"][..., :7])
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


def test_a_frame_is_the_same_alone_in_any_batch_and_on_any_device(frames, device):
    for name, value in generate_world([8, 1, 8], frames=6, **OPTIONS, device=device).items():
        assert_same_bits(value.cpu(), frames[name][[8, 1, 8]], name)
    options = {**OPTIONS, "frames": 3, "sweeps": 2, "points": 5000}
    for name, value in generate_world([4], **options, device=device).items():
        assert_same_bits(value[0].cpu(), World(size=9, **options)[4][name], name)
    assert all(len(value) == 0 for value in generate_world([], **options).values())
