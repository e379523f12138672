# SPDX-License-Identifier: Apache-2.0
"""Ranges, sizes and pictures are in the coordinates of the files, whatever is taken off inside."""

import numpy as np
import pytest

CORNERS = (500_000.0, 501_300.0, 502_600.0)  # x of three tiles
Y = 4_000_000.0


@pytest.fixture
def tiles(tmp_path):
    """Float64 tiles of 1000 x 1000 x 100 m at the coordinates of a country."""
    random = np.random.default_rng(0)
    (tmp_path / "tiles").mkdir()
    clouds = []
    for i, x in enumerate(CORNERS):
        clouds.append(random.uniform([x, Y, 0], [x + 1000, Y + 1000, 100], (500, 3)))
        np.save(tmp_path / "tiles" / f"t{i}.npy", clouds[-1])
    return clouds


def test_files_share_the_grid_and_the_origin_of_one_range(torchvox_cli, tiles, tmp_path):
    corner = np.array([499_900.0, Y, 0.0])
    bounds = "499900,4000000,0,503700,4001000,200"
    result = torchvox_cli("voxelize", "tiles", "--voxel", 5, f"--bounds={bounds}", "-o", "out")
    assert result.code == 0 and result.out.count(f"(given: {bounds})") == 3, result.err
    for i, cloud in enumerate(tiles):
        found = np.load(tmp_path / "out" / f"t{i}.voxels.npz")
        expected = np.unique(((cloud - corner) / 5).astype(int)[:, ::-1], axis=0)
        np.testing.assert_array_equal(np.unique(found["indices"][:, 1:], axis=0), expected)
        np.testing.assert_array_equal(found["origin"], [499_200.0, 3_999_600.0, 0.0])
        place = found["point_cloud_range"] + np.tile(found["origin"], 2)
        np.testing.assert_array_equal(place, [float(v) for v in bounds.split(",")])


def test_the_range_of_info_gives_the_derived_grid(torchvox_cli, tiles, tmp_path):
    out = torchvox_cli("info", "tiles/t1.npy").out
    bounds, size = out.split("derived   ")[1].split()[:2]
    assert bounds.startswith("--bounds=5013"), bounds
    torchvox_cli("voxelize", "tiles/t1.npy", bounds, size, "-o", "given.npz").ok()
    torchvox_cli("voxelize", "tiles/t1.npy", "-o", "derived.npz").ok()
    given, derived = np.load("given.npz"), np.load("derived.npz")
    np.testing.assert_array_equal(given["indices"], derived["indices"])


@pytest.mark.parametrize("command", ["bev", "voxelize", "sample", "demo"])
def test_pictures_have_the_coordinates_of_the_file(
    torchvox_cli, tiles, tmp_path, monkeypatch, command
):
    pytest.importorskip("matplotlib", reason="the extra viz is not installed")
    from torchvox import viz

    cloud = tiles[1] + [0, 0, 2400]
    np.save("a.npy", cloud)
    figures = []
    monkeypatch.setattr(viz, "save", lambda figure, path: figures.append(figure))
    output = "out" if command == "demo" else "a.png"
    torchvox_cli(command, "a.npy", "-o", output).ok()
    axes, (low, high) = figures[0].axes[0], (cloud.min(0), cloud.max(0))
    np.testing.assert_allclose(axes.get_xlim(), [low[0], high[0]], atol=60)
    np.testing.assert_allclose(axes.get_ylim(), [low[1], high[1]], atol=60)
    figures[0].draw_without_rendering()
    labels = [text.get_text() for text in axes.get_xticklabels()]
    assert "501400" in labels and axes.xaxis.get_offset_text().get_text() == "", labels
    if command in ("bev", "demo"):
        image = axes.images[0]
        np.testing.assert_allclose(image.get_extent()[:2], axes.get_xlim())
        assert image.get_clim()[0] > 2390
    if command == "sample":
        drawn = axes.collections[0].get_offsets()
        np.testing.assert_allclose(drawn, cloud[:, :2], atol=1e-3)


@pytest.mark.parametrize("command", ["voxelize", "bev", "demo"])
def test_a_grid_that_keeps_no_point_is_reported_with_both_extents(
    torchvox_cli, tiles, monkeypatch, command
):
    if command == "demo":
        pytest.importorskip("matplotlib", reason="the extra viz is not installed")
        monkeypatch.setattr("torchvox.viz.save", lambda *_: None)
    grid = ("--bounds=0,0,0,10,10,2", "--voxel", "1")
    output = "out" if command == "demo" else "a.npz"
    result = torchvox_cli(command, "tiles/t0.npy", *grid, "-o", output)
    (warning,) = [line for line in result.ok().err.splitlines() if "warning" in line]
    assert "t0.npy: no point is kept: they span x 500000" in warning
    assert warning.endswith("the grid x 0..10, y 0..10, z 0..2")
    kept = torchvox_cli(command, "tiles/t0.npy", "--voxel", "10", "-o", output)
    assert kept.code == 0 and "warning" not in kept.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("downsample", "a.npy", "--voxel", 1, "--bounds=9,9,9,12,12,12", "-o", "b.npz"),
            "a.npy: no point is kept: they span x 0..1, y 0..1, z 0..1, the grid x 9..12",
        ),
        (
            ("map", "a.npy", "--poses", "poses.txt", "--bounds=9,9,9,12,12,12", "-o", "b.npz"),
            "no voxel is mapped: the rays begin in x 0..0, y 0..0, z 0..0, --bounds is x 9..12",
        ),
        (
            ("detect", "a.npy", "-m", "model.pt", "--layout", "x,y,z,intensity", "-o", "b.json"),
            "a.npy: no point is kept: they span x -9..-8, y 0..1, z 0..1, the grid x 0..20.48",
        ),
    ],
)
def test_other_results_without_a_point_are_reported_too(
    torchvox_cli, detector_file, tmp_path, arguments, words
):
    cloud = np.array([[0, 0, 0, 0], [1, 1, 1, 1.0]], np.float32)
    if arguments[0] == "detect":
        cloud[:, 0] -= 9
    np.save(tmp_path / "a.npy", cloud)
    (tmp_path / "poses.txt").write_text("1 0 0 0 0 1 0 0 0 0 1 0\n")
    result = torchvox_cli(*arguments)
    assert result.code == 0 and result.err.count("warning: ") == 1, result.err
    assert words in result.err
