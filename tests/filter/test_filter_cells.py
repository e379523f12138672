# SPDX-License-Identifier: Apache-2.0
"""The cells of points, and the keys of cells."""

import math

import numpy as np
import pytest
import torch
from filter_cases import LAYOUTS, around, calls, on_x
from helpers import check_op
from hypothesis import given, settings
from hypothesis import strategies as st


def cells_on_x(device, xs, size, dtype=torch.float32, lower=-(2**20), bits=21, **options):
    """Cell along x of each point, None where it is outside."""
    sizes, first = [size, 1e30, 1e30], [lower, 0, 0]
    frame = {"lower": first, "bits": bits, "layout": "zyx"}
    keys, counts = check_op("voxel_keys", device, on_x(xs, dtype), sizes, **frame, **options)
    assert counts.tolist() == [[int((keys >= 0).sum()), int((keys < 0).sum()), 0]] * 2
    return [key + lower if key >= 0 else None for key in keys.tolist()]


def interleaved(cell, bits: int) -> int:
    """The Morton code by strings of digits."""
    return int("".join(map("".join, zip(*(f"{i:0{bits}b}" for i in cell), strict=True))), 2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bits", range(1, 22))
def test_every_number_of_bits_there_and_back(device, bits, layout):
    rng = np.random.default_rng(bits)
    last = (1 << bits) - 1
    steps = np.concatenate(
        [rng.integers(0, last + 1, (20, 3)), [[0] * 3, [last] * 3, [0, 0, last]]]
    )
    samples = min(1 << (63 - 3 * bits), 5)
    lower = [-7, 2**31 - 1 - last, -(2**31)]
    batch = torch.linspace(0, len(steps), samples + 1).int()
    frame = {"lower": lower, "bits": bits, "layout": layout, "batch_offsets": batch}
    points = torch.from_numpy(steps + np.array(lower) + 0.5)
    keys, counts = check_op("voxel_keys", device, points, [1.0] * 3, **frame)
    sample = torch.bucketize(torch.arange(len(steps)), batch[1:], right=True).tolist()
    assert keys.tolist() == [
        b << 3 * bits | (interleaved(c, bits) if layout == "morton" else
                         (c[2] << 2 * bits) + (c[1] << bits) + c[0])
        for b, c in zip(sample, steps.tolist(), strict=True)
    ]  # fmt: skip
    assert counts[0].tolist() == [len(steps), 0, 0]
    cells = check_op("voxel_cells", device, keys, bits, lower, layout=layout)
    assert cells[:, 0].tolist() == sample
    assert (cells[:, 1:].flip(1).numpy() == steps + lower).all()


@pytest.mark.parametrize(
    ("samples", "bits"), [(1, 21), (2, 20), (8, 20), (9, 19), (64, 19), (65, 18)]
)
def test_samples_take_bits_from_the_cells(device, samples, bits):
    batch = torch.zeros(samples + 1, dtype=torch.int32)
    batch[-1] = 1
    points = on_x([0.5])
    keys, counts = check_op("voxel_keys", device, points, [1.0] * 3, batch_offsets=batch)
    assert keys.tolist() == [samples - 1 << 3 * bits | 7 << 3 * (bits - 1)]
    assert counts.tolist() == [[1, 0, 0]] + [[0] * 3] * (samples - 1) + [[1, 0, 0]]
    check_op("voxel_downsample", device, points, [1.0] * 3, batch_offsets=batch)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0.05, 0.1, 0.25, 1 / 3, 3.0, 1024.0])
def test_faces_and_the_values_beside_them(device, size, dtype):
    faces = around((np.arange(-70, 70) * size).astype(dtype))
    faces = np.concatenate([faces, around(dtype(0.1) * np.arange(-70, 70, dtype=dtype))])
    actual = cells_on_x(device, faces, size, torch.from_numpy(faces).dtype)
    assert actual == np.floor(faces / dtype(size)).astype(int).tolist()
    if size in (0.25, 1024.0):  # a power of two: the quotient is exact except for denormals
        exact = [math.floor(x / size) for x in faces.tolist()]
        assert all(a == b for a, b, x in zip(actual, exact, faces, strict=True) if abs(x) > 1e-30)


def test_the_origin_has_the_precision_of_the_points(device):
    origin = {"origin": [0.1, 0.0, 0.0]}
    near = np.float32(0.1)
    below = np.nextafter(near, np.float32(0))
    assert cells_on_x(device, [near, below], 0.5, **origin) == [0, -1]
    below = np.nextafter(0.1, 0)
    assert cells_on_x(device, [0.1, below, near], 0.5, torch.float64, **origin) == [0, -1, 0]
    # fp32(0.3) / fp32(0.1) is 3; 0.3 / 0.1 is below 3; float16(0.3) is above.
    for dtype, cell in ((torch.float32, 3), (torch.float64, 2), (torch.float16, 3)):
        assert cells_on_x(device, [0.3], 0.1, dtype) == [cell]
    far = [637_000.005, 637_000.009, 637_000.011]  # UTM at 1 cm
    cells = cells_on_x(device, far, 0.01, torch.float64, origin=[637_000.0, 0.0, 0.0])
    assert cells == [0, 0, 1]


@pytest.mark.parametrize("size", [2048, 2053, 1 << 20, (1 << 31) - 1])
def test_integers_have_exact_cells(device, size):
    rng = np.random.default_rng(size)
    xs = rng.integers(-(2**31), 2**31, 200)
    faces = xs // size * size
    ends = np.array([-(2**31), 2**31 - 1])
    xs = np.concatenate([xs, faces, faces - 1, ends]).clip(-(2**31), 2**31 - 1)
    assert cells_on_x(device, xs, size, torch.int32) == (xs // size).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
def test_a_frame_far_from_the_world_is_compared_in_whole_numbers(device, dtype):
    """float32(2^24 + 1) is 2^24, which is outside."""
    far, wide = 2**24, 2**53
    calls = [
        ([far, far + 2, far + 4, far - 1], far + 1, 1, [None, far + 2, None, None]),
        ([-far, -far - 2, -far - 4, 1 - far], -far - 2, 1, [None, -far - 2, None, None]),
    ]
    if dtype == torch.float64:  # up to the largest cells
        low, high = range(-wide, 5 - wide), [wide - 1, wide, wide + 2, wide + 4, 2.0**60]
        calls += [
            ([*low[:3], low[4], -(2.0**60)], -wide, 2, [*low[:3], None, None]),
            (high, wide, 2, [None, wide, wide + 2, None, None]),
        ]
    for xs, lower, bits, cells in calls:
        assert cells_on_x(device, xs, 1.0, dtype, lower, bits) == cells


@settings(max_examples=100)
@given(call=calls(), layout=st.sampled_from(LAYOUTS))
def test_keys_equal_their_definition(device, call, layout):
    points, size, options = call
    keys, counts = check_op("voxel_keys", device, points, size, **options, layout=layout)
    assert counts[1:].sum(0).tolist() == counts[0].tolist()
    assert counts[0, 0] == (keys >= 0).sum() and (keys >= -1).all()
