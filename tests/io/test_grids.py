# SPDX-License-Identifier: Apache-2.0
"""Named grids and grids derived from the points."""

import numpy as np
import pytest

from torchvox._util.errors import CloudFileError, WrongUseError
from torchvox.io import Grid, PointCloud, grid_around, grid_names, load_grid


def cloud_of(xyz):
    return PointCloud(np.asarray(xyz, np.float32), ("x", "y", "z"))


def test_every_named_grid_loads_and_an_unknown_name_lists_them():
    pytest.importorskip("yaml", reason="PyYAML (extra cli) is not installed")
    usual = {"kitti_pillars", "kitti_voxels_005", "nuscenes_pillars", "nuscenes_0075"}
    assert usual | {"sweep_02", "waymo_pillars"} <= set(grid_names())
    for name in grid_names():
        grid = load_grid(name)
        assert grid.max_voxels > 0 and grid.chosen == f"grid {name}"
    with pytest.raises(WrongUseError, match=r"'kitty' is unknown.*kitti_pillars"):
        load_grid("kitty")


BOX = "point_cloud_range: [0, 0, 0, 1, 1, 1]"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "must give voxel_size and"),
        ("voxel_size: [1, 1, 1]", "must give voxel_size and"),
        (f"voxel_size: [1, 1, a]\n{BOX}", "could not convert"),
        (f"voxel_size: [1, 1, 1]\n{BOX}\nmax_point: 3", "unknown keys: max_point"),
        ("{", "not readable YAML"),
        ("", "must give voxel_size and"),
    ],
)
def test_a_file_that_is_not_a_grid_is_refused(tmp_path, text, words):
    pytest.importorskip("yaml", reason="PyYAML (extra cli) is not installed")
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(CloudFileError, match=words) as error:
        load_grid(str(tmp_path / "a.yaml"))
    assert "\n" not in str(error.value)


def test_a_senseless_grid_is_wrong_use():
    unit = (0, 0, 0, 1, 1, 1)
    wrong = [((0, 1, 1), unit), ((1, 1), unit), ((1, 1, np.nan), unit)]
    for size, box in [*wrong, ((1, 1, 1), unit[:5]), ((1, 1, 1), (0, 0, 1, 1, 1, 1))]:
        with pytest.raises(WrongUseError):
            Grid("given", size, box)


def test_a_derived_grid_holds_every_point_of_a_compact_cloud():
    xyz = np.random.default_rng(0).uniform([0, 500, -3], [1200, 900, 40], (20_000, 3))
    grid = grid_around(cloud_of(xyz))
    low, high = np.array(grid.point_cloud_range).reshape(2, 3)
    assert (low <= xyz.min(0)).all() and (high > xyz.max(0)).all()
    assert grid.voxel_size == (20.0, 20.0, 20.0) and "derived" in grid.chosen


def test_a_derived_grid_covers_99_8_percent_and_a_tenth_of_that_span():
    xyz = np.stack([np.arange(1001.0), np.arange(1001.0), np.zeros(1001)], 1)
    xyz[-1, 0] = 1e30  # of 1001 points the last is beyond the 99.9 % that the range ends with
    box = grid_around(cloud_of(xyz), (0.1, 0.1, 0.1)).point_cloud_range
    # 1 to 999, a tenth of 998 more on each side, within the points' own 0 and 1e30
    np.testing.assert_allclose(box[:2], [0.0, 0.0])
    np.testing.assert_allclose(box[3:5], [999 + 99.8, 1000.0], atol=0.11)


def test_degenerate_clouds_still_get_a_grid():
    for xyz in ([[1, 2, 3]], [[5, 5, 5]] * 9, [[0, 0, 0], [np.nan, 0, 0]]):
        low, high = np.array(grid_around(cloud_of(xyz)).point_cloud_range).reshape(2, 3)
        assert (low < high).all()
    with pytest.raises(CloudFileError, match="no finite point"):
        grid_around(cloud_of(np.full((3, 3), np.nan)))


def test_voxels_of_a_derived_grid_hold_two_points_on_average():
    """And the next finer ones do not, but where the side alone says the size."""
    for count, size, finer in ((500, 10.0, 5.0), (10_000, 2.0, 1.0), (50_000, 1.0, 0.5)):
        xyz = np.random.default_rng(0).uniform([0, 0, 0], [100, 100, 0.1], (count, 3))
        assert grid_around(cloud_of(xyz)).voxel_size == (size,) * 3
        occupied = [len(np.unique(xyz // s, axis=0)) for s in (size, finer)]
        assert occupied[0] <= count / 2 < occupied[1]
    dense = np.random.default_rng(0).uniform([0, 0, 0], [8, 2, 0.01], (400_000, 3))
    assert grid_around(cloud_of(dense)).voxel_size[0] == pytest.approx(0.01)
