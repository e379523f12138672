# SPDX-License-Identifier: Apache-2.0
"""A map that owns its state: room as needed, regions that leave and return, copies, programs."""

import copy
import io
import math
import pickle

import pytest
import torch
from helpers import assert_same_bits
from maps import CENTER, COUNTED, NDT, mapped, sphere
from torch import nn

import torchvox
from torchvox.mapping import PRESETS, OccupancyMap, state
from torchvox.mapping.regions import outside

BOX = (-0.9, -0.9, -9.0, 0.9, 0.9, 9.0)


@pytest.mark.parametrize("layers", [("logodds",), COUNTED])
@pytest.mark.parametrize("small", [{"capacity": 0}, {"capacity": 30, "max_touched": 40}])
def test_growth_gives_what_a_large_start_gives(small, layers, device):
    options = {"layers": layers, "device": device}
    with torch.inference_mode():
        grown = mapped(0, **options, **small)
    grown.integrate(sphere(seed=1).to(device), CENTER.to(device) + 0.1)
    large = mapped(0, 1, **options)
    assert large.capacity == 2000 and 0 < grown.capacity < 2000
    assert grown.equal(large) and large.equal(grown)
    assert int(grown.status[3]) == 0 and int(grown.clock) == 2
    seen = sphere(seed=7).to(device)
    assert_same_bits(tuple(grown.query(seen)), tuple(large.query(seen)))


def test_the_factor_of_decay_is_the_nearest():
    made = OccupancyMap(0.2)
    for _ in range(9):
        made.integrate(CENTER + 1.0, CENTER)
    highest = int(made.extract().logodds * 1024)
    shares = [0.6, 0.4]  # of 1/65536: 3595 * 19 is above 65536, 3595 * 18 below
    for share, left in zip(shares, (1, 0), strict=True):
        other = copy.deepcopy(made)
        other.decay(math.log2(65536 / (65536 // highest + share)), half_life=1.0)
        assert int(other.extract().count) == left


@pytest.mark.parametrize("axis", range(3))
def test_a_region_that_ends_or_begins_where_a_box_does_is_outside(axis):
    steps = torch.arange(-2, 3)
    keys = sum((steps * (i == axis) + (1 << 20)) << (21 * i) for i in range(3))
    found = outside(keys, (0.25, [0.0] * 3), [0.0] * 3 + [4.0] * 3)
    assert found.tolist() == [True, True, False, False, True]


def test_a_growth_that_fails_changes_nothing(monkeypatch):
    made = mapped(0, capacity=100)
    before = [tensor.clone() for tensor in (*made.state, made.clock)]

    def full(*_):
        raise MemoryError

    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(state.ops, "occupancy_remove_", full)
        made.integrate(sphere(radius=9.0), CENTER)
    assert_same_bits((*made.state, made.clock), before)
    for grown in (made, whole := mapped(0)):
        grown.integrate(sphere(radius=9.0), CENTER)
    assert made.equal(whole)


def test_what_does_not_fit_raises_or_is_refused_until_there_is_room():
    small = mapped(capacity=50, on_overflow="raise")
    with pytest.raises(RuntimeError, match=r"needs at least 61 regions, got capacity=50$"):
        small.integrate(sphere(), CENTER)
    assert small.extract("observed").count == 0 and int(small.clock) == 0
    assert small.integrate(sphere(8), CENTER)[0, 0] == 8
    ignored = mapped(0, capacity=50, on_overflow="ignore")
    assert int(ignored.integrate(CENTER, CENTER)[0, 11]) == 8 and int(ignored.clock) == 0
    ignored.on_overflow = "grow"
    with pytest.raises(RuntimeError, match="an earlier call did not fit: call grow first"):
        ignored.integrate(CENTER, CENTER)
    ignored.grow(0)
    ignored.integrate(sphere(), CENTER)
    assert ignored.equal(mapped(0))


@pytest.mark.parametrize("options", [{"ndt": True}, {"ndt": True, "sample_rows": 20},
                                     {"layers": COUNTED}])  # fmt: skip
@pytest.mark.parametrize(("room", "most"), [("1MiB", 2**20), ("16MiB", 2**24)])
def test_a_capacity_in_bytes_is_a_limit_of_memory(room, most, options):
    made = OccupancyMap(capacity=room, **options)
    assert 0.9 * most < sum(made.memory().values()) <= most
    if "ndt" in options:
        assert made.sample_rows == options.get("sample_rows", made.capacity // 4)


@pytest.mark.parametrize("on_overflow", ["grow", "ignore"])
@pytest.mark.parametrize("how", [{"box": BOX}, {"older_than": 3}, {"mask": "every second"}])
def test_regions_that_leave_and_return_make_no_difference(how, on_overflow, device):
    made = mapped(0, 1, layers=COUNTED, on_overflow=on_overflow, device=device)
    made.integrate(sphere(100, 5, 0.5).to(device), CENTER.to(device))
    whole = copy.deepcopy(made)
    if "mask" in how:
        how = {"mask": torch.arange(made.capacity, device=device) % 2 == 0}
    gone = made.evict(**how)
    count = int(gone.count)
    assert 0 < count < int(whole.read().count) and not made.equal(whole)
    assert len(gone.keys) == (made.capacity if on_overflow == "ignore" else count)
    assert (gone.keys[:count].diff() > 0).all() and (gone.keys[count:] == -1).all()
    if "box" in how:
        assert made.extract("observed").points[:, :2].abs().amax() < 0.9 + 1.6
        assert (made.query(torch.tensor([[0.5, 0.5, 0.5]], device=device)).label == 0).all()
    if "older_than" in how:
        assert (gone.region_stamp[:count] < 3).all() and int(made.status[1]) > 0
    made.insert(gone)
    assert made.equal(whole)
    n = int(made.status[1])
    assert_same_bits([t[:n] for t in made.read()[:4]], [t[:n] for t in whole.read()[:4]])


def test_merging_adds_and_takes_maps_of_one_grid():
    one, two = mapped(0), mapped(1, capacity=0)
    ahead, back = copy.deepcopy(one), copy.deepcopy(two)
    ahead.merge(two)
    back.merge(one)
    assert ahead.equal(back) and not ahead.equal(one)
    regions = two.evict(older_than=100)
    assert int(two.status[1]) == 0 and two.merge(one)[0, 0] == len(one.read().keys)
    assert two.equal(one) and len(regions.keys) > 60
    two.insert(regions, merge="keep")
    assert_same_bits((two.query(sphere()).logodds,), (one.query(sphere()).logodds,))
    keys = torchvox.ray_regions(sphere(seed=9), CENTER, 0.2, [0.0] * 3, 3000).keys
    assert OccupancyMap(0.2).allocate(keys[keys >= 0])[0, 3] == (keys >= 0).sum()


def through_a_state_dict(made):
    file, other = io.BytesIO(), OccupancyMap(0.2, 5)
    torch.save(made.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    return other


def pickled(made):
    return pickle.loads(pickle.dumps(made))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, through_a_state_dict])
@pytest.mark.parametrize("options", [{"layers": COUNTED}, {"ndt": True}])
def test_copies_go_on_alike(copied, options):
    made = mapped(0, **options)
    other = copied(made)
    for one in (made, other):
        one.integrate(sphere(seed=1), CENTER)
    assert_same_bits(other.state, made.state)
    assert (other.layers, other.ndt) == (made.layers, made.ndt) and int(other.clock) == 2
    assert other.logodds.data_ptr() != made.logodds.data_ptr()


def test_a_model_around_a_map_neither_casts_nor_saves_it():
    model = nn.ModuleDict({"map": mapped(0), "layer": nn.Linear(2, 2)})
    before = [tensor.clone() for tensor in model["map"].state]
    model.half().load_state_dict(model.state_dict())
    assert model["layer"].weight.dtype == torch.float16
    assert_same_bits(model["map"].state, before)
    assert sorted(model.state_dict()) == ["layer.bias", "layer.weight"]


def test_presets_are_the_sensors_of_the_programs():
    units = {k: [round(u * 1024) for u in OccupancyMap(preset=k).sensor] for k in PRESETS}
    assert units["ohm"] == [2250, -205, -2048, 3595]
    assert units["octomap"] == [868, -415, -2048, 3595]
    assert units["wavemap"] == [870, -410, -2048, 4096]
    mine = OccupancyMap(preset=PRESETS["ohm"]._replace(hit=0.8), threshold=0.6)
    assert mine.sensor[0] == pytest.approx(math.log(4)) and mine.threshold > 0.4


def test_one_point_and_print():
    m, known = mapped(), CENTER[:1].to(torch.float64)
    assert_same_bits(m.query(known[0]), m.query(known))
    assert repr(m) == f"OccupancyMap(voxel_size=0.2, capacity={m.capacity} regions, device=cpu)"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: OccupancyMap(preset="mine"), "preset must be one of ohm, .* got 'mine'"),
        (lambda m: OccupancyMap(threshold=1.0), "between 0 and 1, got 1.0"),
        (lambda m: OccupancyMap(on_overflow="burst"), "on_overflow must be .* got 'burst'"),
        (lambda m: OccupancyMap(float("nan")), "voxel_size must be above 0.* got .nan"),
        (lambda m: OccupancyMap(capacity="much"), "takes bytes, as 512MiB or 2GB, got 'much'"),
        *((lambda m, bad=bad: OccupancyMap(ndt=NDT._replace(**bad)), "ndt must be noise > 0")
          for bad in ({"noise": 0.0}, {"adaptation": 1.5}, {"samples": 0}, {"reset": 0.0},
                      {"reset_samples": math.nan})),
        (lambda m: OccupancyMap(ndt=True, preset="octomap"), "with the rule every_ray"),
        (lambda m: OccupancyMap(layers=("logodds", "passes")), "with passes must have sample_cov"),
        (lambda m: m.integrate(CENTER), "integrate takes either origins or a pose"),
        (lambda m: m.decay(1.0, 0.0), "half_life > 0, got .1.0, 0.0."),
        (lambda m: m.decay(1.0, 1.0, forget=0.4), "forget must be from 0.5 to 1, got 0.4"),
        (lambda m: m.evict(), "evict takes one of box, older_than and mask"),
        (lambda m: m.evict(box=(0, 0, 1, 1)), r"box must be x0, y0, .* got \(0, 0, 1, 1\)"),
        (lambda m: m.evict(mask=CENTER[0] > 0), r"mask must be \[2000\], got .*3"),
        (lambda m: m.merge(OccupancyMap(0.1)), "merge takes maps of one grid"),
        (lambda m: m.merge(OccupancyMap(0.2, layers=COUNTED)), "and the same layers, .* got"),
        (lambda m: m.load_state_dict(OccupancyMap(0.1).state_dict()), "must have the grid"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call(mapped())


def test_reading_a_room(device):
    made = OccupancyMap(0.2, device=device)
    points, center = sphere(20_000).to(device), CENTER.to(device)
    pose = torch.eye(4, dtype=torch.float64)
    pose[0, 3] = 0.05
    made.integrate(points - torch.tensor([0.05, 0, 0], device=device), pose=pose)
    cloud = made.extract()
    assert int(cloud.count) == len(cloud.points) > 1000
    assert ((cloud.points.norm(dim=1) - 3).abs() < 0.2 * 3**0.5 / 2 + 1e-6).all()
    assert made.extract(max_out=5).points.equal(cloud.points[:5])
    more = made.extract(max_out=len(cloud.points) + 2)
    assert more.points[-2:].isnan().all() and (more.indices[-2:] == -1).all()
    b = points[:50] * 0.8
    assert (made.raycast(b, torch.zeros_like(b)).status == 0).all()
    assert (made.raycast(points[:50] * 2, torch.zeros_like(b)).status == 1).all()
    grid = [0.2] * 3, [-4.0, -4, -4, 4, 4, 4]
    planes = made.bev(["free", "occupied", "unknown", "occupied_top"], *grid)[0]
    assert planes.shape == (4, 40, 40) and (planes[:3].sum(0) - 1).abs().max() < 1e-6
    assert planes[0, 20, 20] > 0.6 and planes[2, 0, 0] == 1 and planes[3, 20, 20] >= 3
    occupied = (made.crop(*grid).label == 1).sum()
    made.decay(10.0, half_life=10.0)
    assert (made.crop(*grid).label == 1).sum() == occupied
    made.decay(1.0, half_life=1.0, forget=0.99)
    assert int(made.status[1]) == 0
    made.integrate(points, center)
    way = torch.tensor([[4.0, 0.1, 0.1]], device=device)
    while made.raycast(way, center).status == 1:
        assert made.clear_along(way, center)[0, 7] <= 1
    made.clear()
    assert_same_bits(made.state, OccupancyMap(0.2, made.capacity, device=device).state)
    assert int(made.clock) == 0


def test_a_map_of_one_call_is_what_rays_see(device):
    points, grid = sphere(5000).to(device), ([0.25] * 3, [-2.0, -4, -1, 4, 2, 3])
    made = OccupancyMap(0.25, device=device)
    made.integrate(points, CENTER.to(device))
    seen = torchvox.ray_visibility(points, CENTER.to(device), *grid).visibility
    assert torch.equal(made.crop(*grid).label + 1, seen) and len(seen.unique()) == 3


@pytest.mark.parametrize("points", [torch.zeros(0, 3), torch.full((4, 3), math.nan)])
def test_no_ray_changes_nothing(points, device):
    made = OccupancyMap(0.2, 0, device=device)
    counts = made.integrate(points.to(device), torch.zeros_like(points, device=device))
    assert counts[0, :3].tolist() == [0, len(points), len(points)]
    assert made.equal(OccupancyMap(0.2, device=device)) and made.extract().points.shape == (0, 3)


class Twice(nn.Module):
    def __init__(self, made: OccupancyMap) -> None:
        super().__init__()
        self.map = made

    def forward(self, points: torch.Tensor, origins: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = self.map.integrate(points, origins)
        label = self.map.query(points).label
        second = self.map.integrate(points + 1.0, origins)
        return first, label, second, self.map.query(points).logodds


def test_two_updates_in_one_program_clone_no_state():
    from torch._inductor.utils import run_and_get_code

    eager = Twice(mapped(on_overflow="ignore", capacity=1777))
    compiled, exported = copy.deepcopy(eager), copy.deepcopy(eager)
    places = [tensor.data_ptr() for tensor in compiled.map.state]
    expected = eager(sphere(), CENTER)
    with torch.no_grad():
        program = torch.compile(compiled, fullgraph=True)
        found, codes = run_and_get_code(program, sphere(), CENTER)
    assert_same_bits(found, expected)
    assert_same_bits(compiled.map.state, eager.map.state)
    assert [tensor.data_ptr() for tensor in compiled.map.state] == places
    assert codes and not any("empty_strided_cpu((1777" in code for code in codes)
    points = {0: torch.export.Dim("points", min=2)}
    program = torch.export.export(exported, (sphere(), CENTER), dynamic_shapes=(points, None))
    loaded = program.module()
    assert_same_bits(loaded(sphere(), CENTER), expected)
    assert_same_bits(loaded(sphere(300), CENTER), eager(sphere(300), CENTER))
    exported.map.on_overflow = "grow"
    with pytest.raises(Exception, match="cannot grow inside a program"):
        torch.export.export(exported, (sphere(), CENTER))


@pytest.mark.gpu
def test_a_captured_rolling_window_goes_on_like_an_eager_one_and_neither_waits():
    points, origin = sphere().cuda(), CENTER.cuda()
    count = torch.tensor([0], dtype=torch.int32, device="cuda")
    box = torch.tensor(BOX, dtype=torch.float64, device="cuda")

    def step(made: OccupancyMap) -> tuple[torch.Tensor, ...]:
        counts = made.integrate(points, origin, num_valid=count)
        made.decay(1.0, half_life=5.0)
        gone = made.evict(box=box)
        return counts, gone.keys, gone.count, made.bev(["free"], [0.4] * 3, [-4.0] * 3 + [4.0] * 3)

    captured = OccupancyMap(0.2, 4000, on_overflow="ignore", device="cuda")
    eager = copy.deepcopy(captured)
    step(captured)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step(captured)
    captured.clear()
    for i in range(100):
        points.copy_(sphere(seed=i))
        count.fill_((0, 1, 800)[i % 3])
        box[0], box[3] = -3 + 0.05 * i, 1 + 0.05 * i
        torch.cuda.set_sync_debug_mode("error")
        try:
            graph.replay()
            expected = step(eager)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert_same_bits(found, expected, str(i))
    assert_same_bits((*captured.state, captured.clock), (*eager.state, eager.clock))
    captured.on_overflow = "grow"
    with (
        pytest.raises(RuntimeError, match="a map cannot grow inside"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        captured.integrate(points, origin)
