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
    state = 1234567 + torch.arange(1, 6) * _GOLDEN
    unsigned = mix(state).numpy().view(np.uint64)
    assert unsigned.tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_a_number_depends_on_its_key_and_not_on_its_neighbors(device):
    alone = draws([5], device=device).bits("noise", 3)
    among = draws([9, 5, 0], device=device).bits("noise", 7)
    assert torch.equal(among[1, :3], alone[0])
    for other in (
        draws([5], seed=1, device=device).bits("noise", 3),
        draws([5], split="val", device=device).bits("noise", 3),
        draws([5], device=device).bits("pose", 3),
    ):
        assert not (other == alone).any()


def test_normal_numbers_do_not_depend_on_how_many_are_drawn():
    few, many = draws([3]).normal("noise", 5), draws([3]).normal("noise", 8)
    assert torch.equal(many[:, :5], few)


def test_uniform_numbers_are_even_and_independent():
    u = draws(range(50)).uniform("a", 4000)
    assert u.min() >= 0 and u.max() < 1
    counts = torch.histc(u.float(), 20, 0, 1)
    assert ((counts - 10_000).abs() < 500).all()  # five standard deviations
    next_to = torch.corrcoef(torch.stack([u[:, :-1].flatten(), u[:, 1:].flatten()]))[0, 1]
    assert next_to.abs() < 0.012
    between = torch.corrcoef(u[:8])
    assert (between - torch.eye(8)).abs().max() < 0.08


def test_normal_numbers_are_normal():
    x = draws(range(50)).normal("a", 4000).flatten()
    assert x.isfinite().all()
    assert x.mean().abs() < 0.012 and (x.std() - 1).abs() < 0.01
    for bound, share in ((1.0, 0.6827), (2.0, 0.9545), (3.0, 0.9973)):
        assert abs(((x.abs() < bound).double().mean()).item() - share) < 0.006


def test_sine_cosine_and_logarithm_are_accurate():
    turns = torch.linspace(-3, 3, 10_001, dtype=torch.float64)
    sine, cosine = sin_cos(turns)
    torch.testing.assert_close(sine, torch.sin(turns * 2 * np.pi), rtol=0, atol=4e-15)
    torch.testing.assert_close(cosine, torch.cos(turns * 2 * np.pi), rtol=0, atol=4e-15)
    x = torch.cat([10.0 ** torch.linspace(-300, 300, 5001, dtype=torch.float64), turns[6000:]])
    torch.testing.assert_close(log(x), torch.log(x), rtol=4e-15, atol=1e-16)


def test_the_square_root_is_accurate_and_made_of_exactly_rounded_steps():
    """torch's own root of float64 comes from a vector library on the CPU and is not the GPU's."""
    x = draws([0]).uniform("a", 20_001)[0] * 10.0 ** torch.linspace(-200, 200, 20_001).double()
    root = x.numpy()
    root = ((root.view(np.int64) >> 1) + (1023 << 51)).view(np.float64)
    for _ in range(5):
        root = (root + x.numpy() / root) * 0.5
    assert torch.equal(sqrt(x), torch.from_numpy(root))
    ulps = sqrt(x).view(torch.int64) - torch.from_numpy(np.sqrt(x.numpy())).view(torch.int64)
    assert ulps.abs().max() <= 1
    assert sqrt(torch.tensor([0.0, 4.0, 1.0], dtype=torch.float64)).tolist() == [0.0, 2.0, 1.0]


def test_float32_will_do_for_roots_and_turns():
    x = draws([0]).uniform("a", 20_001)[0] * 10.0 ** torch.linspace(-30, 38, 20_001).double()
    x = x.float()
    ulps = sqrt(x).view(torch.int32) - x.double().sqrt().float().view(torch.int32)
    assert ulps.abs().max() <= 1 and sqrt(torch.zeros(1)).tolist() == [0.0]
    turns = torch.linspace(-3, 3, 10_001)
    for found, exact in zip(sin_cos(turns), sin_cos(turns.double()), strict=True):
        assert found.dtype == torch.float32 and (found - exact).abs().max() < 2e-7


def test_normal_numbers_are_made_of_exactly_rounded_steps():
    u = draws([3]).uniform("a", 10_002).view(-1, 2)
    radius = sqrt(log(1.0 - u[:, 0]) * -2.0)
    one_by_one = torch.stack([sqrt(log(1.0 - v[None]) * -2.0)[0] for v in u[:500, 0]])
    assert torch.equal(radius[:500], one_by_one)


def test_mean_is_the_mean():
    x = draws([0, 1]).normal("a", 999).view(2, -1, 3)
    torch.testing.assert_close(mean(x), x.mean(-2, keepdim=True), rtol=0, atol=1e-9)


def test_permutation_is_one_and_follows_its_key():
    order = permutation(1000, 7, "train", 3)
    assert torch.equal(order.sort().values, torch.arange(1000))
    assert torch.equal(order, permutation(1000, 7, "train", 3))
    assert not torch.equal(order, permutation(1000, 7, "train", 4))


def test_first_numbers_of_several_purposes_are_those_one_by_one():
    draws = Draws(3, "train", torch.tensor([4, 0, 2**40]))
    for purpose, got in zip("abc", draws.uniforms(*"abc"), strict=True):
        assert got.equal(draws.uniform(purpose, 1)[:, 0])


@pytest.mark.gpu
def test_the_gpu_draws_the_same_bits():
    for name in ("bits", "uniform", "normal"):
        here, there = (
            getattr(draws(range(9), device=d), name)("a", 10_001) for d in ("cpu", "cuda")
        )
        assert torch.equal(here, there.cpu())
