# SPDX-License-Identifier: Apache-2.0
"""Checks of the sizes that a LAZ file claims: if too large, the decompressor aborts the process."""

from __future__ import annotations

import contextlib
import os
import re
import struct
import sys
import threading
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from torchvox._util.extras import require

if TYPE_CHECKING:
    from torchvox.io.las_records import LasSource

POINT_WISE, LAYERED = 1, 3  # compressors of the LASzip record; 2 is chunks without layers
LAYERS = {10: 9, 11: 1, 12: 2, 13: 1}  # by item type; extra bytes, type 14, have one per byte
PANIC = re.compile(
    rb"\n?thread '[^\n]* panicked at [^\n]*\n[^\n]*\n"
    rb"(stack backtrace:\n( [^\n]*\n)*)?(note: [^\n]*\n)?"
)
PARALLEL_BYTES = 1 << 28  # of a chunk's points
ENTRY_BYTES = 16  # of a chunk in memory; no chunk is smaller: its first point is not compressed
# Twice what the arithmetic coder reaches on equal points: a symbol's share is at most 1 - 63/2^15.
POINTS_PER_BYTE = 2048


class QuietPanics:
    """A context that holds stderr back and removes Rust's messages of panics, which lazrs prints
    from threads of its own before it raises."""

    def __init__(self) -> None:
        self._lock, self._entered = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            self._entered += 1
            if self._entered > 1 or sys.__stderr__ is None:  # without stderr, 2 may be any file
                return
            in_memory = hasattr(os, "memfd_create")
            self._waiting = open(os.memfd_create("stderr"), "w+b") if in_memory else TemporaryFile()
            self._stderr = os.dup(2)
            os.dup2(self._waiting.fileno(), 2)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._entered -= 1
            if self._entered or sys.__stderr__ is None:
                return
            os.dup2(self._stderr, 2)
            os.close(self._stderr)
            with self._waiting as file, contextlib.suppress(OSError):
                file.seek(0)
                os.write(2, PANIC.sub(b"", file.read()))


QUIET = QuietPanics()


def check_laz(file: BinaryIO, source: LasSource) -> bool:
    """Whether the chunks may be decompressed in parallel.

    Raises ValueError for a file whose LASzip record, chunk table or layers do not fit its size.
    """
    lazrs = require("lazrs", "to read LAZ files")
    record, count, width, start = source.laszip, source.count, source.width, source.start
    vlr, compressor = lazrs.LazVlr(record), struct.unpack_from("<H", record)[0]
    number = struct.unpack_from("<H", record, 32)[0]
    items = list(struct.iter_unpack("<3H", record[34 : 34 + 6 * number]))
    end = file.seek(0, os.SEEK_END)
    layered = [version > 2 for _, _, version in items]
    if vlr.item_size() != width or any(layer != (compressor == LAYERED) for layer in layered):
        raise ValueError("its LASzip record does not fit its header")
    if count > POINTS_PER_BYTE * (end - start):
        raise ValueError(f"{end} bytes cannot hold the {count} points that its header promises")
    chunks = [(count, end - start)]
    if compressor == POINT_WISE:  # one chunk, no table, whatever the record says of chunks
        source.laszip = record[:12] + b"\1\0\0\0" + record[16:]
    elif count or end - start > 8 + width:  # the first point is not compressed
        chunks = _chunks(file, lazrs, vlr, start, end)
    chunks = [(points, size) for points, size in chunks if size]
    if not count:
        if chunks and end - start > width:
            raise ValueError("its header counts no points, but its chunks hold some")
        return False
    counts, variable = [points for points, _ in chunks], vlr.uses_variable_size_chunks()
    too_many = variable and any(points > POINTS_PER_BYTE * size for points, size in chunks)
    if sum(counts) < count or too_many:
        raise ValueError(f"its chunks do not hold the {count} points that its header promises")
    inside = 0
    if compressor == LAYERED:
        layers = sum(LAYERS.get(kind, size) for kind, size, _ in items)
        inside = _check_layers(file, [size for _, size in chunks], start + 8, width + 4, layers)
    more = compressor != POINT_WISE and sum(counts if variable else (*counts[:-1], 1)) > count
    if more or inside > count:
        source.problems.append(f"its chunks hold more points than the {count} that it counts")
    # The parallel decompressor makes room for whole chunks of the record's size.
    return len(chunks) > 1 and not more and max(counts) * width <= PARALLEL_BYTES


def _chunks(file: BinaryIO, lazrs: Any, vlr: Any, start: int, end: int) -> list[tuple[int, int]]:
    """(points, bytes) of every chunk."""
    file.seek(start)
    table = struct.unpack("<q", file.read(8))[0]
    if table <= start:  # a writer that cannot seek puts it last
        file.seek(end - 8)
        table = struct.unpack("<q", file.read(8))[0]
    if not start + 8 <= table <= end - 8:
        raise ValueError("it has no chunk table, so it is cut short or damaged")
    file.seek(table + 4)
    number = struct.unpack("<I", file.read(4))[0]
    if ENTRY_BYTES * number > table - start:
        raise ValueError(f"its chunk table promises {number} chunks, more than its size allows")
    file.seek(start)
    chunks = lazrs.read_chunk_table(file, vlr)
    if sum(size for _, size in chunks) > table - start - 8:
        raise ValueError("the chunks of its table do not fit its size")
    return chunks


def _check_layers(file: BinaryIO, sizes: list[int], at: int, head: int, layers: int) -> int:
    """The number of points of all chunks. Raises ValueError for layers that do not fit their chunk.

    A chunk is its first point, the number of points, the sizes of its layers, its layers.
    """
    points = 0
    for size in sizes:
        file.seek(at + head - 4)
        number, *lengths = np.frombuffer(file.read(4 + 4 * layers), "<u4").tolist()
        if size and head + 4 * layers + sum(lengths) > size:
            raise ValueError("the layers of a chunk do not fit it")
        at, points = at + size, points + number
    return points
