# SPDX-License-Identifier: Apache-2.0
"""convert, info and view: what they keep, what they refuse, and what they print."""

import json

import numpy as np
import pytest
from helpers import read_points as read
from helpers import write_points

from torchvox.io import PointTable

LATTICE = {"scale": np.full(3, 0.25), "offset": np.array([16.0, -8.0, 0.5])}
NAMED = (".las", ".laz", ".ply", ".pcd", ".npz", ".xyz", ".txt", ".csv")
EXTRAS = {".las": "laspy", ".laz": "lazrs", ".pcd": "pypcd4", ".png": "matplotlib"}


def write(path, **columns):
    """90 points on a lattice with a column of each kind that every format holds."""
    rng = np.random.default_rng(0)
    colors = {name: rng.integers(0, 256, 90).astype(np.uint16) for name in ("red", "green", "blue")}
    attributes = {
        "intensity": rng.integers(0, 60000, 90).astype(np.uint16),
        "classification": rng.integers(0, 9, 90).astype(np.uint8),
        "gps_time": np.arange(90) / 4,
        **colors,
        **columns,
    }
    xyz = rng.integers(-99, 99, (90, 3)).astype(np.int32)
    table = PointTable(xyz, {k: v for k, v in attributes.items() if v is not None}, **LATTICE)
    write_points(path, table)
    return table


def need(suffix):
    if suffix in EXTRAS:
        pytest.importorskip(EXTRAS[suffix], reason="its extra is not installed")


@pytest.mark.parametrize("suffix", [*NAMED, ".pts", ".npy", ".bin"])
def test_every_format_holds_every_column_and_back(torchvox_cli, tmp_path, suffix):
    need(suffix)
    table = write(tmp_path / "a.npz")
    there = torchvox_cli("convert", "a.npz", "-o", f"b{suffix}").ok()
    assert there.out.splitlines() == [
        "a.npz: 90 points with intensity, classification, gps_time, red, green, blue; "
        f"dropped: none; wrote b{suffix}"
    ]
    layout = () if suffix in NAMED else ("--layout", "x,y,z," + ",".join(table.attributes))
    assert ("have no names" in there.err) is bool(layout)
    torchvox_cli("convert", f"b{suffix}", "-o", "c.npz", *layout).ok()
    back = read(tmp_path / "c.npz")
    np.testing.assert_array_equal(back.world(), table.world())
    for name, values in table.attributes.items():
        np.testing.assert_array_equal(back.attributes[name], values)


@pytest.mark.parametrize(
    ("top", "options", "shift", "words"),
    [
        (255, (), 0, "colors of 8 bits in the whole cloud, kept as they are"),
        (256, (), 8, "colors of 16 bits in the whole cloud, divided by 256"),
        (255, ("--rgb-depth", "16"), 8, "colors of 16 bits, divided by 256"),
    ],
)
@pytest.mark.parametrize("suffix", [".ply", ".pcd"])
def test_colors_become_8_bits_by_the_whole_cloud(
    torchvox_cli, tmp_path, suffix, top, options, shift, words
):
    need(suffix)
    blue = np.full(90, 3, np.uint16)
    blue[89] = top
    table = write(tmp_path / "a.npz", blue=blue)
    result = torchvox_cli("convert", "a.npz", "-o", f"b{suffix}", *options)
    assert result.code == 0 and words in result.err
    back = read(tmp_path / f"b{suffix}")
    for name in ("red", "green", "blue"):
        assert back.columns[name] == np.uint8
        np.testing.assert_array_equal(back.attributes[name], table.attributes[name] >> shift)


def test_a_column_is_lost_only_by_its_name(torchvox_cli, tmp_path):
    huge = np.arange(90, dtype=np.uint64)
    write(tmp_path / "a.npz", huge=huge, more=huge)
    result = torchvox_cli("convert", "a.npz", "-o", "b.ply")
    assert result.code == 2 and (result.out, (tmp_path / "b.ply").exists()) == ("", False)
    advice = "--policy huge=drop --policy more=drop"
    assert f".ply cannot hold huge, more; to drop: {advice}" in result.err
    drop = ("--policy", "huge=drop", "--policy", "more=drop")
    torchvox_cli("convert", "a.npz", "-o", "b.ply", *drop).ok("dropped: huge, more")
    assert not {"huge", "more"} & read(tmp_path / "b.ply").columns.keys()


@pytest.mark.parametrize(
    ("suffix", "name", "advice"),
    [
        (".csv", "Pulse width", None),
        (".txt", "Pulse width", "'Pulse width=drop'"),
        (".csv", "a,b", "a,b=drop"),
        (".csv", "it's\n", "$'it\\'s\\n=drop'"),
        (".ply", "Pulse width", "'Pulse width=drop'"),
    ],
)
def test_names_that_a_format_does_not_hold(torchvox_cli, tmp_path, suffix, name, advice):
    need(suffix)
    np.savez(tmp_path / "a.npz", xyz=np.ones((2, 3)), **{name: np.arange(2.0)})
    result = torchvox_cli("convert", "a.npz", "-o", f"b{suffix}")
    if advice is None:
        assert list(read(tmp_path / f"b{suffix}").attributes) == [name]
    else:
        assert result.code == 2 and f"to drop: --policy {advice}\n" in result.err


@pytest.mark.parametrize(
    ("scale", "offset", "size"),
    [(0.01, -40.0, 4), (0.001, 637000.0, 8), (None, 0.5, 4), (None, 0.1, 8)],
)
def test_pcd_coordinates_are_those_of_pcl_where_they_stay(
    torchvox_cli, tmp_path, scale, offset, size
):
    """float32 where each point keeps its step of the lattice, or without one its value."""
    need(".pcd")
    steps = np.random.default_rng(0).integers(-99_999, 99_999, (500, 3)).astype(np.int32)
    lattice = {} if scale is None else {"scale": [scale] * 3, "offset": [offset] * 3}
    np.savez(tmp_path / "a.npz", xyz=steps if lattice else steps[:9] + offset, **lattice)
    result = torchvox_cli("convert", "a.npz", "-o", "b.pcd")
    assert result.code == 0 and ("PCL" in result.err) is (size == 8)
    back = read(tmp_path / "b.pcd")
    assert back.xyz.dtype.itemsize == size
    if scale is None:
        np.testing.assert_array_equal(back.xyz, steps[:9] + offset)
    else:
        np.testing.assert_array_equal(np.rint((back.world() - offset) / scale), steps)


def test_whole_numbers_of_text_go_to_ply_as_doubles(torchvox_cli, tmp_path):
    (tmp_path / "a.csv").write_text("x,y,z,t\n1,2,3,1510593618140\n")
    torchvox_cli("convert", "a.csv", "-o", "b.ply").ok()
    assert read(tmp_path / "b.ply").attributes["t"].tolist() == [1510593618140.0]
    (tmp_path / "a.csv").write_text("x,y,z,t\n1,2,3,1510593618140000001\n")
    torchvox_cli("convert", "a.csv", "-o", "c.ply").assert_one_sentence(2, "PLY has no integers")


def test_a_part_of_a_waveform_is_not_dropped_in_silence(torchvox_cli, tmp_path):
    laspy = pytest.importorskip("laspy", reason="the extra las is not installed")
    from torchvox.io.las import WAVES

    file = laspy.create(point_format=4, file_version="1.3")
    file.x, file.y, file.z = np.arange(12.0).reshape(3, 4)
    file.write(tmp_path / "a.las")
    result = torchvox_cli("convert", "a.las", "-o", "b.las", "--policy", "x_t=drop")
    assert result.code == 2 and "--policy wavepacket_index=drop" in result.err
    drop = [word for name in WAVES for word in ("--policy", f"{name}=drop")]
    torchvox_cli("convert", "a.las", "-o", "b.las", *drop).ok()
    assert read(tmp_path / "b.las").source.point_format.id == 1


def test_coordinates_get_a_lattice_near_them(torchvox_cli, tmp_path):
    need(".laz")
    xyz = np.random.default_rng(0).normal(0, 9, (50, 3)) + np.array([6e5, 8e6, 3])
    np.save(tmp_path / "a.npy", xyz)
    result = torchvox_cli("convert", "a.npy", "-o", "a.laz")
    assert result.code == 0 and "rounded to steps of 0.001" in result.err
    np.testing.assert_allclose(read(tmp_path / "a.laz").world(), xyz, atol=0.00051, rtol=0)
    result = torchvox_cli("convert", "a.npy", "-o", "b.laz", "--scale", "0.5,0.5,0.125")
    assert (result.code, result.err) == (0, "")
    assert read(tmp_path / "b.laz").scale.tolist() == [0.5, 0.5, 0.125]


def test_a_folder_keeps_names_and_formats_without_format(torchvox_cli, tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("a.ply", "b.csv"):
        write(tmp_path / "in" / name, red=None)
    result = torchvox_cli("convert", "in", "in/b.csv", "-o", "same")
    assert result.code == 0 and len(result.out.splitlines()) == 2
    assert sorted(p.name for p in (tmp_path / "same").iterdir()) == ["a.ply", "b.csv"]
    torchvox_cli("convert", "in", "-o", "npz", "--format", "npz").ok()
    assert [p.name for p in (tmp_path / "npz").iterdir()] == ["a.npz"]


def test_info_shows_the_header_and_statistics_of_the_points(torchvox_cli, tmp_path):
    need(".las")
    write(tmp_path / "a.npz", intensity=np.arange(90, dtype=np.uint16))
    torchvox_cli("convert", "a.npz", "-o", "a.las")
    header = torchvox_cli("info", "a.las", "--header").out.splitlines()
    lines = dict(line.split(maxsplit=1) for line in header)
    names = {"format", "points", "size", "columns", "unit", "box", "scale", "steps"}
    assert lines.keys() == names
    assert (lines["format"], lines["points"]) == ("LAS 1.4, point format 7", "90")
    assert "x y z int32, intensity uint16" in lines["columns"]
    assert lines["scale"] == "0.25 0.25 0.25, offset 16 -8 0.5"
    whole = torchvox_cli("info", "a.las").out
    assert statistics(whole, "intensity") == ["0.000", "44.500", "89.000", "0"]
    assert "colors    8 bits" in whole


def statistics(out, name):
    """The cells of the row of a column."""
    row = next(line for line in out.splitlines() if f"{name} " in line and "│" in line)
    return [word.strip() for word in row.split("│")[2:6]]


def test_info_has_no_median_of_many_points(torchvox_cli, tmp_path, monkeypatch):
    monkeypatch.setattr("torchvox.cli.info.MEDIAN_POINTS", 89)
    write(tmp_path / "a.npz")
    out = torchvox_cli("info", "a.npz").out
    assert "medians   are omitted above 89 points" in out and "derived" not in out
    assert statistics(out, "gps_time")[:3] == ["0.000", "-", "22.250"]


def test_info_header_reads_no_points(torchvox_cli, tmp_path, monkeypatch):
    write(tmp_path / "a.npz")
    monkeypatch.setattr("torchvox.io.table.TableReader._chunks", None)
    result = torchvox_cli("info", "a.npz", "a.npz", "--header")
    assert result.code == 0 and len(result.out.splitlines()) == 2, result.err
    torchvox_cli("info", "a.npz", "--header").ok()
    assert torchvox_cli("info", "a.npz").code == 1


def test_info_counts_voxels(torchvox_cli, tmp_path):
    points = np.random.default_rng(0).uniform(0, 8, (2000, 3))
    np.save(tmp_path / "a.npy", points)
    out = torchvox_cli("info", "a.npy", "--voxel-sizes").out
    rows = [line.split("│")[1:5] for line in out[out.index("tenth") :].splitlines() if "│" in line]
    assert len(rows) == 7
    for size, voxels, reduction, ratio in rows:
        count = len({*map(tuple, np.floor(points / float(size)).tolist())})
        assert int(voxels.replace(",", "")) == count
        assert float(reduction.strip(" %")) == pytest.approx(100 - count / 20, abs=0.051)
        assert float(ratio.replace(",", "")) == pytest.approx(2000 / count, abs=0.051)
    both = torchvox_cli("info", "a.npy", "a.npy", "--voxel-sizes").out
    assert both.count(f"a tenth at {rows[2][0].strip()} m") == 2


@pytest.mark.parametrize("points", [[[1, 2, 3]] * 2, [[1, 2, 3]], [], [[np.nan] * 3]])
def test_info_of_points_without_an_extent_suggests_no_voxel_size(torchvox_cli, tmp_path, points):
    np.save(tmp_path / "a.npy", np.array(points, np.float64).reshape(-1, 3))
    torchvox_cli("info", "a.npy", "--voxel-sizes").ok("not suggested")
    many = torchvox_cli("info", "a.npy", "a.npy", "--voxel-sizes").ok()
    assert many.out.count("no extent") == 2


COLORS = ("rgb", "height", "intensity", "label", "count")


@pytest.mark.parametrize(
    ("color", "suffix"),
    [*((color, ".html") for color in COLORS), ("rgb", ".png"), ("count", ".png")],
)
def test_view_writes_two_clouds(torchvox_cli, tmp_path, color, suffix):
    need(suffix)
    write(tmp_path / "a.npz")
    write(tmp_path / "b.npz", red=None, classification=None, count=np.full(90, 7))
    result = torchvox_cli("view", "a.npz", "b.npz", "--color", color, "-o", f"out/c{suffix}")
    assert (result.code, result.err) == (0, "")
    assert result.out == f"a.npz and b.npz: 180 points; wrote out/c{suffix}\n"
    start = (tmp_path / "out" / f"c{suffix}").read_bytes()[:15]
    assert start == b"<!doctype html>" if suffix == ".html" else start[1:4] == b"PNG"


def test_view_says_how_much_it_shows(torchvox_cli, tmp_path):
    write(tmp_path / "a.npz")
    xyz = np.random.default_rng(0).normal(0, 9, (30, 3))
    xyz[3] = np.nan
    np.save(tmp_path / "b.npy", xyz)
    options = ("--max-points", "100", "--voxel", "0.5", "--color", "height")
    result = torchvox_cli("view", "a.npz", "b.npy", *options).ok()
    assert result.err.splitlines() == [
        "a.npz: 70 of 90 points shown (--max-points)",
        "b.npy: 1 points are not finite and omitted",
    ]
    page = (tmp_path / "view.html").read_text()
    for words in ("a.npz: 70 of 90", "b.npy: 29 of 30", "3.0x fewer points", "voxel size 0.5 m"):
        assert words in page
    np.save(tmp_path / "c.npy", xyz[[3, 3]])
    nothing = torchvox_cli("view", "c.npy")
    assert nothing.code == 1 and "c.npy has no finite point to show" in nothing.err


def test_view_draws_boxes_in_a_page(torchvox_cli, tmp_path):
    write(tmp_path / "a.npz")
    box = {"class": "<b>", "x": 1, "y": 2, "z": 0, "l": 4, "w": 2, "h": 1.5, "yaw": 0.3}
    files = {"a.json": [box], "b.json": {"boxes": [{**box, "score": 0.5}, {**box, "class": "c"}]}}
    for name, words in (("a.json", "(1)</span>"), ("b.json", "&lt;b&gt; (1)</span> ·")):
        (tmp_path / name).write_text(json.dumps(files[name]))
        torchvox_cli("view", "a.npz", "--boxes", name).ok()
        page = (tmp_path / "view.html").read_text()
        assert words in page and "<b>" not in page and 'data-name="edges"' in page, name
    picture = torchvox_cli("view", "a.npz", "--boxes", "a.json", "-o", "a.png")
    picture.assert_one_sentence(2, "--boxes are drawn in an .html page")
    over = torchvox_cli("view", "a.npz", "--boxes", "view.html")
    over.assert_one_sentence(2, "would replace the file that it is made from")
    torchvox_cli("view", "a.npz", "--boxes", "no.json").assert_one_sentence(1, "no.json: No such")


@pytest.mark.parametrize("options", [(), ("--voxel", "1")])
def test_the_histogram_is_that_of_the_filter(torchvox_cli, tmp_path, monkeypatch, options):
    need(".png")
    points = np.random.default_rng(0).uniform(600_000, 600_008, (2000, 3))
    cells, counts = np.unique(np.floor(points), axis=0, return_counts=True)
    np.save(tmp_path / "a.npy", points)
    np.save(tmp_path / "b.npy", cells + 0.5)
    drawn = []
    monkeypatch.setattr("torchvox.cli.view.comparison_picture", lambda *words: drawn.append(words))
    monkeypatch.setattr("torchvox.cli.view.save", lambda *_: None)
    torchvox_cli("view", "a.npy", "b.npy", "-o", "c.png", *options).ok()
    ((_, title, note, _, found, unit, _),) = drawn
    assert (title, unit) == ("a.npy and b.npy", "m")
    assert ("voxel size 1 m" if options else "histogram at 1.") in note
    assert len(found) == pytest.approx(len(counts), rel=0.02) and found.sum() == 2000
    assert not options or sorted(found) == sorted(counts)


def test_columns_in_steps_become_values_and_that_is_said(torchvox_cli, tmp_path):
    laspy = pytest.importorskip("laspy", reason="the extra las is not installed")
    header = laspy.LasHeader(point_format=6, version="1.4")
    steps = {"scales": [0.01], "offsets": [5.0], "no_data": [65535]}
    header.add_extra_dim(laspy.ExtraBytesParams("q", "u2", **steps))
    file = laspy.LasData(header)
    file.x, file.y, file.z = np.arange(12.0).reshape(3, 4)
    file.points.array["q"], file.scan_angle = [100, 200, 300, 400], [-2500, 0, 1, 2500]
    file.write(tmp_path / "a.las")
    result = torchvox_cli("convert", "a.las", "-o", "a.csv")
    assert "scan_angle, q become stored * scale" in result.err and "no value in q" in result.err
    assert "degrees" in torchvox_cli("convert", "a.csv", "-o", "b.las").err
    assert laspy.read(tmp_path / "b.las").scan_angle.tolist() == [-2500, 0, 1, 2500]
    assert torchvox_cli("convert", "a.las", "-o", "c.las").err == ""
    options = ("--voxel", "9", "--keep", "first", "-o")
    assert "no value in q is" in torchvox_cli("downsample", "a.las", *options, "d.ply").err
    assert "no value in q" not in torchvox_cli("downsample", "a.las", *options, "d.las").err
    result = torchvox_cli("info", "a.las")
    assert "steps     q 0.01, offset 5" in result.out and "6.000" in result.out


def test_fractions_are_scaled_by_a_policy(torchvox_cli, tmp_path):
    need(".las")
    rows = np.tile(np.array([0, 0.25, 0.5, 1], np.float32), (4, 1)).T
    rows.tofile(tmp_path / "a.bin")
    convert = ("convert", "a.bin", "--layout", "kitti", "-o", "a.las")
    result = torchvox_cli(*convert)
    assert result.code == 2 and "--policy intensity=scale" in result.err
    torchvox_cli(*convert, "--policy", "intensity=scale").ok()
    assert read(tmp_path / "a.las").attributes["intensity"].tolist() == [0, 16384, 32768, 65535]
    (rows * 2).tofile(tmp_path / "a.bin")
    result = torchvox_cli(*convert, "--policy", "intensity=scale")
    assert result.code == 2 and "from 0 to 1, got 0.0 to 2.0" in result.err


@pytest.mark.parametrize(
    ("color", "names"),
    [
        ("rgb", ("R", "G", "B")),
        ("rgb", ("scalar_Rf", "Gf", "bf")),
        ("intensity", ("scalar_Intensity",)),
        ("label", ("Classification",)),
    ],
)
def test_view_finds_columns_of_other_spellings(torchvox_cli, tmp_path, color, names):
    pytest.importorskip("matplotlib", reason="the extra viz is not installed")
    table = PointTable(np.eye(3), {name: np.eye(3)[i] for i, name in enumerate(names)})
    write_points(tmp_path / "a.ply", table)
    result = torchvox_cli("view", "a.ply", "--color", color, "-o", "a.png")
    assert result.code == 0 and "no column" not in result.err
