# SPDX-License-Identifier: Apache-2.0
"""What a LAZ file claims, checked before the decompressor allocates it: that aborts the process."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from torchvox._extras import require

if TYPE_CHECKING:
    import laspy

POINT_WISE, LAYERED = 1, 3  # compressors of the LASzip record; 2 is chunks without layers
LAYERS = {10: 9, 11: 1, 12: 2, 13: 1}  # of an item type; extra bytes, type 14, have one a byte
ENTRY_BYTES = 16  # of a chunk in memory; no chunk is smaller, its first point is stored as it is
# Twice what the arithmetic coder reaches on equal points: a symbol's share is at most 1 - 63/2^15.
POINTS_PER_BYTE = 2048


def check_laz(file: BinaryIO, header: laspy.LasHeader) -> bool:
    """Refuse a file whose LASzip record, chunk table or layers do not fit its size.

    Returns whether the chunks may be decompressed in parallel. Raises ValueError.
    """
    lazrs: Any = require("lazrs", "to read LAZ files")
    record = header.vlrs.get("LasZipVlr")[0].record_data
    vlr, compressor = lazrs.LazVlr(record), struct.unpack_from("<H", record)[0]
    number = struct.unpack_from("<H", record, 32)[0]
    items = list(struct.iter_unpack("<3H", record[34 : 34 + 6 * number]))
    points, width, start = header.point_count, header.point_format.size, header.offset_to_point_data
    end = file.seek(0, os.SEEK_END)
    layered = [version > 2 for _, _, version in items]
    if vlr.item_size() != width or any(layer != (compressor == LAYERED) for layer in layered):
        raise ValueError("its LASzip record does not fit its header")
    if points > POINTS_PER_BYTE * (end - start):
        raise ValueError(f"{end} bytes cannot hold the {points} points that its header promises")
    if compressor == POINT_WISE:  # one chunk, no table
        return False
    chunks = _chunks(file, lazrs, vlr, start, end)
    counts = [count for count, _ in chunks]
    if sum(counts) < points or (vlr.uses_variable_size_chunks() and max(counts) > points):
        raise ValueError(f"its chunks do not hold the {points} points that its header promises")
    if compressor == LAYERED:
        layers = sum(LAYERS.get(kind, size) for kind, size, _ in items)
        _check_layers(file, [size for _, size in chunks], start + 8, width + 4, layers)
    # The parallel decompressor makes room for a whole chunk of the record's size.
    return len(chunks) > 1


def _chunks(file: BinaryIO, lazrs: Any, vlr: Any, start: int, end: int) -> list[tuple[int, int]]:
    """(points, bytes) of every chunk."""
    file.seek(start)
    table = struct.unpack("<q", file.read(8))[0]
    if table <= start:  # a writer that could not go back puts it last
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


def _check_layers(file: BinaryIO, sizes: list[int], at: int, head: int, layers: int) -> None:
    """A chunk is its first point, the number of points, the sizes of its layers, its layers."""
    for size in sizes:
        file.seek(at + head)
        lengths = np.frombuffer(file.read(4 * layers), "<u4")
        if size and head + 4 * layers + int(lengths.sum(dtype=np.uint64)) > size:
            raise ValueError("the layers of a chunk do not fit it")
        at += size
