# SPDX-License-Identifier: Apache-2.0
"""Argoverse 2 logs, Waymo Open segments and E57 files, written by the libraries themselves."""

import math

import numpy as np

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
    xyz[:30] /= 20  # where the boxes are
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


def build(kind, folder, changes=()):
    if kind == "waymo":
        return waymo(folder, changes)
    return argoverse(folder) if kind == "argoverse" else e57(folder / "site.e57", **dict(changes))
