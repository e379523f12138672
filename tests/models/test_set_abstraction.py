# SPDX-License-Identifier: Apache-2.0
"""SetAbstraction: the balls of its centers through the layers."""

import pytest
import torch
from helpers import assert_same_bits

import torchvox
from torchvox.nn import SetAbstraction
from torchvox.nn.set_abstraction import random_starts
from torchvox.reference import query_and_group


def cloud(n=60, columns=3, seed=0):
    return torch.randn(2, n, columns, generator=torch.Generator().manual_seed(seed)) * 0.5


def by_hand(module, xyz, features, centers):
    """[B, S, C]: the balls of the reference through the layers of every scale."""
    options = {k: getattr(module, k) for k in ("use_xyz", "normalize_xyz", "features_first")}
    clouds = xyz, centers, features
    grouped = query_and_group(*clouds, module.radii, module.neighbors, **options)[0]
    balls = zip(module.mlps, grouped.split(module.neighbors, 2), strict=True)
    return torch.cat([mlp(ball).amax(2) for mlp, ball in balls], -1)


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        (4, {}),
        (4, {"features_first": True}),
        (4, {"use_xyz": False}),
        (4, {"normalize_xyz": True}),
        (0, {}),
    ],
)
def test_the_balls_of_every_scale_go_through_their_layers(columns, options):
    torch.manual_seed(0)
    module = SetAbstraction(9, [0.4, 0.8], [5, 12], columns, [[8, 16], [8]], **options).eval()
    features = cloud(columns=columns, seed=1) if columns else None
    centers, pooled = module(cloud(), features)
    assert pooled.shape == (2, 9, module.out_channels) and module.out_channels == 24
    torch.testing.assert_close(pooled, by_hand(module, cloud(), features, centers))


def test_centers_are_furthest_point_samples_unless_they_are_given():
    module = SetAbstraction(7, [0.5], [6], 0, [[8]]).eval()
    centers, pooled = module(cloud())
    idx, _ = torchvox.furthest_point_sample(cloud(), 7)
    assert_same_bits(centers, torchvox.gather_points(cloud(), idx))
    given, again = module(cloud(), None, None, centers)
    assert given is centers
    assert_same_bits(again, pooled)


def test_a_cloud_of_fewer_points_than_centers_repeats_its_first():
    module = SetAbstraction(7, [0.5], [6], 0, [[8]]).eval()
    centers, pooled = module(cloud(), None, torch.tensor([3, 60]))
    first, _ = torchvox.furthest_point_sample(cloud()[:1, :3], 3)
    assert_same_bits(centers[:1, :3], torchvox.gather_points(cloud()[:1], first))
    assert_same_bits(centers[0, 3:], cloud()[0, :1].expand(4, 3))
    assert_same_bits(pooled[0, 3:], pooled[0, :1].expand(4, 8))


def test_a_closed_ball_holds_the_points_at_its_radius():
    xyz = torch.tensor([[[0.0, 0.0, 0.0], [0.5, 0.0, 0.0]]])
    center = xyz[:, :1]
    reach = {}
    for closed in (False, True):
        torch.manual_seed(0)
        module = SetAbstraction(1, [0.5], [2], 0, [[4]], closed=closed).eval()
        reach[closed] = module(xyz, None, None, center)[1]
        rim = module.mlps[0](xyz[0])
        assert_same_bits(reach[closed][0, 0], rim.max(0)[0] if closed else rim[0])
    assert not torch.equal(reach[False], reach[True])


def test_all_points_up_to_the_length_are_one_group_with_absolute_coordinates():
    torch.manual_seed(0)
    module = SetAbstraction(None, [], [], 4, [[8, 16]]).eval()
    xyz, features = cloud(), cloud(columns=4, seed=1)
    center, pooled = module(xyz, features)
    assert_same_bits(center, torch.zeros(2, 1, 3))
    expected = module.mlps[0](torch.cat([xyz, features], -1)).max(1, keepdim=True)[0]
    assert_same_bits(pooled, expected)
    _, pooled = module(xyz, features, torch.tensor([20, 0]))
    torch.testing.assert_close(pooled[:1], module(xyz[:1, :20], features[:1, :20])[1])
    assert_same_bits(pooled[1], torch.zeros(1, 16))


@pytest.mark.parametrize("start", ["first", "random", "random_train"])
def test_starts_are_drawn_when_they_should_be(start):
    module = SetAbstraction(4, [0.5], [6], 0, [[8]], start=start)
    for training in (True, False):
        module.train(training)
        draws = {tuple(module(cloud())[0][0, 0].tolist()) for _ in range(8)}
        random = start == "random" or (start == "random_train" and training)
        assert (len(draws) > 1) == random


def test_random_starts_are_drawn_from_all_points_within_the_length():
    torch.manual_seed(0)
    starts = random_starts(torch.zeros(300, 1000, 3), torch.tensor([3] * 300))
    assert starts.unique().tolist() == [0, 1, 2]
    assert starts.bincount().min() > 70


def test_gradients_reach_coordinates_features_and_weights():
    torch.manual_seed(0)
    module = SetAbstraction(3, [0.6, 0.9], [2, 3], 1, [[2], [3]]).double()
    xyz, features = cloud(8).double(), cloud(8, 1, 1).double()
    with torch.no_grad():
        centers = module(xyz, features)[0]
    leaves = (xyz.requires_grad_(), features.requires_grad_())
    assert torch.autograd.gradcheck(
        lambda a, b: module(a, b, None, centers)[1], leaves, fast_mode=True
    )
    module(xyz, features)[1].sum().backward()
    assert all(p.grad is not None for p in module.parameters())


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((4, [0.5], [6, 7], 0, [[8]]), {}, "radii and neighbors"),
        ((None, [0.5], [6], 0, [[8]]), {}, "none for all points"),
        ((4, [0.5], [6], 0, [[8], [8]]), {}, "channels must hold the widths of 1 scales"),
        ((4, [], [], 0, []), {}, "channels must hold"),
        ((4, [0.5], [6], 0, [[]]), {}, "at least one layer"),
        ((4, [0.5], [6], 0, [[8]]), {"use_xyz": False}, "use_xyz must be True"),
        ((4, [0.5], [6], 0, [[8]]), {"start": "last"}, "start must be one of"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(arguments, options, words):
    with pytest.raises(ValueError, match=words):
        SetAbstraction(*arguments, **options)
