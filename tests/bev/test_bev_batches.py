# SPDX-License-Identifier: Apache-2.0
"""Samples, padding, num_valid and degenerate offsets of the BEV rasters."""

import pytest
import torch
from bev_cases import RANGE, SIZE, assert_all_as_reference, call, cloud, polluted


@pytest.mark.parametrize(
    ("offsets", "valid", "lengths"),
    [
        ([0, 0, 500, 501, 501, 900, 900], None, [0, 500, 1, 0, 399, 0]),
        ([200, 500, 700], None, [300, 200]),  # rows outside all blocks are padding
        *(([0, 300, 1000], v, n) for v, n in {
            (0, 0): [0, 0], (1, 0): [1, 0], (300, 700): [300, 700], (10**6, -5): [300, 0],
            (299, 1): [299, 1],
        }.items()),
        (None, 600, [600]),
        (None, [600], [600]),
        ([0, 10**10], None, [1000]),
        ([-5, 20, 2**40], None, [20, 980]),
        ([-(2**40), 0, 50], None, [0, 50]),
        ([0], None, []),
        ([40, 10, 60, -3], None, None),  # in disorder: the values are unspecified
    ],
)  # fmt: skip
def test_offsets_and_counts_are_clamped_to_the_cloud(device, offsets, valid, lengths):
    points, given = polluted(1000), {"batch_offsets": offsets, "num_valid": valid}
    given = {k: torch.tensor(v) for k, v in given.items() if v is not None}
    if lengths is None:
        _, top, _ = call(device, "bev_max_height_with_index", points, RANGE, SIZE, **given)
        assert top.shape == (3, 20, 32) and top.min() >= -1 and top.max() < 1000
        return
    _, top, counts = assert_all_as_reference(device, points, **given)
    assert counts[1:, 1:].sum(1).tolist() == lengths
    for b, length in enumerate(lengths):
        first = min(max((offsets or [0])[b], 0), 1000)
        rows = top[b][top[b] >= 0]
        assert len(rows) == 0 or (rows.min() >= first and rows.max() < first + length)


def test_nan_padding_only_shows_in_the_counts(device):
    points = cloud(500)
    padded = torch.cat([points, torch.full((77, 4), float("nan"))])
    plain = assert_all_as_reference(device, points)
    with_nan = assert_all_as_reference(device, padded)
    assert torch.equal(plain[0], with_nan[0]) and torch.equal(plain[1], with_nan[1])
    assert (with_nan[2] - plain[2]).tolist() == [[0, 0, 0, 77]] * 2


def test_many_samples(device):
    assert_all_as_reference(
        device, cloud(3000), size=[4, 3], batch_offsets=torch.arange(0, 3001, 3)
    )
