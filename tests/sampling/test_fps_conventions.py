# SPDX-License-Identifier: Apache-2.0
"""A convention picks what its library picks.

`tree_fps` emulates the PointNet++ kernels: T threads walk the cloud with stride T, then halve.
`argmax_fps` is the loop of torch_cluster and pytorch3d: of equals the first.
"""

from functools import partial

import numpy as np
import pytest
import torch
from fps_cases import ops, samples
from helpers import assert_same_bits, cube, lattice

import torchvox
from torchvox.ops.sampling import FURTHEST_POINT_SAMPLE_CONVENTIONS as TABLE
from torchvox.reference.sampling import Rules, squared_distance, tie_code


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
        num_samples = min(n, 90)
        expected = LIBRARIES[name](points[0], num_samples)
        points = points.to(device)
        found = torchvox.furthest_point_sample(points, num_samples, convention=name)
        assert found.idx[0].tolist() == expected, f"N = {n}"
        op = ops.furthest_point_sample(points, num_samples, **TABLE[name])
        assert_same_bits(tuple(found), op)
        offsets, slots = (torch.tensor([0, k], device=device) for k in (n, num_samples))
        ragged = torchvox.furthest_point_sample_ragged(
            points[0], offsets, slots, num_samples, convention=name
        )
        assert_same_bits(tuple(ragged), tuple(t[0] for t in op))
        module = torchvox.nn.FurthestPointSample(num_samples, convention=name)
        assert_same_bits(module(points), op)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", TABLE)
def test_a_module_of_a_convention_scripts(name):
    module = torchvox.nn.FurthestPointSample(9, convention=name)
    assert_same_bits(torch.jit.script(module)(cube(40)), module(cube(40)))
    assert name in repr(module)


@pytest.mark.parametrize("name", ["pcdet", ""])
def test_an_unknown_convention_is_refused(name):
    words = f"convention must be one of 'torchvox', 'mmcv', .*, got {name!r}"
    offsets = torch.tensor([0, 10])
    with pytest.raises(ValueError, match=f"^furthest_point_sample: {words}"):
        torchvox.furthest_point_sample(cube(10), 2, convention=name)
    with pytest.raises(ValueError, match=f"^furthest_point_sample_ragged: {words}"):
        torchvox.furthest_point_sample_ragged(cube(10)[0], offsets, offsets, 2, convention=name)
    with pytest.raises(ValueError, match=f"^FurthestPointSample: {words}"):
        torchvox.nn.FurthestPointSample(2, convention=name)


def mmcv(device, points, num_samples, cap=1024):
    return samples(
        device, points, num_samples, tie="mmcv", tie_block=cap, exhausted="repeat", init_dist2=1e10
    )[0]


@pytest.mark.parametrize("cap", [2**k for k in range(11)])
def test_every_block_size(device, cap):
    for n in (1, 2, 3, 5, 37, 100, 700, 1024, 1500):
        points = lattice(n, side=6, seed=n + cap)
        expected = tree_fps(points[0], min(n, 30), cap)
        assert mmcv(device, points, min(n, 30), cap)[0].tolist() == expected, f"N = {n}"


@pytest.mark.parametrize("cases", [40, pytest.param(800, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cap", [512, 1024])
def test_random_sizes_lattices_and_duplicates(device, cap, cases):
    rng = np.random.default_rng(cap + cases)
    for case in range(cases):
        n = int(rng.integers(1, 1500))
        points = lattice(n, side=int(rng.integers(1, 20)), seed=case)
        if case % 3 == 0:
            points = points[:, torch.from_numpy(rng.integers(0, n, n))]
        expected = tree_fps(points[0], 16, cap)
        assert mmcv(device, points, 16, cap)[0].tolist() == expected, f"case {case}, N = {n}"


@pytest.mark.parametrize("n", [9000, 20_000])
def test_large_clouds(device, n):
    points = lattice(n, side=20, seed=n)
    assert mmcv(device, points, 40)[0].tolist() == tree_fps(points[0], 40, 1024)


def test_padding_after_the_length_does_not_change_the_order(device):
    points = lattice(300, side=4, seed=5)
    padded = torch.cat([points, lattice(1700, side=4, seed=6)], 1)
    rules = {"tie": "mmcv", "exhausted": "repeat"}
    alone = samples(device, points, 40, **rules)[0]
    cut = samples(device, padded, 40, lengths=torch.tensor([300]), **rules)[0]
    np.testing.assert_array_equal(cut, alone)


def test_ragged_clouds_count_from_their_own_first_point(device):
    sizes = [5, 700, 1, 1100]
    clouds = [lattice(n, side=5, seed=n) for n in sizes]
    batch_offsets = torch.tensor(np.cumsum([0, *sizes]))
    out_offsets = torch.tensor([0, 3, 23, 24, 44])
    for cap in (512, 1024):
        idx, _ = torch.ops.torchvox.furthest_point_sample_ragged(
            torch.cat(clouds, 1)[0].to(device), batch_offsets.to(device), out_offsets.to(device),
            44, tie="mmcv", tie_block=cap, exhausted="repeat", init_dist2=1e10, local_index=True,
        )  # fmt: skip
        expected = [
            i
            for cloud, s in zip(clouds, [3, 20, 1, 20], strict=True)
            for i in tree_fps(cloud[0], s, cap)
        ]
        assert idx.tolist() == expected


def test_the_code_is_a_permutation_and_the_padded_size_does_not_order_it():
    i = np.arange(1500)
    for t in (1, 32, 1024):
        rules = Rules("mmcv", t, "pn2", "distinct", "skip", False, None)
        codes = tie_code(i, 1500, rules)
        assert len(np.unique(codes)) == 1500
        np.testing.assert_array_equal(np.argsort(codes), np.argsort(tie_code(i, 4000, rules)))
