# SPDX-License-Identifier: Apache-2.0
"""ball_query: which points are hits, in which order they come, what follows them, in every plan."""

import pytest
import torch
from helpers import cube, forced, lattice
from hypothesis import given, settings
from hypothesis import strategies as st
from search_cases import INF, NAN, check_ball_query, spoilt

ops = torch.ops.torchvox


def line(*xs):
    """[1, n, 3]: points on the x axis."""
    points = torch.zeros(1, len(xs), 3)
    points[0, :, 0] = torch.tensor(xs)
    return points


ORIGIN = line(0.0)


def search(device, points, radius, k, query=ORIGIN, **options):
    """dist2, idx and count of one query, as lists."""
    outs = ops.ball_query(points.to(device), query.to(device), radius, k, **options)
    return tuple(out[0, 0].tolist() for out in outs)


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
    dist2, actual, count = search(device, line(*x), radius, k, **options)
    assert actual == idx
    hits = [i for n, i in enumerate(idx) if i >= 0 and i not in idx[:n]]
    if x == (9.0,):
        hits = []
    square = torch.tensor(x).square()
    assert count == len(hits) and dist2 == [*square[hits].tolist(), *[0] * (k - count)]


def test_the_radius_is_squared_in_float32_and_radius2_is_taken_as_given(device):
    square = torch.tensor(0.7) * torch.tensor(0.7)
    assert square.item() != torch.tensor(0.7 * 0.7).item()  # the point of radius2
    root = torch.tensor([square, torch.tensor(0.7 * 0.7)]).sort().values
    for radius2, count in ((root[1], 1), (root[0], 0)):
        assert search(device, line(0.7), 0.7, 1, radius2=radius2.item())[2] == count


each_kernel = pytest.mark.parametrize("kernel", ["scan", "cells"])


@each_kernel
@given(
    n=st.integers(0, 40) | st.sampled_from([1023, 1024, 1025]),  # around warps and tiles
    m=st.integers(0, 4), k=st.integers(0, 9) | st.sampled_from([31, 32, 33, 200]),
    d=st.sampled_from([2, 3, 9]), half=st.booleans(), scale=st.sampled_from([1.0, 2e5, 1e-20]),
    seed=st.integers(0, 99), radius=st.sampled_from([0.0, 0.5, 1.0, 2.0, 9.0]),
    min_radius=st.sampled_from([0.0, 1.0, 3.0]), core=st.sampled_from([-1.0, 0.0, 1.0, 5.0]),
    closed=st.booleans(), fill=st.sampled_from(["first", "pad"]),
    order=st.sampled_from(["pn2", "loop"]), length=st.none() | st.integers(-1, 50),
)  # fmt: skip
@settings(max_examples=100)
def test_any_call_has_the_bits_of_the_reference(
    device, kernel, n, m, k, d, half, scale, seed, radius, min_radius, core, closed, fill, order,
    length,
):  # fmt: skip
    rng = torch.Generator().manual_seed(seed)
    points, query = (torch.randint(0, 4, (2, rows, d), generator=rng) * scale for rows in (n, m))
    points[:, ::19] = NAN
    if half:
        points, query = points.half(), query.half()
    options = {
        "min_radius": min_radius * scale,
        "core_dist2": core * scale**2,
        "closed": closed,
        "fill": fill,
        "dist_order": order,
        "lengths": None if length is None else torch.tensor([length, n]),
    }
    for level in (0, 1, 2) if device == "cpu" else (0,):  # instruction sets of the CPU
        with forced(ball_kernel=kernel, ball_cpu=level):
            check_ball_query(device, points, query, radius * scale, k, **options)


SPREAD = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
CLOUDS = {
    "cube": cube(1500),
    "spoilt": spoilt(1500),
    "lattice": lattice(1500),
    "one place": torch.full((1, 300, 3), 0.3),
    "line": torch.arange(500.0).reshape(1, 500, 1) * torch.tensor([0.002, 0.0, 0.0]),
    "far away": cube(700) + 1e6,
    "across the origin": cube(700) - 0.5,
    "all scales": (SPREAD * 10.0 ** torch.linspace(-20, 18, 500)[:, None])[None],
}


@pytest.mark.one_of("radius")
@each_kernel
@pytest.mark.parametrize("name", CLOUDS)
@pytest.mark.parametrize("radius", [0.0, 1e-19, 0.03, 0.2, 1.0, 1e6, 1e19])
def test_every_cloud_at_every_scale(device, name, radius, kernel):
    points = CLOUDS[name]
    query = torch.cat([points[:, ::50], points[:, ::70] + 0.01], dim=1)
    with forced(ball_kernel=kernel):
        check_ball_query(device, points, query, radius, 20)
