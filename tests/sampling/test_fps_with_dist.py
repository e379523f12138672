# SPDX-License-Identifier: Apache-2.0
"""furthest_point_sample_with_dist: the rule of furthest_point_sample over given distances."""

import pytest
import torch
from helpers import assert_same_bits, lattice, to

import torchvox
from torchvox import reference

ops = torch.ops.torchvox
INF, NAN = float("inf"), float("nan")


def squared_distances(points):
    """[B, N, N] in the rounding of dist_order="loop" where products and sums are exact."""
    return (points[:, :, None] - points[:, None]).square().sum(-1)


@pytest.mark.parametrize("n", [1, 31, 33, 1000, 1025, 2100])
def test_it_samples_as_furthest_point_sample_does(device, n):
    points = lattice(n, seed=n, batch=2)
    distances = squared_distances(points).to(device)
    for convention in ("mmcv", "torchvox"):
        samples = min(n, 200)
        idx = torchvox.furthest_point_sample_with_dist(distances, samples, convention=convention)
        expected, dist2 = torchvox.furthest_point_sample(points, samples, convention=convention)
        if convention == "torchvox":  # after all places one repeats, the other does not
            expected = torch.where(dist2 > 0, expected, idx.cpu())
        assert_same_bits(idx, expected)
        assert (dist2 > 0).any()


@pytest.mark.parametrize("tie", ["lowest", "mmcv"])
@pytest.mark.parametrize("block", [1, 4, 1024])
def test_any_matrix(device, tie, block):
    g = torch.Generator().manual_seed(block)
    distances = torch.randint(-3, 9, (4, 70, 70), generator=g) / 2
    for value, special in ((4.0, NAN), (3.5, -INF), (3.0, -0.0)):
        distances[distances == value] = special
    lengths = torch.tensor([70, 0, 33, 1000])
    options = {"tie": tie, "tie_block": block, "start": 40, "lengths": lengths}
    for init_dist in (None, 1.5):
        call = {"distances": distances, "num_samples": 75, "init_dist": init_dist, **options}
        idx = ops.furthest_point_sample_with_dist(**{k: to(device, v) for k, v in call.items()})
        assert_same_bits(idx, reference.furthest_point_sample_with_dist(**call))


def test_clouds_may_be_larger_than_shared_memory(device):
    n = 60_000  # 240 kB of running distances; one row stands for all
    row = (torch.arange(n, device=device) % 1000 / 8)[None, None].expand(1, n, n)
    assert ops.furthest_point_sample_with_dist(row, 3).tolist() == [[0, 999, 999]]
