# SPDX-License-Identifier: Apache-2.0
"""Maps that rays update: bits that depend on no order, capacity, labels by geometry."""

import itertools
import random

import numpy as np
import pytest
import torch
from helpers import assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from op_infos.occupancy import FLAGS, flagged
from samples import OPS, fresh, on

import torchvox
import torchvox.reference as reference

SIZE, ORIGIN = 0.25, [0.05, 0.0, -0.1]
SENSOR = [2.197, -0.201, -2.0, 3.511]
LAYERS = ("logodds", "hit_miss", "touch", "traversal")
INTEGRATE = next(op for op in OPS if op.name == "occupancy_integrate_")
CENTER = torch.tensor([[0.03, -0.02, 0.01]])
HOME = (1 << 20) * (1 + (1 << 21) + (1 << 42))  # the key of the region at 0, 0, 0


def room(n: int, seed: int = 0) -> torch.Tensor:
    """[n, 3] points on the walls of a box of 4 x 3 x 2 m, the sensor inside."""
    away = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))
    walls = torch.tensor([2.01, 1.51, 1.01])
    return away * (walls / away.abs()).min(1, keepdim=True).values


def mapped(points, capacity=2000, state=None, device="cpu", layers=("logodds",), **options):
    """A state after one call, and its counts."""
    if state is None:
        state = torchvox.occupancy_state(capacity, layers=layers, device=device)
    points, origins = points.to(device), CENTER.to(device)
    counts = torchvox.occupancy_integrate_(state, points, origins, SIZE, ORIGIN, SENSOR, **options)
    return state, counts.tolist()[0]


def of_meters(state, ends, starts, sensor=SENSOR, **options):
    """A call with voxels of 1 m; its counts."""
    device = state[0].device
    ends, starts = (torch.as_tensor(t, device=device) for t in (ends, starts))
    grid = 1.0, [0.0] * 3, sensor
    return torchvox.occupancy_integrate_(state, ends, starts, *grid, **options).tolist()[0]


def region_of(values, device="cpu", sensor=SENSOR):
    """A map of the region at 0, 0, 0, whose first voxels have these log-odds, in 1/1024."""
    state = torchvox.occupancy_state(1, device=device)
    layer = torch.full((1, 512), -32768, dtype=torch.int16, device=device)
    layer[0, : len(values)] = torch.tensor(values)
    layers = [state[2].clone(), layer, *state[5:]]
    key = torch.tensor([HOME], device=device)
    torchvox.occupancy_insert_(state, key, layers, sensor=sensor, merge="replace")
    return state


def by_key(state) -> dict[int, list]:
    in_use = int(state[3][1])
    layers = [layer for layer in state[4:] if len(layer)]
    keys = state[1][:in_use].tolist()
    return {int(k): [layer[s].tolist() for layer in layers] for s, k in enumerate(keys)}


@pytest.mark.parametrize("end", [(1.5, 40.0, 5.0), (30.0, 30.0, 30.0), None])
def test_regions_are_those_of_the_reference_however_they_fill_their_box(end, device):
    """In a long box, in one that they hardly fill, and behind an origin that is left alone."""
    random_, flags = torch.Generator().manual_seed(5), None
    points = torch.tensor([[7.1, 0.1, 0.1], [-7.1, 0.1, 0.1]]).repeat(40, 1)
    if end is None:
        flags = ["exclude_origin"]
    else:
        points = torch.tensor(end) * (0.5 + torch.rand(200, 1, generator=random_) / 2)
        points += 0.3 * torch.randn(200, 3, generator=random_)
    state, counts = mapped(points, 300, device=device, flags=flags)
    expected = torchvox.occupancy_state(300)
    reference.occupancy_integrate_(expected, points, CENTER, SIZE, ORIGIN, SENSOR, flags=flags)
    assert counts[11] == 0 and counts[8] > (1 if end is None else 20)
    assert_same_bits([t.cpu() for t in state], expected)


def test_misses_beyond_those_that_matter_are_counted_and_overflow_nothing(device):
    """70,000 misses of -31 are below -2^31 in units of 1/1024."""
    state = torchvox.occupancy_state(8, layers=("logodds", "hit_miss"), device=device)
    ends = torch.tensor([[1.3, 0.1, 0.1]]).repeat(70_000, 1)
    of_meters(state, ends, [[-0.5, 0.1, 0.1]], [1.0, -31.0, -2.0, 3.5])
    tried = state[5].view(-1, 2)[:, 1] == 70_000
    assert tried.sum() == 2 and (state[4].view(-1)[tried] == -2048).all()


@pytest.mark.parametrize("options", [{}, {"rule": "scan"}, {"layers": LAYERS}])
def test_the_raw_state_does_not_depend_on_the_order_of_rays(options, device):
    points = room(3000)
    first, _ = mapped(points, **options)
    for seed in range(3):
        order = torch.randperm(3000, generator=torch.Generator().manual_seed(seed))
        state, _ = mapped(points[order], device=device, **options)
        assert_same_bits([t.cpu() for t in state], first)


@settings(deadline=None, max_examples=80)
@given(
    before=st.sampled_from([-32768, *range(-2048, 3600, 77)]),
    hits=st.integers(0, 5),
    misses=st.integers(0, 40),
    seed=st.integers(0, 99),
)
def test_one_update_is_the_misses_in_any_order_then_the_hits(before, hits, misses, seed):
    """Each vote clamped by itself."""
    units = [reference.occupancy.units_of(x) for x in SENSOR]
    votes = [units[1]] * misses
    random.Random(seed).shuffle(votes)
    logodds = 0 if before == -32768 else before
    for vote in votes:
        logodds = max(logodds + vote, units[2])
    for _ in range(hits):
        logodds = min(logodds + units[0], units[3])
    if hits + misses:  # hits end in voxel 0, misses pass it
        state = region_of([before])
        ends = [[0.5, 0.5, 0.5]] * hits + [[1.5, 0.5, 0.5]] * misses
        of_meters(state, ends, [[0.4, 0.5, 0.5]])
        assert state[4][0, 0] == logodds


def test_a_voxel_keeps_the_time_of_its_last_hit_and_the_way_of_all_rays_in_it(device):
    state = torchvox.occupancy_state(4, layers=LAYERS, device=device)
    ends = [[2.5, 0.25, 0.5], [2.5, 0.25, 0.5], [0.75, 0.25, 0.5], [4.5, 0.25, 0.5]]
    seconds = torch.tensor([7.0, 12.3456, 9.0, torch.nan], dtype=torch.float64, device=device)
    for base in (5.0, 6.0):
        options = {"flags": ["exclude_occupied"], "timestamps": seconds, "time_base": base}
        of_meters(state, ends, [[0.25, 0.25, 0.5]], **options)
    touch, traversal = (t[0, :5].tolist() for t in state[6:8])
    assert touch == [4000, -1, 7345, -1, 0]
    # The second call leaves occupied voxels alone, which are the ends of the first one's rays.
    voxels = [x / 65536 for x in traversal]  # each way rounded down to 2^-16
    assert voxels == pytest.approx([3 * 0.75 + 0.5, 6, 2 * 0.5 + 1, 2, 0.5], abs=1e-4)
    torchvox.occupancy_decay_(state, 0, 0, 0)
    assert (state[6] == -1).all() and (state[7] == 0).all()


@pytest.mark.parametrize("n", [65_535, 65_536, 1 << 20])
@pytest.mark.parametrize("vote", [10, 20])  # units: counts in 32 bits, and in 16
def test_very_many_rays_through_one_voxel_count_right(n, vote, device):
    ends = torch.tensor([[1.4, 0.1, 0.1]]).repeat(n, 1)
    ends[: n // 2] = torch.tensor([0.1, 0.1, 0.1])
    for layers in (("logodds",), ("logodds", "hit_miss")):
        state = torchvox.occupancy_state(3, layers=layers, device=device)
        sensor = [vote / 1024, -vote / 1024, -2.0, 3.5]
        of_meters(state, ends, [[-0.4, 0.1, 0.1]], sensor)
        home = state[1].tolist().index(HOME)
        assert state[4][home, 0] == min(-2048 + vote * (n // 2), 3584)
        assert state[4][home, 1] == min(vote * (n - n // 2), 3584)
        if "hit_miss" in layers:
            assert state[5][home, 0].tolist() == [n // 2, n - n // 2]


@pytest.mark.parametrize("n", [2, 2002, 2003, 2127, 2128, 2129, 70_000])
@pytest.mark.parametrize("miss", [16, 17])  # units: up to 2,177 misses matter, and up to 2,048
def test_counts_are_exact_as_far_as_they_matter(n, miss, device):
    sensor = [1.0, -miss / 1024, -2.0, 31.5]
    state = region_of([32_000] * 512, device, sensor)
    ends = torch.tensor([[3.5, 0.5, 0.5]]).repeat(n, 1)
    of_meters(state, ends, [[0.4, 0.5, 0.5]], sensor)
    row = state[4][0, :5].tolist()
    assert row == [max(32_000 - n * miss, -2048)] * 3 + [32_256, 32_000]


def test_a_call_that_does_not_fit_writes_only_that_it_was_refused(device):
    points = room(2000)
    whole, counts = mapped(points, device=device)
    need = counts[8]
    for capacity, touched, bits in (
        (need, need, 0), (need - 1, -1, 2), (need, need - 1, 1), (0, -1, 2), (2000, 0, 1)
    ):  # fmt: skip
        empty = torchvox.occupancy_state(capacity, device=device)
        state, found = mapped(points, capacity, max_touched=touched, device=device)
        assert found[11] == bits, (capacity, touched)
        if bits:
            room_for = capacity if touched < 0 else touched
            assert found[0] == 0 and found[8] == min(need, reference.rays.regions_limit(room_for))
            assert state[3][3] == 1
            state[3][3] = 0
            assert_same_bits(state, empty)
    small, _ = mapped(points, need - 1, device=device)
    assert mapped(points[:1], state=small, device=device)[1][11] == 8
    grown, _ = mapped(points, need, device=device)
    assert by_key(grown) == by_key(whole)


@pytest.mark.parametrize("rule", ["every_ray", "scan"])
@pytest.mark.parametrize("first", FLAGS)
def test_every_pair_of_flags_votes_as_the_sequential_oracle(first, rule, device):
    for second in FLAGS[FLAGS.index(first) :]:
        call = flagged(first, second, rule=rule)
        given = on(device, fresh(INTEGRATE, call))
        counts = torch.ops.torchvox.occupancy_integrate_(**given)
        assert_same_bits(counts, reference.occupancy_integrate_(**call).to(device), second)
        assert_same_bits(given["state"], on(device, call)["state"], second)


def test_a_voxel_at_a_clamp_or_beyond_is_locked(device):
    values = [-2049, -2048, -2047, 0, 3594, 3595, 3596]
    ends = torch.tensor([[i + 0.5, 0.5, 0.5] for i in range(7)], device=device)
    # Each ray only hits, or is a miss of its only voxel.
    for flags, after in (
        (["lock_min"], [-2049, -2048, 203, 2250, 3595, 3595, 3595]),
        (["lock_max"], [201, 202, 203, 2250, 3595, 3595, 3596]),
        (["lock_min", "end_as_free"], [-2049, -2048, -2048, -206, 3388, 3389, 3390]),
        (["lock_max", "end_as_free"], [-2048, -2048, -2048, -206, 3388, 3595, 3596]),
    ):
        state = region_of(values, device)
        of_meters(state, ends, ends, flags=flags, origin_index=torch.arange(7, device=device))
        assert state[4][0, :7].tolist() == after, flags


def test_a_ray_that_is_stopped_touches_nothing_behind(device):
    """The wall is at x = 4; without the flag the ray goes on through three more regions."""
    for flags, regions in ((None, 4), (["stop_at_occupied"], 1)):
        state, start = torchvox.occupancy_state(10, device=device), [[0.5] * 3]
        of_meters(state, [[4.5, 0.5, 0.5]], start)
        stamp = torch.tensor([7], dtype=torch.int32, device=device)
        counts = of_meters(state, [[30.5, 0.5, 0.5]], start, flags=flags, stamp=stamp)
        assert counts[6] == 31 and counts[8] == counts[10] == regions
        assert (state[2] == 7).sum() == regions


def test_merging_maps_commutes(device):
    """Also where a voxel of one lies outside the clamps and the other never saw it."""
    g, keys, states, rows = torch.Generator().manual_seed(4), torch.arange(6) * 1000, [], []
    for _ in range(2):
        state = torchvox.occupancy_state(6, layers=LAYERS)
        state[4].copy_(torch.randint(-9000, 9000, (6, 512), generator=g))
        state[4][torch.rand(6, 512, generator=g) < 0.4] = -32768
        state[6].copy_(torch.randint(-1, 9000, (6, 512), generator=g))
        state[7].copy_(torch.randint(0, 2**62, (6, 512), generator=g))
        rows.append([t.to(device) for t in (state[2], *state[4:])])
    for one, two in (rows, rows[::-1]):
        state = torchvox.occupancy_state(9, layers=LAYERS, device=device)
        for layers, merge in ((one, "replace"), (two, "add")):
            torchvox.occupancy_insert_(state, keys.to(device), layers, sensor=SENSOR, merge=merge)
        states.append(by_key(state))
    assert states[0] == states[1]


def test_removed_regions_come_back_bit_for_bit(device):
    """Read, remove and insert are the identity, by key."""
    seconds = torch.arange(3000, device=device).double()
    state, _ = mapped(room(3000), layers=LAYERS, device=device, timestamps=seconds)
    before, in_use = by_key(state), int(state[3][1])
    mask = torch.rand(2000, generator=torch.Generator().manual_seed(1)).to(device) < 0.5
    slots = torch.nonzero(mask[:in_use]).flatten()
    keys, order = state[1][slots].sort()
    rows = [t[slots[order]] if len(t) else t for t in (state[2], *state[4:])]
    torchvox.occupancy_remove_(state, mask)
    assert by_key(state) == {k: v for k, v in before.items() if k not in set(keys.tolist())}
    assert torchvox.occupancy_query(state, room(3000).to(device), SIZE, ORIGIN).label.min() == -1
    counts = torchvox.occupancy_insert_(state, keys, rows, sensor=SENSOR, merge="keep")
    assert counts[0, 0] == len(keys) and by_key(state) == before


def test_rays_and_look_ups_agree(device):
    """A raycast is the walk of ray_voxels with a query of each voxel; a crop with a pose of 90
    degrees is the volume turned; a sphere of rays has the sphere's volume."""
    points = room(4000)
    state, _ = mapped(points, device=device, max_range=1.2)
    ends, start = (room(200, seed=3) * 1.5).to(device), CENTER.to(device)
    walk = torchvox.ray_voxels(ends, start, SIZE, ORIGIN, 20_000)
    centers = (walk.indices[:, [3, 2, 1]] + 0.5) * SIZE + torch.tensor(ORIGIN, device=device)
    label = torchvox.occupancy_query(state, centers, SIZE, ORIGIN).label
    cast = torchvox.occupancy_raycast(state, ends, start, SIZE, ORIGIN, stop_unknown=True)
    for i, (a, b) in enumerate(itertools.pairwise(walk.offsets.tolist())):
        stops = torch.nonzero(label[a:b] != 0).flatten()
        row = a + int(stops[0]) if len(stops) else b - 1
        assert torch.equal(cast.indices[i], walk.indices[row])
        assert cast.status[i] == ({0: 0, 1: 1, -1: 2}[int(label[row])])
    cells = {"cell_size": [SIZE] * 3, "point_cloud_range": [-1.95, -2.0, -1.1, 2.05, 2.0, 0.9]}
    plain = torchvox.occupancy_crop(state, SIZE, [0.05, 0.0, -0.1], **cells).label[0]
    turn = torch.tensor([[[0.0, -1, 0, 0.05], [1, 0, 0, -0.05], [0, 0, 1, 0]]], device=device)
    turned = torchvox.occupancy_crop(state, SIZE, ORIGIN, **cells, poses=turn).label[0]
    assert torch.equal(turned, plain.flip(2).transpose(1, 2))
    empty = torchvox.occupancy_state(1, device=device)
    away = torch.nn.functional.normalize(room(2000, seed=5)).to(device)
    seen = torchvox.occupancy_raycast(empty, away, torch.zeros_like(start), 0.05, [0.0] * 3,
                                      solid_angle=4 * np.pi / 2000)  # fmt: skip
    assert abs(float(seen.unseen.sum()) / (4 / 3 * np.pi) - 1) < 0.02


def test_a_state_with_fewer_slots_in_use_than_it_has_is_no_danger(device):
    """The slots of its table and those that it calls free do not add up to its capacity."""
    state = torchvox.occupancy_state(64, device=device)
    for rows in ([0.5], [0.5, 20.5]):
        starts = torch.tensor([[0.5, y, 0.5] for y in rows], device=device)
        index = torch.arange(len(rows), device=device)
        ends = starts + torch.tensor([319.0, 0.0, 0.0], device=device)
        counts = of_meters(state, ends, starts, origin_index=index)
        state[3][1] = 0
    assert counts[11] == 2 and counts[8:10] == [80, 40]


def test_tensors_of_a_state_that_overlap_are_refused_by_name(device):
    state, memory = torchvox.occupancy_state(8), torch.zeros(16, dtype=torch.int64)
    state[1], state[3] = memory[:8], memory[7:15]
    with pytest.raises(ValueError, match="status must share no memory with region_key"):
        mapped(room(5), state=state)
