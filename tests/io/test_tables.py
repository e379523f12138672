# SPDX-License-Identifier: Apache-2.0
"""Tables of points: every format gives back what it was given, in chunks, in its own types."""

import os
from dataclasses import replace

import fuzzing
import numpy as np
import pytest
from helpers import assert_same_points, disk_of
from helpers import read_points as whole
from helpers import write_points as write
from hypothesis import given
from hypothesis import strategies as st

from torchvox._util.errors import CloudFileError, WrongUseError
from torchvox.io import PointTable, create_points, open_points, read_cloud
from torchvox.io.table import TableReader, colors_8, join

KINDS = ["u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8"]
LATTICE = {"scale": np.array([0.01, 0.01, 0.001]), "offset": np.array([637000.0, 0, -5.5])}


def table(count=40, type_="f4", kinds=KINDS, seed=0, **options):
    """Points with a column of each kind, of random bits except NaN."""
    rng = np.random.default_rng(seed)
    attributes = {}
    for kind in kinds:
        dtype = np.dtype(kind)
        values = np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).copy()
        if dtype.base.kind == "f":
            values = rng.normal(0, 1e3, (count, *dtype.shape)).astype(dtype.base)
        attributes[f"a_{kind}"] = values.reshape(count, *dtype.shape)
    xyz = rng.integers(-(2**31), 2**31, (count, 3)).astype(np.int32)
    if type_ != "i4":
        xyz = (xyz * 1e-7).astype(type_)
    return PointTable(xyz, attributes, **options, **(LATTICE if type_ == "i4" else {}))


@pytest.mark.parametrize("count", [0, 1, 40])
@pytest.mark.parametrize("type_", ["f4", "f8", "i4"])
@pytest.mark.parametrize("suffix", [".npz", ".ply", ".pcd"])
def test_every_type_survives(tmp_path, suffix, type_, count):
    if suffix == ".pcd":
        pytest.importorskip("pypcd4", reason="the extra pcd is not installed")
    kinds = KINDS if suffix == ".ply" else [*KINDS, "u8", "i8", "3f4"]
    source = table(count, type_, kinds, crs="here", unit="ft")
    path = write(tmp_path / f"a{suffix}", source, source.rows(slice(0, 0)))
    back = whole(path)
    if suffix == ".npz":
        assert (back.crs, back.unit) == ("here", "ft")
    elif type_ == "i4":
        source = replace(source, xyz=source.world(), scale=None, offset=None)
    assert_same_points(back, source)
    assert path.read_bytes() == write(tmp_path / f"b{suffix}", source).read_bytes()


def test_text_has_the_digits_of_the_scale(tmp_path):
    source = PointTable(np.array([[1, -2, 3]], np.int32), **LATTICE)
    assert write(tmp_path / "a.csv", source).read_text() == "x,y,z\n637000.01,-0.02,-5.497\n"


@pytest.mark.parametrize("kind", ["ply", "ply-big", "ply-ascii"])
def test_ply_lists_and_other_elements_are_ignored_and_listed(tmp_path, kind):
    fuzzing.WRITERS[kind][1](tmp_path / "a.ply")
    reader = open_points(tmp_path / "a.ply")
    assert reader.problems == ["its list more is ignored", "its 3 edge are ignored"]
    back = whole(tmp_path / "a.ply")
    assert back.xyz.tolist() == [[i, 1, 2] for i in range(20)]
    assert back.attributes["label"].tolist() == list(range(20))
    np.testing.assert_array_equal(read_cloud(tmp_path / "a.ply").points[:, 3], np.arange(20))
    copied = write(tmp_path / "b.ply", back).read_bytes()
    head = (tmp_path / "a.ply").read_bytes().split(b"element")[0]
    assert copied.startswith(head)  # the same form and remarks
    assert_same_points(whole(tmp_path / "b.ply"), back)


@pytest.mark.parametrize("name", ["rgb", "rgba"])
def test_pcd_keeps_viewpoint_groups_and_packed_colors(tmp_path, name):
    pytest.importorskip("pypcd4", reason="the extra pcd is not installed")
    (tmp_path / "a.pcd").write_text(
        f"VERSION 0.7\nFIELDS x y z {name} _ h\nSIZE 4 4 4 4 1 4\nTYPE F F F U U I\n"
        "COUNT 1 1 1 1 2 3\nWIDTH 2\nHEIGHT 2\nVIEWPOINT 1 2 3 0.5 0.5 0.5 0.5\nPOINTS 4\n"
        "DATA ascii\n" + "1 2\t3  4279246896 0 0 7 8 9\n" * 4  # 0xFF102030
    )
    back = whole(tmp_path / "a.pcd")
    values = {"red": 16, "green": 32, "blue": 48, "alpha": 255, "h": [7, 8, 9]}
    assert {*values} - {*back.attributes} == ({"alpha"} if name == "rgb" else set())
    assert all(a.tolist() == [values[n]] * 4 for n, a in back.attributes.items())
    data = write(tmp_path / "b.pcd", back).read_bytes()
    assert b"WIDTH 4\nHEIGHT 1\nVIEWPOINT 1.0 2.0 3.0 0.5 0.5 0.5 0.5\n" in data
    assert f"FIELDS x y z {name} h\n".encode() in data and b"COUNT 1 1 1 1 3\n" in data
    assert_same_points(whole(tmp_path / "b.pcd"), back)
    columns = ("red", "green", "blue", "h__0000", "h__0001", "h__0002")
    assert read_cloud(tmp_path / "b.pcd").columns[3:] == columns


def test_semantic_kitti_labels_join_as_columns(tmp_path):
    scan = tmp_path / "velodyne" / "000000.bin"
    scan.parent.mkdir()
    (tmp_path / "labels").mkdir()
    np.ones((3, 4), np.float32).tofile(scan)
    labels = tmp_path / "labels" / "000000.label"
    np.array([5 << 16 | 40, 7, 2**32 - 1], np.uint32).tofile(labels)
    back = whole(scan, layout="kitti")
    assert back.attributes["label"].tolist() == [40, 7, 65535]
    assert back.attributes["instance"].tolist() == [5, 0, 65535]
    assert read_cloud(scan, "kitti").columns == ("x", "y", "z", "intensity")
    labels.write_bytes(bytes(8))
    reader = open_points(scan, "kitti")
    assert "not one label for each point" in reader.problems[0]
    assert list(reader.columns) == ["intensity"]


@given(st.integers(1, 50), st.integers(0, 40), st.sets(st.sampled_from(KINDS)))
def test_chunks_of_any_size_are_the_whole(size, first, kinds):
    source, columns = table(), [f"a_{kind}" for kind in KINDS if kind in kinds]
    reader = TableReader(source)
    chunks = list(reader.chunks(size, first, columns))
    assert [len(chunk) for chunk in chunks[:-1]] == [size] * (len(chunks) - 1)
    back = join([reader.schema.rows(slice(0), columns), *chunks])
    assert_same_points(back, source.rows(slice(first, None), columns))


@pytest.mark.parametrize(
    ("most", "depth", "eight"), [(255, 8, 255), (64256, 16, 251), (65535, 16, 255), (256, 16, 1)]
)
def test_the_color_depth_is_that_of_the_whole_file(tmp_path, most, depth, eight):
    attributes = {name: np.zeros(9, np.uint16) for name in ("red", "green", "blue")}
    attributes["green"][8] = most
    path = write(tmp_path / "a.npz", PointTable(np.zeros((9, 3)), attributes))
    reader = open_points(path)
    assert reader.color_depth == depth
    first, last = (colors_8(chunk, depth) for chunk in reader.chunks(8))
    assert last.attributes["green"].tolist() == [eight] and last.attributes["red"].dtype == np.uint8
    with pytest.raises(WrongUseError, match="more than 8 bits"):
        colors_8(PointTable(np.zeros((1, 3)), {n: np.full(1, 256) for n in attributes}), 8)
    assert open_points(write(tmp_path / "b.npz", table())).color_depth is None
    assert first.columns == last.columns


@pytest.mark.parametrize(
    ("suffix", "columns", "reason"),
    [
        (".ply", {"a": np.ones(2, np.int64)}, "PLY has no property a, int64"),
        (".ply", {"a b": np.ones(2)}, "no property a b"),
        (".ply", {"x": np.ones(2)}, "must not be named x"),
        (".pcd", {"a": np.ones(2, np.float16)}, "PCD has no field a, float16"),
        (".npz", {"scale": np.ones(2)}, "must not be named scale"),
        (".npy", {"a": np.full(2, 2**53 + 1)}, "does not hold the integers of a"),
        (".bin", {"a": np.full(2, 2**24 + 1)}, "does not hold the integers of a"),
        (".bin", {}, "beyond 8192"),
        (".obj", {}, "points are written as .las"),
        (".copc.laz", {}, "COPC files are read, not written"),
    ],
)
def test_what_a_format_does_not_hold_is_refused(tmp_path, suffix, columns, reason):
    if suffix == ".pcd":
        pytest.importorskip("pypcd4", reason="the extra pcd is not installed")
    xyz = np.full((2, 3), 1e4) if reason == "beyond 8192" else np.zeros((2, 3))
    with pytest.raises(WrongUseError, match=reason):
        write(tmp_path / f"a{suffix}", PointTable(xyz, columns))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".las", ".laz", ".ply", ".pcd", ".npz", ".npy", ".bin", ".xyz"])
def test_a_full_disk_or_a_failure_leaves_the_old_file(tmp_path, suffix):
    for module in ("laspy", "lazrs", "pypcd4"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"old")
    source = table(20_000, kinds=["u2"])
    with pytest.raises(CloudFileError) as error, disk_of(1000):
        write(path, source)
    words = " is not written" if suffix == ".laz" else ": "
    assert str(error.value).startswith(f"{path}{words}")
    with pytest.raises(KeyboardInterrupt), create_points(path, source) as writer:
        writer.append(source)
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [path.name]


def test_a_file_is_not_written_over_the_one_it_is_made_from(tmp_path):
    path = write(tmp_path / "a.ply", table())
    (tmp_path / "b.ply").hardlink_to(path)
    with pytest.raises(WrongUseError, match="would replace the file that it is made from"):
        write(tmp_path / "b.ply", whole(path))


def test_a_file_and_its_folder_are_on_the_disk(tmp_path, monkeypatch):
    synced, sync = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")) or sync(fd)
    )
    path = write(tmp_path / "a.ply", table())
    assert [os.path.basename(name) for name in synced] == ["a.ply", tmp_path.name]
    assert path.exists()


def test_an_invalid_table_and_other_columns_are_refused(tmp_path):
    for xyz, columns, reason in (
        (np.zeros((2, 3), np.int32), {}, "int32 with scale"),
        (np.zeros((2, 2)), {}, r"\[2, 2\] float64"),
        (np.zeros((2, 3)), {"a": np.zeros(3)}, r"a must be \[2\]"),
    ):
        with pytest.raises(ValueError, match=reason):
            PointTable(xyz, columns)
    with pytest.raises(WrongUseError, match="written with the columns a_u1 uint8, got a_i2 int16"):
        write(tmp_path / "a.ply", table(kinds=["u1"]), table(kinds=["i2"]))
