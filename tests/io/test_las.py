# SPDX-License-Identifier: Apache-2.0
"""LAS and LAZ: coordinates survive the way to float32, damage is one sentence."""

import struct

import fuzzing
import numpy as np
import pytest

from torchvox._util.errors import CloudFileError
from torchvox.io import read_cloud

laspy = pytest.importorskip("laspy", reason="the extra las is not installed")

SCALE = 0.01


@pytest.fixture(params=[".las", ".laz"])
def tile(request, tmp_path):
    """A file with 500 points on multiples of the scale, and their exact coordinates."""
    if request.param == ".laz":
        pytest.importorskip("lazrs", reason="the extra las is not installed")
    rng = np.random.default_rng(0)
    steps = rng.integers(0, 100_000, (500, 3)) + np.array([63_600_000, 84_890_000, 40_000])
    file = laspy.LasData(laspy.LasHeader(point_format=3, version="1.2"))
    file.header.scales = [SCALE] * 3
    file.header.offsets = [0, 0, 0]
    file.X, file.Y, file.Z = steps.T
    file.intensity = np.arange(500)
    file.red = np.full(500, 300)
    path = tmp_path / f"tile{request.param}"
    file.write(path)
    return path, steps


@pytest.mark.parametrize("offset", [[0, 0, 0], [0.003, 0.004, 0.007]])
def test_world_coordinates_come_back_and_none_is_on_a_face(tile, offset):
    """No face of a voxel whose size is a multiple of the scale."""
    path, steps = tile
    file = laspy.read(path)
    file.header.offsets = offset
    file.points.offsets = np.array(offset)
    file.write(path)
    cloud = read_cloud(path)
    near = cloud.points[:, :3].astype(np.float64)
    assert np.abs(np.mod(near / SCALE, 1) - 0.5).max() < 0.02
    assert np.abs(near + cloud.origin - steps * SCALE - offset).max() < 0.02 * SCALE


@pytest.mark.parametrize("chunk", [25, -1, 50_000])
@pytest.mark.parametrize("point_format", [1, 3, 6, 7])
def test_a_table_of_chunks_at_the_end_is_found(tmp_path, point_format, chunk):
    fuzzing.write_las(tmp_path / "a.las", point_format)
    fuzzing.write_las(tmp_path / "a.laz", point_format, chunk=chunk)
    data = bytearray((tmp_path / "a.laz").read_bytes())
    start = struct.unpack_from("<I", data, 96)[0]
    data += data[start : start + 8]
    data[start : start + 8] = b"\xff" * 8
    (tmp_path / "b.laz").write_bytes(data)
    expected = read_cloud(tmp_path / "a.las").points
    for name in ("a.laz", "b.laz"):
        np.testing.assert_array_equal(read_cloud(tmp_path / name).points, expected)


def test_a_padded_laszip_record_is_read(tmp_path):
    """The record says how many items it has; what follows them is no item."""
    path = tmp_path / "a.laz"
    fuzzing.WRITERS["laz-7"][1](path)
    whole, pad = bytearray(path.read_bytes()), 12
    expected = read_cloud(path).points
    start = struct.unpack_from("<I", whole, 96)[0]
    table = struct.unpack_from("<q", whole, start)[0]
    record = whole.index(b"laszip encoded") - 2  # of the VLR's head, whose data are last
    length = struct.unpack_from("<H", whole, record + 20)[0]
    struct.pack_into("<H", whole, record + 20, length + pad)
    struct.pack_into("<I", whole, 96, start + pad)
    struct.pack_into("<q", whole, start, table + pad)
    path.write_bytes(whole[:start] + bytes(pad) + whole[start:])
    np.testing.assert_array_equal(read_cloud(path).points, expected)


@pytest.mark.parametrize("leaf", [0.05, 0.1, 0.2, 0.5, 1.0])
def test_float32_and_integers_agree_on_the_voxel_of_every_point(tile, leaf):
    path, steps = tile
    cloud = read_cloud(path)
    got = np.floor(cloud.points[:, :3] / np.float32(leaf)).astype(np.int64)
    base = np.round((cloud.origin + SCALE / 2) / SCALE).astype(np.int64)
    np.testing.assert_array_equal(got, (steps - base) // round(leaf / SCALE))


def test_a_truncated_file_is_refused_in_one_sentence(tile):
    path, _ = tile
    whole = path.read_bytes()
    for keep in (3, 200, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:keep])
        with pytest.raises(CloudFileError) as error:
            read_cloud(path)
        assert "\n" not in str(error.value)
