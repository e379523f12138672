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
