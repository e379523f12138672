# SPDX-License-Identifier: Apache-2.0
"""Recordings written by rosbags' own writers."""

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


def write_recording(folder, kind, topics, others=(), **options):
    """The path of a recording. kind: of KINDS; topics: name -> clouds, None for an undecodable one;
    others: names of topics of odometry, without messages. options: of the writer."""
    from rosbags import rosbag1, rosbag2
    from rosbags.typesys import Stores, get_typestore

    first = kind == "bag"
    store = get_typestore(Stores.ROS1_NOETIC if first else Stores.ROS2_HUMBLE)
    write = store.serialize_ros1 if first else store.serialize_cdr
    types = store.types
    path = Path(folder) / ("drive.bag" if first else "drive")
    if first:
        writer = rosbag1.Writer(path)
        if compression := options.get("compression"):
            writer.set_compression(compression)
    else:
        plugins = rosbag2.StoragePlugin
        plugin = plugins.MCAP if kind == "mcap" else plugins.SQLITE3
        writer = rosbag2.Writer(path, version=9, storage_plugin=plugin)
        if compression := options.get("compression"):
            writer.set_compression(compression, rosbag2.CompressionFormat.ZSTD)

    def encoded(stamp, frame, fields, **rest):
        time = types["builtin_interfaces/msg/Time"](sec=stamp // 10**9, nanosec=stamp % 10**9)
        number = {"seq": 0} if first else {}
        header = types["std_msgs/msg/Header"](stamp=time, frame_id=frame, **number)
        field = types["sensor_msgs/msg/PointField"]
        fields = [
            field(**dict(zip(("name", "offset", "datatype", "count"), f, strict=True)))
            for f in fields
        ]
        return write(types[CLOUD](header=header, fields=fields, **rest), CLOUD)

    with writer:
        for name in others:
            writer.add_connection(name, "nav_msgs/msg/Odometry", typestore=store)
        for name, clouds in topics.items():
            connection = writer.add_connection(name, CLOUD, typestore=store)
            for i, each in enumerate(clouds):
                data = b"\0\1\0\0" + bytes(5) if each is None else encoded(**each)
                writer.write(connection, STAMP + i * 10**8, data)
    return path
