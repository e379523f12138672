# SPDX-License-Identifier: Apache-2.0
"""radius_neighbors: the hits of ball_query, all of them, in lists that end at the capacity."""

import pytest
import torch
from ball_cases import INF, NAN, spoilt, to
from helpers import assert_same_bits, cube, forced, lattice
from hypothesis import given
from hypothesis import strategies as st

import torchvox
from torchvox import reference

ops = torch.ops.torchvox
each_kernel = pytest.mark.parametrize("kernel", ["scan", "cells"])
NAMES = ("offsets", "index", "dist2", "count")


def assert_as_reference(device, points, query, radius, capacity, **options):
    """The op on `device` returns the bits of the reference, which are returned."""
    expected = reference.radius_neighbors(points, query, radius, capacity, **options)
    on_device = {name: to(device, v) for name, v in options.items()}
    actual = ops.radius_neighbors(
        points.to(device), query.to(device), radius, capacity, **on_device
    )
    for name, a, e in zip(NAMES, actual, expected, strict=True):
        assert_same_bits(a, e, name)
    return expected


@each_kernel
@pytest.mark.parametrize("radius", [0.0, 0.05, 0.3, 2.0, 1e19])
@pytest.mark.parametrize(
    "points", [cube(900)[0], spoilt(700)[0], lattice(600)[0]], ids=["cube", "spoilt", "lattice"]
)
def test_rows_of_no_some_and_all_points(device, points, radius, kernel):
    query = torch.cat([points[::60], points[:3] + 0.01])
    with forced(ball_kernel=kernel):
        all_of_them = assert_as_reference(device, points, query, radius, 17_000)
        assert 0 < all_of_them[3] < 17_000
        for capacity in (0, 1, int(all_of_them[3]) // 2, int(all_of_them[3])):
            assert_as_reference(device, points, query, radius, capacity)


@each_kernel
@pytest.mark.parametrize(
    "options",
    [
        {"closed": True},
        {"min_radius": 0.1, "core_dist2": -1.0},
        {"min_radius": 0.1, "core_dist2": 0.002, "dist_order": "loop"},
        {"radius2": 0.03, "return_dist2": False},
    ],
    ids=lambda o: "-".join(o),
)
def test_options(device, options, kernel):
    points, query = spoilt(1000)[0], spoilt(40, seed=1)[0]
    with forced(ball_kernel=kernel):
        assert_as_reference(device, points, query, 0.2, 2000, **options)


@pytest.mark.parametrize(
    ("dtype", "d"), [(torch.float16, 3), (torch.bfloat16, 2), (torch.float64, 3), (torch.float, 5)]
)
def test_dtypes_and_axes(device, dtype, d):
    points, query = cube(300, d)[0].to(dtype), cube(20, d, seed=1)[0].to(dtype)
    for capacity in (5, 3000):
        out = assert_as_reference(device, points, query, 0.4, capacity)
    assert out[2].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@each_kernel
@pytest.mark.parametrize(
    ("offsets", "query_offsets"),
    [
        ([0, 3, 3, 250, 400], [0, 10, 20, 50, 60]),
        ([50, 60, 80], [5, 6, 30]),  # points and queries of no cloud
        ([-5, 100, 4000], [-9, 3, 1 << 40]),
        ([0], [0]),
    ],
)
def test_clouds_are_searched_alone(device, offsets, query_offsets, kernel):
    points, query = lattice(400, seed=1)[0], lattice(60, seed=2)[0] + 0.25
    clouds = {
        "batch_offsets": torch.tensor(offsets),
        "query_batch_offsets": torch.tensor(query_offsets),
    }
    with forced(ball_kernel=kernel):
        assert_as_reference(device, points, query, 1.5, 2000, **clouds)


@each_kernel
@pytest.mark.parametrize("offsets", [[-5, 30, 99, 7, 60], [300, 20, 390, -7, 100], [0, 2**40, 4]])
def test_offsets_in_disorder_stay_in_bounds(device, offsets, kernel):
    points, offsets = lattice(400, seed=1)[0].to(device), torch.tensor(offsets).to(device)
    query, query_offsets = points[:60].contiguous(), (offsets / 6).long()
    with forced(ball_kernel=kernel):
        begins, index, _, count = ops.radius_neighbors(
            points,
            query,
            9.0,
            5000,
            batch_offsets=offsets,
            query_batch_offsets=query_offsets,
        )
    assert ((index >= -1) & (index < 400)).all()
    assert (begins.diff() >= 0).all() and begins[-1] == count.clamp(max=5000)


@each_kernel
def test_rows_have_the_bits_of_a_ball_query_with_room(device, kernel):
    points, query = spoilt(3000, seed=2).to(device), cube(50, seed=3).to(device)
    with forced(ball_kernel=kernel):
        for convention in ("torchvox", "torch_cluster", "pointcept"):
            dist2, idx, count = torchvox.ball_query(
                points, query, 0.15, 500, convention=convention, fill="pad"
            )
            out = torchvox.radius_neighbors(
                points[0], query[0], 0.15, 9000, convention=convention, trim=True
            )
            kept = idx[0] >= 0
            assert count.max() > 30 and out.count == count.sum()
            assert_same_bits(out.offsets.diff(), count[0].long())
            assert_same_bits((out.index, out.dist2), (idx[0][kept], dist2[0][kept]))


@given(
    st.lists(st.integers(0, 3), min_size=0, max_size=40),
    st.integers(0, 60),
    st.sampled_from([0.0, 1.0, 1.5, INF]),
)
def test_the_last_row_with_room_keeps_its_lowest_indices(x, capacity, radius):
    points = torch.tensor(x, dtype=torch.float32)[:, None]
    query = torch.tensor([[0.0], [2.0], [NAN], [9.0]])
    offsets, index, dist2, count = ops.radius_neighbors(points, query, radius, capacity)
    whole = ops.radius_neighbors(points, query, radius, 200)
    kept = min(capacity, int(count))
    assert count == whole[3] == whole[0][-1]
    assert torch.equal(offsets, whole[0].clamp(max=capacity))
    assert torch.equal(index[:kept], whole[1][:kept]) and (index[kept:] == -1).all()
    assert torch.equal(dist2[:kept], whole[2][:kept]) and (dist2[kept:] == 0).all()
    for row in range(4):
        inside = (points[:, 0] - query[row, 0]).square() < radius * radius
        inside |= points[:, 0] == query[row, 0]
        expected = inside.nonzero()[:, 0] if row != 2 else torch.zeros(0)
        assert whole[1][whole[0][row] : whole[0][row + 1]].tolist() == expected.tolist()


def test_trimmed_lists_are_the_part_in_use():
    points = cube(100)[0]
    full = torchvox.radius_neighbors(points, points, 0.2, 5000)
    trimmed = torchvox.radius_neighbors(points, points, 0.2, 5000, trim=True)
    assert len(trimmed.index) == len(trimmed.dist2) == full.count
    assert_same_bits(trimmed.index, full.index[: int(full.count)])
    without = torchvox.radius_neighbors(points, points, 0.2, 40, return_dist2=False, trim=True)
    assert len(without.index) == 40 and len(without.dist2) == 0 and without.count == full.count
    with pytest.raises(ValueError, match="convention must be one of"):
        torchvox.radius_neighbors(points, points, 0.2, 40, convention="mine")


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "non-strict"])
def test_trimmed_lists_export(strict):
    class Trimmed(torch.nn.Module):
        def forward(self, points):
            return tuple(torchvox.radius_neighbors(points, points, 0.3, 4000, trim=True))

    shapes = ({0: torch.export.Dim.DYNAMIC},)
    exported = torch.export.export(
        Trimmed(), (cube(50)[0],), dynamic_shapes=shapes, strict=strict
    ).module()
    for n in (50, 77):
        points = cube(n, seed=n)[0]
        assert_same_bits(tuple(exported(points)), Trimmed()(points))


@pytest.mark.parametrize("level", [0, 1, 2])
def test_every_instruction_set_of_the_cpu(level):
    for kernel in ("scan", "cells"):
        with forced(ball_kernel=kernel, ball_cpu=level):
            assert_as_reference("cpu", spoilt(400)[0], cube(70, seed=1)[0], 0.3, 4000)
