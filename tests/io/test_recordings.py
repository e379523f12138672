# SPDX-License-Identifier: Apache-2.0
"""Recordings hold what rosbags' writers put into them, or say what is wrong."""

import bz2
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import fuzzing
import numpy as np
import pytest
from recordings import KINDS, STAMP, cloud, points, write_recording

from torchvox import io
from torchvox._util.errors import CloudFileError, TorchvoxError, WrongUseError
from torchvox.io import bags
from torchvox.io.pointcloud2 import NO_TIME, point_times
from torchvox.io.table import PointTable

pytest.importorskip("rosbags", reason="the extra ros is not installed")

XYZ = [("x", "f4"), ("y", "f4"), ("z", "f4")]


def typed(*more, order="<", **places):
    """A type of points, packed or with the offsets and itemsize of places."""
    names, formats = zip(*(more if places else (*XYZ, *more)), strict=True)
    formats = [np.dtype(f).newbyteorder(order) for f in formats]
    return np.dtype(dict(names=names, formats=formats, **places))


OTHER = typed(("z", "f4"), ("x", "f4"), ("y", "f4"), ("time", "f4"), ("a", "u2"),
              offsets=[0, 4, 20, 12, 30], itemsize=40)  # fmt: skip
WIDE = typed(("x", "f4"), ("y", "f4"), ("z", "f8"), offsets=[0, 4, 8], itemsize=16)
LAYOUTS = {
    "ouster": (points(count=64), dict(height=16, pad=24)),
    "velodyne": (points(typed(("intensity", "f4"), ("ring", "u2"), ("time", "f4"))), {}),
    "hesai": (points(typed(("intensity", "f4"), ("timestamp", "f8"), ("ring", "u2"))), {}),
    "livox": (points(typed(("offset_time", "u4"), ("tag", "u1"), ("line", "u1"))), {"height": 5}),
    "robosense": (points(typed(("ring", "i4"), ("b", "i1"), ("c", "i2"))), {"pad": 5}),
    "others": (points(OTHER), {}),
    "big endian": (points(typed(("n", "(3,)f8"), ("r", "u4"), order=">")), dict(height=4, pad=3)),
    "float64": (points(np.dtype([(axis, "f8") for axis in "xyz"])), {}),
    "mixed": (points(WIDE), {}),
    "no points": (points(count=0), {}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_points_are_what_was_written(kind, tmp_path):
    LAYOUTS["ouster"][0]["x"][5] = np.nan
    clouds = [cloud(rows, STAMP + i, **how) for i, (rows, how) in enumerate(LAYOUTS.values())]
    recording = io.open_recording(write_recording(tmp_path, kind, {"/points": clouds}))
    assert recording.count == len(LAYOUTS)
    for (name, (rows, _)), scan in zip(LAYOUTS.items(), recording.scans(), strict=True):
        table = scan.table
        axes = [rows[axis] for axis in "xyz"]
        np.testing.assert_array_equal(table.xyz, np.stack(axes, 1), name)
        wide = any(axis.dtype.itemsize == 8 for axis in axes)
        assert table.xyz.dtype == (np.float64 if wide else np.float32)
        assert (scan.stamp, scan.sensor) == (STAMP + scan.number, "os_sensor")
        assert [*table.attributes] == [n for n in rows.dtype.names if n not in "xyz"]
        for column, values in table.attributes.items():
            assert values.dtype == rows[column].dtype.newbyteorder("=")
            np.testing.assert_array_equal(values, rows[column], name)


@pytest.mark.parametrize(
    ("column", "values", "expected", "words"),
    [
        ("t", np.uint32([0, 5, 99_840_001]), [0, 5, 99_840_001], "ns after"),
        ("time", np.float32([-0.1, 0.0, 0.05]), [-100_000_001, 0, 50_000_001], "s after"),
        ("timestamp", np.float64([1.7e9, 1.7e9 + 0.25, 1.7e9 + 1]), [0, 25 * 10**7, 10**9], "s s"),
        ("timestamp", np.float64([1.7e18, 1.7e18 + 512, 1.7e18 + 1024]), [0, 512, 1024], "ns s"),
        ("time_stamp", np.uint64([STAMP, STAMP + 1, STAMP - 7]), [0, 1, -7], "ns since"),
        ("time_stamp", np.int64([STAMP // 1000, STAMP // 1000 + 1, 0]), [0, 1000, -STAMP], "us"),
        ("offset_time", np.uint32([7, 8, 9]), [7, 8, 9], "ns after"),
        ("time_offset", np.float64([0.5, np.nan, 0.25]), [5 * 10**8, None, 25 * 10**7], "s after"),
        ("t", np.uint32([4, 4, 4]), None, "same for all"),
        ("ring", np.uint32([1, 2, 3]), None, "none"),
    ],
)
def test_conventions_of_times(column, values, expected, words):
    table = PointTable(np.zeros((3, 3), np.float32), {column: values})
    times, how = point_times(table, STAMP)
    if expected is not None:
        expected = [NO_TIME if ns is None else STAMP + ns for ns in expected]
    assert (None if times is None else times.tolist()) == expected
    assert words in how and point_times(table, STAMP, "none")[0] is None


def test_times_of_no_convention():
    table = PointTable(np.zeros((2, 3), np.float32), {"time": np.float32([0, 99_840_000])})
    with pytest.raises(CloudFileError, match=r"time is 0\.\.99840000, neither"):
        point_times(table, STAMP)
    with pytest.raises(WrongUseError, match="no column t of times: it has time"):
        point_times(table, STAMP, "t")


ROWS = points(count=4)
BROKEN = {
    "its field x ends at byte 44 of points of 32": {"fields": [["x", 40, 7, 1]]},
    "its field x has the datatype 9": {"fields": [["x", 0, 9, 1]]},
    "its rows of 16 bytes cannot hold 2 points of 32": dict(height=2, width=2, row_step=16),
    r"128 bytes cannot hold 1 rows of 5 points of 32": {"width": 5},
    "128 bytes cannot hold 65536 rows of 4": {"height": 1 << 16},
    "has no x, y, z fields": {"fields": [["a", 0, 7, 1]]},
    "cannot hold 1 rows of 2147483648 points": dict(width=1 << 31, point_step=0, fields=[]),
    "not a readable": None,
}


def test_a_damaged_message_is_one_failed_scan(tmp_path):
    whole = cloud(ROWS)
    broken = [each and whole | each for each in BROKEN.values()]
    path = write_recording(tmp_path, "mcap", {"/points": [whole, *broken, whole]})
    for number, words in enumerate(BROKEN, 1):
        with pytest.raises(CloudFileError, match=words):
            io.open_points(path / f"{number:06d}")
    assert io.open_points(path / f"{len(BROKEN) + 1:06d}").count == 4
    with pytest.raises(WrongUseError, match="no scan 999: it has 10, from 0 on"):
        io.open_points(path / "000999")


def test_odd_fields_and_stamps(tmp_path):
    names = [" x ", "y", "z", "_", "x", "rgb", ""]
    rows = np.arange(28, dtype=np.float32).reshape(4, 7)
    rows[:, 5] = np.array([0x010203] * 4, np.uint32).view(np.float32)
    fields = [[name, 4 * i, 7, i % 2] for i, name in enumerate(names)]  # COUNT 0 is 1
    odd = cloud(ROWS, 0) | dict(fields=fields, point_step=28, row_step=0, width=4)
    odd["data"] = rows.view(np.uint8).reshape(-1)
    recording = io.open_recording(write_recording(tmp_path, "bag", {"points": [odd, odd]}))
    first, second = recording.scans()
    np.testing.assert_array_equal(first.table.xyz, rows[:, :3])
    colors = {name: values.tolist() for name, values in first.table.attributes.items()}
    assert colors == {"red": [1] * 4, "green": [2] * 4, "blue": [3] * 4}
    assert (first.stamp, second.stamp) == (STAMP, STAMP + 10**8)
    assert "its stamp is 0" in first.problems[0] and second.problems == []


def test_scans_have_paths(tmp_path, monkeypatch):
    clouds = [cloud(points(count=i + 1, seed=i)) for i in range(9)]
    folder = tmp_path / "a é.mcap"
    folder.mkdir()
    path = write_recording(folder, "mcap", {"/os/points": clouds})
    lone = path / "drive.mcap"
    with monkeypatch.context() as patch:  # the index is enough for the paths
        patch.setattr(bags.Bag, "messages", None)
        assert io.find_clouds([path, lone])[8:10] == [path / "000008", lone / "000000"]
        assert io.find_clouds([lone], scans=slice(1, 8, 3)) == [
            lone / f"{i:06d}" for i in (1, 4, 7)
        ]
        assert io.find_clouds([lone], topic="os/points")[0] == lone / "000000"
    assert io.cloud_stem(lone / "000008") == io.cloud_stem(path / "000008") == "drive.000008"
    for number in (3, 3, 8, 0, 1):
        assert len(io.read_cloud(lone / f"{number:06d}")) == number + 1
    first, last = (io.open_points(lone / f"{i:06d}") for i in (0, 8))
    assert [len(each.cloud()) for each in (last, first)] == [9, 1]
    if (child := os.fork()) == 0:  # shares the position in the file with its parent
        os._exit(len(io.read_cloud(lone / "000004")))
    assert len(io.read_cloud(lone / "000001")) == 2 and os.waitpid(child, 0)[1] >> 8 == 5
    shutil.copytree(path, tmp_path / "clouds" / "bag")
    os.mkfifo(tmp_path / "pipe.xyz")  # nothing is read of it yet
    assert io.find_clouds([tmp_path / "pipe.xyz"]) == [tmp_path / "pipe.xyz"]
    for paths, scans, words in (
        ([tmp_path / "clouds"], None, "no point clouds .*; name the recordings in it"),
        ([lone], slice(9, None), "has 9 scans, none that --scans takes"),
        ([Path(__file__)], slice(0), "there is none among"),
        ([lone / "drive" / "x"], None, "does not exist"),
    ):
        with pytest.raises(WrongUseError, match=words):
            io.find_clouds(paths, scans=scans)
    with pytest.raises(WrongUseError, match=r"name one of its scans, as .*drive/000000"):
        io.open_points(path)


@pytest.mark.parametrize("kind", KINDS)
def test_topics(kind, tmp_path):
    own = {"/a/points": [cloud(points(count=i + 1)) for i in range(3)], "/b": [cloud(ROWS)] * 2}
    path = write_recording(tmp_path, kind, own, others=["/odom"])
    with pytest.raises(WrongUseError, match=r"choose one .*: /a/points \(3 scans, 10 Hz\), /b"):
        io.find_clouds([path])
    with pytest.raises(WrongUseError, match=r"names none of .*: /a/points"):
        io.find_clouds([path], topic="/odom")
    scans = io.find_clouds([path], topic="/a/points")
    assert scans[2] == path / "a" / "points" / "000002"
    assert io.cloud_stem(scans[2]) == "drive.a_points.000002"
    assert [len(io.read_cloud(scan)) for scan in scans] == [1, 2, 3]
    (tmp_path / "none").mkdir()
    empty = write_recording(tmp_path / "none", kind, {}, others=["/odom"])
    with pytest.raises(WrongUseError, match=r"no topic .*: /odd is .*; /odom is nav_msgs/msg/Odom"):
        io.find_clouds([empty])


def cut(data):
    return data[: len(data) - 900]


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("mcap", cut, "not closed.*mcap recover drive.mcap"),
        ("bag", lambda d: re.sub(b"index_pos=.{8}", b"index_pos=" + bytes(8), d, flags=re.S),
         "not closed.*rosbag reindex"),
        ("bag", lambda d: d[:-30], "rosbag reindex drive.bag"),
        ("mcap", lambda d: d.replace(b"\4\0\0\0ros2", b"\4\0\0\0ros1"), "profile ros2.*'ros1'"),
        ("mcap", lambda d: d[:9] + b"\xff" * 8 + d[17:], "more bytes than memory can hold"),
        ("db3", lambda d: d[:5000], "not a readable ROS 2 bag"),
    ],
)  # fmt: skip
def test_files_that_were_not_closed(kind, change, words, tmp_path):
    path = write_recording(tmp_path, kind, {"/points": [cloud(ROWS)] * 3})
    file = path if kind == "bag" else path / f"drive.{kind}"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(CloudFileError, match=words):
        io.open_recording(file)


def test_what_rosbags_would_misread(tmp_path, monkeypatch):
    from rosbags.rosbag2 import CompressionMode

    (tmp_path / "a").mkdir()
    path = write_recording(tmp_path / "a", "db3", {"/points": [cloud(ROWS)]})
    (path / "drive.db3-wal").write_bytes(b"log")
    for each in (path, path / "drive.db3"):
        with pytest.raises(CloudFileError, match="messages that are not in it yet: run sqlite3"):
            io.open_recording(each)
    mode = {"compression": CompressionMode.FILE}
    path = write_recording(tmp_path, "db3", {"/points": [cloud(ROWS)]}, **mode)
    assert len(io.open_recording(path).scan(0).table) == len(ROWS)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    with pytest.raises(CloudFileError, match=r"FILE needs more than 4096 bytes of room .*: ros2"):
        io.open_recording(path)


def test_compressed_recordings(tmp_path):
    from rosbags.rosbag1 import Writer
    from rosbags.rosbag2 import CompressionMode

    modes = [("bag", Writer.CompressionFormat.BZ2), ("bag", Writer.CompressionFormat.LZ4),
             ("mcap", CompressionMode.STORAGE), ("db3", CompressionMode.MESSAGE)]  # fmt: skip
    for number, (kind, compression) in enumerate(modes):
        (folder := tmp_path / str(number)).mkdir()
        path = write_recording(folder, kind, {"/a": [cloud(ROWS)] * 3}, compression=compression)
        scans = [*io.open_recording(path).scans()]
        assert [scan.table.attributes["t"].tolist() for scan in scans] == [ROWS["t"].tolist()] * 3


def test_chunks_that_explode_are_refused(tmp_path, monkeypatch):
    bomb = bz2.compress(bytes(80 << 20))
    with pytest.raises(ValueError, match="expand to more than 67108864"):
        bags.unpacked("bz2", bomb)
    with pytest.raises(ValueError, match="cut short"):
        bags.unpacked("bz2", bomb[:30])
    from rosbags.rosbag1 import Writer
    from rosbags.rosbag2 import CompressionMode

    monkeypatch.setattr(bags, "ALWAYS", 0)  # the readers of all formats use these decompressors
    monkeypatch.setattr(bags, "EXPANSION", 2)
    zeros = cloud(np.zeros_like(points(count=4000)))
    for kind, compression in (("bag", Writer.CompressionFormat.BZ2),
                              ("bag", Writer.CompressionFormat.LZ4),
                              ("mcap", CompressionMode.STORAGE),
                              ("db3", CompressionMode.MESSAGE)):  # fmt: skip
        (folder := tmp_path / str(compression)).mkdir()
        path = write_recording(folder, kind, {"/a": [zeros]}, compression=compression)
        with pytest.raises(CloudFileError, match=r"ends at scan 0: it .* expand to more than"):
            io.open_points(path / "000000")


@pytest.mark.parametrize("kind", KINDS)
def test_fuzzed_files_end_in_typed_errors(kind, tmp_path):
    whole = write_recording(tmp_path, kind, {"/points": [cloud(points(count=9))] * 5})
    whole = whole if kind == "bag" else whole / f"drive.{kind}"
    data, path = whole.read_bytes(), tmp_path / f"a.{kind}"
    read = 0
    for seed in range(100):
        path.write_bytes(fuzzing.damage(data, np.random.default_rng(seed), False))
        try:
            recording = io.open_recording(path)
        except TorchvoxError as error:
            assert len(str(error).splitlines()) == 1 and len(str(error)) < 900
            continue
        try:
            for number in range(min(recording.count, 5)):
                try:
                    read += len(recording.scan(number).table)
                except TorchvoxError as error:
                    assert len(str(error).splitlines()) == 1 and len(str(error)) < 900
        except WrongUseError:  # it has no topic of clouds any more
            pass
        recording.close()
    assert read > 0


def test_the_memory_of_a_pass_is_that_of_a_chunk(tmp_path):
    path = write_recording(tmp_path, "mcap", {"/points": [cloud(points(count=30_000))] * 100})
    program = (
        "import resource, torchvox.io as io, sys\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
        "recording = io.open_recording(sys.argv[1])\n"
        "recording.scan(0); before = peak()\n"
        "assert sum(len(scan.table) for scan in recording.scans()) == 3_000_000\n"
        "print(peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
    assert done.stderr == "" and int(done.stdout) < 30, done  # MiB, of a file of 92
