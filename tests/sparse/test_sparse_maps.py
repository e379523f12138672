# SPDX-License-Identifier: Apache-2.0
"""sparse_subm_map and sparse_conv_map: which rows they name, of which cells, and how many."""

import pytest
import torch
from helpers import assert_same_bits, real_scan
from hypothesis import given
from hypothesis import strategies as st
from op_infos.op_info import Call, generator, on
from op_infos.sparse import conv_map_call, map_call

import torchvox
from torchvox import reference

ops = torch.ops.torchvox
INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1


def assert_those_of_the_reference(subm: Call, conv: Call, device: str = "cpu") -> None:
    for name, call in (("sparse_subm_map", subm), ("sparse_conv_map", conv)):
        found = getattr(ops, name)(**on(device, call))
        assert_same_bits(found, getattr(reference, name)(**call), name)


def triples(low: int, high: int):
    return st.lists(st.integers(low, high), min_size=3, max_size=3)


def edge_rows(n: int, shape: list[int], batch: int, seed: int) -> torch.Tensor:
    """Mostly in the first and last cells of an axis and about cell 64; every fifth row is any."""
    g = generator(seed)
    rows = torch.randint(0, 3, (n, 4), generator=g)
    for axis, size in enumerate([batch, *shape]):
        kind = torch.randint(3, (n,), generator=g)
        start = torch.tensor([0, max(size - 3, 0), min(63, max(size - 1, 0))])
        rows[:, axis] += start[kind]
    wild = torch.tensor([INT_MIN, INT_MAX, -1, 0, 1, max(batch, 1), shape[2]])
    rows[::5] = wild[torch.randint(len(wild), (len(rows[::5]), 4), generator=g)]
    return rows.int()


@given(
    n=st.integers(0, 40),
    batch=st.integers(0, 3),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 5), st.sampled_from([1, 2, 63, 64, 65, 130])),
    kernel=triples(1, 4),
    stride=triples(1, 4),
    padding=triples(0, 3),
    dilation=triples(1, 3),
    max_rows=st.sampled_from([-1, 0, 3, 200]),
    num_valid=st.sampled_from([None, 0, 1, 20, INT_MAX]),
    seed=st.integers(0, 99),
)
def test_any_map_is_that_of_the_reference(
    n, batch, shape, kernel, stride, padding, dilation, max_rows, num_valid, seed
):
    shape = [
        max(s, d * (k - 1) + 1 - 2 * p)
        for s, k, p, d in zip(shape, kernel, padding, dilation, strict=True)
    ]
    call = {"spatial_shape": shape, "batch_size": batch, "dilation": dilation}
    call["indices"] = edge_rows(n, shape, batch, seed)
    call["num_valid"] = None if num_valid is None else torch.tensor(num_valid)
    subm = call | {"kernel_size": [k | 1 for k in kernel]}
    conv = call | {"kernel_size": kernel, "stride": stride, "padding": padding}
    assert_those_of_the_reference(subm, conv | {"max_rows": max_rows})


@pytest.mark.parametrize("rows", [63, 64, 65, 511, 512, 513, 2047, 2048, 2049, 4097])
def test_any_number_of_rows(rows, device):
    """Tasks of the CPU and blocks of the GPU end where none of them expects it."""
    subm, conv = map_call(rows, kernel=(1, 3, 3)), conv_map_call(rows, kernel_size=[2, 2, 2])
    assert_those_of_the_reference(subm, conv, device)


def test_the_largest_grids(device):
    """2^36 cells, of one sample and of many; the corners are neighbors of nothing."""
    last = (1 << 12) - 1
    corners = torch.cartesian_prod(*[torch.tensor([0, last])] * 3)
    rows = torch.nn.functional.pad(corners, (1, 0)).int().to(device)
    neighbors, counts = ops.sparse_subm_map(rows, [last + 1] * 3, 1, [3, 3, 3])
    assert counts.tolist() == [[8, 8, 8, 0]] * 2
    assert neighbors[13].tolist() == list(range(8))
    rows[:, 0] = torch.arange(8) + (1 << 20) - 8
    found = ops.sparse_conv_map(
        rows.clamp_(max=(1 << 20) - 1), [1 << 5, 1 << 5, 1 << 6], 1 << 20, [1, 1, 1]
    )
    assert found[3][0].tolist() == [1, 1, 1, 7]
    assert found[0].tolist()[0] == [(1 << 20) - 8, 0, 0, 0]


def test_the_maps_of_a_real_scan_are_those_of_the_reference(device):
    """Of a level of a detector: tables of many blocks, rows in the order of points."""
    points = real_scan("lidar/hdl64_360.bin", 4)
    area = [-48.0, -48.0, -3.0, 48.0, 48.0, 3.0]
    voxels = torchvox.voxel_map(points, [0.4, 0.4, 0.2], area, max_points=1, max_voxels=40_000)
    call = {"spatial_shape": [31, 240, 240], "batch_size": 1, "kernel_size": [3] * 3}
    call |= {"indices": voxels.indices, "num_valid": voxels.counts}
    assert_those_of_the_reference(call, call | {"stride": [2] * 3, "padding": [1] * 3}, device)
