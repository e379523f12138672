# SPDX-License-Identifier: Apache-2.0
"""Whatever the cloud and the arguments: the op equals its definition, at caps and with points that
are not finite too."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from voxel_cases import (
    BOUNDS,
    FLOAT_DTYPES,
    ORDERS,
    REDUCTIONS,
    UNIT_GRID,
    check_op,
    check_voxelize,
)

SIZES = [0.05, 0.1, 0.16, 0.2, 0.32, 1.0, 4.0]


@st.composite
def grids(draw):
    size = [draw(st.sampled_from(SIZES)) for _ in range(3)]
    lo = [draw(st.sampled_from([-54.0, -3.0, -0.1, 0.0, 7.5])) for _ in range(3)]
    hi = [a + draw(st.integers(1, 30)) * v for a, v in zip(lo, size, strict=True)]
    return size, [*lo, *hi]


@st.composite
def coordinates(draw, axis, size, bounds):
    """Mostly faces of cells and their neighbors, some interior points, a few monsters."""
    lo, v = bounds[axis], size[axis]
    cells = max(1, round((bounds[3 + axis] - lo) / v))
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.sampled_from([math.nan, math.inf, -math.inf, 1e30, -1e30, -0.0, 1e-45]))
    cell = draw(st.integers(-1, cells + 1))
    if kind < 5:
        return lo + (cell + 0.5) * v
    face = np.float32(lo + cell * v)
    step = draw(st.integers(-2, 2))
    for _ in range(abs(step)):
        face = np.nextafter(face, np.float32(math.copysign(np.inf, step)))
    return float(face)


@st.composite
def calls(draw):
    """A cloud of few distinct places, so that voxels fill up, and arguments that fit it."""
    size, bounds = draw(grids())
    num_places = draw(st.integers(1, 6))
    places = [
        [draw(coordinates(axis, size, bounds)) for axis in range(3)] for _ in range(num_places)
    ]
    n = draw(st.integers(0, 120))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    num_features = draw(st.integers(3, 6))
    cloud = np.concatenate(
        [
            np.array(places)[rng.integers(num_places, size=n)],
            rng.normal(0, 9, (n, num_features - 3)),
        ],
        axis=1,
    )
    arguments = {"order": draw(st.sampled_from(ORDERS)), "bounds": draw(st.sampled_from(BOUNDS))}
    if draw(st.booleans()):
        num_samples = draw(st.integers(0, 5))
        offsets = np.sort(rng.integers(-3, n + 4, num_samples + 1))
        arguments["batch_offsets"] = torch.from_numpy(offsets)
        if draw(st.booleans()):
            arguments["num_valid"] = torch.from_numpy(rng.integers(-2, n + 3, num_samples))
    max_points = draw(st.sampled_from([-1, 0, 1, 2, 7, 32, 33, 64]))
    max_voxels = draw(st.sampled_from([-1, 0, 1, 2, 5, 200]))
    dtype = draw(st.sampled_from(FLOAT_DTYPES))
    points = torch.from_numpy(cloud).to(dtype)
    return (points, size, bounds, max_points, max_voxels), arguments


@settings(max_examples=150)
@given(call=calls(), data=st.data())
def test_voxelize_equals_its_definition(device, call, data):
    args, kwargs = call
    reductions = REDUCTIONS if args[3] >= 0 else REDUCTIONS[1:]
    check_voxelize(
        device, *args, **kwargs,
        reduce=data.draw(st.sampled_from(reductions)),
        out_dtype=data.draw(st.sampled_from([None, *FLOAT_DTYPES])),
        center_relative=data.draw(st.booleans()),
    )  # fmt: skip


@settings(max_examples=100)
@given(call=calls())
def test_map_equals_its_definition_and_counts_every_valid_point_once(device, call):
    args, kwargs = call
    *_, counts = check_op("voxel_map", device, *args, **kwargs)
    n = len(args[0])
    lengths = kwargs.get("batch_offsets", torch.tensor([0, n])).clamp(0, n).diff()
    valid = torch.minimum(kwargs.get("num_valid", lengths).clamp(min=0), lengths)
    assert counts[1:, 2:7].sum(dim=1).tolist() == valid.tolist()


SPECIAL = [math.nan, math.inf, -math.inf, 1e30, -1e30, 1.0]
each_reduction = pytest.mark.parametrize("reduce", REDUCTIONS)
each_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES)


@pytest.mark.parametrize("bounds", BOUNDS)
@each_dtype
def test_every_mix_of_special_coordinates(device, dtype, bounds):
    cloud = torch.tensor(list(itertools.product(SPECIAL, repeat=3)), dtype=dtype)
    *_, point_voxel, counts = check_voxelize(device, cloud, *UNIT_GRID, 2, -1, bounds=bounds)
    non_finite = int((~cloud.isfinite().all(dim=1)).sum())  # 1e30 is inf in float16
    assert counts[0].tolist() == [1, 1, 1, 0, 0, len(cloud) - non_finite - 1, non_finite, 0]
    assert (point_voxel >= 0).nonzero().tolist() == [[len(cloud) - 1]]


@each_reduction
@each_dtype
def test_feature_columns_may_hold_anything(device, dtype, reduce):
    cloud = torch.ones(6, 5, dtype=dtype)
    cloud[:, 3] = torch.tensor([1.0, math.nan, 2.0, math.nan, 3.0, 4.0])
    cloud[:, 4] = torch.tensor([math.inf, 1.0, -math.inf, 2.0, 3.0, 4.0])
    features, *_, counts = check_voxelize(device, cloud, *UNIT_GRID, 6, 2, reduce=reduce)
    assert counts[0].tolist() == [1, 1, 6, 0, 0, 0, 0, 0]
    if reduce in ("mean", "sum"):
        assert features[0, 3:].isnan().all()  # inf - inf too
    elif reduce in ("max", "min"):
        assert features[0, 3].isnan()
        assert features[0, 4] == (math.inf if reduce == "max" else -math.inf)
    big = torch.finfo(dtype).max  # sums that overflow
    cloud = torch.full((40, 4), big, dtype=dtype)
    cloud[:, :3], cloud[7, 3] = 1, -big
    check_voxelize(device, cloud, *UNIT_GRID, 40, 1, reduce=reduce)
