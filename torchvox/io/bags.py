# SPDX-License-Identifier: Apache-2.0
"""ROS 1 and ROS 2 bags, read through rosbags with types of our own choice: definitions of messages
that a bag brings along are never parsed."""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torchvox._util.errors import CloudFileError, explained, short
from torchvox._util.extras import require
from torchvox.io.paths import FOLDER, MCAP, ROS_1, format_of

if TYPE_CHECKING:
    from collections.abc import Callable

CLOUD = "sensor_msgs/msg/PointCloud2"
MOST_BYTES, EXPANSION, ALWAYS = 4 << 30, 1000, 64 << 20  # of what a chunk is unpacked to
# What rosbags says of files, and what to do about it.
REMEDIES = {
    "end magic": "was not closed, as after a loss of power: run mcap recover {name} -o whole.mcap",
    "Invalid MCAP footer": "was cut short: run mcap recover {name} -o whole.mcap",
    "not indexed": "was not closed, as after a loss of power: run rosbag reindex {name}",
    "index looks damaged": "has a damaged index, or was cut short: run rosbag reindex {name}",
}


class Topic(NamedTuple):
    """A topic of a recording. type: of its messages. rate: messages per second."""

    name: str
    type: str
    messages: int
    rate: float


class Bag:
    """An open bag: its topics, and the messages of one. Raises CloudFileError, MissingExtraError.

    start, seconds: of the first message in ns since 1970, and from it to the last one.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.format = path, format_of(path) or "recording"
        ros_1 = self.format == ROS_1
        reader = require(f"rosbags.rosbag{1 if ros_1 else 2}", "to read recordings").Reader
        _bound_chunks()
        _refuse(path, self.format)
        with self.errors():
            self._reader = reader(path)
            self._reader.open()
            self._packed = not ros_1 and self._reader.compression_mode == "message"
            if self._packed:  # rosbags would unpack them without a limit
                storage = self._reader.storage
                storage.metadata = storage.metadata._replace(compression_mode=None)
            seconds = self._reader.duration / 1e9
            self.start, self.seconds = self._reader.start_time, seconds
            self._connections = list(self._reader.connections)
            counts: dict[tuple[str, str], int] = {}
            for each in self._connections:
                key = each.topic, each.msgtype
                counts[key] = counts.get(key, 0) + each.msgcount
        self.topics = [
            Topic(*key, count, (count - 1) / seconds if seconds > 0 < count else 0.0)
            for key, count in sorted(counts.items())
        ]
        self._decode = _decoder(ros_1)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns what fails inside into a CloudFileError, with a remedy where there is one."""
        with explained(self.path, self.format):
            try:
                yield
            except (MemoryError, OverflowError) as error:
                rule = "is damaged: it claims more bytes than memory can hold"
                raise CloudFileError(f"{self.path} {rule}") from error
            except Exception as error:
                for sign, words in REMEDIES.items():
                    if sign in str(error):
                        text = f"{self.path} {words.format(name=self.path.name)}"
                        raise CloudFileError(text) from error
                raise

    def messages(self, topic: str, type_: str = CLOUD) -> Iterator[tuple[int, bytes]]:
        """Times in ns and bytes of the messages of a topic, in the order of these times."""
        own = [each for each in self._connections if (each.topic, each.msgtype) == (topic, type_)]
        with self.errors():
            for _, time, data in self._reader.messages(own):
                yield time, unpacked("zstd", data) if self._packed else data

    def decoded(self, data: bytes, type_: str = CLOUD) -> Any:
        """The message of these bytes. Raises whatever a damaged one makes rosbags raise."""
        return self._decode(data, type_)

    def close(self) -> None:
        self._reader.close()


@functools.cache
def _decoder(ros_1: bool) -> Callable[[bytes, str], Any]:
    types = require("rosbags.typesys", "to read recordings")
    store = types.get_typestore(types.Stores.ROS1_NOETIC if ros_1 else types.Stores.ROS2_HUMBLE)
    if ros_1:  # where tf is missing
        for name in ("tf2_msgs/msg/TFMessage", "tf/msg/tfMessage"):
            text = "geometry_msgs/TransformStamped[] transforms"
            store.register(types.get_types_from_msg(text, name))
    return store.deserialize_ros1 if ros_1 else store.deserialize_cdr


def _refuse(path: Path, format_: str) -> None:
    """Raises CloudFileError for files that rosbags would read without what is in them, or whole."""
    if format_ == MCAP:
        with path.open("rb") as file:
            head = file.read(128)
        profile = head[21 : 21 + int.from_bytes(head[17:21], "little")].decode(errors="replace")
        if profile != "ros2":
            rule = "recordings in MCAP need the profile ros2"
            raise CloudFileError(f"{path}: {rule}, this is of {short(profile) or 'none'!r}")
    if format_ == FOLDER:
        text = (path / "metadata.yaml").read_text(errors="replace")
        if re.search(r"compression_mode:\s*[\"']?file", text, re.IGNORECASE):
            with explained(path, FOLDER):
                _refuse_without_room(path)
    for log in path.glob("*.db3-wal") if path.is_dir() else [Path(f"{path}-wal")]:
        if log.exists() and log.stat().st_size:
            rule = f"{log.name} beside it holds messages that are not in it yet"
            remedy = f"run sqlite3 {log.name[:-4]} 'PRAGMA wal_checkpoint'"
            raise CloudFileError(f"{path} was not closed: {rule}: {remedy}")


def _refuse_without_room(path: Path) -> None:
    """Raises CloudFileError if the files of a bag do not fit where rosbags unpacks them."""
    zstd = require("rosbags.rosbag2.reader", "to read recordings").zstd
    where, size = tempfile.gettempdir(), 0
    room = shutil.disk_usage(where).free
    for file in filter(Path.is_file, path.iterdir()):
        most = size + min(room - size, max(ALWAYS, EXPANSION * file.stat().st_size))
        with contextlib.suppress(zstd.ZstdError, EOFError), zstd.open(file) as stream:
            while chunk := stream.read(1 << 20):
                if (size := size + len(chunk)) > most:
                    what = (
                        f"{room} bytes of room in {where}"
                        if size > room
                        else "1,000 times its size"
                    )
                    rule = f"compression_mode: FILE needs more than {what}"
                    raise CloudFileError(f"{path}: {rule}: ros2 bag convert compresses messages")


def unpacked(kind: str, data: bytes, size: int | None = None) -> bytes:
    """The bytes of a chunk that is compressed by bz2, lz4 or zstd; size: of them, if it is known.

    Raises ValueError for more than 4 GiB, or more than both 64 MiB and 1,000 times the data.
    """
    most = min(MOST_BYTES, max(ALWAYS, EXPANSION * len(data)))
    most = most if size is None else min(most, size)
    module, name = {
        "bz2": ("bz2", "BZ2Decompressor"),
        "lz4": ("lz4.frame", "LZ4FrameDecompressor"),
        "zstd": ("rosbags.rosbag2.reader", "zstd"),  # a module, whose name depends on Python's
    }[kind]
    stream = getattr(importlib.import_module(module), name)
    stream = stream.ZstdDecompressor() if kind == "zstd" else stream()
    plain = stream.decompress(data, max_length=most + 1)
    if len(plain) > most:
        raise ValueError(f"{len(data)} compressed bytes expand to more than {most}")
    if not stream.eof:
        raise ValueError(f"{len(data)} compressed bytes are cut short")
    return plain


@functools.cache
def _bound_chunks() -> None:
    """Gives rosbags, which knows no limit, decompressors that return the same or refuse."""
    one = require("rosbags.rosbag1.reader", "to read recordings").decompressors
    two = require("rosbags.rosbag2.storage_mcap", "to read recordings").DECOMPRESSORS
    one |= {kind: functools.partial(unpacked, kind) for kind in ("bz2", "lz4")}
    two |= {kind: functools.partial(unpacked, kind) for kind in ("lz4", "zstd")}
