# SPDX-License-Identifier: Apache-2.0
"""FeaturePropagation: inverse-distance means of three centers, beside the skip features."""

import pytest
import torch
from helpers import assert_same_bits

from torchvox.nn import FeaturePropagation


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


XYZ, CENTERS = random(2, 30, 3), random(2, 9, 3, seed=1)
SKIP, FEATURES = random(2, 30, 4, seed=2), random(2, 9, 5, seed=3)


def module(channels: int, **options) -> FeaturePropagation:
    torch.manual_seed(0)
    return FeaturePropagation(channels, [8, 6], **options).eval()


def spread(weight: str = "dist") -> torch.Tensor:
    """[1, N, C] of the first cloud."""
    d2, idx = (XYZ[0, :, None] - CENTERS[0]).square().sum(-1).sort(-1)
    d = (d2 if weight == "dist2" else d2.sqrt())[:, :3]
    share = 1 / (d + 1e-8)
    share = share / share.sum(1, keepdim=True)
    return (FEATURES[0][idx[:, :3]] * share[..., None]).sum(1)[None]


@pytest.mark.parametrize("weight", ["dist", "dist2"])
@pytest.mark.parametrize("skip_first", [False, True])
def test_the_three_nearest_centers_are_weighted_and_joined(weight, skip_first):
    up, near = module(9, weight=weight, skip_first=skip_first), spread(weight)
    found = up(XYZ, CENTERS, SKIP, FEATURES)
    rows = torch.cat([SKIP[:1], near] if skip_first else [near, SKIP[:1]], -1)
    assert found.shape == (2, 30, 6)
    torch.testing.assert_close(found[:1], up.mlp(rows))


def test_the_mean_stands_alone_without_skip_and_one_center_is_spread_over_all():
    up = module(5)
    found = up(XYZ, CENTERS, None, FEATURES)
    torch.testing.assert_close(found[:1], up.mlp(spread()))
    found = up(XYZ, CENTERS[:, :1], None, FEATURES[:, :1])
    assert_same_bits(found, up.mlp(FEATURES[:, :1].expand(-1, 30, -1)))


@pytest.mark.parametrize(
    ("length", "agree"), [(4, assert_same_bits), (1, torch.testing.assert_close)]
)
def test_centers_past_their_length_are_not_taken(length, agree):
    up = module(5)
    short = up(XYZ[:1], CENTERS[:1], None, FEATURES[:1], torch.tensor([length]))
    alone = up(XYZ[:1], CENTERS[:1, :length], None, FEATURES[:1, :length])
    agree(short, alone)


def test_an_unknown_weight_is_refused():
    with pytest.raises(ValueError, match="weight must be dist or dist2"):
        module(5, weight="near")
