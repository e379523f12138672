# SPDX-License-Identifier: Apache-2.0
"""Recordings written by rosbags' own writers."""

import functools
from pathlib import Path

import numpy as np

TYPES = {"i1": 1, "u1": 2, "i2": 3, "u2": 4, "i4": 5, "u4": 6, "f4": 7, "f8": 8}
KINDS = ("bag", "db3", "mcap")
CLOUD = "sensor_msgs/msg/PointCloud2"
STAMP = 1_700_000_000 * 10**9  # ns
OUSTER = np.dtype(
    dict(
        names=["x", "y", "z", "intensity", "t", "ring"],
        formats=["f4", "f4", "f4", "f4", "u4", "u1"],
        offsets=[0, 4, 8, 16, 20, 24],
        itemsize=32,
    )
)


def points(dtype=OUSTER, count=60, seed=0):
    """Points of any bits for integers, finite ones for floats; t ascends to 0.1 s."""
    rng, rows = np.random.default_rng(seed), np.zeros(count, dtype)
    for name in rows.dtype.names:
        own = rows[name]
        wide = rng.normal(size=own.shape) * 20 if own.dtype.kind == "f" else rng.bytes(own.nbytes)
        rows[name] = wide if own.dtype.kind == "f" else np.frombuffer(wide, own.dtype).reshape(
            own.shape
        )  # fmt: skip
    if "t" in rows.dtype.names:
        rows["t"] = np.linspace(0, 99_840_000, count)
    return rows


def cloud(rows, stamp=STAMP, height=1, pad=0, frame="/os_sensor", **changes):
    """What a PointCloud2 of structured points holds. pad: bytes after each row of points."""
    width, step = len(rows) // height, rows.dtype.itemsize
    data = rows.view(np.uint8).reshape(height, width * step)
    fields = []
    for name, (type_, offset) in rows.dtype.fields.items():
        count = int(np.prod(type_.shape)) if type_.shape else 1
        fields.append([name, offset, TYPES[type_.base.str[1:]], count])
    big = any(t.base.byteorder == ">" for t, _ in rows.dtype.fields.values())
    return dict(
        stamp=stamp, frame=frame, height=height, width=width, fields=fields, is_bigendian=big,
        point_step=step, row_step=width * step + pad, is_dense=True,
        data=np.pad(data, ((0, 0), (0, pad))).reshape(-1),
    ) | changes  # fmt: skip


TF = "tf2_msgs/msg/TFMessage"


class Messages:
    """Makes and encodes messages of ROS 1 or 2."""

    def __init__(self, first):
        from rosbags.typesys import Stores, get_types_from_msg, get_typestore

        self.first = first
        self.store = get_typestore(Stores.ROS1_NOETIC if first else Stores.ROS2_HUMBLE)
        if first:
            text = "geometry_msgs/TransformStamped[] transforms"
            self.store.register(get_types_from_msg(text, TF))

    def make(self, name, /, **fields):
        return self.store.types[name.replace("/", "/msg/")](**fields)

    def encoded(self, message):
        write = self.store.serialize_ros1 if self.first else self.store.serialize_cdr
        return write(message, message.__msgtype__)

    def header(self, ns, frame):
        time = self.make("builtin_interfaces/Time", sec=ns // 10**9, nanosec=ns % 10**9)
        return self.make("std_msgs/Header", stamp=time, frame_id=frame, **{"seq": 0} if self.first
                         else {})  # fmt: skip

    def cloud(self, stamp, frame, fields, **rest):
        names = "name", "offset", "datatype", "count"
        fields = [self.make("sensor_msgs/PointField", **dict(zip(names, f, strict=True)))
                  for f in fields]  # fmt: skip
        header = self.header(stamp, frame)
        return self.make("sensor_msgs/PointCloud2", header=header, fields=fields, **rest)

    def posed(self, type_, frame, ns, numbers):
        """A message of a type with a pose. frame: its child; of tf parent->child."""

        def of(name, /, **fields):
            return self.make(f"geometry_msgs/{name}", **fields)

        place, turn = dict(zip("xyz", numbers, strict=False)), dict(zip("xyzw", numbers[3:],
                                                                        strict=True))  # fmt: skip
        turn = of("Quaternion", **turn)
        if type_ == TF:
            parent, child = frame.split("->")
            moved = of("Transform", translation=of("Vector3", **place), rotation=turn)
            one = of("TransformStamped", header=self.header(ns, parent), child_frame_id=child,
                     transform=moved)  # fmt: skip
            return self.store.types[TF](transforms=[one])
        pose = of("Pose", position=of("Point", **place), orientation=turn)
        header = self.header(ns, "odom")
        stamped = of("PoseStamped", header=header, pose=pose)
        if type_.endswith("PoseStamped"):
            return stamped
        if type_.endswith("Path"):
            return self.make("nav_msgs/Path", header=header, poses=[stamped])
        zero, no = of("Vector3", x=0.0, y=0.0, z=0.0), np.zeros(36)
        twist = of("TwistWithCovariance", twist=of("Twist", linear=zero, angular=zero),
                   covariance=no)  # fmt: skip
        pose = of("PoseWithCovariance", pose=pose, covariance=no)
        return self.make("nav_msgs/Odometry", header=header, child_frame_id=frame, pose=pose,
                         twist=twist)  # fmt: skip


def write_recording(folder, kind, topics, poses=(), others=(), **options):
    """The path of a recording. kind: of KINDS; topics: name -> clouds, None for an undecodable one;
    poses: (topic, type, frame, [(ns, 7 numbers)]), see Messages.posed; others: names of topics of
    odometry, without messages, beside which is one of a type whose definition is broken.
    options: of the writer."""
    from rosbags import rosbag1, rosbag2

    messages = Messages(kind == "bag")
    path = Path(folder) / ("drive.bag" if kind == "bag" else "drive")
    if kind == "bag":
        writer, more = rosbag1.Writer(path), ()
    else:
        plugin = rosbag2.StoragePlugin.MCAP if kind == "mcap" else rosbag2.StoragePlugin.SQLITE3
        writer = rosbag2.Writer(path, version=9, storage_plugin=plugin)
        more = (rosbag2.CompressionFormat.ZSTD,)
    if compression := options.get("compression"):
        writer.set_compression(compression, *more)
    with writer:
        connect = functools.cache(
            functools.partial(writer.add_connection, typestore=messages.store)
        )
        for name in others:
            connect(name, "nav_msgs/msg/Odometry")
        if others:
            digest = {"md5sum": "0"} if kind == "bag" else {"rihs01": f"RIHS01_{0:064}"}
            writer.add_connection("/odd", "my_msgs/msg/Odd", msgdef="?? [", **digest)
        for name, type_, frame, own in poses:
            for ns, numbers in own:
                data = messages.encoded(messages.posed(type_, frame, ns, numbers))
                writer.write(connect(name, type_), ns, data)
        for name, clouds in topics.items():
            for i, each in enumerate(clouds):
                data = b"\0\1\0\0" + bytes(5) if each is None else messages.encoded(
                    messages.cloud(**each)
                )  # fmt: skip
                writer.write(connect(name, CLOUD), STAMP + i * 10**8, data)
    return path
