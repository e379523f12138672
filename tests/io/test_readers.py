# SPDX-License-Identifier: Apache-2.0
"""Clouds: every format gives the same one, damage gives one sentence, and files appear whole or not
at all."""

import contextlib
import errno
import os

import numpy as np
import pytest

from torchvox._util.errors import CloudFileError, WrongUseError
from torchvox.io import PointCloud, atomic_path, find_clouds, open_points, read_cloud, write_cloud
from torchvox.io.layouts import parse_layout
from torchvox.io.paths import cloud_stem
from torchvox.io.writers import write_text

COLUMNS = ("x", "y", "z", "intensity")


@pytest.fixture
def points():
    return np.random.default_rng(0).integers(-50, 50, (200, 4)).astype(np.float32) / 4


def write(path, points):
    name, _, encoding = path.name.partition("-")
    if encoding:
        pypcd4 = pytest.importorskip("pypcd4", reason="the extra pcd is not installed")
        encoding = encoding.removesuffix(".pcd")
        pypcd4.PointCloud.from_xyzi_points(points).save(path, encoding=pypcd4.Encoding(encoding))
        # pypcd4 leaves uncompressed what does not shrink
        assert f"DATA {encoding}\n".encode() in path.read_bytes()
    elif name.endswith(".bin"):
        points.tofile(path)
    else:
        write_cloud(path, PointCloud(points, COLUMNS))


FORMATS = {"a.bin": "kitti", "a.pcd.bin": "x,y,z,intensity", "a.npy": "kitti", "a.npz": None}
FORMATS |= dict.fromkeys(f"a-{code}.pcd" for code in ("ascii", "binary", "binary_compressed"))


@pytest.mark.parametrize(("name", "layout"), FORMATS.items())
def test_every_format_gives_its_points_and_refuses_a_part_of_its_file(
    tmp_path, points, name, layout
):
    write(path := tmp_path / name, points)
    cloud = read_cloud(path, layout)
    assert (cloud.columns, cloud.points.dtype, cloud.path) == (COLUMNS, np.float32, path)
    digits = 1e-6 if "ascii" in name else 0  # ten decimals
    np.testing.assert_allclose(cloud.points, points, rtol=digits)
    assert not cloud.origin.any()
    whole = path.read_bytes()
    for keep in (0, 1, len(whole) // 3, len(whole) - 101):
        path.write_bytes(whole[:keep])
        with pytest.raises(CloudFileError, match=r"a.*\." if keep else "is empty") as error:
            read_cloud(path, layout)
        assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_layout_decides_the_columns_and_may_skip_and_reorder_them(tmp_path, points):
    points.tofile(path := tmp_path / "scan.bin")
    assert read_cloud(path, "kitti").points.shape == (200, 4)
    assert read_cloud(path, "nuscenes").points.shape == (160, 5)
    cloud = read_cloud(path, "y,x,_,z")
    assert cloud.columns == ("x", "y", "z")
    np.testing.assert_array_equal(cloud.points, points[:, [1, 0, 3]])


@pytest.mark.parametrize("layout", ["velodyne", "x,y", "x,y,z,z", "x,y,,z", "", "x,y,intensity"])
def test_a_senseless_layout_is_wrong_use(layout):
    with pytest.raises(WrongUseError):
        parse_layout(layout)


def npy(array):
    return lambda path: np.save(path, array, allow_pickle=True)


def npz(**arrays):
    return lambda path: np.savez(path, **arrays)


def zeros(count):
    return lambda path: np.zeros(count, np.float32).tofile(path)


@pytest.mark.parametrize(
    ("name", "write", "layout", "error", "words"),
    [
        ("a.bin", zeros(4), None, WrongUseError, "--layout.*kitti.*nuscenes"),
        ("a.bin", zeros(9), "kitti", CloudFileError, "36 bytes.*16 bytes.*check --layout"),
        ("a.pcd", zeros(1), "kitti", WrongUseError, "remove --layout"),
        ("a.obj", zeros(1), None, WrongUseError, r"\.bin, \.npy, \.npz, \.pcd, \.las, \.laz"),
        ("a.npy", lambda _: None, None, CloudFileError, "No such file"),
        ("a.npy", npy(np.zeros((4, 2))), None, CloudFileError, r"\[4, 2\]"),
        ("a.npy", npy(np.zeros(12)), None, CloudFileError, r"\[12\]"),
        ("a.npy", npy(np.array([["a", "b", "c"]])), None, CloudFileError, "<U1"),
        ("a.npy", npy(np.zeros((2, 3), complex)), None, CloudFileError, "complex"),
        ("a.npy", npy(np.array([{"x": 1}], object)), None, CloudFileError, "not a readable"),
        ("a.npz", npz(cloud=np.zeros((3, 3))), None, CloudFileError, "named 'points'.*cloud"),
        *(
            ("a.npz", npz(points=np.ones((2, 3)), origin=origin), None, CloudFileError, "3 numbers")
            for origin in ([1, 2], [1, 2, np.nan], ["a", "b", "c"])
        ),
    ],
)
def test_what_is_not_a_cloud_is_refused_in_one_sentence(
    tmp_path, name, write, layout, error, words
):
    write(tmp_path / name)
    with pytest.raises(error, match=words):
        read_cloud(tmp_path / name, layout)


COLORS = np.arange(12, dtype=np.uint8).reshape(4, 3)


@pytest.mark.parametrize(
    ("arrays", "columns", "words"),
    [
        ({"colors": COLORS}, ["red", "green", "blue"], ""),
        ({"RGB": COLORS / 255}, ["red", "green", "blue"], "from 0 to 1 are read as colors"),
        ({"Normals": np.eye(4)[:, :3]}, ["nx", "ny", "nz"], ""),
        ({"label": np.arange(4), "d": np.ones((4, 2))}, ["label", "d__0000", "d__0001"], ""),
        ({"t": np.ones(5), "w": np.array(["a"] * 4), "k": np.ones(4)}, ["k"], "t, w are not"),
        ({"image": np.ones((4, 2, 2)), "z": np.ones(4)}, [], "image, z are not columns"),
    ],
)
@pytest.mark.parametrize("main", ["points", "xyz"])
def test_arrays_beside_the_points_are_columns_or_named(tmp_path, main, arrays, columns, words):
    np.savez(tmp_path / "a.npz", **{main: np.ones((4, 3), np.float32)}, **arrays)
    cloud, reader = read_cloud(tmp_path / "a.npz"), open_points(tmp_path / "a.npz")
    assert list(cloud.columns[3:]) == columns and words in "".join(reader.problems)
    assert bool(words) == bool(reader.problems)
    if columns[:1] == ["red"]:
        np.testing.assert_array_equal(cloud.points[:, 3:], COLORS)


def test_an_array_that_is_a_column_of_the_points_too_is_left_out(tmp_path):
    arrays = {"points": np.zeros((2, 4), np.float32), "t": np.ones(2), "scale": np.ones(2)}
    np.savez(tmp_path / "a.npz", columns=list("xyzt"), **arrays)
    reader = open_points(tmp_path / "a.npz")
    assert reader.problems[0] == "its arrays t are ignored: points has columns of that name"
    assert "scale" in reader.problems[1] and not read_cloud(tmp_path / "a.npz").points.any()


def test_float64_coordinates_are_shifted_and_both_origins_of_an_npz_add_up(tmp_path):
    world = np.array([[636001.75, 848935.25, 406.5], [637179.25, 849497.5, 520.5]])
    own = np.array([1e6, 2e6, 3e6])
    np.save(tmp_path / "a.npy", world)
    np.savez(tmp_path / "a.npz", points=world, origin=own)
    one, two = (read_cloud(tmp_path / name) for name in ("a.npy", "a.npz"))
    np.testing.assert_array_equal(next(open_points(tmp_path / "a.npz").chunks()).xyz, world + own)
    np.testing.assert_array_equal(one.points + one.origin, world)
    np.testing.assert_array_equal(two.points + two.origin, world + own)
    assert (np.mod(one.origin, 1200) == 0).all()
    np.save(tmp_path / "a.npy", np.zeros((0, 4), np.float32))
    assert read_cloud(tmp_path / "a.npy").points.shape == (0, 4)  # no points are legal


@pytest.mark.filterwarnings("error")
def test_a_signaling_nan_is_a_nan_and_no_warning(tmp_path):
    np.full(6, 0x7F800001, np.uint32).tofile(tmp_path / "a.bin")
    assert np.isnan(read_cloud(tmp_path / "a.bin", "y,x,z").points).all()


def test_a_folder_stands_for_its_clouds_sorted_by_name(tmp_path):
    clouds = ["a.npy", "b.bin", "c.copc.laz", "d.pts"]
    for name in (*clouds[::-1], "._a.npy", "notes.txt", "table.csv", "none/x.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [p.name for p in find_clouds([tmp_path])] == clouds
    for name, words in (("nowhere", "does not exist"), ("none", "holds no point clouds")):
        with pytest.raises(WrongUseError, match=words):
            find_clouds([tmp_path / name])
    assert {cloud_stem(f"n8.{suffix}") for suffix in ("pcd.bin", "bin", "COPC.laz")} == {"n8"}


ORIGIN = np.array([636000.0, 848400.0, 1200.0])
CLOUD = PointCloud(np.arange(20, dtype=np.float32).reshape(5, 4), COLUMNS, ORIGIN, "ft")
WORLD = CLOUD.points[:, :3] + CLOUD.origin


@pytest.mark.parametrize("name", ["a.npz", "new/deep/a.npy", "a.NPZ", "a.NPY", "a.Npy"])
def test_a_cloud_reads_back_from_a_file_of_that_name(tmp_path, name):
    path = tmp_path / name
    write_cloud(path, CLOUD)
    assert os.listdir(path.parent) == [path.name]
    back = read_cloud(path)
    np.testing.assert_array_equal(back.points[:, :3] + back.origin, WORLD)
    if name == "a.npz":
        np.testing.assert_array_equal(back.points, CLOUD.points)
        np.testing.assert_array_equal(back.origin, CLOUD.origin)
        assert (back.columns, back.unit) == (CLOUD.columns, "ft")


def test_npy_holds_float64_world_coordinates_if_there_is_an_origin(tmp_path):
    near = PointCloud(CLOUD.points, CLOUD.columns)
    for cloud, xyz, dtype in ((CLOUD, WORLD, "f8"), (near, CLOUD.points[:, :3], "f4")):
        write_cloud(tmp_path / "a.npy", cloud)
        array = np.load(tmp_path / "a.npy")
        assert array.dtype == dtype
        np.testing.assert_array_equal(array[:, :3], xyz)


@pytest.mark.parametrize(
    ("code", "written"), [(errno.EINVAL, True), (errno.ENOTSUP, True), (errno.EIO, False)]
)
def test_a_file_system_without_fsync_takes_a_file_and_a_broken_one_does_not(
    tmp_path, monkeypatch, code, written
):
    def fails(_):
        raise OSError(code, "no")

    monkeypatch.setattr(os, "fsync", fails)
    with contextlib.nullcontext() if written else pytest.raises(OSError):
        write_text(tmp_path / "a.txt", "new")
    assert [p.name for p in tmp_path.iterdir()] == (["a.txt"] if written else [])


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="half way"), atomic_path(path) as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError("half way")
    assert path.read_bytes() == b"old"
    with pytest.raises(WrongUseError, match="npz or"):
        write_cloud(tmp_path / "a.ply", CLOUD)
    assert os.listdir(tmp_path) == ["a.npz"]


def test_the_file_obeys_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        write_cloud(tmp_path / "a.npz", CLOUD)
    finally:
        os.umask(old)
    assert (tmp_path / "a.npz").stat().st_mode & 0o777 == 0o640
