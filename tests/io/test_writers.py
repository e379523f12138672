# SPDX-License-Identifier: Apache-2.0
"""Writing: files appear whole or not at all, and read back as they were."""

import contextlib
import errno
import os

import numpy as np
import pytest

from torchvox._util.errors import WrongUseError
from torchvox.io import PointCloud, atomic_path, read_cloud, write_cloud
from torchvox.io.writers import write_text

CLOUD = PointCloud(
    np.arange(20, dtype=np.float32).reshape(5, 4),
    ("x", "y", "z", "intensity"),
    np.array([636000.0, 848400.0, 1200.0]),
    "ft",
)
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
