# SPDX-License-Identifier: Apache-2.0
"""What the evaluators share: the boxes of all frames one behind the other, pairs of a frame and
their overlaps, and greedy matching in all frames at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from torchvox._util.errors import expect
from torchvox.ops.boxes import rotated_iou

Frames = Sequence[Mapping[str, Any]]
Columns = dict[str, np.ndarray]

LEVELS = ("strict", "loose")
# Overlap that a match exceeds, strict and loose, of the classes of KITTI.
LEAST_OVERLAP = {name: (0.7, 0.5) for name in ("car", "van", "truck")}
LEAST_OVERLAP |= {name: (0.5, 0.25) for name in ("pedestrian", "cyclist", "person_sitting")}
CHUNK = 1 << 20  # pairs that are measured at once


def stack(
    what: str,
    frames: Frames,
    widths: Mapping[str, int],
    *,
    words: Sequence[str] = (),
    may_be_nan: Sequence[str] = (),
) -> Columns:
    """The rows of all frames, concatenated.

    what: the argument's name, for errors. frames: one mapping per frame. widths: columns of numbers
    and how wide they are, 0 for [n]. words: columns of text [n]. may_be_nan: columns of numbers
    that need not be finite.

    Returns {column: [N, width] or [N] float64, or [N] str}, and "frame" [N] int64, rising.
    Raises ValueError (columns that miss or have another shape, values that are not finite).
    """
    rows: dict[str, list[np.ndarray]] = {key: [] for key in (*words, *widths)}
    counts = np.zeros(len(frames), np.int64)
    for number, frame in enumerate(frames):
        for position, key in enumerate(rows):
            place = f"{what}[{number}]"
            expect(key in frame, f"{place} must have the column {key!r}", sorted(frame))
            width = widths.get(key)
            values = np.asarray(frame[key], str if width is None else np.float64)
            if position == 0:
                counts[number] = len(values) if values.ndim else 0
            shape = (int(counts[number]), *([width] if width else []))
            if values.size == 0 and not counts[number]:
                values = values.reshape(shape)
            expect(values.shape == shape, f"{place}[{key!r}] must be {[*shape]}", [*values.shape])
            if width is not None and not np.isfinite(values).all():
                good = np.isfinite(values) | (np.isnan(values) & (key in may_be_nan))
                odd = values[~good][:1].tolist()
                expect(not odd, f"{place}[{key!r}] must be finite", odd)
            rows[key].append(values)
    expect(len(frames) > 0, f"{what} must have one frame at least", 0)
    stacked = {key: np.concatenate(each) for key, each in rows.items()}
    return {**stacked, "frame": np.repeat(np.arange(len(counts)), counts)}


def select(columns: Columns, rows: np.ndarray) -> Columns:
    """The rows that a mask or an index names, of every column."""
    return {key: values[rows] for key, values in columns.items()}


def pairs(first: np.ndarray, second: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All pairs of rows of the same frame, in chunks.

    first [N], second [M]: int64, the rows' frames, rising.
    Yields (rows of first, rows of second), sorted by both.
    """
    frames = 1 + max(first.max(initial=-1), second.max(initial=-1))
    count = np.bincount(second, minlength=frames)
    start = np.cumsum(count) - count
    partners = count[first]
    total = np.cumsum(partners)
    cuts = np.searchsorted(total, np.arange(CHUNK, int(partners.sum()), CHUNK))
    for rows in np.split(np.arange(len(first)), np.unique(cuts)):
        i = np.repeat(rows, partners[rows])
        before = total[rows] - partners[rows]
        at = np.arange(len(i)) - np.repeat(before - before[:1].sum(), partners[rows])
        yield i, start[first[i]] + at


def overlaps(
    first: np.ndarray, first_frame: np.ndarray, second: np.ndarray, second_frame: np.ndarray
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """The pairs of rotated boxes of the same frame that overlap seen from above.

    first [N, 7], second [M, 7]: boxes as `torchvox.rotated_iou` takes them, float64.
    Returns rows of first [P], rows of second [P] and {"bev": IoU [P], "3d": IoU [P]}, sorted by
    rows.
    """
    a, b = torch.from_numpy(first), torch.from_numpy(second)
    parts = []
    for i, j in pairs(first_frame, second_frame):
        bev = rotated_iou(a[i], b[j], paired=True).numpy()
        meet = bev > 0
        i, j = i[meet], j[meet]
        volume = rotated_iou(a[i], b[j], mode="3d", paired=True).numpy()
        parts.append((i, j, bev[meet], volume))
    i, j, bev, volume = (np.concatenate(each) for each in zip(*parts, strict=True))
    return i, j, {"bev": bev, "3d": volume}


def greedy(
    frame: np.ndarray, taker: np.ndarray, item: np.ndarray, usable: np.ndarray
) -> np.ndarray:
    """Greedy matching: pair after pair of a frame is matched if both of it are still free.

    frame, taker, item: [P] int64, the pairs' frames, rising, and rows; within a frame in the order
    in which they are tried (takers one after the other, each with its best item first).
    usable: [P, C] bool, the pairs that exist in each of C cases that are matched independently.

    Returns [P, C] bool, the matches. Every frame tries its k-th pair at the same time.
    """
    matched = np.zeros_like(usable)
    if not len(frame):
        return matched
    turn = np.arange(len(frame)) - np.searchsorted(frame, frame)
    waits = np.ones((taker.max() + 1, usable.shape[1]), bool)
    free = np.ones((item.max() + 1, usable.shape[1]), bool)
    by_turn = np.argsort(turn, kind="stable")
    for row in np.split(by_turn, np.cumsum(np.bincount(turn))[:-1]):
        hit = usable[row] & waits[taker[row]] & free[item[row]]
        waits[taker[row]] &= ~hit
        free[item[row]] &= ~hit
        matched[row] = hit
    return matched
