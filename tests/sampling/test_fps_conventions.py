# SPDX-License-Identifier: Apache-2.0
"""A convention picks what its library picks.

`tree_fps` emulates the PointNet++ kernels: T threads walk the cloud with stride T, then halve.
`argmax_fps` is the loop of torch_cluster and pytorch3d: of equals the first.
"""

from functools import partial

import numpy as np
import pytest
import torch
from fps_cases import ops
from helpers import assert_same_bits, cube, lattice

import torchvox
from torchvox.ops.sampling import FURTHEST_POINT_SAMPLE_CONVENTIONS as TABLE
from torchvox.reference.sampling import squared_distance


def tree_argmax(distances, threads):
    """Index of the winner of one reduction: a thread, then a slot, is replaced on strictly more."""
    n = len(distances)
    best = np.full(threads, -1.0, np.float32)
    best_i = np.zeros(threads, np.int64)
    for first in range(0, n, threads):
        chunk = distances[first : first + threads]
        better = chunk > best[: len(chunk)]
        best[: len(chunk)][better] = chunk[better]
        best_i[: len(chunk)][better] = first + np.flatnonzero(better)
    half = threads // 2
    while half:
        better = best[half : 2 * half] > best[:half]
        best[:half][better] = best[half : 2 * half][better]
        best_i[:half][better] = best_i[half : 2 * half][better]
        half //= 2
    return int(best_i[0])


def tree_fps(points, num_samples, cap, skip_origin=False):
    points = points.numpy()
    threads = min(cap, 1 << (len(points).bit_length() - 1))
    running = np.full(len(points), 1e10, np.float32)
    chosen = [0]
    while len(chosen) < num_samples:
        distances = squared_distance(points, points[chosen[-1]], "pn2")
        running = np.minimum(running, distances)
        if skip_origin:
            running[(points * points).sum(1) <= 1e-3] = -1.0  # no thread takes it
        chosen.append(tree_argmax(running, threads))
    return chosen


def argmax_fps(points, num_samples, dist_order="loop", distinct=False):
    points = points.numpy()
    running = np.full(len(points), np.inf, np.float32)
    chosen = [0]
    while len(chosen) < num_samples:
        running = np.minimum(running, squared_distance(points, points[chosen[-1]], dist_order))
        if distinct:
            running[chosen] = -1.0
        chosen.append(int(running.argmax()))
    return chosen


LIBRARIES = {
    "torchvox": partial(argmax_fps, dist_order="pn2", distinct=True),
    **dict.fromkeys(("mmcv", "openpcdet", "openpoints", "pointops"), partial(tree_fps, cap=1024)),
    "pointnet2": partial(tree_fps, cap=512, skip_origin=True),
    **dict.fromkeys(("pytorch3d", "torch_cluster"), argmax_fps),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_convention_picks_what_its_library_picks(device, name):
    twice = lattice(1300, side=4, seed=2)  # 64 places: no point is left after as many samples
    for points in (twice, lattice(3), cube(400), cube(400, scale=0.1), cube(400, scale=1e6)):
        n = points.shape[1]
        count = min(n, 90)
        expected = LIBRARIES[name](points[0], count)
        points = points.to(device)
        result = torchvox.furthest_point_sample(points, count, convention=name)
        assert result.idx[0].tolist() == expected, f"N = {n}"
        offsets, slots = (torch.tensor([0, k], device=device) for k in (n, count))
        ragged = torchvox.furthest_point_sample_ragged(
            points[0], offsets, slots, count, convention=name
        )
        assert_same_bits(tuple(ragged), tuple(t[0] for t in result))
        module = torchvox.nn.FurthestPointSample(count, convention=name)
        assert_same_bits(tuple(module(points)), tuple(result))
        assert name in repr(module)


def clouds_with_ties(cap: int, cases: int):
    rng = np.random.default_rng(cap + cases)
    for n in (1, 2, 3, 5, 37, 100, 700, 1024, 1500):
        yield lattice(n, side=6, seed=n + cap)
    for case in range(cases):
        n = int(rng.integers(1, 1500))
        points = lattice(n, side=int(rng.integers(1, 20)), seed=case)
        yield points[:, torch.from_numpy(rng.integers(0, n, n))] if case % 3 == 0 else points
    yield lattice(20_000, side=20, seed=cap)


@pytest.mark.parametrize("cases", [4, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cap", [2**k for k in range(11)])
def test_every_block_size_breaks_ties_as_its_threads(device, cap, cases):
    rules = {"tie": "mmcv", "tie_block": cap, "exhausted": "repeat", "init_dist2": 1e10}
    for points in clouds_with_ties(cap, cases):
        count = min(points.size(1), 30)
        idx, _ = ops.furthest_point_sample(points.to(device), count, **rules)
        assert idx[0].tolist() == tree_fps(points[0], count, cap), f"N = {points.size(1)}"
