# SPDX-License-Identifier: Apache-2.0
"""No launch plan changes a bit: every block size, points per thread and variant agrees.

Plans are forced through the launch-plan hook; the launch table itself must never show.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fps_cases import assert_as_reference, ops
from helpers import assert_same_bits, cube, forced, lattice

from torchvox import reference

# Threads and points per thread of the block classes.
CLASSES = [(32, 1), (64, 1), (128, 1), (256, 1), (256, 2), (512, 2), (512, 4), (512, 8), (512, 16)]
POOL_OF_64 = {"fps_kernel": "lazy", "fps_threads": 64, "fps_points_per_thread": 1}

pytestmark = pytest.mark.gpu


def polluted(n, seed):
    points = lattice(n, side=12, seed=seed, batch=2)
    points[1, n // 2] = float("nan")
    return points


@pytest.mark.parametrize(("threads", "per_thread"), CLASSES)
@pytest.mark.parametrize("tie", ["lowest", "mmcv"])
def test_every_block_size_and_points_per_thread(threads, per_thread, tie):
    capacity = threads * per_thread
    plan = {"fps_kernel": "block", "fps_threads": threads, "fps_points_per_thread": per_thread}
    for n in {1, capacity // 2 + 1, capacity - 1, capacity}:
        if tie == "mmcv":  # the code space is T * ceil(N / T); take a T that divides the capacity
            options = {"tie": "mmcv", "tie_block": min(threads, 1024), "exhausted": "repeat"}
        else:
            options = {}
        with forced(**plan):
            assert_as_reference("cuda", polluted(n, seed=n), min(n + 2, 40), **options)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 255, 256, 257, 1000, 8191, 8192, 8193, 30_000])
@pytest.mark.parametrize("tie", ["lowest", "mmcv"])
def test_the_lazy_kernel_at_every_size(n, tie):
    with forced(fps_kernel="lazy"):
        assert_as_reference("cuda", polluted(n, seed=n), min(n + 2, 60), tie=tie)


@pytest.mark.parametrize("kernel", ["block", "lazy"])
@pytest.mark.parametrize(
    "options",
    [
        {"dist_order": "loop"},
        {"exhausted": "repeat", "tie": "mmcv"},
        {"nonfinite": "last"},
        {"skip_origin": True},
        {"init_dist2": 1e10},
        {"start_idx": torch.tensor([[3, 3, -1], [5, 600, 0]])},
        {"lengths": torch.tensor([700, 0]), "counts": torch.tensor([50, 9])},
    ],
    ids=lambda o: "-".join(o),
)
def test_every_option_in_every_kernel(kernel, options):
    with forced(fps_kernel=kernel):
        assert_as_reference("cuda", polluted(1000, seed=4), 60, **options)


@pytest.mark.parametrize("kernel", ["block", "lazy"])
@pytest.mark.parametrize(
    "points",
    [
        torch.full((1, 3000, 3), 0.5),
        torch.cartesian_prod(*[torch.arange(14.0)] * 3)[None],  # a top tie group of thousands
        cube(3000, scale=3e38),
        cube(3000, scale=1e-22),
        torch.arange(3000.0).reshape(1, 3000, 1) * torch.tensor([0.1, 0.2, 0.3]),
    ],
    ids=["all_equal", "regular_lattice", "overflow", "underflow", "collinear"],
)
@pytest.mark.parametrize("tie", ["lowest", "mmcv"])
def test_hard_clouds_in_every_kernel(kernel, points, tie):
    with forced(fps_kernel=kernel):
        assert_as_reference("cuda", points, 100, tie=tie)


@pytest.mark.parametrize("plan", [{"fps_kernel": "block"}, {"fps_kernel": "lazy"}, POOL_OF_64])
@pytest.mark.parametrize("exhausted", ["distinct", "repeat"])
@pytest.mark.parametrize("tie", ["lowest", "mmcv"])
@pytest.mark.parametrize("side", [4, 9, 16])
def test_more_ties_than_a_window_or_a_pool_holds(plan, exhausted, tie, side):
    points = torch.cartesian_prod(*[torch.arange(float(side))] * 3)[None]
    points = torch.cat([points, points[:, ::3]], dim=1)
    with forced(**plan):
        assert_as_reference("cuda", points, min(600, side**3 + 9), tie=tie, exhausted=exhausted)


@pytest.mark.parametrize("members", [1, 2, 7, 8, 40])
@pytest.mark.parametrize("n", [1, 700, 9000])
def test_every_number_of_blocks_a_cloud(n, members):
    with forced(fps_kernel="lazy", fps_members=members):
        assert_as_reference("cuda", polluted(n, seed=n), min(n + 2, 60))
    with forced(**POOL_OF_64, fps_members=members):
        assert_as_reference("cuda", cube(n, batch=2, seed=n), min(n, 60), tie="mmcv")


def test_blocks_that_share_a_cloud_in_a_replayed_graph():
    points = cube(20_000, seed=1).cuda()
    ops.furthest_point_sample(points, 300)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = ops.furthest_point_sample(points, 300)
    for seed in [2, 3]:
        points.copy_(cube(20_000, seed=seed))
        graph.replay()
        expected = reference.furthest_point_sample(cube(20_000, seed=seed), 300)
        assert_same_bits(tuple(o.cpu() for o in outputs), expected)


@pytest.mark.parametrize("n", [65, 500, 3000, 9000])
def test_a_pool_that_overflows_in_every_round(n):
    with forced(**POOL_OF_64):
        assert_as_reference("cuda", cube(n, batch=2, seed=n), 300)
        assert_as_reference("cuda", polluted(n, seed=n), 60, tie="mmcv")


def test_a_start_set_longer_than_a_round():
    starts = torch.randperm(3000, generator=torch.Generator().manual_seed(0))[None, :1500]
    for kernel in ["block", "lazy"]:
        with forced(fps_kernel=kernel):
            assert_as_reference("cuda", cube(3000, seed=1), 2000, start_idx=starts)


def test_threads_whose_clouds_need_shared_memory_of_different_sizes():
    """The limit of a kernel's shared memory is shared by all threads of a process."""
    clouds = [cube(9000, batch=140).cuda(), cube(100_000).cuda()]
    alone = [ops.furthest_point_sample(points, 64) for points in clouds]

    def calls(which):
        with torch.cuda.stream(torch.cuda.Stream()):
            return [ops.furthest_point_sample(clouds[which], 64) for _ in range(200)][-1]

    torch.cuda.synchronize()
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(calls, range(2)))
    torch.cuda.synchronize()
    for got, expected in zip(together, alone, strict=True):
        assert_same_bits(got, expected)
