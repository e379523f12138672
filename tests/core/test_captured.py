# SPDX-License-Identifier: Apache-2.0
"""Functions of tensors that are captured once for their shapes."""

import torch
from helpers import assert_same_bits

from torchvox.graphs import Captured


def shifted(x: torch.Tensor, by: torch.Tensor) -> tuple[torch.Tensor, ...]:
    shifted.calls += 1
    return (x * 2.0 + by).cumsum(0), by + 1


def numbers(n: int, device: str) -> torch.Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(n)).to(device)


def test_shapes_are_captured_once_up_to_a_number_and_calls_give_the_same(device):
    act, by = Captured(shifted, most=2), torch.ones((), device=device)
    shifted.calls = 0
    for turn in range(4):
        for n in (5, 9, 7):
            given = numbers(n, device) + turn, by * turn
            kept = [t.clone() for t in given]
            out = [t.clone() for t in act(*given)]
            assert_same_bits(given, kept)
            calls, want = shifted.calls, shifted(*given)
            assert_same_bits(out, want)
            shifted.calls = calls
    # On a GPU two warm up, one is captured, of two shapes; the third is called each time.
    assert shifted.calls == (2 * 3 + 4 if device == "cuda" else 12)
    narrow = act(numbers(5, device).double(), by.double())[0]
    assert narrow.dtype == torch.float64
