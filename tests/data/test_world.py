# SPDX-License-Identifier: Apache-2.0
"""Generated streets: reproducible scenes, rays that end where geometry says, labels that fit."""

import hashlib

import numpy as np
import pytest
import torch
from helpers import assert_same_bits

import torchvox
from torchvox.data import World, generate_world
from torchvox.data.counter_random import Draws
from torchvox.data.worlds.street import SENSORS, VIEWS
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
