# SPDX-License-Identifier: Apache-2.0
"""Maps in parts: what workers make of their parts of space merges to the map of the whole."""

import pickle

import numpy as np
import pytest
import torch
from maps import file_of

from torchvox._util.errors import TorchvoxError, WrongUseError
from torchvox.mapping import NdtModel, OccupancyMap, RegionStore
from torchvox.mapping.ray import MapPart, merge_parts, part_rows

BOX = (-3.0, -2.0, -2.0, 4.0, 3.0, 2.0)  # some of the map is outside
CASES = [  # voxel size, origin, parts, options of the map, of rays
    (0.1, (0.0, 0.0, 0.0), (3, 2, 2), {}, {}),
    (0.1, (0.3, -0.7, 1e-9), (4, 1, 3), {"preset": "octomap"}, {"max_range": 2.5, "min_range": 1}),
    (0.15, (1e5, -2e5, 30.0), (2, 3, 1), {"preset": "octomap"}, {"max_range": 2.0}),
    (
        *(0.3, (0.0, 0.0, 0.0), (2, 2, 1)),
        {"layers": ("logodds", "hit_miss", "touch", "traversal")},
        {"max_range": 2.5, "flags": ["exclude_origin", "exclude_occupied", "lock_min"]},
    ),
    (0.4, (0.0, 0.0, 0.0), (2, 2, 1), {"ndt": NdtModel(samples=1)}, {}),
]


@pytest.fixture
def drive(tmp_path):
    """Files of four scans, their poses, and a function that maps them at once."""
    source = np.random.default_rng(0)
    poses = np.tile(np.eye(4)[:3], (4, 1, 1))
    poses[:, :, 3] = source.integers(-8, 8, (4, 3)) / 10  # on faces, for some sizes
    paths = [tmp_path / f"{i}.bin" for i in range(4)]
    for path in paths:
        away = source.normal(size=(300, 3))
        ends = 3 * away / np.linalg.norm(away, axis=1, keepdims=True)
        ends[::2] = ends[::2].round(1)
        ends.astype(np.float32).tofile(path)
    return paths, poses


def whole(paths, poses, options, rays):
    made = OccupancyMap(**options)
    for path, pose in zip(paths, poses, strict=True):
        points = torch.from_numpy(np.fromfile(path, np.float32).reshape(-1, 3))
        made.integrate(points.to(made.status.device), pose=torch.from_numpy(pose), **rays)
    return made


@pytest.mark.parametrize("case", CASES, ids=["ohm", "octomap", "far", "layers", "ndt"])
def test_parts_merge_to_the_map_of_the_whole(drive, case, tmp_path, device):
    paths, poses = drive
    size, origin, parts, options, rays = case
    options = {"voxel_size": size, "origin": origin, "device": device, **options}
    poses = poses + np.pad(np.array(origin)[:, None], ((0, 0), (3, 0)))
    box = np.add(BOX, origin * 2)
    stage = pickle.loads(pickle.dumps(MapPart(tmp_path / "p", paths, poses, options, rays, "xyz")))
    rows = [stage(row) for row in part_rows(box, parts, size, origin)]
    assert len(rows) == np.prod(parts)
    made = whole(paths, poses, options, rays)
    assert file_of(merge_parts(rows), tmp_path) == file_of(made, tmp_path)
    store = {"store": RegionStore(), "capacity": 20}
    assert file_of(merge_parts(reversed(rows), **store), tmp_path) == file_of(made, tmp_path)
    kept = [OccupancyMap.load(row["output"]).read().keys for row in rows]
    assert sum(map(len, kept)) == len(made.read().keys) and sum(len(k) > 1 for k in kept) > 1


def test_faces_are_those_of_regions_whatever_rounds():
    """The voxels of a box as the op finds them: floor and ceil of what was rounded."""
    for size, origin in [(0.1, 0.0), (0.1, 0.3), (1 / 3, -1e7), (0.07, 12345.678)]:
        box = [origin - 5000 * size, 0, 0, origin + 5000 * size, 1, 1]
        rows = part_rows(box, (500, 1, 1), size, (origin, 0.0, 0.0))
        bounds = np.array([row["point_cloud_range"] for row in rows])[:, [0, 3]]
        lower, upper = ((bounds - origin) / size).T
        assert (np.floor(lower)[1:] == np.ceil(upper)[:-1]).all()
        assert (np.floor(lower) % 8 == 0).all() and (np.diff(np.floor(lower)) > 0).all()
        assert np.floor(lower[0]) == -(2**23) and np.ceil(upper[-1]) == 2**23


def test_rows_say_what_is_wrong_and_files_are_made_once(drive, tmp_path):
    paths, poses = drive
    rows = part_rows(BOX, (2, 1, 1), 0.3)
    stage = MapPart(tmp_path / "p", paths, poses, {"voxel_size": 0.3}, layout="xyz")
    first = [stage(row) for row in rows]
    made = [path.stat().st_mtime_ns for path in sorted((tmp_path / "p").iterdir())]
    assert first == [stage(row) for row in rows]
    for some in (first[1:], first[:1], [*first, first[0]]):
        with pytest.raises(TorchvoxError, match="each of 2 parts must have one row"):
            merge_parts(some)
    assert made == [path.stat().st_mtime_ns for path in sorted((tmp_path / "p").iterdir())]
    paths[2].write_bytes(b"12345")
    found = stage(rows[0])
    assert "2.bin" in found["error"] and found["output"] == ""
    with pytest.raises(TorchvoxError, match=r"2\.bin"):
        merge_parts([first[1], found])
    with pytest.raises(WrongUseError, match="no part"):
        merge_parts([])
    for rays, count, words in [
        ({"flags": ["stop_at_occupied"]}, 4, "needs the whole map"),
        ({"point_cloud_range": [0, 0, 0, 1, 1, 1]}, 4, "give none"),
        ({}, 3, "4 scans need a pose each, got 3"),
    ]:
        with pytest.raises(WrongUseError, match=words):
            MapPart(tmp_path, paths, poses[:count], {}, rays)
    with pytest.raises(WrongUseError, match=r"y of the box .* 1 to 3 parts.*got 4"):
        part_rows(BOX, (1, 4, 1), 0.3)
    with pytest.raises(ValueError, match="voxel_size above 0, got"):
        part_rows(BOX, (1, 1, 1), 0.0)
