# SPDX-License-Identifier: Apache-2.0
"""A map that owns its state: room as needed, regions that leave and return, copies, programs."""

import copy
import io
import math
import pickle

import pytest
import torch
from helpers import assert_same_bits
from torch import nn

import torchvox
from torchvox.mapping import PRESETS, OccupancyMap

CENTER = torch.zeros(1, 3)
BOX = (-0.9, -0.9, -9.0, 0.9, 0.9, 9.0)


def sphere(n: int = 800, seed: int = 0, radius: float = 3.0) -> torch.Tensor:
    away = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))
    return away / away.norm(dim=1, keepdim=True) * radius


def mapped(*seeds: int, **options) -> OccupancyMap:
    made = OccupancyMap(0.2, **{"capacity": 2000, **options})
    for seed in seeds:
        made.integrate(sphere(seed=seed), CENTER + 0.1 * seed)
    return made


@pytest.mark.parametrize("layers", [("logodds",), ("logodds", "hit_miss")])
@pytest.mark.parametrize("small", [{"capacity": 0}, {"capacity": 30, "max_touched": 40}])
def test_growth_gives_what_a_large_start_gives(small, layers):
    grown, large = mapped(0, 1, 2, layers=layers, **small), mapped(0, 1, 2, layers=layers)
    assert large.capacity == 2000 and 0 < grown.capacity < 2000
    assert grown.equal(large) and large.equal(grown)
    assert int(grown.status[3]) == 0 and int(grown.clock) == 3
    seen = grown.query(sphere(seed=7))
    assert_same_bits(tuple(seen), tuple(large.query(sphere(seed=7))))


def test_what_does_not_fit_raises_or_is_refused_until_there_is_room():
    small = mapped(capacity=50, on_overflow="raise")
    with pytest.raises(RuntimeError, match="a call needs 61 new regions, but 0 of 50 are"):
        small.integrate(sphere(), CENTER)
    assert small.extract("observed").count == 0
    assert small.integrate(sphere(8), CENTER)[0, 0] == 8
    ignored = mapped(0, capacity=50, on_overflow="ignore")
    assert int(ignored.integrate(CENTER, CENTER)[0, 11]) == 8
    ignored.on_overflow = "grow"
    with pytest.raises(RuntimeError, match="an earlier call did not fit: call grow first"):
        ignored.integrate(CENTER, CENTER)
    ignored.grow(0)
    ignored.integrate(sphere(), CENTER)
    assert ignored.equal(mapped(0))


def test_a_capacity_in_bytes_is_a_limit_of_memory():
    made = OccupancyMap(capacity="3MiB", layers=("logodds", "hit_miss"))
    total, regions = sum(made.memory().values()), made.capacity
    assert (
        total
        <= 3 << 20
        < sum(OccupancyMap(capacity=regions + 1, layers=made.layers).memory().values())
    )
    with pytest.raises(ValueError, match="capacity takes bytes, as 512MiB or 2GB, got 'much'"):
        OccupancyMap(capacity="much")


@pytest.mark.parametrize("how", [{"box": BOX}, {"older_than": 3}, {"mask": "every second"}])
def test_regions_that_leave_and_return_make_no_difference(how):
    made, whole = mapped(0, 1, layers=("logodds", "hit_miss")), None
    made.integrate(sphere(100, 5, 0.5), CENTER)
    whole = copy.deepcopy(made)
    if "mask" in how:
        how = {"mask": torch.arange(made.capacity) % 2 == 0}
    gone = made.evict(**how)
    assert 0 < len(gone.keys) == int(gone.count) < len(whole.read().keys)
    assert (gone.keys.diff() > 0).all() and not made.equal(whole)
    if "box" in how:
        assert made.extract("observed").points[:, :2].abs().amax() < 0.9 + 1.6
        assert (whole.query(torch.tensor([[0.5, 0.5, 0.5]])).label == 0).all()
    if "older_than" in how:
        assert (gone.region_stamp < 3).all() and (made.read().region_stamp == 3).all()
    made.insert(gone)
    assert made.equal(whole)
    assert_same_bits(tuple(made.read()), tuple(whole.read()))
    with pytest.raises(ValueError, match="evict takes one of box, older_than and mask"):
        made.evict(read=False)


def test_merging_adds_and_takes_maps_of_one_grid():
    one, two = mapped(0), mapped(1, capacity=0)
    ahead, back = copy.deepcopy(one), copy.deepcopy(two)
    ahead.merge(two)
    back.merge(one)
    assert ahead.equal(back) and not ahead.equal(one)
    regions = two.evict(older_than=100)
    assert int(two.status[1]) == 0 and two.merge(one)[0, 0] == len(one.read().keys)
    assert two.equal(one) and len(regions.keys) > 60
    two.insert(regions, "keep")
    assert_same_bits((two.query(sphere()).logodds,), (one.query(sphere()).logodds,))
    keys = torchvox.ray_regions(sphere(seed=9), CENTER, 0.2, [0.0] * 3, 3000).keys
    assert OccupancyMap(0.2).allocate(keys[keys >= 0])[0, 3] == (keys >= 0).sum()
    with pytest.raises(ValueError, match="merge takes maps of one grid"):
        one.merge(OccupancyMap(0.1))


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "state_dict"])
def test_copies_go_on_alike(how):
    made = mapped(0, layers=("logodds", "hit_miss"))
    if how == "state_dict":
        file = io.BytesIO()
        torch.save(made.state_dict(), file)
        file.seek(0)
        other = OccupancyMap(0.2, 5)
        other.load_state_dict(torch.load(file, weights_only=True))
    else:
        other = copy.deepcopy(made) if how == "deepcopy" else pickle.loads(pickle.dumps(made))
    for one in (made, other):
        one.integrate(sphere(seed=1), CENTER)
    assert_same_bits(other.state, made.state)
    assert other.layers == made.layers and int(other.clock) == 2
    assert other.logodds.data_ptr() != made.logodds.data_ptr()


def test_a_model_around_a_map_neither_casts_nor_saves_it():
    model = nn.ModuleDict({"map": mapped(0), "layer": nn.Linear(2, 2)})
    before = [tensor.clone() for tensor in model["map"].state]
    model.half()
    assert model["layer"].weight.dtype == torch.float16
    assert_same_bits(model["map"].state, before)
    assert sorted(model.state_dict()) == ["layer.bias", "layer.weight"]
    model.load_state_dict(model.state_dict())
    with pytest.raises(RuntimeError, match="the map has another grid"):
        OccupancyMap(0.1).load_state_dict(model["map"].state_dict())


def test_presets_are_the_sensors_of_the_programs():
    units = {k: [round(u * 1024) for u in OccupancyMap(preset=k).sensor] for k in PRESETS}
    assert units["ohm"] == [2250, -205, -2048, 3595]
    assert units["octomap"] == [868, -415, -2048, 3595]
    assert units["wavemap"] == [870, -410, -2048, 4096]
    mine = OccupancyMap(preset=PRESETS["ohm"]._replace(hit=0.8), threshold=0.6)
    assert mine.sensor[0] == pytest.approx(math.log(4)) and mine.threshold > 0.4
    for wrong in ({"preset": "mine"}, {"threshold": 1.0}, {"on_overflow": "burst"}):
        with pytest.raises(ValueError, match=r"OccupancyMap: .* must be"):
            OccupancyMap(**wrong)


def test_reading_a_room(device):
    made = OccupancyMap(0.2, device=device)
    points = sphere(20_000).to(device)
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
    planes = made.bev(["free", "occupied", "unknown"], *grid)
    assert planes.shape == (1, 3, 40, 40) and (planes.sum(1) - 1).abs().max() < 1e-6
    assert planes[0, 0, 20, 20] > 0.6 and planes[0, 2, 0, 0] == 1
    occupied = (made.crop(*grid).label == 1).sum()
    made.decay(10.0, half_life=10.0)
    assert (made.crop(*grid).label == 1).sum() == occupied
    made.decay(1.0, half_life=1.0, forget=0.99)
    assert int(made.status[1]) == 0
    made.integrate(points, CENTER.to(device))
    way = torch.tensor([[4.0, 0.1, 0.1]], device=device)
    while made.raycast(way, CENTER.to(device)).status == 1:
        assert made.clear_along(way, CENTER.to(device))[0, 7] <= 1
    made.clear()
    assert made.equal(OccupancyMap(0.2, device=device)) and int(made.clock) == 0
    with pytest.raises(ValueError, match="integrate takes either origins or a pose"):
        made.integrate(points)


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
def test_a_captured_rolling_window_goes_on_like_an_eager_one():
    points, origin = sphere().cuda(), CENTER.cuda()
    count = torch.tensor([0], dtype=torch.int32, device="cuda")
    box = torch.tensor(BOX, dtype=torch.float64, device="cuda")

    def step(made: OccupancyMap) -> torch.Tensor:
        counts = made.integrate(points, origin, num_valid=count)
        made.decay(1.0, half_life=5.0)
        made.evict(box=box, read=False)
        return counts

    captured = OccupancyMap(0.2, 4000, on_overflow="ignore", device="cuda")
    eager = copy.deepcopy(captured)
    step(captured)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        counts = step(captured)
    captured.clear()
    for i in range(100):
        points.copy_(sphere(seed=i))
        count.fill_((0, 1, 800)[i % 3])
        box[0::3] = torch.tensor([-3 + 0.05 * i, 1 + 0.05 * i])
        graph.replay()
        assert_same_bits((counts,), (step(eager),), str(i))
    assert_same_bits(captured.state, eager.state)
    captured.on_overflow = "grow"
    with (
        pytest.raises(RuntimeError, match="a map cannot grow inside"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        captured.integrate(points, origin)
