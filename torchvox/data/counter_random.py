# SPDX-License-Identifier: Apache-2.0
"""Random numbers that are functions of (seed, split, sample, purpose, index), the same bits on
every device.

The generator is SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
generators"): the finalizer of a counter, here started from a hash of the key. torch.Generator would
give other numbers on the GPU than on the CPU, and numbers that depend on what was drawn before.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from torchvox.data.portable_math import log, sin_cos, sqrt
from torchvox.ops.random_bits import mix, shifted

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # as int64: torch has no uint64 arithmetic


class Draws:
    """Random numbers of some samples of a data set.

    seed, split: of the data set; split is a name such as "train".
    samples: [B] int64, the samples' numbers; random numbers are made on its device.
    Draws with another purpose (a word) are independent of each other. Number i of a sample does not
    depend on how many are drawn, nor on the other samples.
    """

    def __init__(self, seed: int, split: str, samples: Tensor) -> None:
        self.samples = samples.to(torch.int64)
        self._prefix = f"{seed}/{split}/"

    @property
    def device(self) -> torch.device:
        return self.samples.device

    def bits(self, purpose: str, count: int) -> Tensor:
        """[B, count] int64, all 64 bits random."""
        index = torch.arange(1, count + 1, device=self.device)
        return mix(self._keys([purpose])[0][:, None] + index * _GOLDEN)

    def uniform(self, purpose: str, count: int) -> Tensor:
        """[B, count] float64 in [0, 1), multiples of 2^-53."""
        return _share(self.bits(purpose, count))

    def uniforms(self, *purposes: str) -> list[Tensor]:
        """[B] float64 each, the first number of every purpose, in fewer kernels than one by one."""
        return list(_share(mix(self._keys(purposes) + _GOLDEN)))

    def _keys(self, purposes: Sequence[str]) -> Tensor:
        """[purposes, B] int64."""
        digests = [hashlib.sha256((self._prefix + one).encode()).digest() for one in purposes]
        words = [struct.unpack_from("<2q", digest) for digest in digests]
        half = mix(torch.stack([self.samples + first for first, _ in words]))
        return mix(torch.stack([one ^ word for one, (_, word) in zip(half, words, strict=True)]))

    def normal(self, purpose: str, count: int) -> Tensor:
        """[B, count] float64, standard normal (Box and Muller's transform)."""
        pairs = self.uniform(purpose, 2 * ((count + 1) // 2)).unflatten(1, (-1, 2))
        radius = sqrt(log(1.0 - pairs[..., 0]) * -2.0)
        sine, cosine = sin_cos(pairs[..., 1])
        both = torch.stack([radius * cosine, radius * sine], dim=-1)
        return both.flatten(1)[:, :count]


def permutation(count: int, *key: object) -> Tensor:
    """A random order [count] int64, on the CPU, that depends on the key alone."""
    draws = Draws(0, "/".join(map(str, key)), torch.zeros(1, dtype=torch.int64))
    return draws.bits("permutation", count)[0].argsort(stable=True)


def _share(bits: Tensor) -> Tensor:
    """float64 in [0, 1), multiples of 2^-53."""
    return shifted(bits, 11).to(torch.float64).mul_(2.0**-53)
