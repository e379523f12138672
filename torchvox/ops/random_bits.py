# SPDX-License-Identifier: Apache-2.0
"""Random bits that are functions of a counter, the same on every device: SplitMix64 (Steele, Lea,
Flood 2014, "Fast splittable pseudorandom number generators") on int64."""

from torch import Tensor


def mix(z: Tensor) -> Tensor:
    """SplitMix64's finalizer: a bijection in which every bit depends on every bit."""
    z = (z ^ shifted(z, 30)) * -0x40A7B892E31B1A47
    z = (z ^ shifted(z, 27)) * -0x6B2FB644ECCEEE15
    return z ^ shifted(z, 31)


def mixed(key: Tensor, index: Tensor) -> Tensor:
    """Number `index` of the generator that a key starts, from 1."""
    return mix(mix(key) + index * -0x61C8864680B583EB)


def shifted(z: Tensor, bits: int) -> Tensor:
    """To the right, logically."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
