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


def spread(weight: str, centers: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """[1, N, C] of the first cloud."""
    d2, idx = (XYZ[0, :, None] - centers).square().sum(-1).sort(-1)
    d = (d2 if weight == "dist2" else d2.sqrt())[:, :3]
    share = 1 / (d + 1e-8)
    share = share / share.sum(1, keepdim=True)
    return (features[idx[:, :3]] * share[..., None]).sum(1)[None]


@pytest.mark.parametrize("weight", ["dist", "dist2"])
@pytest.mark.parametrize("skip_first", [False, True])
def test_the_three_nearest_centers_are_weighted_and_joined(weight, skip_first):
    torch.manual_seed(0)
    module = FeaturePropagation(9, [8, 6], weight=weight, skip_first=skip_first).eval()
    found = module(XYZ, CENTERS, SKIP, FEATURES)
    near = spread(weight, CENTERS[0], FEATURES[0])
    rows = torch.cat([SKIP[:1], near] if skip_first else [near, SKIP[:1]], -1)
    assert found.shape == (2, 30, 6)
    torch.testing.assert_close(found[:1], module.mlp(rows))


def test_without_skip_features_the_mean_stands_alone():
    torch.manual_seed(0)
    module = FeaturePropagation(5, [8]).eval()
    found = module(XYZ, CENTERS, None, FEATURES)
    torch.testing.assert_close(found[:1], module.mlp(spread("dist", CENTERS[0], FEATURES[0])))


def test_one_center_is_spread_over_all_points():
    torch.manual_seed(0)
    module = FeaturePropagation(9, [8]).eval()
    found = module(XYZ, CENTERS[:, :1], SKIP, FEATURES[:, :1])
    rows = torch.cat([FEATURES[:, :1].expand(-1, 30, -1), SKIP], -1)
    assert_same_bits(found, module.mlp(rows))


def test_centers_past_their_length_are_not_taken():
    torch.manual_seed(0)
    module = FeaturePropagation(5, [8]).eval()
    short = module(XYZ[:1], CENTERS[:1], None, FEATURES[:1], torch.tensor([4]))
    expected = module(XYZ[:1], CENTERS[:1, :4], None, FEATURES[:1, :4])
    assert_same_bits(short, expected)
    torch.testing.assert_close(
        module(XYZ[:1], CENTERS[:1], None, FEATURES[:1], torch.tensor([1])),
        module(XYZ[:1], CENTERS[:1, :1], None, FEATURES[:1, :1]),
    )


def test_an_unknown_weight_is_refused():
    with pytest.raises(ValueError, match="weight must be dist or dist2"):
        FeaturePropagation(5, [8], weight="near")
