# SPDX-License-Identifier: Apache-2.0
"""Random numbers are functions of their key, and portable_math is accurate."""

import numpy as np
import pytest
import torch

from torchvox.data.counter_random import _GOLDEN, Draws, mix, permutation
from torchvox.data.portable_math import log, mean, sin_cos, sqrt


def draws(samples, seed=0, split="train", device="cpu") -> Draws:
    return Draws(seed, split, torch.tensor(samples, device=device))


def test_the_generator_is_splitmix64():
    """First numbers of the published generator for the seed 1234567."""
    state = 1234567 + torch.arange(1, 5) * _GOLDEN
    published = 6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431
    assert mix(state).numpy().view(np.uint64).tolist() == [*published]


def test_a_number_depends_on_its_key_alone(device):
    alone = draws([5], device=device)
    among = draws([9, 5, 0], device=device)
    for kind in ("bits", "uniform", "normal"):
        one, many = getattr(alone, kind)("noise", 5), getattr(among, kind)("noise", 10_001)
        assert torch.equal(many[1, :5], one[0])
        assert torch.equal(many.cpu(), getattr(draws([9, 5, 0]), kind)("noise", 10_001))
        others = draws([5], seed=1, device=device), draws([5], split="val", device=device)
        for other in (*(getattr(o, kind)("noise", 5) for o in others), alone.bits("pose", 5)):
            assert not (other == one).any()
    for purpose, first in zip("abc", among.uniforms(*"abc"), strict=True):
        assert first.equal(among.uniform(purpose, 1)[:, 0])


def test_uniform_numbers_are_even_and_independent_and_normal_ones_normal():
    u = draws(range(50)).uniform("a", 4000)
    assert u.min() >= 0 and u.max() < 1
    counts = torch.histc(u.float(), 20, 0, 1)
    assert ((counts - 10_000).abs() < 500).all()  # five standard deviations
    next_to = torch.corrcoef(torch.stack([u[:, :-1].flatten(), u[:, 1:].flatten()]))[0, 1]
    assert next_to.abs() < 0.012 and (torch.corrcoef(u[:8]) - torch.eye(8)).abs().max() < 0.08
    x = draws(range(50)).normal("a", 4000).flatten()
    assert x.mean().abs() < 0.012 and (x.std() - 1).abs() < 0.01
    for bound, share in ((1.0, 0.6827), (2.0, 0.9545), (3.0, 0.9973)):
        assert abs(((x.abs() < bound).double().mean()).item() - share) < 0.006


def test_sine_cosine_and_logarithm_are_accurate():
    turns = torch.linspace(-3, 3, 10_001, dtype=torch.float64)
    sine, cosine = sin_cos(turns)
    torch.testing.assert_close(sine, torch.sin(turns * 2 * np.pi), rtol=0, atol=4e-15)
    torch.testing.assert_close(cosine, torch.cos(turns * 2 * np.pi), rtol=0, atol=4e-15)
    single = turns.float()
    for got, exact in zip(sin_cos(single), sin_cos(single.double()), strict=True):
        assert got.dtype == torch.float32 and (got - exact).abs().max() < 2e-7
    x = torch.cat([10.0 ** torch.linspace(-300, 300, 5001, dtype=torch.float64), turns[6000:]])
    torch.testing.assert_close(log(x), torch.log(x), rtol=4e-15, atol=1e-16)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_square_root_is_accurate_and_the_same_on_every_device(dtype, device):
    """torch's own root of float64 comes from a vector library on the CPU and is not the GPU's."""
    single = dtype == torch.float32
    limits = (-30, 38) if single else (-200, 200)
    x = draws([0]).uniform("a", 20_001)[0] * 10.0 ** torch.linspace(*limits, 20_001).double()
    x, whole = x.to(dtype), torch.int32 if single else torch.int64
    ulps = sqrt(x).view(whole) - x.double().sqrt().to(dtype).view(whole)
    assert ulps.abs().max() <= 1 and torch.equal(sqrt(x.to(device)).cpu(), sqrt(x))
    assert sqrt(torch.tensor([0.0, 4.0, 1.0], dtype=dtype)).tolist() == [0.0, 2.0, 1.0]


def test_mean_is_the_mean():
    x = draws([0, 1]).normal("a", 999).view(2, -1, 3)
    torch.testing.assert_close(mean(x), x.mean(-2, keepdim=True), rtol=0, atol=1e-9)


def test_permutation_is_one_and_follows_its_key():
    order = permutation(1000, 7, "train", 3)
    assert torch.equal(order.sort().values, torch.arange(1000))
    assert torch.equal(order, permutation(1000, 7, "train", 3))
    assert not torch.equal(order, permutation(1000, 7, "train", 4))
