# SPDX-License-Identifier: Apache-2.0
"""Maps saved and loaded: one file for equal maps, trees, points."""

import numpy as np
import pytest
import torch
from maps import CENTER, COUNTED, MEANS, file_of, mapped, sphere

from torchvox._util.errors import CloudFileError, WrongUseError
from torchvox.io import open_points
from torchvox.mapping import PRESETS, MapContents, NdtModel, OccupancyMap, read_map


@pytest.mark.parametrize("ndt", [False, NdtModel(samples=1)])
def test_equal_maps_of_every_history_give_one_file(ndt, tmp_path, device):
    options = {"layers": COUNTED, "ndt": ndt}
    grown = mapped(0, 1, capacity=0, device=device, **options)
    ignored = mapped(0, 1, capacity=1900, on_overflow="ignore", preset=PRESETS["ohm"],
                     threshold=0.7, sample_rows=1900, **options)  # fmt: skip
    idle = mapped(0, origin=(-0.0, 0, 0), **options)
    idle.integrate(sphere()[:0], CENTER)  # a call that changes the number of the next
    moved = mapped(0, **options)
    moved.insert(moved.evict(box=(0, 0, 0, 2, 2, 2)))
    for made in (idle, moved):
        made.integrate(sphere(seed=1), CENTER + 0.1)
    files = {file_of(made, tmp_path) for made in (mapped(0, 1, **options), grown, ignored, idle)}
    files |= {file_of(moved, tmp_path)}
    assert files == {file_of(OccupancyMap.load(tmp_path / "saved.npz"), tmp_path)}
    assert file_of(mapped(1, 0, **options), tmp_path) not in files


@pytest.mark.parametrize("preset", ["ohm", "octomap", PRESETS["ohm"]._replace(hit=0.8)])
@pytest.mark.parametrize("layers", [("logodds",), ("logodds", "hit_miss"), MEANS])
def test_a_loaded_map_goes_on_like_the_saved_one(layers, preset, tmp_path, device):
    made = mapped(0, 1, preset=preset, layers=layers, origin=(0.05, 0.0, -3.0), device=device)
    made.save(tmp_path / "a.npz")
    contents = read_map(tmp_path / "a.npz")
    assert contents.preset == (preset if isinstance(preset, str) else None)
    for source, capacity in ((tmp_path / "a.npz", 4096), (contents, 7)):
        found = OccupancyMap.load(source, capacity=capacity, threshold=0.6, device=device)
        assert found.equal(made) and found.layers == layers and found.model == made.model
        assert found.threshold > 0.4 and int(found.clock) == 0 and int(found.status[3]) == 0
    for one in (found, made):
        assert one.integrate(sphere(seed=5).to(device), CENTER.to(device))[0, 0] == 800
    assert found.equal(made)


def test_large_contents_are_loaded_as_they_are():
    keys, logodds = np.arange(4097), np.full((4097, 512), 9999, np.int16)
    held = MapContents(keys, {"logodds": logodds}, 0.1, [0.0] * 3, [0.7, 0.4, 0.12, 0.97], "scan")
    found = OccupancyMap.load(held, on_overflow="raise").read()
    assert np.array_equal(found.keys, keys) and (found.logodds == 9999).all()


def test_an_empty_map_and_one_without_room(tmp_path):
    path = tmp_path / "deep" / "a.npz"
    OccupancyMap(0.3).save(path)
    assert OccupancyMap.load(path).equal(OccupancyMap(0.3))
    mapped(0).save(path)
    for on_overflow in ("raise", "ignore"):
        with pytest.raises(ValueError, match=r"capacity must be at least \d\d, sample_rows 0, got"):
            OccupancyMap.load(path, capacity=20, on_overflow=on_overflow)
    path.write_bytes(b"no map")
    with pytest.raises(
        CloudFileError, match=r"a.npz is not a readable map file: File is not a zip"
    ):
        OccupancyMap.load(path)
    with pytest.raises(CloudFileError, match="No such file"):
        OccupancyMap.load(tmp_path / "b.npz")
    with pytest.raises(WrongUseError, match=r"written as .npz, .bt, .ot, .ply, .las, .laz"):
        mapped().save(tmp_path / "a.xyz")


def test_a_map_most_of_whose_regions_have_samples_is_loaded_whole(tmp_path, device):
    points = (torch.rand(6000, 3, generator=torch.Generator().manual_seed(0)).double() - 0.5) * 60
    hits = torch.full((6000,), 4, dtype=torch.uint8)  # and no misses
    made = OccupancyMap(0.1, ndt=True, device=device)
    made.integrate(points.to(device), CENTER.to(device), ray_flags=hits.to(device))
    made.save(tmp_path / "a.npz")
    assert len(made.read().sample_count) > 0.9 * int(made.status[1]) > 5000
    for options in ({}, {"on_overflow": "ignore"}, {"on_overflow": "raise"}, {"capacity": 0}):
        assert OccupancyMap.load(tmp_path / "a.npz", device=device, **options).equal(made)
    with pytest.raises(ValueError, match=r"capacity must be at least 59\d\d, sample_rows 59"):
        OccupancyMap.load(tmp_path / "a.npz", on_overflow="ignore", sample_rows=7)
    state = made.state_dict()
    made = OccupancyMap(0.1)
    made.load_state_dict(state)
    assert made.equal(OccupancyMap.load(tmp_path / "a.npz")) and made.ndt is not None


@pytest.mark.parametrize("suffix", [".ot", ".bt"])
def test_octomap_trees_keep_log_odds_or_labels(suffix, tmp_path, device):
    made = mapped(0, 1, preset="octomap", threshold=0.6, device=device)
    made.save(tmp_path / f"a{suffix}")
    found = OccupancyMap.load(tmp_path / f"a{suffix}", threshold=0.6, device=device)
    assert found.model == PRESETS["octomap"]
    seen, expected = found.extract("observed"), made.extract("observed")
    assert torch.equal(seen.indices, expected.indices) and len(seen.points) > 1000
    assert torch.equal(found.query(seen.points).label, made.query(seen.points).label)
    assert found.equal(made) == (suffix == ".ot")


@pytest.mark.parametrize("select", ["occupied", "free"])
@pytest.mark.parametrize("suffix", [".ply", ".las"])
@pytest.mark.parametrize("means", [False, True])
def test_voxels_are_points_at_their_centers_or_means(means, suffix, select, tmp_path):
    if suffix == ".las":
        pytest.importorskip("laspy")
    made = mapped(0, origin=(0.05, 0, -7), layers=MEANS if means else MEANS[:1])
    expected = made.extract(select)
    made.save(tmp_path / f"a{suffix}", select)
    reader = open_points(tmp_path / f"a{suffix}")
    (table,) = reader.chunks()
    assert len(expected.points) == len(table) > 100
    assert np.abs(table.world() - expected.points.numpy()).max() < (1.01e-4 if means else 1e-12)
    center = (expected.indices[:, [3, 2, 1]].double() + 0.5) * 0.2 + torch.tensor(made.origin)
    assert ((expected.points - center).abs().max() > 0.05) == (means and select == "occupied")
    assert np.array_equal(table.attributes["logodds"], expected.logodds.numpy())
    if means:
        assert np.array_equal(table.attributes["num_samples"], expected.num_samples.numpy())
    elif suffix == ".las":
        assert table.scale.tolist() == [0.2] * 3
        assert np.array_equal(table.xyz, expected.indices[:, [3, 2, 1]].numpy())
