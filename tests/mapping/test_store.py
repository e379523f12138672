# SPDX-License-Identifier: Apache-2.0
"""Maps with a store: the cache changes no result, the folder is the map or an error."""

import copy
import json

import numpy as np
import pytest
import torch
from helpers import assert_same_bits
from maps import NDT, file_of, sphere

from torchvox._util.errors import CloudFileError, WrongUseError
from torchvox.mapping import MapRegions, OccupancyMap, RegionStore, StreamedMap, store, streamed

COUNTED = ("logodds", "hit_miss", "traversal")
SAMPLED = ("logodds", "sample_mean", "sample_cov", "intensity", "passes")
SEEDS, WHOLE = range(3), 4000  # 300 regions in all, 100 to 250 a call


def rays(seed, device="cpu"):
    points = sphere(300, seed, 3.0 + seed)
    return points.to(device), torch.full((1, 3), 0.7 * seed, device=device)


def stored(capacity, folder=None, **options) -> OccupancyMap:
    return OccupancyMap(0.2, capacity, store=RegionStore(folder), **options)


def whole_and_streamed(capacity, **options) -> tuple[OccupancyMap, OccupancyMap]:
    return OccupancyMap(0.2, WHOLE, **options), stored(capacity, **options)


def drive(made: OccupancyMap, between=lambda made: None) -> list[torch.Tensor]:
    """Counts of calls, of one that skips what is missing and of one that excludes voxels."""
    device, counts = made.status.device, []
    more = {}
    if "intensity" in made.layers:
        more = {"intensity": rays(9, device)[0][:, 0], "intensity_range": [-2.0, 3.0]}
    for seed in SEEDS:
        counts.append(made.integrate(*rays(seed, device), max_range=4.0, **more))
        between(made)
    points, origins = rays(7, device)
    counts.append(made.integrate(points + 2.0, origins[:1], missing="skip", **more))
    between(made)
    options = {"flags": ["exclude_occupied", "lock_min"], **more}
    counts.append(made.integrate(points, origins, **options))
    between(made)
    return [count.cpu() for count in counts]


def leave_all(made: OccupancyMap) -> None:
    made._leave(made._cached().keys)
    assert int(made.status[1]) == 0


def same(made: OccupancyMap, whole: OccupancyMap) -> None:
    """Keys, stamps and layers, the number of calls and of regions, whatever is in the cache."""
    one, two = made.read(), whole.read()
    assert_same_bits([t.cpu() for t in one], [t.cpu() for t in two])
    assert int(made.clock) == int(whole.clock) and made.equal(whole) and whole.equal(made)
    assert int(made.status[1]) <= made.capacity < len(one.keys)


@pytest.mark.parametrize(
    "preset, layers",
    [("ohm", ("logodds",)), ("octomap", ("logodds",)), ("ohm", COUNTED), ("ohm", SAMPLED),
     ("octomap", SAMPLED[:2])],
)  # fmt: skip
def test_every_cache_gives_the_file_of_the_whole_map(preset, layers, tmp_path, device):
    options = {"preset": preset, "layers": layers, "device": device}
    options["ndt"] = NDT if "sample_cov" in layers else False
    whole = OccupancyMap(0.2, WHOLE, **options)
    expected, total = drive(whole), len(whole.read().keys)
    assert total > 250
    kinds = {"tenth": total // 10, "one batch": total - 1, "few": 17, "leaves": total // 2}
    for kind, capacity in kinds.items():
        made = stored(capacity, tmp_path / kind, **options)
        found = drive(made, leave_all if kind == "leaves" else lambda made: None)
        same(made, whole)
        assert_same_bits(found, expected, kind)
        assert file_of(made, tmp_path) == file_of(whole, tmp_path), kind
        made.flush()
        again = stored(23, tmp_path / kind, **options)
        assert file_of(again, tmp_path) == file_of(whole, tmp_path), kind
        for one in (again, copied := copy.deepcopy(whole)):
            drive(one)
        assert again.equal(copied)


def test_the_cache_keeps_what_was_stamped_last():
    made = stored(9)
    near = [torch.tensor([[0.3 + 1.6 * i, 0.3, 0.3]]) for i in range(10)]
    for i in (5, *range(10)):
        made.integrate(near[i], near[i])
    held, stamps = made._cached()
    assert len(held) == 9 and not store.contains(held, made.store.keys[:1]).any()
    assert stamps.tolist() == [3, 4, 5, 6, 7, 8, 9, 10, 11]
    made.query(near[0])
    assert made._cached().stamps.tolist() == [2, 4, 5, 6, 7, 8, 9, 10, 11]


def test_what_did_not_change_is_not_written_back(monkeypatch):
    made, put, (points, origins) = stored(40), [], rays(0)
    drive(made)
    made.flush()
    monkeypatch.setattr(made.store, "put", lambda regions: put.extend(regions.keys.tolist()))
    made.query(points)
    made.extract("observed")
    made.raycast(*rays(1))
    assert put == []
    made.integrate(points[:1], origins)
    leave_all(made)
    changed = len(put)
    made.query(points)
    leave_all(made)
    assert 0 < changed == len(put) < 10


def test_reading_brings_in_what_it_needs(device):
    whole, made = whole_and_streamed(30, device=device)
    drive(whole), drive(made)
    poses = torch.eye(4, dtype=torch.float64, device=device)[:3].repeat(2, 1, 1)
    poses[1, :, :3], poses[1, 0, 3] = poses[1, [1, 2, 0], :3].clone(), 2.5
    box, count = [-6.0, -5, -4, 6, 5, 4], torch.tensor([200], device=device)
    points, ends = (torch.cat([rays(i, device)[0] for i in SEEDS]) * scale for scale in (0.9, 2))
    index = torch.arange(len(ends), device=device) % 2
    origins = torch.tensor([[0.1, 0.1, 0.1], [3.0, 0.2, 0.1]], device=device)
    for how in (
        lambda m: m.query(points),
        lambda m: m.query(points, num_valid=count, fill=0.5, threshold=1.0),
        lambda m: m.crop([0.4] * 3, box),
        lambda m: m.crop([0.5] * 3, box, poses=poses, fill=0.0),
        lambda m: (m.bev(["free", "unknown"], [0.4] * 3, box),),
        lambda m: m.raycast(ends, origins[:1]),
        lambda m: m.raycast(ends, origins, origin_index=index, num_valid=count, stop_unknown=True),
        lambda m: m.raycast(ends, ends * -1),
        lambda m: m.extract("free"),
        lambda m: m.extract("occupied", 50),
        lambda m: m.extract("occupied", 4000),
    ):
        leave_all(made)
        found, expected = ([t.cpu() for t in how(one)] for one in (made, whole))
        assert_same_bits(found, expected)
    same(made, whole)
    small = stored(1)
    small.insert(whole.read())
    with pytest.raises(RuntimeError, match=r"a ray passes \d+ regions: give a larger capacity"):
        small.raycast(*rays(0))


def test_editing_is_editing_of_the_whole_map(tmp_path, device):
    options = {"layers": COUNTED, "device": device}
    one, two = OccupancyMap(0.2, WHOLE, **options), stored(31, tmp_path, **options)
    other = stored(20, layers=COUNTED)
    other.integrate(*rays(4))
    gone = {}
    for made in (one, two):
        drive(made)
        counts = [made.decay(1.0, half_life=2.0, forget=0.51)]
        gone[made] = made.evict(box=(-3.0, -3.0, -9.0, 4.0, 3.0, 9.0))
        gone[made] = [t.cpu() for t in (*gone[made], *made.evict(older_than=5))]
        counts.append(made.merge(other))
        keys = made.read().keys.cpu()[:100]
        counts.append(made.allocate(torch.cat([keys, keys[:7], keys[-1:] + 5]).to(device)))
        drive(made)
        some = [t.to(device) for t in other.read()._replace(count=torch.tensor([90]))]
        counts.append(made.insert(MapRegions(*some), "replace"))
        gone[made] += [count.cpu() for count in counts]
        made.integrate(*rays(0, device))
    assert_same_bits(gone[two], gone[one])
    assert len(gone[one][0]) > 20 and len(gone[one][5]) > 0
    same(two, one)
    two.flush()
    before = sorted(path.name for path in tmp_path.iterdir())
    two.evict(box=(0, 0, 0, 1, 1, 1), read=False)
    two.flush()
    left = {path.name for path in tmp_path.iterdir()}
    assert left < set(before) and len(left) == len(np.unique(two.store.keys & store.PART)) + 1
    two.clear()
    two.flush()
    assert two.equal(OccupancyMap(0.2)) and [p.name for p in tmp_path.iterdir()] == ["index.json"]


def test_rays_that_stop_are_taken_whole_or_not_at_all(device):
    whole, made = whole_and_streamed(220, device=device)
    drive(whole), drive(made)
    points, origins = rays(0, device)
    assert_same_bits((made.clear_along(points, origins),), (whole.clear_along(points, origins),))
    same(made, whole)
    small = stored(30, device=device)
    drive(small)
    before = small.read()
    with pytest.raises(RuntimeError, match=r"need all their \d+ regions in the cache of 30: give"):
        small.clear_along(points, origins)
    assert_same_bits(small.read(), before)


@pytest.mark.parametrize("fails", ["occupancy_integrate_", "occupancy_insert_", "select"])
def test_a_call_that_fails_half_way_changes_nothing(fails, monkeypatch):
    whole, made = whole_and_streamed(30)
    drive(whole), drive(made)
    home = MapRegions if fails == "select" else streamed.ops
    calls, call = [], getattr(home, fails)

    def failing(*arguments, **options):
        calls.append(1)
        if len(calls) == 4:
            raise MemoryError
        return call(*arguments, **options)

    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(home, fails, failing)
        made.integrate(*rays(1))
    same(made, whole)
    with pytest.raises(ValueError, match="rule"):
        made.integrate(*rays(1), rule="no rule")
    same(made, whole)
    for one in (made, whole):
        one.integrate(*rays(1))
    same(made, whole)


def test_a_flush_that_fails_leaves_old_or_new_parts(monkeypatch, tmp_path):
    made = stored(50, tmp_path / "map")
    made.integrate(*rays(0))
    made.flush()
    old = {path.stem: path.read_bytes() for path in (tmp_path / "map").iterdir()}
    made.integrate(*rays(1))
    parts, write = [], store.write_map

    def failing(path, contents):
        parts.append(path.stem)
        if len(parts) == 3:
            raise OSError("full")
        write(path, contents)

    with monkeypatch.context() as patched, pytest.raises(OSError, match="full"):
        patched.setattr(store, "write_map", failing)
        made.flush()
    now = {path.stem: path.read_bytes() for path in (tmp_path / "map").iterdir()}
    assert sum(now[part] != old.get(part) for part in now) == 2 and now["index"] == old["index"]
    stored(50, tmp_path / "map").extract()
    made.flush()
    assert stored(50, tmp_path / "map").equal(made)


def test_damaged_missing_and_foreign_files_are_refused(tmp_path):
    made = stored(50, tmp_path)
    made.integrate(*rays(0))
    made.flush()
    one, two = sorted(tmp_path.glob("[0-9]*.npz"))[:2]
    assert OccupancyMap.load(one).extract("observed").count > 0
    kept, index = one.read_bytes(), tmp_path / "index.json"
    for bad in (kept[: len(kept) // 2], two.read_bytes(), b""):
        one.write_bytes(bad)
        with pytest.raises(CloudFileError, match=one.name):
            stored(50, tmp_path)
    one.unlink()
    with pytest.raises(CloudFileError, match=rf"{one.name}: No such file"):
        stored(50, tmp_path)
    one.write_bytes(kept)
    for other, words in (
        ({"origin": (0, 0, 1)}, "origin"),
        ({"preset": "octomap"}, "sensor"),
        ({"layers": COUNTED}, "layers"),
        ({"voxel_size": 0.3}, r"voxel_size 0.2, not 0.3"),
    ):
        with pytest.raises(WrongUseError, match=f"index.json is of a map with {words}"):
            OccupancyMap(store=RegionStore(tmp_path), **{"voxel_size": 0.2, **other})
    facts = json.loads(index.read_text())
    changed = [json.dumps({**facts, "parts": parts}) for parts in ({}, None, 7, ["../x"], [1.5])]
    for text in ("", "[]", '{"parts": []}', "null", *changed):
        index.write_text(text)
        with pytest.raises(CloudFileError, match=r"index.json is not a readable index of a map"):
            stored(50, tmp_path)
    index.unlink()
    assert stored(50, tmp_path).extract().count == 0


def test_copies_are_maps_of_their_own_in_memory(tmp_path):
    made = stored(50, tmp_path)
    made.integrate(*rays(0))
    other = copy.deepcopy(made)
    assert type(made) is type(other) is StreamedMap
    other.integrate(*rays(1))
    other.flush()
    assert not list(tmp_path.iterdir()) and not other.equal(made)
    assert made.memory()["store"] > 2**20 and "store" not in OccupancyMap().memory()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: stored(0), "a store takes a capacity above 0"),
        (lambda m: stored(9, on_overflow="raise"), "neither on_overflow nor max_touched"),
        (lambda m: OccupancyMap(store=m.store), "a store must have no other map"),
        (lambda m: type("Mine", (OccupancyMap,), {})(store=RegionStore()), "one of StreamedMap"),
        (lambda m: m.decay(1.0, 1.0, mask=m.region_key > 0), "masks are not supported"),
        (lambda m: m.evict(mask=m.region_key > 0), "masks are not supported"),
        (lambda m: m.read(m.region_key > 0), "masks are not supported"),
        (lambda m: OccupancyMap().flush(), "flush takes a map with a store"),
        (lambda m: m.state_dict(), "a map with a store has no state_dict"),
        (lambda m: m.load_state_dict({}), "a map with a store has no state_dict"),
    ],
)
def test_what_a_store_cannot_do_is_said(call, words):
    with pytest.raises(Exception, match=words):
        call(stored(9))


def test_a_program_refuses_a_store(monkeypatch):
    made = stored(9)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(RuntimeError, match="cannot run in a program or a CUDA graph"):
        made.integrate(*rays(0))


def test_many_calls_keep_memory_flat():
    made = stored(40)
    sizes = []
    for i in range(60):
        drive(made) if i % 20 == 0 else made.integrate(*rays(i % 3))
        made.decay(1.0, half_life=0.2, forget=0.9)
        if i >= 20:
            store_ = made.store
            sizes.append((store_.nbytes - store_.keys.nbytes * 4, store_.regions.count))
    assert max(sizes)[1] == store.ROWS and max(sizes)[0] - min(sizes)[0] < 2**16
    assert len(made.store.changed) <= 2 * made.capacity
