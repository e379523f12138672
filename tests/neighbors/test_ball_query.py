# SPDX-License-Identifier: Apache-2.0
"""ball_query: which points are hits, in which order they come, what follows them."""

import pytest
import torch
from ball_cases import INF, NAN, assert_as_reference, found, line, spoilt
from helpers import cube, lattice
from hypothesis import given
from hypothesis import strategies as st

ORIGIN = line(0.0)


BELOW = torch.tensor(1.0).nextafter(torch.tensor(0.0)).item()
FAR = (1e30, NAN, -1e30, INF, 0.0)  # the squares of two of them overflow
PAD = {"fill": "pad"}


@pytest.mark.parametrize(
    ("x", "radius", "k", "options", "idx"),
    [
        ((0.5, 3.0, 0.25, 0.0, 0.75), 1.0, 4, {}, [0, 2, 3, 4]),  # by index, not by distance
        ((0.5, 0.25, 0.0), 1.0, 2, {}, [0, 1]),  # the first k
        ((9.0, 0.5, 0.25), 1.0, 5, {}, [1, 2, 1, 1, 1]),  # the first hit repeats
        ((9.0, 0.5, 0.25), 1.0, 5, PAD, [1, 2, -1, -1, -1]),
        ((9.0,), 1.0, 2, {}, [0, 0]),
        ((9.0,), 1.0, 2, PAD, [-1, -1]),
        ((1.0, BELOW, -1.0), 1.0, 3, PAD, [1, -1, -1]),  # at the radius: out unless closed
        ((1.0, -1.0), 1.0, 2, {"closed": True}, [0, 1]),
        ((0.5, 0.25, 0.75, 2.0), 1.0, 4, {"min_radius": 0.5, **PAD}, [0, 2, -1, -1]),  # closed
        # A point at distance 0 is always a hit; the square of 1e-30 underflows to it.
        ((0.0, 1e-30, 0.5), 0.0, 3, {}, [0, 1, 0]),
        ((0.0, 1e-30, 0.5), 1.0, 3, {"min_radius": 0.25, **PAD}, [0, 1, 2]),
        ((0.0, 1e-30, 0.5), 0.0, 1, {"core_dist2": -1.0, **PAD}, [-1]),
        # A core reaches beyond the radii.
        ((0.5, 3.0, 2.0), 1.0, 3, {"core_dist2": 4.0}, [0, 2, 0]),
        ((0.5, 3.0, 2.0), 4.0, 3, {"min_radius": 2.5, "core_dist2": 0.25, **PAD}, [0, 1, -1]),
        (FAR, INF, 5, PAD, [4, -1, -1, -1, -1]),
        (FAR, INF, 5, {"closed": True, **PAD}, [0, 2, 4, -1, -1]),
    ],
)
def test_hits_on_a_line(device, x, radius, k, options, idx):
    dist2, found_idx, count = found(device, line(*x), ORIGIN, radius, k, **options)
    assert found_idx == idx
    hits = [i for n, i in enumerate(idx) if i >= 0 and i not in idx[:n]]
    if x == (9.0,):
        hits = []
    square = torch.tensor(x).square()
    assert count == len(hits) and dist2 == [*square[hits].tolist(), *[0] * (k - count)]


def test_the_radius_is_squared_in_float32_and_radius2_is_taken_as_given(device):
    square = torch.tensor(0.7) * torch.tensor(0.7)
    assert square.item() != torch.tensor(0.7 * 0.7).item()  # the point of radius2
    root = torch.tensor([square, torch.tensor(0.7 * 0.7)]).sort().values
    points = line(0.7)
    inside = found(device, points, ORIGIN, 0.7, 1, radius2=root[1].item())[2]
    assert inside == 1 and found(device, points, ORIGIN, 0.7, 1, radius2=root[0].item())[2] == 0


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_what_is_not_finite_has_and_is_no_neighbor(device, value, axis):
    bad = line(0.0)
    bad[0, 0, axis] = value
    points = torch.cat([bad, ORIGIN], dim=1)
    for radius in (1.0, INF):
        assert found(device, points, ORIGIN, radius, 2, closed=True, fill="pad")[1] == [1, -1]
        assert found(device, points, bad, radius, 2, closed=True)[2] == 0


@pytest.mark.parametrize("order", ["pn2", "loop"])
def test_the_two_orders_round_as_their_expressions(device, order):
    points, query = cube(500, seed=1), cube(7, seed=2)
    assert_as_reference(device, points, query, 0.4, 500, dist_order=order)


@pytest.mark.parametrize("k", [1, 31, 32, 33, 64, 200])
@pytest.mark.parametrize("n", [1, 31, 32, 33, 1023, 1024, 1025, 2100])
def test_sizes_around_those_of_warps_and_tiles(device, n, k):
    assert_as_reference(device, spoilt(n, seed=n), cube(5, seed=k), 0.5, k)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_dtype(device, dtype):
    points, query = spoilt(300, batch=2).to(dtype), cube(20, seed=5, batch=2).to(dtype)
    dist2, _, _ = assert_as_reference(device, points, query, 0.3, 16)
    assert dist2.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 2, 4, 9])
def test_any_number_of_axes(device, d, dtype):
    points, query = cube(200, d, batch=2).to(dtype), cube(11, d, seed=1, batch=2).to(dtype)
    assert_as_reference(device, points, query, 0.3 * d**0.5, 12)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_lengths_are_clamped_and_hide_what_lies_behind(device, dtype):
    points, query = lattice(60, side=3, batch=4), lattice(9, side=3, seed=1, batch=4)
    lengths = torch.tensor([0, 7, 60, 99], dtype=dtype)
    query_lengths = torch.tensor([9, -3, 4, 99], dtype=dtype)
    points[1, 7:], query[2, 4:] = NAN, 1e30
    _, _, count = assert_as_reference(
        device, points, query, 1.5, 5, lengths=lengths, query_lengths=query_lengths
    )
    assert count[0].sum() == 0 and count[1].sum() == 0 and (count[2] > 0).tolist()[3:5] == [1, 0]


@pytest.mark.parametrize("points", [lattice(400), lattice(400) * 2e5, lattice(400) * 1e-20])
def test_ties_duplicates_and_points_at_the_radius(device, points):
    unit = points.max() / 7
    for closed in (False, True):
        query = points[:, ::40]
        _, _, count = assert_as_reference(
            device, points, query, float(unit * 2), 50, closed=closed, fill="pad"
        )
        assert count.max() > 1


@given(
    n=st.integers(0, 40), m=st.integers(0, 4), k=st.integers(0, 9), seed=st.integers(0, 99),
    radius=st.sampled_from([0.0, 0.5, 1.0, 2.0, 9.0]), min_radius=st.sampled_from([0.0, 1.0, 3.0]),
    core=st.sampled_from([-1.0, 0.0, 1.0]), closed=st.booleans(),
    fill=st.sampled_from(["first", "pad"]), order=st.sampled_from(["pn2", "loop"]),
)  # fmt: skip
def test_any_small_call(device, n, m, k, seed, radius, min_radius, core, closed, fill, order):
    assert_as_reference(
        device, lattice(n, side=4, seed=seed), lattice(m, side=4, seed=seed + 1), radius, k,
        min_radius=min_radius, core_dist2=core, closed=closed, fill=fill, dist_order=order,
    )  # fmt: skip
