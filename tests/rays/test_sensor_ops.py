# SPDX-License-Identifier: Apache-2.0
"""merge_sweeps, crop_points and unpack_points on the borders of their rules; poses from odometry;
the ring of SensorInput."""

import math
import struct

import numpy as np
import pytest
import torch
from helpers import check_op
from hypothesis import given, settings
from hypothesis import strategies as st
from op_infos.rays import poses

import torchvox
from torchvox.mapping import pose_knots

INF, NAN = math.inf, math.nan
KEPT = [0.0, -2.0, -1.0, 4.0, 2.0, 3.0]
CAR = [1.0, -1.0, -INF, 2.0, 1.0, 1.0]
# Bounds, what is next to them, and what is not finite.
PLACES = [0.0, -0.0, 1.0, math.nextafter(4.0, 0), 4.0, -2.0, 1.5, -1.0, 2.0, 1e38, NAN, INF, -INF]
ROWS = st.lists(st.tuples(*[st.sampled_from(PLACES)] * 4), min_size=7, max_size=7)


@settings(deadline=None, max_examples=60)
@given(clouds=st.lists(ROWS, min_size=1, max_size=4), order=st.lists(st.integers(-1, 4)),
       finite=st.sampled_from(["xyz", "all"]))  # fmt: skip
def test_rows_on_the_borders_are_those_of_the_definition(clouds, order, finite):
    points, order = torch.tensor(clouds), torch.tensor(order).long()
    options = {"lengths": torch.arange(len(clouds)) * 4 - 1, "drop_boxes": CAR}
    check_op("merge_sweeps", "cpu", points, poses(len(clouds)), order=order, **options)
    check_op("crop_points", "cpu", points, keep_range=KEPT, finite=finite, **options)


def test_the_first_reason_counts():
    rows = torch.tensor(
        [[1.5, 0.0, NAN, 0.0], [1.5, 0.0, 0.0, INF], [1.5, 0.0, -5.0, 0.0], [1.0, 0.0, 0.0, 0.0],
         [2.0, 0.0, 0.0, 0.0], [0.0, -2.0, -1.0, 0.0], [4.0, 0.0, 0.0, 0.0], [3e38, 0.0, 0.0, 0.0]]
    )  # fmt: skip
    for finite, in_box, broken in (("xyz", 1, 1), ("all", 0, 2)):
        cropped = torchvox.crop_points(rows, keep_range=KEPT, drop_boxes=CAR, finite=finite)
        assert cropped.counts.tolist() == [[8, 3, 3, in_box, broken]] * 2
        assert torch.equal(cropped.points, torch.cat([rows[3:6], torch.zeros(5, 4)]))
    merged = torchvox.merge_sweeps(rows[None], 2 * torch.eye(3, 4)[None], drop_boxes=CAR)
    assert merged.counts.tolist() == [[8, 4, 2, 2]] * 2
    assert merged.points[:, 0].isnan().tolist() == [True] * 3 + [False] * 4 + [True]
    assert torch.equal(merged.points[3:7, :3], 2 * rows[3:7, :3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_deskewed_points_follow_the_motion(dtype, device):
    knots = torch.arange(0, 0.101, 0.001, dtype=dtype)[None]
    times = torch.linspace(-0.01, 0.12, 500, dtype=dtype)[None]
    t = knots[0].double()  # at 2 rad/s and 20 m/s
    frames = torch.eye(3, 4, dtype=torch.float64).repeat(1, len(t), 1, 1)
    frames[0, :, 0, 0], frames[0, :, 1, 0], frames[0, :, 0, 3] = (
        (2 * t).cos(),
        (2 * t).sin(),
        20 * t,
    )
    points = torch.tensor([100.0, 0.0, 1.0, 5.0]).repeat(1, 500, 1)
    merged = check_op("merge_sweeps", device, points, frames, times=times, knots=knots)[0]
    t = times[0].double().clamp(0, t[-1])
    exact = torch.stack([100 * (2 * t).cos() + 20 * t, 100 * (2 * t).sin()], 1)
    assert (merged[:, :2] - exact).abs().max() < 5e-5 + 8e-6  # of the chord and of float32


@pytest.mark.parametrize("rows", [255, 256, 200_000])
def test_rows_of_many_tiles_keep_their_order(rows, device):
    points = torch.randn(2, rows, 5, generator=torch.Generator().manual_seed(rows))
    lengths = torch.tensor([rows, rows // 3])
    check_op("crop_points", device, points, lengths=lengths, keep_range=KEPT)


def test_no_sweeps_leave_rows_of_zeros():
    """Their ages have no memory, and yet a column."""
    none = torch.zeros(0, 40, 4), torch.zeros(0, 3, 4)
    torch.full((5 * 40 * 5,), 7.0)  # what the memory of the output may hold
    points, count, _ = torchvox.merge_sweeps(
        *none, order=torch.zeros(5, dtype=torch.int32), age=torch.zeros(0)
    )
    assert points.shape == (200, 5) and not points.any() and int(count) == 0


def test_fields_are_little_endian_numbers(device):
    values = (-128, 255, -32768, 65535, -(2**31), 2**32 - 1, 1.5, 1.7e9 + 2**-20)
    packet = b"?" + struct.pack("<bBhHiIfd", *values)
    offsets, types = [1, 2, 3, 5, 7, 11, 15, 19], ["i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8"]
    data = torch.tensor(list(packet * 2 + b"rest"), dtype=torch.uint8, device=device)
    out = torchvox.unpack_points(data, len(packet), offsets, types)
    assert torch.equal(out.cpu(), torch.tensor([values] * 2, dtype=torch.float64).float())
    epoch = torch.full((8,), 1.7e9, dtype=torch.float64, device=device)
    assert torchvox.unpack_points(data, 27, offsets, types, shift=epoch)[1, 7] == 2**-20


def test_knots_come_from_the_odometry():
    turned = [[0, -1, 0, 6], [1, 0, 0, 0], [0, 0, 1, 3]]  # by 90 degrees
    track = np.array([np.eye(3, 4), turned])
    knots = pose_knots([12.0, 10.0], track[::-1], [[10.0, 11.0], [11.5, 12.0]])
    angle = torch.atan2(knots[..., 1, 0], knots[..., 0, 0]).rad2deg()
    assert torch.allclose(angle, torch.tensor([[0.0, 45.0], [67.5, 90.0]]).double())
    assert knots[..., 0, 3].tolist() == [[0.0, 3.0], [4.5, 6.0]]
    assert pose_knots([10.0, 12.0], track, []).shape == (0, 3, 4)
    for outside in (9.999, 12.001, NAN):
        with pytest.raises(ValueError, match=r"pose_knots: at must be from 10.0 to 12.0 s"):
            pose_knots([10.0, 12.0], track, [11.0, outside])


def test_a_ring_is_the_merge_of_its_last_scans(device):
    ring = torchvox.nn.SensorInput(4, sweeps=3, points=20, drop_boxes=CAR).to(device)
    track, turn = torch.eye(4, dtype=torch.float64).repeat(5, 1, 1), torch.arange(5.0)
    track[:, 0, 0], track[:, 1, 0], track[:, 0, 1] = turn.cos(), turn.sin(), -turn.sin()
    track[:, 1, 1] = turn.cos()
    track[:, :3, 3] = torch.tensor([4e6, 5e6, 3.0]) + turn[:, None]
    scans = [torch.rand(20 - k, 4) * 4 for k in range(5)]
    for k, scan in enumerate(scans):
        assert ring()[1].item() <= 20 * min(k, 3)
        ring.push(scan.to(device), track[k, :3], time=0.1 * k)
    cloud, count = ring()
    moves = (track[4].inverse() @ track[[4, 3, 2]])[:, :3]
    points = torch.nn.utils.rnn.pad_sequence(scans[:1:-1], batch_first=True)
    options = {"age": torch.arange(3) / 10, "lengths": torch.tensor([16, 17, 18])}
    expected = torchvox.merge_sweeps(points, moves, drop_boxes=CAR, **options).points
    assert count.tolist() == [51] and cloud.shape == (1, 60, 5)
    assert torch.allclose(cloud[0, :51].cpu(), expected[:51], atol=1e-5, equal_nan=True)


def test_a_ring_refuses_by_name():
    ring = torchvox.nn.SensorInput(4, points=20)
    call = {"scan": torch.zeros(5, 4), "pose": torch.eye(3, 4), "time": 0.0}
    for name, value, words in (
        ("scan", torch.zeros(5, 3), r"scan must be \[n, 4\] with n <= 20, got \[5, 3\]"),
        ("scan", torch.zeros(21, 4), r"scan must be .* got \[21, 4\]"),
        ("pose", torch.eye(4), r"pose must be \[3, 4\], got \[4, 4\]"),
    ):
        with pytest.raises(ValueError, match=words):
            ring.push(**{**call, name: value})
