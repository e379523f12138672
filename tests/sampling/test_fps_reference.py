# SPDX-License-Identifier: Apache-2.0
"""The op and its reference against values worked out by hand."""

import numpy as np
import pytest
import torch
from fps_cases import assert_as_reference

INF, NAN = float("inf"), float("nan")
LINE = range(9)


def on_axis(*x):
    return torch.tensor([[(v, 0.0, 0.0) for v in x]], dtype=torch.float32)


def fps(points, s, device="cpu", **options):
    idx, dist2 = assert_as_reference(device, points, s, **options)
    assert (idx.dtype, dist2.dtype) == (torch.int32, points.dtype)
    return idx[0].tolist(), dist2[0].tolist()


@pytest.mark.parametrize(
    ("x", "s", "options", "idx", "dist2"),
    [
        # 0, then 8 (64 away), then 4 (16), then 2 and 6 (4 each, the lower index first).
        (LINE, 5, {}, [0, 8, 4, 2, 6], [INF, 64, 16, 4, 4]),
        ((0, 1, -1, 1, -1), 2, {}, [0, 1], [INF, 1]),  # ties: the lower index
        # Of the points 1 away from 0 bit 0 decides first: 4 before 2 before 6 before 1.
        ((0, 1, 1, 1, 1, 1, 1), 3, {"tie": "mmcv"}, [0, 4, 2], [INF, 1, 0]),
        # Each point once, then -1; or the tie winner again.
        ((5, 5, 7, 5), 6, {}, [0, 2, 1, 3, -1, -1], [INF, 4, 0, 0, 0, 0]),
        ((5, 5, 7, 5), 6, {"start": 2, "exhausted": "repeat"}, [2] + [0] * 5, [INF, 4, 0, 0, 0, 0]),
        ((NAN, 5, 7), 4, {"exhausted": "repeat"}, [1, 2, 1, 1], [INF, 4, 0, 0]),
        # A start set is emitted as given.
        ((0, 1, 2, 3, 9), 5, {"start_idx": [[2, 2, 0]]}, [2, 2, 0, 4, 1], [INF, INF, INF, 49, 1]),
        # A start that is not a point becomes the first candidate.
        *(((NAN, 1, 2, 4), 2, {"start_idx": [i]}, [1, 3], [INF, 9]) for i in (0, 7, -3)),
        ((NAN, 1, 2, 4), 2, {"start": 4}, [1, 3], [INF, 9]),
        ((NAN, 1, 2, 3, 4, 5, 6, 7), 1, {"tie": "mmcv"}, [4], [INF]),
        # Later samples keep away from the whole start set, which may be all there is.
        ((0, 10, 4, 5), 3, {"start_idx": [[0, 1]]}, [0, 1, 3], [INF, INF, 25]),
        ((1, 2, 3), 5, {"start_idx": [[2, 0, 1]]}, [2, 0, 1, -1, -1], [INF] * 3 + [0] * 2),
        *(((0, 1, 2), 3, {"start_idx": [[2, 2]], "init_dist2": d}, [2, 2, 0], [INF, INF, min(d, 4)])
          for d in (0.0, 0.25, 1e10)),
        # What is not finite is skipped, or comes last.
        ((NAN, 0, INF, 3, -INF), 5, {"start": 1}, [1, 3, -1, -1, -1], [INF, 9, 0, 0, 0]),
        ((NAN, 0, INF, 3, -INF), 5, {"start": 1, "nonfinite": "last"}, [1, 3, 0, 2, 4],
         [INF, 9, 0, 0, 0]),
        ((NAN, INF, -INF), 4, {"nonfinite": "last"}, [0, 1, 2, -1], [0] * 4),
        ((NAN, INF, -INF), 3, {"exhausted": "repeat"}, [0] * 3, [INF, 0, 0]),
        ((1, NAN, NAN, 1, NAN, 1, 1, 1), 8, {"nonfinite": "last", "tie": "mmcv"},
         [0, 6, 5, 3, 7, 1, 2, 4], [INF] + [0] * 7),
        # Distances that overflow are equal and legal.
        ((0, 1e20, -1e20, 1), 4, {}, [0, 1, 2, 3], [INF, INF, INF, 1]),
        # Points near the origin are not candidates, except the start.
        ((0.01, 0.02, 5, 6), 4, {"skip_origin": True}, [0, 3, 2, -1],
         [INF, float(np.float32(6 - np.float32(0.01)) ** 2), 1, 0]),
        ((0, 0.001, 1, 2), 4, {"skip_origin": True, "exhausted": "repeat"}, [0, 3, 2, 2],
         [INF, 4, 1, 0]),
        ((0,) * 6, 4, {"skip_origin": True, "start": 2, "exhausted": "repeat"}, [2, 0, 0, 0],
         [INF, 0, 0, 0]),
        # Distances saturate at the initial one.
        ((0, 3e5, 9e5), 3, {"init_dist2": 1e10}, [0, 1, 2], [INF, 1e10, 1e10]),  # mmcv's order
        ((0, 3e5, 9e5), 2, {}, [0, 2], [INF, float(np.float32(9e5) ** 2)]),
        ((0, 1, 2), 3, {"init_dist2": 0.0}, [0, 1, 2], [INF, 0, 0]),
    ],
)  # fmt: skip
def test_points_on_a_line(device, x, s, options, idx, dist2):
    options = {k: torch.tensor(v) if k == "start_idx" else v for k, v in options.items()}
    assert fps(on_axis(*x), s, device, **options) == (idx, dist2)


# |p|^2 <= 1e-3 in fp32 along one axis: the largest such x, and the float above it.
def edge_of_the_origin():
    x = np.float32(np.sqrt(1e-3))
    while np.float64(np.float32(x * x)) <= 1e-3:
        x = np.nextafter(x, np.float32(1))
    return np.nextafter(x, np.float32(0)), x


def test_skip_origin_at_the_two_floats_around_the_limit(device):
    inside, outside = edge_of_the_origin()
    assert np.float32(inside * inside) < np.float32(1e-3) <= np.float32(outside * outside)
    points = torch.zeros(1, 5, 3)
    points[0, 0, 0] = 4.0
    points[0, 1, 0] = float(inside)
    points[0, 2, 1] = float(outside)
    points[0, 3, 2] = -float(inside)
    idx, _ = assert_as_reference(device, points, 5, skip_origin=True)
    assert idx[0].tolist() == [0, 2, -1, -1, -1]
