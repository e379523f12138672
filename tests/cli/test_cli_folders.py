# SPDX-License-Identifier: Apache-2.0
"""Many inputs: a file that fails stops no other, what is wrong for all of them stops at once."""

import numpy as np
import pytest

POINTS = np.random.default_rng(0).uniform(0, [9, 9, 9, 1], (50, 4)).astype(np.float32)
XYZI = ["x", "y", "z", "intensity"]


@pytest.fixture
def mixed(tmp_path):
    """a.bin of KITTI, b.pcd, c.npz that names three columns, d.npy of four."""
    pypcd4 = pytest.importorskip("pypcd4", reason="the extra pcd is not installed")
    folder = tmp_path / "in"
    folder.mkdir()
    POINTS.tofile(folder / "a.bin")
    pypcd4.PointCloud.from_points(POINTS, XYZI, [np.float32] * 4).save(folder / "b.pcd")
    np.savez(folder / "c.npz", points=POINTS[:, :3], columns=["x", "y", "z"])
    np.save(folder / "d.npy", POINTS)
    return folder


def failures(result, count: int) -> list[str]:
    """The lines about files that failed; the last line counts them."""
    lines = [line for line in result.err.splitlines() if not line.startswith("device: ")]
    assert result.code == (1 if count else 0), result.err
    assert lines[count:] == ([f"torchvox: {count} of 4 files failed"] if count else [])
    return lines[:count]


def test_the_layout_is_for_the_files_that_do_not_name_their_columns(torchvox_cli, mixed, tmp_path):
    failures(torchvox_cli("sample", mixed, "--layout", "kitti", "-n", 9, "-o", "out"), 0)
    columns = {p.name[0]: list(np.load(p)["columns"]) for p in (tmp_path / "out").iterdir()}
    assert columns == {"a": XYZI, "b": XYZI, "c": XYZI[:3], "d": XYZI}


@pytest.mark.parametrize("command", ["info", "voxelize", "sample", "bev"])
def test_a_bin_without_a_layout_fails_alone(torchvox_cli, mixed, tmp_path, command):
    options = () if command == "info" else ("-o", "out", "--format", "npz")
    result = torchvox_cli(command, mixed, *options)
    (line,) = failures(result, 1)
    assert line.startswith(f"torchvox: {mixed / 'a.bin'}: a .bin file") and "--layout" in line
    assert [out[:5] for out in result.out.splitlines()] == ["b.pcd", "c.npz", "d.npy"]
    if options:
        assert sorted(p.name[0] for p in (tmp_path / "out").iterdir()) == ["b", "c", "d"]


def test_where_all_name_their_columns_the_layout_still_replaces_them(torchvox_cli, mixed, tmp_path):
    for name in ("a.bin", "b.pcd", "d.npy"):
        (mixed / name).unlink()
    np.savez(mixed / "b.npz", points=POINTS[:, :3], columns=["x", "y", "z"])
    torchvox_cli("sample", mixed, "--layout", "y,x,z", "-n", 9, "-o", "out").ok()
    one = np.load(tmp_path / "out" / "b.samples.npz")
    np.testing.assert_array_equal(one["points"], POINTS[one["idx"]][:, [1, 0, 2]])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("voxelize", "--grid", "kitty"), ("kitty", "kitti_pillars")),
        (("voxelize", "--bounds", "0,0,0,1,1,1"), ("--bounds needs --voxel",)),
        (("bev", "--bounds", "0,0,0,1,1", "--voxel", "1"), ("--bounds takes 6 numbers",)),
        (("bev", "--bounds", "9,0,0,1,1,1", "--voxel", "1"), ("x0 < x1",)),
        (("voxelize", "--voxel", "nan"), ("voxel_size must be 3 positive numbers",)),
        (("voxelize", "--reduce", "none", "--max-points", "-1"), ("needs --max-points",)),
        (("sample", "--layout", "velodyne"), ("layout 'velodyne' is unknown",)),
        (("info", "--layout", "x,y"), ("must name x, y and z",)),
    ],
)
def test_what_is_wrong_for_all_files_stops_before_the_first(
    torchvox_cli, mixed, tmp_path, arguments, words
):
    (mixed / "a.bin").write_bytes(b"broken")
    torchvox_cli(*arguments, mixed).assert_one_sentence(2, *words)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("rgb"), "KeyError: 'rgb'"),
        (EOFError(), "EOFError"),
        (RuntimeError("too\nlarge"), "too large"),
        (KeyboardInterrupt(), None),
    ],
)
def test_an_error_of_any_kind_names_its_file_and_stops_no_other_but_an_interrupt_stops_all(
    torchvox_cli, mixed, tmp_path, monkeypatch, error, words
):
    from torchvox.cli import work

    def write(path, **arrays):
        if path.name == "b.samples.npz":
            raise error
        path.parent.mkdir(exist_ok=True)
        path.touch()

    monkeypatch.setattr(work, "write_npz", write)
    result = torchvox_cli("sample", mixed, "--layout", "kitti", "-o", "out")
    if words is None:
        return result.assert_one_sentence(130, "interrupted")
    (line,) = failures(result, 1)
    assert line.startswith(f"torchvox: {mixed / 'b.pcd'}: {words}")
    assert sorted(p.name[0] for p in (tmp_path / "out").iterdir()) == ["a", "c", "d"]


def test_scans_that_a_detector_cannot_use_stop_no_other(
    torchvox_cli, detector_file, mixed, tmp_path
):
    result = torchvox_cli("detect", mixed, "-m", detector_file, "--layout", "kitti", "-o", "out")
    (line,) = failures(result, 1)
    assert "c.npz has no intensity column" in line
    assert sorted(p.name[0] for p in (tmp_path / "out").iterdir()) == ["a", "b", "d"]


@pytest.mark.parametrize("command", ["voxelize", "detect"])
def test_pictures_without_matplotlib_stop_before_the_first_file(
    torchvox_cli, detector_file, mixed, tmp_path, monkeypatch, command
):
    from torchvox.cli import outputs

    def missing(module, purpose):
        raise outputs.WrongUseError(f"{module} is missing {purpose}")

    monkeypatch.setattr(outputs, "require", missing)
    pictures = {"voxelize": ("--format", "png"), "detect": ("-m", detector_file, "--pictures", "p")}
    result = torchvox_cli(command, mixed, "--layout", "kitti", "-o", "out", *pictures[command])
    result.assert_one_sentence(2, "matplotlib is missing to draw pictures")
    assert not (tmp_path / "out").exists()


def test_a_link_to_nothing_in_a_folder_is_a_file_that_fails(torchvox_cli, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 3)))
    (tmp_path / "b.npy").symlink_to("nowhere")
    result = torchvox_cli("info", ".")
    assert result.code == 1 and "a.npy  3 points" in result.out
    assert "b.npy: No such file or directory" in result.err and "1 of 2 files" in result.err
