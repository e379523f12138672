# SPDX-License-Identifier: Apache-2.0
"""LAS and LAZ as tables: every column in its type, and what is written has what was read."""

import struct

import numpy as np
import pytest
from helpers import DATA, assert_same_points, read_points, write_points

from torchvox._util.errors import CloudFileError, WrongUseError
from torchvox.io import PointTable, create_points, open_points, read_cloud
from torchvox.io.las_records import EVLR, head_records, records
from torchvox.io.table import join

laspy = pytest.importorskip("laspy", reason="the extra las is not installed")
pytest.importorskip("lazrs", reason="the extra las is not installed")

KINDS = [f"{kind}{size}" for kind in "ui" for size in (1, 2, 4, 8)] + ["f4", "f8"]
TYPES = [*KINDS, *(f"{k}{kind}" for k in (2, 3) for kind in KINDS)]
WKT = b'PROJCS["somewhere"]\0'
WAVES = (4, 5, 9, 10)


def write(path, number=7, count=50, version=None, types=(), records=(), late=(), user=b"", seed=0):
    """A file whose points have random bytes, except that floats are not NaN."""
    version = version or ("1.4" if number > 5 else "1.3" if number > 3 else "1.2")
    header = laspy.LasHeader(point_format=number, version=version)
    header.scales, header.offsets = [0.01, 0.01, 0.001], [637000.0, 0.0, -5.5]
    header.file_source_id, header.uuid = 77, header.uuid.__class__(int=2**100 + 5)
    header.global_encoding.value = 0b10001
    header.add_extra_dims([laspy.ExtraBytesParams(f"extra {t}", t) for t in types])
    header.vlrs.extend(laspy.VLR(*r) for r in records)
    header.extra_vlr_bytes = user
    file = laspy.LasData(header)
    file.points = laspy.ScaleAwarePointRecord.zeros(count, header=header)
    rng = np.random.default_rng(seed)
    array = file.points.array
    for name in array.dtype.names:
        type_ = array.dtype[name]
        values = rng.integers(0, 256, (count, type_.itemsize), np.uint8)
        if type_.base.kind == "f":
            values = rng.normal(0, 9, (count, *type_.shape)).astype(type_.base)
        array[name] = np.frombuffer(values.tobytes(), type_, count)
    if number > 8:
        file.scanner_channel[:] = 2  # lazrs writes the waveforms of several wrong
    file.evlrs = laspy.vlrs.vlrlist.VLRList(laspy.VLR(*r) for r in late) if late else None
    file.write(path)
    return array


def copy(source, target, size=17, **options):
    reader = open_points(source)
    with create_points(target, reader, **options) as writer:
        for chunk in reader.chunks(size):
            writer.append(chunk)
    return target


def points(path):
    return laspy.read(path).points.array


def head(path):
    data = path.read_bytes()
    return data[: struct.unpack_from("<I", data, 96)[0]]


@pytest.mark.parametrize("suffix", [".las", ".laz"])
@pytest.mark.parametrize("number", range(11))
def test_every_point_format_has_laspy_s_values_and_is_copied_byte_for_byte(
    tmp_path, number, suffix
):
    stored = write(source := tmp_path / "a.las", number, types=("u2", "2f4", "i8"))
    reader, expected = open_points(source), laspy.read(source)
    if suffix == ".laz" and number in (4, 5):
        with pytest.raises(WrongUseError, match="LASzip does not read"):
            copy(source, tmp_path / "b.laz")
        expected.write(tmp_path / "b.laz")
    else:
        copied = copy(source, tmp_path / f"b{suffix}")
        np.testing.assert_array_equal(points(copied), stored)
        whole = source.read_bytes(), copy(copied, tmp_path / "c.las", 50).read_bytes()
        start = struct.unpack_from("<I", whole[0], 96)[0]
        assert len(whole[1]) == len(whole[0]) and whole[1][start:] == whole[0][start:]
    for path in (source, tmp_path / f"b{suffix}"):
        table = read_points(path)
        assert list(table.attributes) == list(expected.point_format.dimension_names)[3:]
        for name, values in table.attributes.items():
            np.testing.assert_array_equal(values, np.asarray(expected[name]))
            assert values.dtype == reader.columns[name].base
        places = np.stack([expected.x, expected.y, expected.z], 1)
        np.testing.assert_array_equal(table.world(), places)


@pytest.mark.parametrize("number", [1, 8])
def test_chunks_of_any_size_from_any_point_with_any_columns(tmp_path, number):
    write(tmp_path / "a.las", number, types=("f4",))
    copy(tmp_path / "a.las", tmp_path / "a.laz")
    whole = read_points(tmp_path / "a.las")
    for suffix in ("las", "laz"):
        reader = open_points(tmp_path / f"a.{suffix}")
        parts = [(0, 7, None), (33, 5, ["gps_time"]), (50, 1, None), (3, 99, [])]
        for first, size, columns in parts:
            chunks = reader.schema.rows(slice(0), columns), *reader.chunks(size, first, columns)
            assert_same_points(join(chunks), whole.rows(slice(first, None), columns))
    with pytest.raises(WrongUseError, match="no column nothing: it has intensity"):
        reader.chunks(columns=["nothing"])
    with pytest.raises(WrongUseError, match="first at most 50"):
        reader.chunks(first=51)


def test_extra_bytes_of_every_type_keep_description_and_no_data(tmp_path):
    write(tmp_path / "a.las", 6, types=TYPES)
    data = bytearray((tmp_path / "a.las").read_bytes())
    for at, type_ in enumerate(TYPES):
        at = data.index(b"extra ") - 4 + 192 * at
        data[at + 3] |= 0b1001  # a scale too
        data[at + 40 : at + 64] = np.full(3, 7, f"<{type_[-2]}8").tobytes()
        struct.pack_into("<3d", data, at + 112, 0.5, 0.25, 2.0)
    (tmp_path / "a.las").write_bytes(data)
    reader = open_points(copy(tmp_path / "a.las", tmp_path / "b.laz"))
    written, before = head(tmp_path / "b.laz"), head(tmp_path / "a.las")
    table = join(list(reader.chunks(9)))
    for i, type_ in enumerate(TYPES):
        name = f"extra {type_}"
        assert reader.columns[name] == np.dtype(type_)
        assert reader.no_data[name].tolist() == [7] * int(np.prod(np.dtype(type_).shape))
        values = table.attributes[name].reshape(50, -1).T
        got = written[written.index(b"extra ") - 4 + 192 * i :][:192]
        old = before[before.index(b"extra ") - 4 + 192 * i :][:192]
        assert got[:64] + got[112:] == old[:64] + old[112:]
        low, high = (np.frombuffer(got, f"<{type_[-2]}8", len(values), k) for k in (64, 88))
        for k, column in enumerate(values):
            good = column[column != 7]
            assert (low[k], high[k]) == (good.min(), good.max())


def test_columns_may_be_dropped_and_added(tmp_path):
    write(tmp_path / "a.las", 6, types=("u1", "f8"))
    whole = read_points(tmp_path / "a.las")
    del whole.attributes["extra u1"]
    whole.attributes["number"] = np.arange(50, dtype=np.uint32)
    write_points(tmp_path / "b.las", whole)
    reader = open_points(tmp_path / "b.las")
    assert list(reader.columns)[-2:] == ["extra f8", "number"]
    assert_same_points(next(reader.chunks()), whole)
    for name in ("extra f8", "number"):
        del whole.attributes[name]
    write_points(tmp_path / "c.las", whole)
    assert not [key for key, _ in head_records(head(tmp_path / "c.las"))[1]]


def test_bytes_without_a_description_stay_behind_those_with_one(tmp_path):
    write(tmp_path / "a.las", 1, types=("5u1",))
    data = (tmp_path / "a.las").read_bytes()
    (tmp_path / "a.las").write_bytes(data.replace(b"LASF_Spec", b"somewhere"))
    table = read_points(tmp_path / "a.las")
    assert table.columns["ExtraBytes"] == np.dtype("5u1")
    table.attributes["count"] = np.arange(50)
    write_points(tmp_path / "b.laz", table)
    back = read_points(tmp_path / "b.laz")
    assert list(back.columns)[-2:] == ["count", "ExtraBytes"]
    assert_same_points(back, table.rows(slice(None), back.columns))


@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_the_header_keeps_replaces_and_counts_what_it_should(tmp_path, suffix, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")  # 2001-09-09
    own = [("vendor", 9, "ours", bytes(range(200))), ("LASF_Projection", 2112, "", WKT)]
    late = [("vendor", 10, "late", b"\1" * 70000), ("copc", 1000, "", b""), ("last", 1, "", b"")]
    dropped = [("copc", 1, "info", bytes(160))]
    write(tmp_path / "a.las", 8, types=("u2",), records=dropped + own, late=late, user=b"user's")
    copied = copy(tmp_path / "a.las", tmp_path / f"b{suffix}", scale=0.02)
    a, b = head(tmp_path / "a.las"), head(copied)
    assert b[:26] == a[:26] and b.endswith(b"user's")  # signature, source, encoding, GUID, version
    assert b[26:58].rstrip(b"\0") == b"MODIFICATION" and b[58:90].startswith(b"torchvox ")
    assert struct.unpack_from("<HH", b, 90) == (252, 2001)
    kept = [(key, whole) for key, whole in head_records(a)[1] if key[0] != b"copc"]
    got = [(key, whole) for key, whole in head_records(b)[1] if key[0] != b"laszip encoded"]
    assert [key for key, _ in got] == [key for key, _ in kept]
    assert [w for k, w in got if k != (b"LASF_Spec", 4)] == [w for k, w in kept if k[1] != 4]
    start, number = struct.unpack_from("<QI", b, 235)
    data = copied.read_bytes()
    found = {key: whole[EVLR:] for key, whole in records(data[start:], number, EVLR)}
    assert found == {(b"vendor", 10): b"\1" * 70000, (b"last", 1): b""}
    back = laspy.read(copied)
    places = np.stack([back.x, back.y, back.z])
    np.testing.assert_array_equal(back.header.mins, places.min(1))
    np.testing.assert_array_equal(back.header.maxs, places.max(1))
    counts = np.bincount(np.asarray(back.return_number), minlength=16)[1:]
    np.testing.assert_array_equal(back.header.number_of_points_by_return, counts)
    assert struct.unpack_from("<I", b, 107)[0] == 0  # the old count, for old formats
    assert open_points(copied).crs == 'PROJCS["somewhere"]'
    again = copy(tmp_path / "a.las", tmp_path / f"c{suffix}", 50, scale=0.02)
    assert again.read_bytes() == copied.read_bytes()


@pytest.mark.parametrize("number", WAVES)
def test_waveforms_stay_with_their_columns_only(tmp_path, number):
    described = ("LASF_Spec", 100, "", bytes(26))
    late = [("LASF_Spec", 65535, "", b"waves")] if number > 5 else []
    write(tmp_path / "a.las", number, records=[described], late=late)
    data = bytearray((tmp_path / "a.las").read_bytes())
    data[6] |= 2
    if number < 6:  # version 1.3
        struct.pack_into("<Q", data, 227, len(data))
        data += struct.pack("<2x16sHQ32s", b"LASF_Spec", 65535, 5, b"") + b"waves"
    (tmp_path / "a.las").write_bytes(data)
    copied = copy(tmp_path / "a.las", tmp_path / "b.las").read_bytes()
    at = struct.unpack_from("<Q", copied, 227)[0]
    assert copied[104] == number and copied[6] & 2
    assert copied[at + EVLR :] == b"waves"
    table = read_points(tmp_path / "a.las")
    for name in ("wavepacket_index", "x_t"):
        del table.attributes[name]
    write_points(tmp_path / "c.las", table)
    dropped = (tmp_path / "c.las").read_bytes()
    assert dropped[104] == {4: 1, 5: 3, 9: 6, 10: 8}[number] and not dropped[6] & 2
    assert b"waves" not in dropped and not head_records(head(tmp_path / "c.las"))[1]
    laspy.read(tmp_path / "c.las")


def test_waveforms_that_lazrs_would_corrupt_are_refused(tmp_path):
    write(tmp_path / "a.las", 9)
    table = read_points(tmp_path / "a.las")
    table.attributes["scanner_channel"][5:] = 1
    with pytest.raises(WrongUseError, match="scanner channels"):
        write_points(tmp_path / "b.laz", table)


@pytest.mark.parametrize("version", ["1.1", "1.2", "1.3", "1.4", "1.5"])
@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_a_file_without_points_is_one(tmp_path, version, suffix):
    write(tmp_path / "a.las", 6 if version == "1.5" else 1, count=0, version=version)
    copied = copy(tmp_path / "a.las", tmp_path / f"b{suffix}")
    reader = open_points(copied)
    assert (reader.count, reader.box, list(reader.chunks())) == (0, None, [])
    assert len(read_cloud(copied)) == 0
    assert str(laspy.read(copied).header.version) == version


def test_tables_of_other_formats_become_the_smallest_point_format(tmp_path):
    xyz = np.random.default_rng(0).normal(0, 100, (30, 3)).astype(np.float32)
    columns = {name: np.arange(30, dtype=np.uint8) for name in ("red", "green", "blue")}
    columns["ring"] = np.arange(30, dtype=np.int16)
    table = PointTable(xyz, columns, crs=WKT[:-1].decode())
    write_points(tmp_path / "a.laz", table)
    reader = open_points(tmp_path / "a.laz")
    back = next(iter(reader.chunks()))
    assert np.abs(back.world() - xyz).max() <= 0.0005 + 1e-9
    assert back.attributes["red"].tolist() == list(range(30))
    assert back.attributes["ring"].dtype == np.int16
    assert (laspy.read(tmp_path / "a.laz").point_format.id, reader.crs) == (7, table.crs)


@pytest.mark.parametrize(
    ("x", "name", "values", "reason"),
    [
        (0, "intensity", np.full(4, 0.5), "no room for intensity, float64 from 0.5"),
        (0, "return_number", np.full(4, 99), "no room for return_number"),
        (0, "classification", np.full(4, -1, np.int16), "no room for classification"),
        (0, "far", np.ones(4, np.float16), "not far, float16"),
        (0, "four", np.ones((4, 4)), "1 to 3 values"),
        (0, "x" * 40, np.ones(4), "32 bytes"),
        (1e9, "a", np.ones(4), "more than 32 bits"),
        (np.nan, "a", np.ones(4), "not finite"),
    ],
)
def test_what_las_does_not_hold_is_refused_and_nothing_is_written(
    tmp_path, x, name, values, reason
):
    table = PointTable(np.array([[0, 0, 0]] * 3 + [[x, 0, 0]], np.float64), {name: values})
    with pytest.raises(WrongUseError, match=reason):
        write_points(tmp_path / "a.laz", table, scale=1e-3, offset=0)
    assert not list(tmp_path.iterdir())


def test_a_truncated_file_can_be_salvaged_and_one_without_extended_records_is_read(tmp_path):
    path = tmp_path / "a.las"
    write(path)
    path.write_bytes(path.read_bytes()[: -10 * 36 - 5])
    with pytest.raises(CloudFileError, match="cut short"):
        open_points(path)
    reader = open_points(path, salvage=True)
    assert "cut short" in reader.problems[0]
    assert [len(chunk) for chunk in reader.chunks(30)] == [30, 9]
    write(path, late=[("late", 1, "", b"12345")])
    path.write_bytes(path.read_bytes()[:-1])
    reader = open_points(path)
    assert reader.problems == ["its 1 extended records do not fit its size and are ignored"]
    assert struct.unpack_from("<I", head(copy(path, tmp_path / "b.las")), 243)[0] == 0


def test_a_real_scan_is_copied_as_it_is(tmp_path):
    path = DATA / "las" / "autzen_trim.laz"
    if not path.exists():
        pytest.skip(f"no {path}: set TORCHVOX_DATA to the folder of real scans")
    copied = copy(path, tmp_path / "a.las", 30_000)
    again = copy(copied, tmp_path / "b.laz", 99_999)
    np.testing.assert_array_equal(points(copied), points(path))
    np.testing.assert_array_equal(read_cloud(again).points, read_cloud(path).points)
    reader = open_points(again)
    assert reader.crs.startswith("PROJCS") and reader.color_depth == 8
    for key, whole in head_records(head(path))[1]:
        assert key[0] == b"laszip encoded" or (key, whole) in head_records(head(again))[1]
