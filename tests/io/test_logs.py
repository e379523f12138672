# SPDX-License-Identifier: Apache-2.0
"""Argoverse 2 logs, Waymo Open segments and E57 files."""

import functools
import math
import shutil

import fuzzing
import logs
import numpy as np
import pytest
from logs import DOWN, START, UP, back, build, posed, sweep, turned, write_feather

from torchvox import io
from torchvox._util.errors import CloudFileError, TorchvoxError, WrongUseError

pytest.importorskip("pyarrow", reason="the extra arrow is not installed")
pytest.importorskip("pye57", reason="the extra e57 is not installed")


def test_argoverse(tmp_path):
    path = logs.argoverse(tmp_path)
    whole, up, down = (io.open_recording(path, t) for t in (None, "up_lidar", "down_lidar"))
    assert whole.count == 3 and whole.seconds == 0.2 and io.is_recording(path)
    for number, scan in enumerate(whole.scans()):
        rows = sweep(number)
        xyz = np.stack([rows[axis] for axis in "xyz"], axis=1).astype(np.float32)
        np.testing.assert_array_equal(scan.table.xyz, xyz)
        is_up = rows["laser_number"] < 32
        np.testing.assert_array_equal(scan.origins, np.where(is_up[:, None], UP[1], DOWN[1]))
        assert scan.table.attributes["intensity"].tolist() == rows["intensity"].tolist()
        assert scan.stamp == START + number * 10**8 and scan.times is None
        for recording, pose, own in ((up, UP, is_up), (down, DOWN, ~is_up)):
            one = recording.scan(number)
            np.testing.assert_allclose(one.table.xyz, back(pose, xyz[own]), atol=1e-5)
            city = turned(logs.CITY[number][0], turned(pose[0], one.table.xyz) + pose[1])
            city += logs.CITY[number][1]
            at = recording.trajectory().at([number / 10]).poses[0]
            for world in (recording.pose(number), at):
                np.testing.assert_allclose(one.table.xyz @ world[:, :3].T + world[:, 3], city,
                                           atol=1e-5)  # fmt: skip
    boxes, names, tracks = whole.boxes(0)
    assert (names, tracks, len(whole.boxes(1).boxes)) == (["DOG", "BUS"], ["a", "b"], 0)
    own = down.boxes(0).boxes
    np.testing.assert_allclose(own[:, :3], back(DOWN, boxes[:, :3]), atol=1e-12)
    ahead = back((DOWN[0], (0, 0, 0)), [math.cos(0.2), math.sin(0.2), 0.0])
    assert own[1, 6] == pytest.approx(math.atan2(ahead[1], ahead[0]))
    np.testing.assert_allclose(boxes[1], [*logs.CITY[0][1], 4, 2, 3, 0.2], atol=1e-12)
    file = path / f"sensors/lidar/{START}.feather"
    np.testing.assert_array_equal(io.open_points(file).coordinates(), whole.scan(0).table.xyz)
    (path / "annotations.feather").unlink()
    assert io.open_recording(path).boxes(0) is None


def test_waymo(tmp_path):
    recording = io.open_recording(logs.waymo(tmp_path))
    assert [t.name for t in recording.topics] == ["lidar", "TOP", "FRONT", "REAR"]
    tops = {1: logs.pixel_pose(0, 0, 0.3, 1, 0, 2), 2: logs.FRONT, 5: logs.FRONT}
    fronts = io.open_recording(tmp_path, "FRONT")
    for number, scan in enumerate(recording.scans()):
        images, pixels, vehicle = logs.frame(number)
        rows = []
        for laser, image in images.items():
            (height, width, _), extrinsic = image.shape, tops[laser]
            for v, u in np.argwhere(image[..., 0] > 0):
                far, (low, high) = float(image[v, u, 0]), {2: (-1, 0.5), 5: (-0.5, 0.5)}.get(
                    laser, (0, 0))  # fmt: skip
                up = low + (height - 1 - v + 0.5) / height * (high - low)
                up = (0.1, -0.1, -0.2, -0.3)[v] if laser == 1 else up
                turn = ((width - u - 0.5) / width * 2 - 1) * math.pi
                turn -= math.atan2(extrinsic[1, 0], extrinsic[0, 0])
                place = far * np.array([math.cos(up) * math.cos(turn),
                                        math.cos(up) * math.sin(turn), math.sin(up)])  # fmt: skip
                both = extrinsic @ np.array([[*place, 1], [0, 0, 0, 1]]).T
                if laser == 1:
                    both = (
                        np.linalg.inv(vehicle) @ logs.pixel_pose(*pixels[v, u].astype(float)) @ both
                    )
                rows.append([*both[:3].T.ravel(), image[v, u, 1], v, laser])
        rows, table = np.array(rows), scan.table
        np.testing.assert_allclose(table.xyz, rows[:, :3], atol=1e-4)
        np.testing.assert_allclose(scan.origins, rows[:, 3:6], atol=1e-9)
        columns = [table.attributes[name] for name in ("intensity", "ring", "laser")]
        np.testing.assert_array_equal(np.stack(columns, 1), rows[:, 6:].astype(np.float32))
        np.testing.assert_allclose(recording.pose(number), vehicle[:3], atol=1e-12)
        own = (rows[rows[:, 8] == 2, :3] - logs.FRONT[:3, 3]) @ logs.FRONT[:3, :3]
        np.testing.assert_allclose(fronts.scan(number).table.xyz, own, atol=1e-4)
    boxes, *words = recording.boxes(0)
    assert words == [["vehicle", "cyclist"], ["a", "b"]]
    assert boxes.tolist() == [[*range(7)], [2] * 7] and not len(recording.boxes(2).boxes)


def test_waymo_beside_torch_waymo(tmp_path):
    """The lidar with a table of its beams alone: torch-waymo lets those of the others begin and end
    at the bounds, which in Waymo's own rule are half a beam away."""
    other = pytest.importorskip("torch_waymo.converters.geometry")
    recording = io.open_recording(logs.waymo(tmp_path))
    beams = other.beam_inclinations(4, [-0.3, -0.2, -0.1, 0.1], -0.3, 0.1)
    for number, scan in enumerate(recording.scans()):
        images, pixels, vehicle = logs.frame(number)
        mount = logs.pixel_pose(0, 0, 0.3, 1, 0, 2)
        expected = other.range_image_to_point_cloud(
            images[1], mount, beams, pixel_pose=pixels.astype(float), frame_pose=vehicle
        )
        own = scan.table.xyz[scan.table.attributes["laser"] == 1]
        np.testing.assert_allclose(own, expected, atol=1e-4)


def test_e57(tmp_path):
    places = np.random.default_rng(0).uniform(0.1, 1.5, (6, 3))
    colors = np.array([0, 1, 512, 1022, 1023, 7])
    path = logs.e57(tmp_path / "a.e57", spherical=(places, colors, ["intensity", "timeStamp"]))
    reader, recording, whole = io.open_points(path), io.open_recording(path), []
    for number, pose in enumerate([*logs.SETUPS, ((1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0))]):
        table = recording.scan(number).table
        if number < 2:
            rows = logs.setup(number)
            good = rows["cartesianInvalidState"] == 0
            xyz = np.stack([rows[f"cartesian{axis}"] for axis in "XYZ"], 1)[good]
            red = rows["colorRed"][good] * 257
            assert table.attributes["intensity"].tolist() == rows["intensity"][good].tolist()
        else:
            far, turn, up = places.T
            xyz = far * np.array([np.cos(up) * np.cos(turn), np.cos(up) * np.sin(turn), np.sin(up)])
            xyz, red = xyz.T, np.rint(colors * (65535 / 1023))
        np.testing.assert_allclose(table.xyz, xyz, rtol=0, atol=1e-15)
        assert table.attributes["red"].tolist() == red.tolist()
        whole.append(turned(pose[0], xyz) + pose[1])
        world = recording.pose(number)
        np.testing.assert_allclose(table.xyz @ world[:, :3].T + world[:, 3], whole[-1])
    whole = np.concatenate(whole)
    assert [*reader.columns] == ["intensity", "red", "green", "blue", "scan"]
    np.testing.assert_allclose(reader.coordinates(), whole, rtol=1e-14)
    for size, first in ((7, 0), (1000, 5), (3, len(whole) - 2), (9, len(whole))):
        parts = [reader.schema, *reader.chunks(size, first, ["scan"])]
        assert max(map(len, parts)) <= size
        np.testing.assert_allclose(np.concatenate([p.xyz for p in parts]), whole[first:])
    assert np.bincount(np.concatenate([p.attributes["scan"] for p in reader.chunks()]))[2] == 6
    whole_numbers = logs.e57(tmp_path / "b.e57", (), (places, colors, ["intensity"]))
    assert io.open_points(whole_numbers).columns["intensity"] == np.uint16
    lost = f"{86 - len(whole)} points in an invalid state are left out"
    rest = "these fields are not read: columnIndex, rowIndex, timeStamp"
    assert reader.problems == [rest, lost]


SWEEP, CITY_FILE = f"sensors/lidar/{START}.feather", "city_SE3_egovehicle.feather"
SENSORS, IMAGE = "calibration/egovehicle_SE3_sensor.feather", "[LiDARComponent].range_image_return1"
ONE = posed([UP], timestamp_ns=[START + 1], sensor_name=["left_lidar"])
POINT = {axis: np.float32([0.1]) for axis in "xyz"}
NO_POINTS = (np.zeros((0, 3)), np.zeros(0))
EDGES = [
    ("argoverse", lambda p: write_feather(p / SENSORS, ONE), "no sensor up_lidar .*left_lidar"),
    ("argoverse", lambda p: write_feather(p / SWEEP, POINT), "no column laser_number of numbers"),
    ("argoverse", lambda p: write_feather(p / SWEEP, sweep(0) | {"z": ["1"] * 50}), "column z of"),
    ("argoverse", lambda p: write_feather(p / CITY_FILE, ONE), f"no pose at {START} ns, of scan 0"),
    ("argoverse", lambda p: write_feather(p / SWEEP, POINT | {"laser_number": [40]}), None),
    ("waymo", lambda p: shutil.rmtree(p.parents[1] / "lidar_pose"), "lidar_pose.*No such file"),
    ("waymo", [("lidar", f"{IMAGE}.shape", [[4, 6, 3]] * 9)], r"got \[4, 6, 3\] of 56 values"),
    ("waymo", [("lidar", f"{IMAGE}.values", [[0.0] * 7 + [None]] * 9)], "values that are null"),
    ("waymo", [("lidar", f"{IMAGE}.values", [None] * 9)], "range_image_return1 is null"),
    ("waymo", [("lidar", "key.laser_name", [1] * 9)], "two rows have the same"),
    ("waymo", [("vehicle_pose", "key.frame_timestamp_micros", [1, 2, 3])], "no pose at 10{15} us"),
    ("waymo", lambda p: shutil.copy(p, p.with_name("b.parquet")), "a.parquet, lidar/b.parquet"),
    ("e57", {"spherical": NO_POINTS}, None),
    ("e57", {"setups": logs.SETUPS[:1]}, None),
    ("e57", lambda p: p.write_bytes(p.read_bytes()[:3000]), "not a readable E57 file"),
    ("e57", {"setups": [((2.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0))]}, "not a unit quaternion"),
]


@pytest.mark.parametrize(("kind", "change", "words"), EDGES)
def test_edges(kind, change, words, tmp_path):
    path = build(kind, tmp_path, () if callable(change) else change)
    if callable(change):
        change(path)

    def read():
        recording = io.open_recording(path.parents[1] if kind == "waymo" else path)
        scans = [*recording.scans()]
        assert np.isfinite([recording.pose(i) for i in range(recording.count)]).all()
        if kind != "e57":
            recording.boxes(0)
        return scans

    if words is None:
        assert all(len(scan.table) == len(scan.table.xyz) for scan in read())
    else:
        with pytest.raises((CloudFileError, WrongUseError), match=words):
            read()


@pytest.mark.parametrize("kind", ["argoverse", "waymo", "e57"])
def test_fuzzed_logs_end_in_typed_errors(kind, tmp_path, monkeypatch):
    """Of E57 without the checksums of its pages, which would hide all else."""
    from pye57 import libe57

    none = functools.partial(libe57.ImageFile, checksumPolicy=libe57.CHECKSUM_POLICY_NONE)
    monkeypatch.setattr("pye57.e57.libe57.ImageFile", none)
    path, read = build(kind, tmp_path), 0
    files = [file for file in sorted(tmp_path.rglob("*")) if file.is_file()]
    for seed in range(200):
        rng = np.random.default_rng(seed)
        file = files[rng.integers(len(files))]
        whole = file.read_bytes()
        broken = fuzzing.damage(whole, rng, False)
        file.write_bytes(broken if kind != "e57" else broken[: len(whole)].ljust(len(whole)))
        try:
            recording = io.open_recording(path)
            for number in range(min(recording.count, 3)):
                read += len(recording.scan(number).table) + len(recording.pose(number))
                read += 0 if kind == "e57" else len(recording.boxes(number).boxes)
        except TorchvoxError as error:
            assert len(str(error).splitlines()) == 1 and len(str(error)) < 900
        file.write_bytes(whole)
    assert read > 0
