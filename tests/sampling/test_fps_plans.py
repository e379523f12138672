# SPDX-License-Identifier: Apache-2.0
"""No launch plan changes a bit: every block size, points per thread and variant agrees.

Plans are forced through the launch-plan hook; the launch table itself must never show.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fps_cases import assert_as_reference, ops
from helpers import assert_same_bits, cube, forced, lattice

# Threads and points per thread of the block classes.
CLASSES = [(256, 1), (256, 2), (512, 2), (512, 4), (512, 8), (512, 16)]
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


def regular(side: int) -> torch.Tensor:
    """Top tie groups of thousands: more than a window or a pool holds."""
    points = torch.cartesian_prod(*[torch.arange(float(side))] * 3)[None]
    return torch.cat([points, points[:, ::3]], dim=1)


STARTS = torch.randperm(3000, generator=torch.Generator().manual_seed(0))[None, :1500]
CALLS = {
    "a start set longer than a round": (cube(3000, seed=1), 2000, {"start_idx": STARTS}),
    "all equal": (torch.full((1, 3000, 3), 0.5), 100, {}),
    "overflow": (cube(3000, scale=3e38), 100, {}),
    "underflow": (cube(3000, scale=1e-22), 100, {}),
    "collinear": (torch.arange(3000.0).reshape(1, 3000, 1) * torch.ones(3), 100, {}),
    **{
        f"a lattice of {side}, {exhausted}": (
            regular(side), min(600, side**3 + 9), {"exhausted": exhausted}
        )
        for side in (4, 9, 16)
        for exhausted in ("distinct", "repeat")
    },
    **{f"{n} points": (cube(n, batch=2, seed=n), min(n, 300), {}) for n in (65, 3000, 9000)},
}  # fmt: skip


@pytest.mark.parametrize("plan", [{"fps_kernel": "block"}, {"fps_kernel": "lazy"}, POOL_OF_64])
@pytest.mark.parametrize("tie", ["lowest", "mmcv"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_call_in_every_kernel(plan, tie, call):
    points, samples, options = call
    with forced(**plan):
        assert_as_reference("cuda", points, samples, **{"tie": tie, **options})


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
