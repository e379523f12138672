# SPDX-License-Identifier: Apache-2.0
"""torchvox map: what scans, graphs, trajectories and maps give, as every kind of file."""

import struct
from typing import NamedTuple

import numpy as np
import pytest
import torch

from torchvox.io import open_points
from torchvox.mapping import OccupancyMap

XYZ = ("--layout", "xyz", "--device", "cpu")


def agreement(path, made):
    """Share of the observed voxels of a map that the map of a file has too."""
    ours, theirs = (
        {*map(tuple, one.extract("observed").indices.tolist())}
        for one in (made, OccupancyMap.load(path))
    )
    return len(ours & theirs) / len(ours)


class Drive(NamedTuple):
    clouds: list  # [N, 3] float32 each
    poses: np.ndarray

    def mapped(self, rows=(0, 1, 2), rays=None, **options):
        made = OccupancyMap(**{"voxel_size": 0.2, **options})
        for i in rows:
            pose = torch.from_numpy(self.poses[i])
            made.integrate(torch.from_numpy(self.clouds[i]), pose=pose, **(rays or {}))
        return made


@pytest.fixture
def drive(tmp_path):
    """Three scans in scans/, one point of which is not finite, and poses.txt."""
    source = np.random.default_rng(0)
    (tmp_path / "scans").mkdir()
    clouds, poses = [], []
    for i in range(3):
        away = source.normal(size=(200, 3))
        cloud = (3 * away / np.linalg.norm(away, axis=1, keepdims=True)).astype(np.float32)
        cloud[0] = [np.nan, 0, 0] if i == 1 else [0.1, 0, 0]
        cloud.tofile(tmp_path / "scans" / f"{i}.bin")
        c, s = np.cos(0.3 * i), np.sin(0.3 * i)
        poses.append([[c, -s, 0, i], [s, c, 0, 0.5 * i], [0, 0, 1, 0.1]])
        clouds.append(cloud)
    rows = np.array(poses, np.float64)
    np.savetxt(tmp_path / "poses.txt", rows.reshape(3, 12), fmt="%.17g")
    return Drive(clouds, rows)


POSED = ("map", "scans", *XYZ, "--poses", "poses.txt", "--voxel", "0.2")


def test_scans_with_poses_give_the_map_of_the_class(torchvox_cli, drive):
    result = torchvox_cli(*POSED, "-o", "a.npz")
    made = drive.mapped()
    assert OccupancyMap.load("a.npz").equal(made)
    observed = f"{len(made.extract('observed').points):,} voxels of 0.2 m observed"
    result.ok("rays      599 of 600, in 3 calls", "dropped   1 not finite", observed)
    result.ok("than real time (10 Hz)", "device    cpu", "wrote     a.npz\n")
    assert "cut" not in result.out and result.err == ""


def test_options_are_those_of_the_class(torchvox_cli, drive):
    options = ("--max-range", "2.5", "--min-range", "0.5", "--bounds=-9,-9,-9,9,9,0.4")
    options += ("--origin", "0.1,0.2,0.3", "--preset", "octomap", "--layers", "logodds,hit_miss")
    result = torchvox_cli(*POSED, *options, "--rate", "5", "-o", "a.npz")
    result.ok("1 not finite; 2 nearer than --min-range", "rays at --max-range", "(5 Hz)")
    rays = {"max_range": 2.5, "min_range": 0.5, "point_cloud_range": [-9, -9, -9, 9, 9, 0.4]}
    made = {"origin": (0.1, 0.2, 0.3), "preset": "octomap", "layers": ("logodds", "hit_miss")}
    assert OccupancyMap.load("a.npz").equal(drive.mapped(rays=rays, **made))


def test_normal_distributions_are_mapped_and_told(torchvox_cli, drive):
    torchvox_cli(*POSED, "--ndt", "-o", "a.npz").ok()
    made = drive.mapped(ndt=True)
    assert OccupancyMap.load("a.npz").equal(made)
    samples = f"{int(made.extract('observed').num_samples.sum()):,} in"
    torchvox_cli("info", "a.npz").ok(samples, "layers      logodds, sample_mean, sample_cov")
    torchvox_cli("map", "a.npz", "-o", "a.ply").ok()
    (table,) = open_points("a.ply").chunks()
    written, expected = table.attributes["num_samples"], made.extract("occupied").num_samples
    assert sorted(written) == sorted(expected.tolist())


def test_one_bad_scan_keeps_its_pose_and_stops_no_other(torchvox_cli, drive, tmp_path):
    (tmp_path / "scans" / "1.bin").write_bytes(b"12345")
    result = torchvox_cli(*POSED, "-o", "a.npz")
    assert result.code == 1
    assert "1.bin" in result.err and "1 of 3 files failed" in result.err
    assert OccupancyMap.load("a.npz").equal(drive.mapped((0, 2)))


def test_kitti_poses_take_an_extrinsic_and_a_frame(torchvox_cli, drive, tmp_path):
    camera = np.array([[0, -1, 0, 0.1], [0, 0, -1, 0.2], [1, 0, 0, 0.3]], np.float64)
    (tmp_path / "calib.txt").write_text("P0: 1\nTr: " + " ".join(map(str, camera.ravel())))
    square = np.concatenate([drive.poses, np.tile([0.0, 0, 0, 1], (3, 1, 1))], axis=1)
    mount = np.concatenate([camera, [[0, 0, 0, 1]]])
    np.save(tmp_path / "poses.npy", square @ np.linalg.inv(mount))  # of the camera
    options = ("--poses", "poses.npy", "--extrinsic", "calib.txt", "--relative")
    torchvox_cli(*POSED, *options, "-o", "a.npz").ok()
    relative = Drive(drive.clouds, (np.linalg.inv(square[0]) @ square)[:, :3])
    assert agreement("a.npz", relative.mapped()) > 0.98  # the poses differ in the last bits


def test_scans_take_poses_at_their_times(torchvox_cli, drive, tmp_path):
    lines = [f"{1000 + i / 30:.4f} {i / 3:.9f} {i / 6:.9f} 0.1 0 0 0 1" for i in range(7)]
    (tmp_path / "fast.txt").write_text("\n".join(lines[::-1]))
    (tmp_path / "times.txt").write_text("1000.0500\n1000.1\n1000.20004\n")
    command = ("map", "scans", *XYZ, "--poses", "fast.txt", "--voxel", "0.2", "-o", "a.npz")
    torchvox_cli(*command, "--times", "times.txt").ok("in 3 calls")
    rows = np.tile(np.eye(3, 4), (3, 1, 1))
    rows[:, :, 3] = [[0.5, 0.25, 0.1], [1, 0.5, 0.1], [2, 1, 0.1]]
    assert agreement("a.npz", Drive(drive.clouds, rows).mapped()) > 0.98
    torchvox_cli(*command, "--times", "times.txt", "--relative").ok("in 3 calls")
    rows[:, :, 3] -= rows[0, :, 3]
    assert agreement("a.npz", Drive(drive.clouds, rows).mapped()) > 0.98
    (tmp_path / "late.txt").write_text("1000.1\n1000.1\n1000.2003\n")
    for options, code, *words in (
        ((), 1, "7 poses for 3 scans", "--times"),
        (("--times", "late.txt"), 2, "1 of 3 scans", "2.bin at 1000.200300 s is outside of"),
        (("--times", "names"), 2, "3 of 3 scans", "0.bin at 0.000000 s", "1000.000000 to 1000.2"),
        (("--times", "times.txt", "--max-gap", "0.01"), 2, "1 of 3", "0.bin", "in a gap", "0.01 s"),
        (("--times", "fast.txt"), 1, "fast.txt is not a readable list of times"),
        (("--times", "times.txt", "--poses", "poses.txt"), 2, "--times needs poses with times"),
    ):
        torchvox_cli(*command, *options).assert_one_sentence(code, *words)
    (tmp_path / "first.txt").write_text("".join(f"{i} 0 0 0 1 0 0 0\n" for i in range(3)))
    warned = torchvox_cli(*command, "--poses", "first.txt")
    assert warned.code == 0 and warned.err.count("if w is first") == 1
    assert warned.err.startswith("torchvox: warning: first.txt: ")


def test_a_capacity_is_a_limit(torchvox_cli, drive, tmp_path):
    result = torchvox_cli(*POSED, "--capacity", "40", "-o", "a.npz")
    assert result.code == 1 and "3 of 3 files failed" in result.err
    assert "got capacity=40\n" in result.err and not (tmp_path / "a.npz").exists()
    torchvox_cli(*POSED, "--capacity", "1MiB", "-o", "a.npz").ok()


def test_the_memory_of_a_cache_changes_no_byte(torchvox_cli, drive, tmp_path):
    whole = torchvox_cli(*POSED, "-o", "a.npz")
    result = torchvox_cli(*POSED, "--memory-limit", "20KiB", "-o", "b.npz").ok()
    assert (tmp_path / "b.npz").read_bytes() == (tmp_path / "a.npz").read_bytes()
    lines = [[line for line in r.out.splitlines() if "time" not in line] for r in (whole, result)]
    assert lines[0][:4] == lines[1][:4] and "regions, " in lines[0][3]
    assert "MiB, room for 18 regions of 4.0 MiB in host memory" in lines[1][4]
    drive.mapped((1,)).save("c.npz")
    for i, more in enumerate([(), ("--memory-limit", "20KiB")]):
        torchvox_cli("map", "a.npz", "c.npz", *more, "-o", f"{i}.npz").ok()
    assert (tmp_path / "0.npz").read_bytes() == (tmp_path / "1.npz").read_bytes()


def test_coordinates_out_of_reach_are_told_which_origin_serves(torchvox_cli, tmp_path):
    np.save(tmp_path / "a.npy", np.ones((5, 3)))
    np.save(tmp_path / "poses.npy", np.eye(4)[None] + [[0, 0, 0, 9e6], *[[0, 0, 0, 0]] * 3])
    arguments = ("map", "a.npy", "--poses", "poses.npy", "-o", "a.npz")
    result = torchvox_cli(*arguments).ok("5 outside of --bounds or the reach")
    assert result.err.endswith("--origin, such as 9000000,0,0\n")
    again = torchvox_cli(*arguments, "--origin", "9000000,0,0").ok("rays      5 of 5")
    assert again.err == ""
    torchvox_cli("info", "a.npz").ok("origin      9000000 0 0")


def test_a_graph_is_scans_with_poses(torchvox_cli, drive, tmp_path):
    data = struct.pack("<I", 3)
    for i, (cloud, pose) in enumerate(zip(drive.clouds, drive.poses, strict=True)):
        data += struct.pack("<I", len(cloud))
        data += b"".join(struct.pack("<i3d", 3, *point) for point in cloud)
        turn = np.cos(0.15 * i), 0, 0, np.sin(0.15 * i)
        data += struct.pack("<i3di4dI", 3, *pose[:, 3], 4, *turn, i)
    (tmp_path / "a.graph").write_bytes(data + struct.pack("<I", 0))
    arguments = ("map", "a.graph", "--voxel", "0.2", "-o", "a.npz")
    torchvox_cli(*arguments).ok("599 of 600, in 3 calls")
    assert OccupancyMap.load("a.npz").equal(drive.mapped())
    sensor = "sensor      x 0.000 to 2.000, y 0.000 to 1.000, z 0.100 to 0.100"
    torchvox_cli("info", "a.graph").ok("scans       3", "points      600", sensor)


def test_points_with_times_take_their_origin_from_a_trajectory(torchvox_cli, tmp_path):
    ends = np.random.default_rng(0).normal((0, 0, 9), 1, (90, 3))
    times = np.linspace(99, 102, 90)
    np.savez(tmp_path / "strip.npz", xyz=ends, gps_time=times)
    poses = "100 0 0 0 0 0 0 1\n101 10 0 0 0 0 0 1\n101.5 10 5 0 0 0 0 1\n"
    (tmp_path / "t.txt").write_text(poses)
    arguments = ("map", "strip.npz", "--voxel", "0.2", "--trajectory", "t.txt")
    result = torchvox_cli(*arguments, "--max-gap", "1", "-o", "a.npz")
    kept = (times >= 100) & (times <= 101.5)
    t = times[kept]
    x, y = np.interp(t, [100, 101], [0, 10]), np.interp(t, [101, 101.5], [0, 5])
    made = OccupancyMap(0.2)
    origins = torch.from_numpy(np.column_stack([x, y, 0 * x]))
    made.integrate(torch.from_numpy(ends[kept]), origins)
    assert agreement("a.npz", made) > 0.99
    result.ok(f"rays      {kept.sum()} of 90, in 1 calls")
    result.ok(f"dropped   {90 - kept.sum()} outside of the trajectory")
    assert "Hz" not in result.out
    gaps = f"{(kept & (times < 101)).sum()} in its gaps"  # of 0.5 s
    torchvox_cli(*arguments, "-o", "b.npz").ok(gaps)
    (tmp_path / "t.txt").write_text("1 0 0 0 0 0 0 1\n2 0 0 0 0 0 0 1\n")
    torchvox_cli(*arguments, "-o", "c.npz").assert_one_sentence(2, "none of 90 times has a pose")
    assert not (tmp_path / "c.npz").exists()


def test_points_of_so_many_seconds_are_a_call(torchvox_cli, tmp_path):
    source = np.random.default_rng(0)
    times = np.append(source.permutation(np.arange(90) / 32), [np.nan, np.nan])
    ends = source.normal((0, 0, 3), 1, (92, 3))
    np.savez(tmp_path / "strip.npz", xyz=ends, gps_time=times)
    poses = [f"{t} {t} 0 0 0 0 0 1" for t in (0.5, 1, 1.5, 2, 2.5, 3)]
    (tmp_path / "t.txt").write_text("\n".join(poses))
    arguments = ("map", "strip.npz", "--trajectory", "t.txt", "--preset", "octomap", "-o")
    result = torchvox_cli(*arguments, "a.npz", "--batch-seconds", "0.25")
    calls = "rays      74 of 92, in 13 calls"  # 12 and the times that are none
    result.ok(calls, "18 outside of the trajectory")
    made = OccupancyMap(preset="octomap")
    for start in np.arange(0.5, 3, 0.25):
        mine = (times >= start) & (times < start + 0.25)
        origins = np.zeros((mine.sum(), 3))
        origins[:, 0] = times[mine]
        made.integrate(torch.from_numpy(ends[mine]), torch.from_numpy(origins))
    assert OccupancyMap.load("a.npz").equal(made)
    torchvox_cli(*arguments, "b.npz").ok()
    assert not OccupancyMap.load("b.npz").equal(made)


def test_maps_are_merged_whatever_their_names(torchvox_cli, drive, tmp_path):
    one, two = drive.mapped((0, 1)), drive.mapped((2,))
    one.save("one.npz")
    two.save("two.ot")
    (tmp_path / "two.ot").rename("two.bin")
    result = torchvox_cli("map", "one.npz", "two.bin", "-o", "a.npz").ok("merged    2 of 2 maps")
    one.merge(OccupancyMap.load("two.bin"))
    assert OccupancyMap.load("a.npz").equal(one) and not one.equal(drive.mapped((0, 1)))
    assert "rays" not in result.out
    drive.mapped((0,), voxel_size=0.5).save("coarse.npz")
    bad = torchvox_cli("map", "one.npz", "coarse.npz", "two.bin", "-o", "b.npz")
    assert bad.code == 1 and "coarse.npz" in bad.err and "one grid" in bad.err
    assert (tmp_path / "b.npz").read_bytes() == (tmp_path / "a.npz").read_bytes()


def test_a_map_becomes_trees_and_points(torchvox_cli, drive):
    made = drive.mapped()
    made.save("a.npz")
    torchvox_cli("map", "a.npz", "-o", "b.ot").ok()
    assert OccupancyMap.load("b.ot").equal(made)
    for select in ("occupied", "free", "observed"):
        cut = ("--slice", "0,0.4") if select == "observed" else ()
        torchvox_cli("map", "a.npz", "-o", "b.ply", "--select", select, *cut).ok()
        points = np.concatenate([c.world() for c in open_points("b.ply").chunks()])
        wanted = made.extract(select).points.numpy()
        if cut:
            wanted = wanted[(wanted[:, 2] > 0) & (wanted[:, 2] < 0.4)]
            assert set(np.round(points[:, 2], 3)) == {0.1, 0.3}
        np.testing.assert_allclose(points, wanted, atol=1e-6)


def gray(path):
    """Pixels of a .png that is 8 bits gray."""
    image = pytest.importorskip("PIL.Image", reason="Pillow (extra viz) is not installed")
    with image.open(path) as picture:
        assert (picture.format, picture.mode) == ("PNG", "L")
        return np.asarray(picture)


def test_a_planted_voxel_is_where_the_yaml_says(torchvox_cli, tmp_path):
    """From a sensor at (4.1, 4.1): hits in the northeast, far to the south at z 2.1, below."""
    ends = [[6.1, 7.1, 0.1], [4.1, -1.9, 2.1], [4.1, 4.1, -1.9]]
    ends = torch.tensor(ends, dtype=torch.float64)
    made = OccupancyMap(0.2, origin=(0.0, 1.0, 0.0))
    made.integrate(ends, torch.tensor([[4.1, 4.1, 0.1]], dtype=torch.float64))
    made.save("a.npz")
    result = torchvox_cli("map", "a.npz", "-o", "it's.png", "--ros-yaml")
    result.ok("wrote     it's.png, it's.yaml\n")
    yaml = pytest.importorskip("yaml", reason="PyYAML (extra cli) is not installed")
    told = yaml.safe_load((tmp_path / "it's.yaml").read_text())
    image = gray(tmp_path / "it's.png")
    assert image.shape == (46, 11)  # y -2 to 7.2, x 4 to 6.2
    assert told["image"] == "it's.png" and told["resolution"] == 0.2 and told["negate"] == 0
    np.testing.assert_allclose(told["origin"], [4, -2, 0], atol=1e-9)

    def pixel(x, y):
        column, up = ((v - o) / 0.2 for v, o in zip((x, y), told["origin"][:2], strict=True))
        return image[len(image) - 1 - int(np.floor(up)), int(np.floor(column))]

    assert [pixel(x, y) for x, y, _ in ends.tolist()] == [0] * 3 and (image == 0).sum() == 3
    assert pixel(4.1, 3.1) == 254 and pixel(4.1, 0.1) == 254  # the way south
    assert pixel(6.1, 0.1) == 205 and image[0, -3] == 205 and image[0, -1] == image[-1, 0] == 0
    # 205 is unknown to map_server, whatever is between its limits.
    shares = (255 - np.array([254, 205, 0])) / 255
    assert shares[0] < told["free_thresh"] < shares[1] < told["occupied_thresh"] < shares[2]
    torchvox_cli("map", "a.npz", "-o", "b.png", "--slice=-1,1").ok()
    cut = gray(tmp_path / "b.png")
    assert (cut == 0).sum() == 1 and cut[0, -1] == 0 and len(cut) < 46
    torchvox_cli("map", "a.npz", "-o", "a\n'b.png", "--ros-yaml").ok()
    assert yaml.safe_load((tmp_path / "a\n'b.yaml").read_text())["image"] == "a\n'b.png"
    result = torchvox_cli("map", "a.npz", "-o", "\udcff.png", "--ros-yaml")
    result.assert_one_sentence(2, "--ros-yaml", "UTF-8")
    result = torchvox_cli("map", "a.npz", "-o", "c.png", "--slice", "7,8")
    result.assert_one_sentence(1, "no observed voxel")


def test_a_page_lies_beside_the_map(torchvox_cli, drive, tmp_path):
    torchvox_cli(*POSED, "-o", "a.npz", "--html").ok("wrote     a.npz, a.html")
    page = (tmp_path / "a.html").read_text()
    occupied = len(drive.mapped().extract("occupied").points)
    assert f"{occupied:,} occupied voxels of 0.2 m" in page and "3 files" in page
    assert "http" not in page and "src=" not in page
    torchvox_cli("map", "a.npz", "-o", "b.html", "--select", "free").ok()
    assert "free voxels of 0.2 m" in (tmp_path / "b.html").read_text()


def test_info_tells_what_a_map_holds(torchvox_cli, tmp_path):
    made = OccupancyMap(0.5, origin=(1.0, 0.0, 0.0), layers=("logodds", "hit_miss"))
    made.integrate(torch.tensor([[3.2, 0.2, -0.2]]), torch.tensor([[1.2, 0.2, -0.2]]))
    made.save("a.npz")
    made.save("a.ot")
    printed = torchvox_cli("info", "a.npz").ok().out.replace("xel s", "xel_s")
    lines = dict(line.split(maxsplit=1) for line in printed.splitlines())
    assert lines["voxel_size"] == "0.5 m" and lines["origin"] == "1 0 0"
    assert lines["extent"] == "x 1.000 to 3.500, y 0.000 to 0.500, z -0.500 to 0.000"
    assert lines["regions"].startswith("1 of") and lines["voxels"] == "1 occupied, 4 free"
    assert lines["layers"] == "logodds, hit_miss" and lines["preset"].startswith("ohm: hit 0.9")
    np.save(tmp_path / "cloud.npy", np.ones((5, 3)))
    (tmp_path / "bad.ot").write_bytes(b"# Octomap OcTree file\nid OcTree\n")
    several = torchvox_cli("info", "a.ot", "cloud.npy", "bad.ot")
    tree, cloud = several.out.splitlines()
    assert "1 occupied, 4 free" in tree and "preset octomap" in tree and "5 points" in cloud
    assert several.code == 1 and "bad.ot" in several.err
