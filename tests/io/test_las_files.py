# SPDX-License-Identifier: Apache-2.0
"""LAS files of other programs: what is odd in their headers keeps no point from being read."""

import os
import re
import struct
from dataclasses import replace

import fuzzing
import numpy as np
import pytest
from helpers import read_points, write_points
from test_las_tables import TYPES, copy, write

from torchvox._util.errors import CloudFileError, WrongUseError
from torchvox.io import PointTable, open_points, read_cloud
from torchvox.io.las_records import descriptors, head_records
from torchvox.io.laz import QUIET
from torchvox.io.table import flat, join

laspy = pytest.importorskip("laspy", reason="the extra las is not installed")
pytest.importorskip("lazrs", reason="the extra las is not installed")


def put(at, form, *values):
    return lambda data: struct.pack_into(form, data, at, *values)


def rename(*names):
    """New names of the extra columns u2, f4."""

    def change(data):
        for old, new in zip((b"extra u2", b"extra f4"), names, strict=False):
            at = data.index(old)
            data[at : at + 32] = new.ljust(32, b"\0")

    return change


def foreign_record(data):
    at = data.index(b"vendor")
    data[at : at + 6] = b"v\xffnd\xe9r"


def unknown_type(data):
    data[data.index(b"extra u2") - 2] = 77


def upside_down(data):
    data[211:227] = data[219:227] + data[211:219]  # z alone


def put_table_last(data):
    """As a writer that cannot seek leaves the chunk table."""
    start = struct.unpack_from("<I", data, 96)[0]
    data += data[start : start + 8]
    data[start : start + 8] = b"\xff" * 8


def pad_laszip_record(data):
    """The record says how many items it has; what follows them is no item."""
    start, record = struct.unpack_from("<I", data, 96)[0], data.index(b"laszip encoded") - 2
    for at, form in ((record + 20, "<H"), (96, "<I"), (start, "<q")):
        struct.pack_into(form, data, at, struct.unpack_from(form, data, at)[0] + 12)
    data[start:start] = bytes(12)


FILES = {  # point format, change; points that are read, words of the problem, names of columns
    "count in the old place": (8, [put(247, "<Q", 0), put(107, "<I", 50)], 50, "0 and 50"),
    "a smaller old count": (8, [put(107, "<I", 49)], 50, "50 and 49"),
    "a new count beyond the file": (8, [put(247, "<Q", 51), put(107, "<I", 50)], 50, "51 and 50"),
    "no counts": (8, [put(247, "<Q", 0)], 50, "counts 0 points, 50 more"),
    "no count of 1.2": (1, [put(107, "<I", 0)], 50, "counts 0 points, 50 more"),
    "points behind the last": (8, [put(247, "<Q", 47)], 47, "47 points, 3 more .* ignored"),
    "equal counts": (8, [put(107, "<I", 50)], 50, ""),
    "an odd day and alphabet": (1, [put(90, "<HH", 999, 10000), foreign_record], 50, ""),
    "bit 7": (1, [put(104, "<B", 129)], 50, "says compressed"),
    "a box upside down": (8, [upside_down], 50, "the box"),
    "no box": (8, [put(179, "<6d", *[0] * 6)], 50, "the box"),
    "Latin-1": (8, [rename(b"H\xf6he")], 50, "as Höhe", "Höhe", "extra f4"),
    "UTF-8": (8, [rename("Höhe".encode())], 50, "", "Höhe", "extra f4"),
    "no name": (8, [rename(b"")], 50, "'' as extra", "extra", "extra f4"),
    "a name twice": (1, [rename(b"a", b"a")], 50, "'a' as a_2", "a", "a_2"),
    "classes": (8, [rename(b"classification", b"x")], 50, "as x_2", "classification_2", "x_2"),
    "bits": (1, [rename(b"bit_fields", b"ExtraBytes")], 50, "as", "bit_fields_2", "ExtraBytes_2"),
    "a type without a meaning": (8, [unknown_type], 50, "do not fit", "blue", "nir", "ExtraBytes"),
}


@pytest.mark.parametrize("name", FILES)
def test_points_are_read_and_bytes_kept(tmp_path, name):
    number, changes, count, words, *names = FILES[name]
    path = tmp_path / "a.las"
    stored = write(path, number, types=("u2", "f4"), records=[("vendor", 9, "", b"12")])
    data = bytearray(path.read_bytes())
    for change in changes:
        change(data)
    path.write_bytes(data)
    reader = open_points(path)
    table = join([reader.schema, *reader.chunks(17)])
    assert reader.count == len(read_cloud(path)) == count
    assert re.search(words or "^$", " ".join(reader.problems))
    np.testing.assert_array_equal(table.xyz, np.stack([stored[a] for a in "XYZ"], axis=1)[:count])
    if count == len(stored):
        np.testing.assert_array_equal(reader.box, table.box)
    names = names or ["extra u2", "extra f4"]
    assert list(reader.columns)[-len(names) :] == names
    if len(names) == 2:
        for column, own in zip(names, ("extra u2", "extra f4"), strict=True):
            np.testing.assert_array_equal(table.attributes[column], stored[own][:count])
    whole = copy(path, tmp_path / "b.las").read_bytes()
    starts = [struct.unpack_from("<I", d, 96)[0] for d in (data, whole)]
    end = starts[0] + count * stored.dtype.itemsize
    assert whole[starts[1] :] == data[starts[0] : end]
    pairs = zip(*(head_records(bytes(d))[1] for d in (data, whole)), strict=True)
    for (key, old), (_, new) in pairs:
        if key == (b"LASF_Spec", 4) and len(names) == 2:  # unchanged except the ranges
            old, new = ([d[:64] + d[112:] for d in descriptors(whole)] for whole in (old, new))
        assert new == old or (key == (b"LASF_Spec", 4) and len(names) == 3)


LAZ = {  # kind of fuzzing.WRITERS, change; points that are read, or None, and words
    "point-wise": ("laz-points", [], 60, ""),
    "point-wise, no count": ("laz-points", [put(107, "<I", 0)], None, "chunks hold some"),
    "no count": ("laz", [put(107, "<I", 0)], None, "chunks hold some"),
    "no counts": ("laz-variable", [put(247, "<Q", 0)], None, "chunks hold some"),
    "a chunk behind the last": ("laz", [put(107, "<I", 50)], 50, "more points than the 50"),
    "points of the one chunk": ("laz-one", [put(247, "<Q", 59)], 59, "more points than the 59"),
    "variable chunks": ("laz-variable", [put(247, "<Q", 20)], 20, "more points than the 20"),
    "count in the old place": ("laz-7", [put(247, "<Q", 0), put(107, "<I", 60)], 60, "0 and 60"),
    "a padded record": ("laz-7", [pad_laszip_record], 60, ""),
    **{
        f"a table at the end of {kind}": (kind, [put_table_last], 60, "")
        for kind in ("laz", "laz-7", "laz-one", "laz-variable", "laz-variable-1")
    },
}


@pytest.mark.parametrize("name", LAZ)
def test_compressed_points_are_read(tmp_path, name, capfd):
    kind, changes, count, words = LAZ[name]
    fuzzing.WRITERS[kind][1](path := tmp_path / "a.laz")
    data = bytearray(path.read_bytes())
    fuzzing.write_las(tmp_path / "a.las", data[104] & 63)
    for change in changes:
        change(data)
    path.write_bytes(data)
    if count is None:
        with pytest.raises(CloudFileError, match=words):
            open_points(path)
        return
    reader = open_points(path)
    assert re.search(words or "^$", " ".join(reader.problems))
    expected = join(list(open_points(tmp_path / "a.las").chunks())).rows(slice(0, count))
    for first in (0, 13):
        table = join([reader.schema, *reader.chunks(19, first)])
        np.testing.assert_array_equal(table.xyz, expected.xyz[first:])
        np.testing.assert_array_equal(table.attributes["more"], expected.attributes["more"][first:])
    assert capfd.readouterr().err == ""


def test_panics_of_lazrs_print_nothing(tmp_path, capfd):
    fuzzing.WRITERS["laz-7"][1](path := tmp_path / "a.laz")
    damaged = fuzzing.damage(path.read_bytes(), np.random.default_rng([11, 1479]), False)
    path.write_bytes(damaged)
    with pytest.raises(CloudFileError, match="not a readable LAS file"):
        read_cloud(path)
    assert capfd.readouterr().err == ""
    with QUIET, QUIET:
        os.write(2, b"one\n\nthread 'x' (5) panicked at a.rs:1:2:\nno\nnote: run\ntwo\n")
    assert capfd.readouterr().err == "one\ntwo\n"


@pytest.mark.parametrize("offset", [(0.0, 0.0, 0.0), (0.003, 0.004, 0.007)])
def test_points_in_float32_are_exact_and_never_on_the_face_of_a_voxel(tmp_path, offset):
    """Of voxels whose size is a multiple of the scale."""
    low = np.array([63_600_000, 84_890_000, 0])
    steps = np.random.default_rng(0).integers(low, low + 100_000, (500, 3))
    table = PointTable(steps.astype(np.int32), {}, np.full(3, 0.01), np.array(offset))
    cloud = read_cloud(write_points(tmp_path / "a.laz", table))
    near = cloud.points[:, :3].astype(np.float64)
    assert np.abs(np.mod(near / 0.01, 1) - 0.5).max() < 0.02
    assert np.abs(near + cloud.origin - table.world()).max() < 2e-4
    base = np.round((cloud.base - offset) / 0.01)
    for leaf in (0.05, 0.1, 0.2, 0.5, 1.0):
        got = np.floor(cloud.points[:, :3] / np.float32(leaf))
        np.testing.assert_array_equal(got, (steps - base) // round(leaf / 0.01))


def scaled_file(path, types):
    """laspy's reading of a file whose extra columns have a scale, an offset, or both."""
    write(path, 6, types=types)
    data = bytearray(path.read_bytes().replace(b"extra ", b"extra_"))
    for i, at in enumerate(range(data.index(b"extra_") - 4, 10**6, 192)[: len(types)]):
        data[at + 3] |= (8, 16, 24)[i % 3]
        struct.pack_into("<6d", data, at + 112, 0.01, 0.25, 3.0, 5.0, -1.0, 1e6)
    path.write_bytes(data)
    file = laspy.read(path)
    names = [d.name for d in file.point_format.extra_dimensions]
    angles = {"scan_angle": np.asarray(file.scan_angle) * 0.006}
    return angles | {name: np.asarray(file[name]) for name in names}


@pytest.mark.parametrize("suffix", [".las", ".ply", ".pcd", ".csv", ".npz", ".npy", ".bin"])
def test_columns_in_steps_have_their_values_everywhere(tmp_path, suffix):
    if suffix == ".pcd":
        pytest.importorskip("pypcd4", reason="the extra pcd is not installed")
    expected = scaled_file(tmp_path / "a.las", TYPES if suffix == ".las" else ("i4", "u2", "3u1"))
    reader = open_points(tmp_path / "a.las")
    chunks = [reader.schema.rows(slice(0), expected), *reader.chunks(19, columns=expected)]
    for chunk in chunks:  # .bin holds near ones alone
        chunk.xyz, chunk.scale, chunk.offset = np.zeros((len(chunk), 3)), None, None
    write_points(tmp_path / f"b{suffix}", *chunks)
    flat_ = flat(expected)
    layout = ",".join(("x", "y", "z", *flat_)) if suffix in (".npy", ".bin") else None
    back = read_points(tmp_path / f"b{suffix}", layout)
    for name, values in flat(back.by_value().attributes).items():
        kept = flat_.get(name, 0) if suffix != ".bin" else flat_[name].astype(np.float32)
        np.testing.assert_array_equal(values, kept)
    assert flat_.keys() <= flat(back.attributes).keys()


def test_tables_of_other_steps(tmp_path):
    scaled_file(tmp_path / "a.las", ("u2",))
    one = next(open_points(tmp_path / "a.las").chunks(columns=["extra_u2", "scan_angle"]))
    other = replace(one, steps={"extra_u2": (np.array([2.0]), np.zeros(1))}, offset=np.ones(3))
    both = join([one, other])
    np.testing.assert_array_equal(both.world(), np.concatenate([one.world(), other.world()]))
    for name in one.attributes:
        pair = one.values(name), other.values(name)
        np.testing.assert_array_equal(both.values(name), np.concatenate(pair))
    with pytest.raises(WrongUseError, match=r"the steps .*0\.01.* of extra_u2"):
        write_points(tmp_path / "b.csv", one, other)
    for table in (replace(one, source=None), one.by_value(), replace(one, source=None).by_value()):
        back = read_points(write_points(tmp_path / "b.las", table))
        for name in one.attributes:
            np.testing.assert_array_equal(back.values(name), one.values(name))


@pytest.mark.parametrize(
    ("degrees", "stored"), [(-15.0, -2500), (7, 1167), (180, 30000), (197, None), (np.nan, None)]
)
def test_scan_angles_are_degrees(tmp_path, degrees, stored):
    table = PointTable(np.zeros((1, 3)), {"scan_angle": np.array([degrees])})
    if stored is None:
        with pytest.raises(WrongUseError, match="degrees from -180 to 180"):
            write_points(tmp_path / "a.las", table)
        return
    write_points(tmp_path / "a.las", table)
    assert laspy.read(tmp_path / "a.las").scan_angle.tolist() == [stored]
