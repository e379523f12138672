# SPDX-License-Identifier: Apache-2.0
"""knn: the semantics by hand, then against the reference: every k, ties, kernel and cloud."""

import pytest
import torch
from helpers import ODD_CLOUDS, assert_same_bits, cube, forced, lattice
from search_cases import INF, NAN, check_knn, queries_of

import torchvox
from torchvox import reference

ops = torch.ops.torchvox
LINE, ORIGIN = [[0.0, 0, 0], [1, 0, 0], [2, 0, 0], [4, 0, 0]], [0.0, 0, 0]
TIED = [[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [-1, 0, 0]]
OVERFLOW = [[3e38, 0, 0], [-3e38, 0, 0], [1.0, 0, 0]]
SLOPED = [[1.0, 1, 1], [2.5, 0, 0]]


@pytest.mark.parametrize(
    ("points", "query", "k", "options", "idx", "dist2"),
    [
        (LINE, [3.0, 0, 0], 3, {}, [2, 3, 1], [1, 1, 4]),  # nearest first
        (TIED, ORIGIN, 2, {}, [0, 1], [1, 1]),  # of equal distances the lower indices
        (LINE, ORIGIN, 6, {"lengths": [2]}, [0, 1, -1, -1, -1, -1], [0, 1, INF, INF, INF, INF]),
        (OVERFLOW, ORIGIN, 4, {}, [2, 0, 1, -1], [1, INF, INF, INF]),  # neighbors all the same
        *(([*LINE[:1], [0, 0, bad], *LINE[2:]], ORIGIN, 2, {}, [0, 2], [0, 4])
          for bad in (NAN, INF, -INF)),
        *((LINE, [bad, 0, 0], 2, {}, [-1, -1], [INF, INF]) for bad in (NAN, INF, -INF)),
        (SLOPED, ORIGIN, 2, {}, [0, 1], [3, 6.25]),
        (SLOPED, ORIGIN, 2, {"norm": 1}, [1, 0], [2.5, 3]),
        *((LINE, ORIGIN, 1, {"query_lengths": [n]}, [-1], [INF]) for n in (0, -5)),
    ],
)  # fmt: skip
def test_neighbors_by_hand(device, points, query, k, options, idx, dist2):
    options = {name: torch.tensor(v) if name != "norm" else v for name, v in options.items()}
    call = torch.tensor([points]), torch.tensor([[query]]), k
    expected = check_knn(device, *call, **options)
    assert expected[1].tolist() == [[idx]] and expected[0].tolist() == [[dist2]]


# The sizes of warps and tiles, and around them.
SIZES = [31, 32, 33, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 2048, 2049]


@pytest.mark.parametrize(
    ("n", "k"),
    [
        *((n, 17) for n in SIZES),
        *((200, k) for k in (0, 1, 31, 33, 700)),
        *((6000, k) for k in (1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 700)),
    ],
)
def test_every_size_and_k(device, n, k):
    points = lattice(n, side=12, seed=k)
    check_knn(device, points, queries_of(points, 3), k)


@pytest.mark.parametrize("k", [1, 4, 16, 33, 200])
def test_ties_at_the_last_place_go_to_the_lower_index(device, k):
    """Each corner of a cube 50 times, in any order, about its middle: all distances are equal."""
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3).repeat(50, 1)
    points = corners[torch.randperm(400, generator=torch.Generator().manual_seed(k))][None]
    dist2, idx = ops.knn(points.to(device), torch.full((1, 1, 3), 0.5, device=device), k)
    assert idx[0, 0].tolist() == list(range(k))
    assert (dist2 == 0.75).all()


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 900])
def test_three_nn(device, n):
    points, query = cube(n, seed=n), cube(33, seed=5)
    nearest = torchvox.three_nn(query.to(device), points.to(device))
    assert_same_bits(tuple(nearest), reference.three_nn(query, points))
    assert (nearest.idx[..., n:] == -1).all() and (nearest.dist2[..., n:] == INF).all()


def gradients(points, query, k, **options):
    points, query = points.detach().requires_grad_(), query.detach().requires_grad_()
    dist2 = torchvox.knn(points, query, k, **options).dist2
    seed = torch.arange(dist2.numel(), dtype=dist2.dtype, device=dist2.device) % 7 - 3.0
    return torch.autograd.grad(dist2, (points, query), seed.reshape(dist2.shape))


def test_a_slot_without_a_neighbor_passes_nothing_on(device):
    points, query = cube(3).to(device), cube(5, seed=1).to(device)
    lengths = torch.tensor([2], device=device)
    of_points, of_query = gradients(points, query, 4, lengths=lengths)
    assert of_points.isfinite().all() and of_query.isfinite().all()
    assert (of_points[0, 2] == 0).all() and (of_points[0, :2] != 0).all()
    bad = query.clone()
    bad[0, 1] = float("nan")
    assert (gradients(points, bad, 2)[1][0, 1] == 0).all()


def test_a_point_at_distance_0_has_gradient_0(device):
    points = cube(20).to(device)
    for norm in (1, 2):
        of_points, of_query = gradients(points, points, 1, norm=norm)
        assert (of_points == 0).all() and (of_query == 0).all()


def test_one_set_may_be_both(device):
    """Each point's distance to its nearest other one: both ends of the pair move."""
    points = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [5, 0, 0]]], device=device).requires_grad_()
    torchvox.knn(points, points, 2).dist2[..., 1].sum().backward()
    assert points.grad[0, :, 0].tolist() == [-4.0, 4.0 - 8.0, 8.0]


ops = torch.ops.torchvox
PLANS = {
    "scan": {"knn_kernel": "scan"},
    "tiles": {"knn_kernel": "tiles"},
    "tiles of a sort": {"knn_kernel": "tiles", "knn_order": "sort"},
    "select": {"knn_kernel": "select"},
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", ODD_CLOUDS)
def test_every_kernel_of_every_cloud(device, name, plan):
    points = ODD_CLOUDS[name]
    with forced(**PLANS[plan]):
        for k in (1, 5, 20, 40, 100, 200):
            check_knn(device, points, queries_of(points), k)
        for options in ({"norm": 1}, {"dist_order": "loop"}):
            check_knn(device, points, queries_of(points), 9, **options)


@pytest.mark.gpu
def test_more_points_than_are_put_in_order_at_once():
    """Batches of large clouds share a workspace that stops growing."""
    points = cube(1 << 17, seed=1).repeat(260, 1, 1).cuda()
    points += torch.arange(260, device="cuda")[:, None, None]
    query = points[:, :40].contiguous()
    with forced(knn_kernel="tiles"):
        _, idx = ops.knn(points, query, 1)
    assert (idx[..., 0] == torch.arange(40, device="cuda")).all()
