# SPDX-License-Identifier: Apache-2.0
"""Argoverse 2 logs, Waymo Open segments and E57 files, written by the libraries themselves."""

import functools
import math
import shutil

import fuzzing
import numpy as np
import pytest
import torch

from torchvox import io
from torchvox._util.errors import CloudFileError, TorchvoxError, WrongUseError
from torchvox.mapping import OccupancyMap
from torchvox.mapping.job import MapJob, MapOptions

pytest.importorskip("pyarrow", reason="the extra arrow is not installed")
pytest.importorskip("pye57", reason="the extra e57 is not installed")

QUATERNION, START = ("qw", "qx", "qy", "qz"), 315_966_265_659_927_216
UP, DOWN = ((0.5, 0.5, 0.5, 0.5), (1.35, 0.0, 1.64)), ((0.6, 0.0, 0.8, 0.0), (1.35, 0.25, 1.57))
CITY = [((math.cos(a), 0.0, 0.0, math.sin(a)), (3.0 * a, 1.0, -2.0)) for a in (0.1, 0.2, 0.3)]


def turned(turn, places):
    """Places under a unit quaternion w, x, y, z: v + 2w(q x v) + 2q x (q x v)."""
    once = 2 * np.cross(turn[1:], places)
    return places + turn[0] * once + np.cross(turn[1:], once)


def back(pose, places):
    return turned((pose[0][0], *(-v for v in pose[0][1:])), places - np.array(pose[1]))


def posed(poses, **columns):
    values = [[*turn, *place] for turn, place in poses]
    return columns | dict(zip((*QUATERNION, "tx_m", "ty_m", "tz_m"), zip(*values, strict=True),
                              strict=True))  # fmt: skip


def write_feather(path, columns):
    from pyarrow import feather, table

    path.parent.mkdir(parents=True, exist_ok=True)
    feather.write_feather(table({name: np.array(v) for name, v in columns.items()}), path)


def sweep(number):
    rng = np.random.default_rng(number)
    xyz = (rng.normal(size=(50, 3)) * 30).astype(np.float16)
    return dict(zip("xyz", xyz.T, strict=True)) | dict(
        intensity=rng.integers(0, 256, 50).astype(np.uint8),
        laser_number=rng.integers(0, 64, 50).astype(np.uint8),
        offset_ns=rng.integers(0, 10**8, 50).astype(np.int32),
    )


def argoverse(folder):
    """A log of three sweeps; the second one has no box."""
    path, stamps = folder / "log", [START, START + 10**8, START + 2 * 10**8]
    for number, stamp in enumerate(stamps):
        write_feather(path / f"sensors/lidar/{stamp}.feather", sweep(number))
    sensors = posed(
        [CITY[0], UP, DOWN], sensor_name=["ring_front_center", "up_lidar", "down_lidar"]
    )
    write_feather(path / "calibration/egovehicle_SE3_sensor.feather", sensors)
    city = posed(CITY[::-1], timestamp_ns=stamps[::-1])
    write_feather(path / "city_SE3_egovehicle.feather", city)
    boxes = posed([CITY[2], CITY[1], CITY[0]], timestamp_ns=[stamps[2], stamps[0], stamps[0]],
                  track_uuid=["b", "a", "b"], category=["BUS", "DOG", "BUS"], length_m=[4.0] * 3,
                  width_m=[2.0] * 3, height_m=[1.0, 2.0, 3.0])  # fmt: skip
    write_feather(path / "annotations.feather", boxes)
    return path


def test_argoverse(tmp_path):
    path = argoverse(tmp_path)
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
            city = turned(CITY[number][0], turned(pose[0], one.table.xyz) + pose[1])
            city += CITY[number][1]
            at = recording.trajectory().at([number / 10]).poses[0]
            for world in (recording.pose(number), at):
                np.testing.assert_allclose(one.table.xyz @ world[:, :3].T + world[:, 3], city,
                                           atol=1e-5)  # fmt: skip
    boxes, names, tracks = whole.boxes(0)
    assert (names, tracks, len(whole.boxes(1).boxes)) == (["DOG", "BUS"], ["a", "b"], 0)
    np.testing.assert_allclose(boxes[1], [*CITY[0][1], 4, 2, 3, 0.2], atol=1e-12)
    file = path / f"sensors/lidar/{START}.feather"
    np.testing.assert_array_equal(io.open_points(file).coordinates(), whole.scan(0).table.xyz)


SIZES = {1: (4, 6), 2: (3, 5), 5: (2, 7)}  # of range images
FRONT = np.array([[0.0, -1, 0, 1], [1, 0, 0, 2], [0, 0, 1, 3], [0, 0, 0, 1]])


def pixel_pose(roll, pitch, yaw, x, y, z):
    (a, b, c), (d, e, f) = np.cos([roll, pitch, yaw]), np.sin([roll, pitch, yaw])
    turns = [[c, -f, 0], [f, c, 0], [0, 0, 1]], [[b, 0, e], [0, 1, 0], [-e, 0, b]], [
        [1, 0, 0], [0, a, -d], [0, d, a]]  # fmt: skip
    return np.block([[np.linalg.multi_dot(turns), np.array([[x], [y], [z]])], [0, 0, 0, 1]])


def frame(number):
    """Images by laser, poses of the pixels of TOP, and the pose of the vehicle."""
    rng = np.random.default_rng(number)
    images = {n: rng.uniform(-1, 40, (*size, 4)).astype("f4") for n, size in SIZES.items()}
    pixels = rng.normal(size=(*SIZES[1], 6)).astype(np.float32)
    return images, pixels, pixel_pose(*rng.normal(size=6))


def waymo(folder, changes=()):
    """The file of a segment of three frames, the last one first. changes: of columns."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    (stamp, laser), parts = ("key.frame_timestamp_micros", "key.laser_name"), {}
    rows = [(n, laser_) for n in (2, 0, 1) for laser_ in (5, 1, 2)]
    keys = {stamp: [n * 10**5 + 10**15 for n, _ in rows], laser: [each for _, each in rows]}
    images = [frame(n)[0][each] for n, each in rows]
    image = "[LiDARComponent].range_image_return1"
    parts["lidar"] = keys | {f"{image}.values": [i.ravel() for i in images],
                             f"{image}.shape": [np.int32(i.shape) for i in images]}  # fmt: skip
    image, tops = "[LiDARPoseComponent].range_image_return1", [stamp, laser]
    pixels = [frame(n)[1] for n in (2, 0, 1)]
    parts["lidar_pose"] = {k: keys[k][1::3] for k in tops} | {
        f"{image}.values": [i.ravel() for i in pixels], f"{image}.shape": [(*SIZES[1], 6)] * 3
    }  # fmt: skip
    parts["vehicle_pose"] = {stamp: keys[stamp][::3], **{
        "[VehiclePoseComponent].world_from_vehicle.transform":
            [frame(n)[2].ravel() for n in (2, 0, 1)]}}  # fmt: skip
    name = "[LiDARCalibrationComponent]"
    parts["lidar_calibration"] = {laser: [1, 2, 5],
        f"{name}.extrinsic.transform": [pixel_pose(0, 0, 0.3, 1, 0, 2).ravel(), FRONT.ravel(),
                                        FRONT.ravel()],
        f"{name}.beam_inclination.min": [-0.3, -1.0, -0.5],
        f"{name}.beam_inclination.max": [0.1, 0.5, 0.5],
        f"{name}.beam_inclination.values": [[-0.3, -0.2, -0.1, 0.1], None, None]}  # fmt: skip
    name = "[LiDARBoxComponent]"
    parts["lidar_box"] = {stamp: keys[stamp][3:5], "key.laser_object_id": ["a", "b"]}
    parts["lidar_box"][f"{name}.type"] = [1, 4]
    columns = [f"{part}.{axis}" for part in ("center", "size") for axis in "xyz"]
    for i, column in enumerate([*columns, "heading"]):
        parts["lidar_box"][f"{name}.box.{column}"] = [float(i), 2.0]
    for part, columns in parts.items():
        columns |= {name: values for where, name, values in changes if where == part}
        (folder / part).mkdir(parents=True, exist_ok=True)
        table = pa.table({name: values for name, values in columns.items() if values is not None})
        pq.write_table(table, folder / part / "a.parquet", row_group_size=4)
    return folder / "lidar" / "a.parquet"


def test_waymo(tmp_path):
    recording = io.open_recording(waymo(tmp_path))
    assert [t.name for t in recording.topics] == ["lidar", "TOP", "FRONT", "REAR"]
    tops = {1: pixel_pose(0, 0, 0.3, 1, 0, 2), 2: FRONT, 5: FRONT}
    fronts = io.open_recording(tmp_path, "FRONT")
    for number, scan in enumerate(recording.scans()):
        images, pixels, vehicle = frame(number)
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
                    both = np.linalg.inv(vehicle) @ pixel_pose(*pixels[v, u].astype(float)) @ both
                rows.append([*both[:3].T.ravel(), image[v, u, 1], v, laser])
        rows, table = np.array(rows), scan.table
        np.testing.assert_allclose(table.xyz, rows[:, :3], atol=1e-4)
        np.testing.assert_allclose(scan.origins, rows[:, 3:6], atol=1e-9)
        columns = [table.attributes[name] for name in ("intensity", "ring", "laser")]
        np.testing.assert_array_equal(np.stack(columns, 1), rows[:, 6:].astype(np.float32))
        np.testing.assert_allclose(recording.pose(number), vehicle[:3], atol=1e-12)
        own = rows[rows[:, 8] == 2, :3] @ FRONT[:3, :3] - FRONT[:3, 3] @ FRONT[:3, :3]
        np.testing.assert_allclose(fronts.scan(number).table.xyz, own, atol=1e-4)
    boxes, *words = recording.boxes(0)
    assert words == [["vehicle", "cyclist"], ["a", "b"]]
    assert boxes.tolist() == [[*range(7)], [2] * 7] and not len(recording.boxes(2).boxes)


HALF = math.sqrt(0.5)
SETUPS = [((HALF, 0.0, 0.0, HALF), (100.0, 200.0, 5.0)), ((0.6, 0.0, 0.8, 0.0), (0.0, -9.0, 1e6))]


def setup(number):
    rng = np.random.default_rng(number)
    rows = dict(zip(("cartesianX", "cartesianY", "cartesianZ"),
                    rng.normal(size=(3, 40)).astype("f4").astype(float), strict=True))  # fmt: skip
    rows |= {f"color{name}": rng.integers(0, 256, 40) for name in ("Red", "Green", "Blue")}
    rows["cartesianInvalidState"] = rng.integers(0, 3, 40)
    return rows | {"intensity": rng.normal(size=40).astype("f4"), "rowIndex": np.arange(40),
                   "columnIndex": np.arange(40)}  # fmt: skip


def add_spherical(file, places, colors, others=()):
    """A scan without a pose, with colors up to 1023 and a field of no known name."""
    from pye57 import libe57 as lib

    image = file.image_file
    scan, kinds = lib.StructureNode(image), lib.StructureNode(image)
    fields = dict(zip(("sphericalRange", "sphericalAzimuth", "sphericalElevation"), places.T,
                      strict=True))  # fmt: skip
    fields |= {f"color{name}": colors for name in ("Red", "Green", "Blue")}
    for name in fields:
        kinds.set(name, lib.IntegerNode(image, 0, 0, 1023) if "color" in name else lib.FloatNode(
            image, 0.0, lib.E57_DOUBLE, -1e9, 1e9))  # fmt: skip
    for name in others:
        fields[name] = np.ones(len(places))
        kinds.set(name, lib.IntegerNode(image, 1, 0, 9))
    scan.set("guid", lib.StringNode(image, "a"))
    points = lib.CompressedVectorNode(image, kinds, lib.VectorNode(image, True))
    scan.set("points", points)
    file.data3d.append(scan)
    buffers = lib.VectorSourceDestBuffer()
    arrays = {name: np.ascontiguousarray(values, float) for name, values in fields.items()}
    for name, array in arrays.items():
        buffers.append(lib.SourceDestBuffer(image, name, array, len(array), True, True))
    writer = points.writer(buffers)
    writer.write(len(places))
    writer.close()


def e57(path, setups=SETUPS, spherical=None):
    from pye57 import E57

    with E57(str(path), mode="w") as file:
        for number, (turn, place) in enumerate(setups):
            file.write_scan_raw(setup(number), rotation=np.array(turn), translation=np.array(place))
        if spherical is not None:
            add_spherical(file, *spherical)
    return path


def test_e57(tmp_path):
    places = np.random.default_rng(0).uniform(0.1, 1.5, (6, 3))
    colors = np.array([0, 1, 512, 1022, 1023, 7])
    path = e57(tmp_path / "a.e57", spherical=(places, colors, ["intensity", "timeStamp"]))
    reader, recording, whole = io.open_points(path), io.open_recording(path), []
    for number, pose in enumerate([*SETUPS, ((1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0))]):
        table = recording.scan(number).table
        if number < 2:
            rows = setup(number)
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
    whole_numbers = e57(tmp_path / "b.e57", (), (places, colors, ["intensity"]))
    assert io.open_points(whole_numbers).columns["intensity"] == np.uint16
    lost = f"{86 - len(whole)} points in an invalid state are left out"
    rest = "these fields are not read: columnIndex, rowIndex, timeStamp"
    assert reader.problems == [rest, lost]


def build(kind, folder, changes=()):
    if kind == "waymo":
        return waymo(folder, changes)
    return argoverse(folder) if kind == "argoverse" else e57(folder / "site.e57", **dict(changes))


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
    ("argoverse", lambda p: (p / "annotations.feather").unlink(), "has no annotations"),
    ("argoverse", lambda p: write_feather(p / SWEEP, POINT | {"laser_number": [40]}), None),
    ("waymo", lambda p: shutil.rmtree(p.parents[1] / "lidar_pose"), "lidar_pose.*No such file"),
    ("waymo", [("lidar", f"{IMAGE}.shape", [[4, 6, 3]] * 9)], r"got \[4, 6, 3\] of 56 values"),
    ("waymo", [("lidar", f"{IMAGE}.values", [[0.0] * 7 + [None]] * 9)], "values that are null"),
    ("waymo", [("lidar", f"{IMAGE}.values", [None] * 9)], "range_image_return1 is null"),
    ("waymo", [("lidar", "key.laser_name", [1] * 9)], "two rows have the same"),
    ("waymo", [("vehicle_pose", "key.frame_timestamp_micros", [1, 2, 3])], "no pose at 10{15} us"),
    ("e57", {"spherical": NO_POINTS}, None),
    ("e57", {"setups": SETUPS[:1]}, None),
    ("e57", lambda p: p.write_bytes(p.read_bytes()[:3000]), "not a readable E57 file"),
    ("e57", {"setups": [((2.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0))]}, "not a unit quaternion"),
]


@pytest.mark.parametrize(("kind", "change", "words"), EDGES)
def test_edges(kind, change, words, tmp_path):
    path = build(kind, tmp_path, () if callable(change) else change)
    if callable(change):
        change(path)

    def read():
        recording = io.open_recording(path)
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


def test_two_segments_are_two_recordings(tmp_path):
    shutil.copy(waymo(tmp_path), tmp_path / "lidar" / "b.parquet")
    with pytest.raises(WrongUseError, match=r"name one of them: lidar/a.parquet, lidar/b.parquet"):
        io.open_recording(tmp_path)
    assert io.find_clouds([tmp_path / "lidar" / "a.parquet"])[2].name == "000002"


@pytest.mark.parametrize("kind", ["argoverse", "waymo", "e57"])
def test_maps_take_poses_and_origins(kind, tmp_path):
    path = build(kind, tmp_path)
    recording, expected = io.open_recording(path), OccupancyMap(0.5)
    job = MapJob(io.find_clouds([path], scans=slice(None)), MapOptions(voxel_size=0.5), "cpu")
    for number, scan in enumerate(recording.scans()):
        pose, rays = recording.pose(number), []
        for places in (scan.table.xyz, np.zeros_like(scan.table.xyz) if scan.origins is None
                       else scan.origins):  # fmt: skip
            rays.append(torch.from_numpy(places.astype(float) @ pose[:, :3].T + pose[:, 3]))
        expected.integrate(rays[0], origins=rays[1])
        job.add(number)
    assert job.map.equal(expected)
    with pytest.raises(WrongUseError, match="lists the poses of its scans: remove odom"):
        MapJob(job.files, MapOptions(voxel_size=0.5, odom="/odom"), "cpu")


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
