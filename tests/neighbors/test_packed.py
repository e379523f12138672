# SPDX-License-Identifier: Apache-2.0
"""knn, three_nn and ball_query of packed clouds: each cloud alone, whatever the offsets say."""

import ball_cases
import knn_cases
import pytest
import torch
from helpers import assert_same_bits, cube, forced, lattice

import torchvox
from torchvox import reference

ops = torch.ops.torchvox
NAN, INF = float("nan"), float("inf")
POINTS, QUERY = lattice(400, seed=1)[0], lattice(60, seed=2)[0] + 0.25
PAD = {"fill": "pad"}
OFFSETS, QUERY_OFFSETS = torch.tensor([0, 3, 3, 250, 400]), torch.tensor([0, 10, 20, 50, 60])

each_search = pytest.mark.parametrize("search", ["knn", "scan", "cells"])
each_kernel = pytest.mark.parametrize("search", ["scan", "cells"])


def search_as_reference(device, search, points, query, offsets, query_offsets, k=7, **options):
    """Outputs of knn, or of a ball query by one of its kernels: the bits of the reference."""
    options |= {"batch_offsets": offsets, "query_batch_offsets": query_offsets}
    if search == "knn":
        return knn_cases.assert_as_reference(device, points, query, k, **options)
    radius = options.pop("radius", 1.5)
    with forced(ball_kernel=search):
        return ball_cases.assert_as_reference(device, points, query, radius, k, **options)


@each_search
@pytest.mark.parametrize("local_index", [False, True])
@pytest.mark.parametrize("k", [1, 5, 40, 300])
def test_each_cloud_is_searched_alone(device, search, local_index, k):
    clouds = (POINTS, QUERY, OFFSETS, QUERY_OFFSETS)
    search_as_reference(device, search, *clouds, k, local_index=local_index)


@pytest.mark.parametrize(
    ("search", "options"),
    [
        ("knn", {"norm": 1}),
        ("knn", {"dist_order": "loop"}),
        ("scan", {"fill": "pad"}),
        ("cells", {"fill": "pad"}),
    ],
)
def test_options(device, search, options):
    offsets = (OFFSETS.int(), QUERY_OFFSETS.int())
    search_as_reference(device, search, POINTS, QUERY, *offsets, **options)


@each_search
def test_it_equals_the_search_of_padded_clouds(device, search):
    points = ball_cases.spoilt(100, batch=3).to(device)
    query = cube(20, seed=1, batch=3).to(device)
    offsets = {
        "batch_offsets": torch.arange(4, device=device) * 100,
        "query_batch_offsets": torch.arange(4, device=device) * 20,
        "local_index": True,
    }
    arguments = (8,) if search == "knn" else (0.3, 8)
    op = ops.knn if search == "knn" else ops.ball_query
    with forced(**({} if search == "knn" else {"ball_kernel": search})):
        padded = op(points, query, *arguments)
        assert_same_bits(op(points, query, *arguments, local_index=True), padded)
        packed = op(points.flatten(0, 1), query.flatten(0, 1), *arguments, **offsets)
    assert_same_bits(tuple(packed), tuple(out.flatten(0, 1) for out in padded))


@each_search
def test_queries_and_points_outside_every_cloud_are_alone(device, search):
    offsets, query_offsets = torch.tensor([50, 60, 80]), torch.tensor([5, 6, 30])
    clouds = (POINTS, QUERY, offsets, query_offsets)
    out = search_as_reference(device, search, *clouds, 2, **({} if search == "knn" else PAD))
    idx = out[1]
    assert (idx[:5] == -1).all() and (idx[30:] == -1).all()
    inside = idx[5:30]
    assert ((inside >= 50) & (inside < 80) | (inside < 0)).all() and (inside >= 0).any()


def test_an_empty_ball_names_row_0_of_its_cloud(device):
    points, query = torch.zeros(6, 3), torch.full((2, 3), 9.0)
    offsets = torch.tensor([0, 4, 6]), torch.tensor([0, 1, 2])
    _, idx, count = search_as_reference(device, "scan", points, query, *offsets, 2)
    assert idx.tolist() == [[0, 0], [4, 4]] and count.tolist() == [0, 0]


@each_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_ball_in_a_cloud_without_points_names_none(device, dtype, search):
    """Row 0 of the cloud would be the first point of the next one."""
    clouds = (torch.zeros(5, 3, dtype=dtype), torch.zeros(3, 3, dtype=dtype))
    clouds += (torch.tensor([0, 2, 2, 5]), torch.tensor([0, 1, 2, 3]))
    _, idx, count = search_as_reference(device, search, *clouds, 2)
    assert idx.tolist() == [[0, 1], [-1, -1], [2, 3]] and count.tolist() == [2, 0, 2]
    _, idx, _ = search_as_reference(device, search, *clouds, 2, local_index=True)
    assert idx.tolist() == [[0, 1], [0, 0], [0, 1]]


@each_search
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_many_small_clouds(device, search, dtype):
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(0, 9, (300,), generator=generator)
    wanted = torch.randint(0, 5, (300,), generator=generator)
    offsets, query_offsets = (
        torch.cat([torch.zeros(1), n.cumsum(0)]).to(dtype) for n in (sizes, wanted)
    )
    points = lattice(int(offsets[-1]), side=3)[0]
    query = lattice(int(query_offsets[-1]), side=3)[0]
    search_as_reference(device, search, points, query, offsets, query_offsets, 4)


@each_search
@pytest.mark.parametrize(
    ("offsets", "query_offsets"),
    [
        ([-5, 100, 4000], [-9, 3, 1 << 40]),
        ([0, 0, 0], [0, 30, 60]),
        ([0, 400, 400], [0, 60, 60]),
        ([0], [0]),
    ],
)
def test_offsets_are_clamped(device, search, offsets, query_offsets):
    clouds = (POINTS, QUERY, torch.tensor(offsets), torch.tensor(query_offsets))
    search_as_reference(device, search, *clouds, 3)


@each_search
@pytest.mark.parametrize("k", [3, 200])
@pytest.mark.parametrize(
    "offsets", [[-5, 30, 99, 7, 60], [300, 20, 390, -7, 100], [9, 9, 0, 0, 0], [0, 2**40, 4, 5, 1]]
)
def test_offsets_in_disorder_stay_in_bounds(device, search, k, offsets):
    points, query, offsets = POINTS.to(device), QUERY.to(device), torch.tensor(offsets).to(device)
    for query_offsets in (torch.tensor([40, 2, 55, 12, 60], device=device), offsets):
        both = {"batch_offsets": offsets, "query_batch_offsets": query_offsets}
        if search == "knn":
            _, idx = ops.knn(points, query, k, **both)
        else:
            with forced(ball_kernel=search):
                _, idx, count = ops.ball_query(points, query, 1.0, k, **both)
            assert (count <= k).all()
        assert ((idx >= -1) & (idx <= 400)).all()


@pytest.mark.parametrize(
    "query_offsets", [[40, 2, 55, 12, 60], [-9, 70, 20, 20, 55], [60, 0, 0, 0, 60]]
)
def test_knn_and_ball_query_agree_about_the_owner_of_a_query(device, query_offsets):
    """Also where offsets are in disorder: one definition serves both."""
    clouds = (POINTS.to(device), QUERY.to(device))
    both = {
        "batch_offsets": OFFSETS.to(device),
        "query_batch_offsets": torch.tensor(query_offsets, device=device),
    }
    _, nearest = ops.knn(*clouds, 1, **both)
    _, hits, count = ops.ball_query(*clouds, radius=1e3, k=400, fill="pad", **both)
    assert ((nearest[:, 0] >= 0) == (count > 0)).all()
    assert ((hits == nearest) | (nearest < 0)).any(1).all()


@each_search
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes_and_more_axes(device, search, dtype):
    points, query = cube(400, 5)[0].to(dtype), cube(60, 5, seed=1)[0].to(dtype)
    radius = {} if search == "knn" else {"radius": 0.8}
    search_as_reference(device, search, points, query, OFFSETS, QUERY_OFFSETS, **radius)


@each_search
def test_no_clouds_and_a_query_that_is_not_finite(device, search):
    points, query = torch.zeros(4, 3), torch.tensor([[0.0, 0.0, NAN], [0.0, 0.0, 0.0]])
    none, options = torch.zeros(1, dtype=torch.int64), {} if search == "knn" else PAD
    _, idx, *_ = search_as_reference(device, search, points, query, none, none, 2, **options)
    assert (idx == -1).all()
    one = (torch.tensor([1, 4]), torch.tensor([0, 2]))
    _, idx, *_ = search_as_reference(device, search, points, query, *one, 2, **options)
    assert idx.tolist() == [[-1, -1], [1, 2]]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 900])
def test_three_nn(device, n):
    points, query = cube(n, seed=n, batch=2), cube(33, seed=5, batch=2)
    got = torchvox.three_nn(query.to(device), points.to(device))
    assert_same_bits(tuple(got), reference.three_nn(query, points))
    assert (got.idx[..., n:] == -1).all() and (got.dist2[..., n:] == INF).all()
    packed = torchvox.three_nn(
        query[0].to(device),
        points[0].to(device),
        batch_offsets=torch.tensor([0, n], device=device),
        query_batch_offsets=torch.tensor([0, 33], device=device),
    )
    assert_same_bits(tuple(packed), (got.dist2[0], got.idx[0]))
