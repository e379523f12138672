# SPDX-License-Identifier: Apache-2.0
"""Equal keys make a row: both orders, both backends, one answer."""

from itertools import product

import numpy as np
import pytest
import torch
from filter_cases import BACKENDS, ORDERS, run_op
from helpers import assert_same_bits, check_op

from torchvox import reference

LAST = 2**63 - 1
each_order = pytest.mark.parametrize("order", ORDERS)


@each_order
def test_every_key_below_the_limit_counts_and_no_negative_one(device, order):
    edges = [LAST, 0, -1, -(2**63), 2**62, 2**62 - 1, LAST - 1, LAST, -2, 2**31, 2**32, 0]
    keys = torch.tensor(edges)
    for key_bits, backend in product((1, 31, 32, 33, 62, 63), BACKENDS[:2]):
        options = {"key_bits": key_bits, "order": order, "backend": backend}
        row_keys, *_, counts = check_op("voxel_group", device, keys, **options)
        kept = [key for key in edges if 0 <= key < 2**key_bits]
        rows = sorted(set(kept)) if order == "key" else list(dict.fromkeys(kept))
        assert row_keys[: len(rows)].tolist() == rows
        assert counts.tolist() == [len(rows), len(kept)]


def keys_like(kind: str, n: int) -> torch.Tensor:
    rng = np.random.default_rng(n)
    keys = rng.integers(0, LAST, n, endpoint=True)
    if kind == "few":
        keys = keys[:7][rng.integers(0, 7, n)] if n > 7 else keys
    elif kind == "hot":
        keys[rng.random(n) < 0.9] = 12345
    elif kind == "runs":  # as in a scan
        keys = np.repeat(keys, rng.geometric(0.1, n))[:n]
    elif kind == "high bits":  # only the top differs, which a table of low bits does not see
        keys = keys >> 50 << 50
    elif kind == "low bits":
        keys = keys % 512
    keys[rng.random(n) < {"dropped": 1, "distinct": 0}.get(kind, 0.1)] = -1
    return torch.from_numpy(keys)


def numpy_groups(keys: torch.Tensor, order: str) -> tuple[torch.Tensor, ...]:
    """By np.unique and a stable sort."""
    n, all_keys = len(keys), keys.numpy()
    (at,) = np.nonzero(all_keys >= 0)
    unique, first, inverse = np.unique(all_keys[at], return_index=True, return_inverse=True)
    in_order = np.argsort(first) if order == "first" else np.arange(len(unique))
    row = np.argsort(in_order)[inverse]
    row_keys, point_voxel, perm = np.full(n, -1), np.full(n, -1, "i4"), np.full(n, -1, "i4")
    row_keys[: len(unique)] = unique[in_order]
    point_voxel[at], perm[: len(at)] = row, at[row.argsort(kind="stable")]
    offsets = np.cumsum([0, *np.bincount(row, minlength=n)], dtype="i4")
    counts = np.array([len(unique), len(at)], "i4")
    return tuple(map(torch.from_numpy, (row_keys, offsets, perm, point_voxel, counts)))


KINDS = ("distinct", "few", "hot", "runs", "high bits", "low bits", "dropped")
LARGE = pytest.param(1 << 21, marks=pytest.mark.slow)


@pytest.mark.one_of("kind")
@each_order
@pytest.mark.parametrize("n", [0, 1, 2, 31, 33, 255, 1025, 4097, 60_000, LARGE])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_cloud_in_any_number_of_threads(device, order, n, kind):
    keys = keys_like(kind, n)
    expected = numpy_groups(keys, order)
    if n < 60_000:
        assert_same_bits(expected, reference.voxel_group(keys, order=order))
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 8):
            torch.set_num_threads(threads)
            for backend in BACKENDS:
                outs = run_op("voxel_group", device, keys, order=order, backend=backend)
                assert_same_bits(outs, expected, f"{backend}, {threads} threads")
    finally:
        torch.set_num_threads(before)
