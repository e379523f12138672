# SPDX-License-Identifier: Apache-2.0
"""knn against the reference: every k, ties, dtypes, dimensions, norms."""

import pytest
import torch
from helpers import assert_same_bits, cube, lattice
from knn_cases import CLOUDS, assert_as_reference, brute, ops, some_queries

each_order = pytest.mark.parametrize("dist_order", ["pn2", "loop"])


@each_order
@pytest.mark.parametrize("name", CLOUDS)
def test_clouds(device, name, dist_order):
    points = CLOUDS[name]
    for k in (1, 3, 16, 40):
        assert_as_reference(device, points, some_queries(points), k, dist_order=dist_order)


@pytest.mark.one_of("n")
@pytest.mark.parametrize("k", [0, 1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 700, 5000])
@pytest.mark.parametrize("n", [1, 200, 6000])
def test_every_k(device, n, k):
    points = lattice(n, side=12, seed=k)
    assert_as_reference(device, points, some_queries(points, 3), k)


@pytest.mark.parametrize("n", [31, 32, 33, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 2048, 2049])
def test_sizes_at_the_edges_of_tiles(device, n):
    points = cube(n, seed=n)
    assert_as_reference(device, points, some_queries(points, 4), 17)


@pytest.mark.parametrize("k", [1, 4, 16, 33, 200])
def test_ties_at_the_last_place_go_to_the_lower_index(device, k):
    """Each corner of a cube 50 times, in any order, about its middle: all distances are equal."""
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3).repeat(50, 1)
    points = corners[torch.randperm(400, generator=torch.Generator().manual_seed(k))][None]
    dist2, idx = ops.knn(points.to(device), torch.full((1, 1, 3), 0.5, device=device), k)
    assert idx[0, 0].tolist() == list(range(k))
    assert (dist2 == 0.75).all()


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 2, 3, 4, 9])
def test_dtypes_dimensions_and_norms(device, d, dtype, norm):
    points = cube(60, d, seed=d, batch=2, scale=20.0).to(dtype)
    query = some_queries(points, 6)
    for k in (5, 70):
        assert_as_reference(device, points, query, k, norm=norm)


def test_many_clouds_with_lengths_of_their_own(device):
    points, query = lattice(150, seed=1, batch=9), lattice(20, seed=2, batch=9) + 0.25
    lengths = torch.tensor([0, 1, 2, 149, 150, 151, -3, 1 << 40, 64])
    counts = torch.tensor([20, 0, 1, 19, 21, -1, 5, 1 << 40, 7])
    assert_as_reference(device, points, query, 8, lengths=lengths, query_lengths=counts)
    assert_as_reference(device, points, query, 8, lengths=lengths.clamp(-9, 999).int())


def test_points_and_queries_that_are_not_finite(device):
    points, query = lattice(400, seed=5), lattice(30, seed=6)
    bad = torch.tensor([float("nan"), float("inf"), -float("inf")])
    points[0, ::3, 0], points[0, 1::7, 2] = bad.repeat(45)[:134], float("nan")
    query[0, ::4, 1] = bad.repeat(3)[:8]
    for k in (1, 20, 300):
        assert_as_reference(device, points, query, k)
    points[:] = float("nan")
    assert_as_reference(device, points, query, 2)


@pytest.mark.parametrize("k", [3, 16, 100])
def test_many_queries_of_a_larger_cloud(device, k):
    points = cube(5000, seed=9, batch=2)
    query = some_queries(points, 300)
    dist2, idx = ops.knn(points.to(device), query.to(device), k)
    for b in range(2):
        assert_same_bits((dist2[b].cpu(), idx[b].cpu()), brute(points[b], query[b], k))


def test_every_point_of_a_cloud_is_its_own_first_neighbor(device):
    points = cube(3000, seed=4).to(device)
    dist2, idx = ops.knn(points, points, 4)
    assert (dist2[..., 0] == 0).all()
    assert idx[0, :, 0].tolist() == list(range(3000))


def test_permuting_the_points_permutes_the_neighbors(device):
    points, query = cube(2500, seed=11), cube(60, seed=12)
    order = torch.randperm(2500, generator=torch.Generator().manual_seed(0))
    dist2, idx = ops.knn(points[:, order].to(device), query.to(device), 12)
    expected = ops.knn(points, query, 12)
    assert_same_bits(dist2.cpu(), expected[0])
    assert torch.equal(order[idx.cpu().long()].int(), expected[1])
