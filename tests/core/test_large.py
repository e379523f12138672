# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs of 2^31 elements and more: every address is 64 bits wide.

Each case puts what it looks for behind element 2^31 and checks the rest by sums. A case takes some
seconds and less than 100 GiB on the GPU, where its tensors are made. test_surface.py demands one of
every op.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from large import (
    BEV,
    CELLS,
    DETECTION,
    FEW,
    GRID,
    LAST,
    MANY,
    NORMS,
    PILLARS,
    SPARSE,
    Large,
    arguments,
    at,
    changed,
    clouds,
    counting,
    far_point_last,
    ints,
    last_row,
    many_points,
    marks,
    negative,
    ops,
    positive,
    s_,
    total,
)
from samples import is_tensor_list
from torch import Tensor

import torchvox

pytestmark = marks

# ---- Cells and voxels

CHANNELS = ["height_max", "intensity_top", "intensity_mean", "count"]
DROPPED = -(-MANY // 7)
POOLED = {**GRID, "max_points": -1, "max_voxels": 4096, "reduce": "max"}
COUNTS = [CELLS + 1, CELLS + 1, MANY, 0, 0, 0, 0, 0]


def top_points() -> tuple[tuple, dict]:
    points = many_points()
    _, top_index, _ = ops.bev_max_height_with_index(points, **BEV)
    return arguments(torch.ones(1, 64, 64), top_index, points, **BEV)


def million_rows() -> Tensor:
    """Row 1000 has the last point alone."""
    return changed(counting(MANY, 1000), -1, 1000)


def many_cells(place: Any, value: Any) -> Tensor:
    return changed(torch.ones(3 * MANY, 3, dtype=torch.int32), place, value)


def many_sums() -> tuple[Tensor, Tensor, Tensor]:
    """Values, offsets and perm: one point per row."""
    rows = MANY // 3
    values = changed(torch.ones(rows, 9), -1, 5.5)
    return values, torch.arange(rows + 1, dtype=torch.int32), torch.arange(rows, dtype=torch.int32)


def no_arg() -> Tensor:
    return torch.zeros(0, dtype=torch.int32)


VOXELS = (
    Large("bev_max_height", lambda: arguments(many_points(), **BEV),
          (at("height", (0, *LAST[::-1]), 7), at("counts", ..., [[CELLS + 1, MANY, 0, 0]] * 2))),
    Large("bev_max_height_with_index", lambda: arguments(many_points(), **BEV),
          (at("top_index", (0, *LAST[::-1]), MANY - 1), at("counts", 0, [CELLS + 1, MANY, 0, 0]),
           # of equal heights the lowest index
           at("top_index", s_[0, :, :32], np.arange(CELLS).reshape(64, 32).tolist()))),
    Large("_bev_max_height_backward", top_points,
          (at("out", -1, [0, 0, 1] + [0] * 6), total("out", CELLS + 1))),
    Large("bev_rasterize", lambda: arguments(many_points(), **BEV, channels=CHANNELS),
          (at("image", (0, s_[:], *LAST[::-1]), [7, 5, 5, 1]), total("image", MANY, s_[0, 3]),
           at("counts", 0, [CELLS + 1, MANY, 0, 0]))),
    Large("_bev_rasterize_backward",
          lambda: arguments(torch.ones(1, 2, 64, 64), many_points(), **BEV, channels=CHANNELS[:2]),
          (at("grad_points", -1, [0, 0, 1, 1] + [0] * 5), total("grad_points", 2 * CELLS + 2))),
    Large("voxel_csr", lambda: arguments(counting(MANY, 7) - 1, MANY),
          (at("offsets", [6, -1], MANY - DROPPED), at("perm", s_[-DROPPED:], -1),
           at("perm", s_[:2], [1, 8]))),
    Large("voxel_scatter", lambda: arguments(many_points(), million_rows(), 1001, "sum"),
          (at("out", (1000, 2), 7), total("out", MANY - 1, s_[:1000, 2]))),
    Large("voxel_scatter", lambda: arguments(many_points(), million_rows(), 1001, "max"),
          (at("arg", 1000, [MANY - 1] * 9),)),
    Large("_voxel_scatter_backward",
          lambda: arguments(last_row(MANY, *[3.0] * 9), counting(MANY, MANY),
                            torch.arange(MANY + 1, dtype=torch.int32), no_arg(), "sum"),
          (at("out", -1, 3), total("out", 27))),
    Large("voxel_map", lambda: arguments(many_points(), **GRID, max_points=-1, max_voxels=4096),
          (at("counts", 0, COUNTS), at("indices", CELLS, [0, 0, *LAST[::-1]]),
           at("point_voxel", -1, CELLS), at("point_slot", -1, 0), total("num_points", MANY))),
    Large("_voxelize_train", lambda: arguments(many_points(), **POOLED),
          (at("features", (CELLS, 2), 7), at("arg", (CELLS, 2), MANY - 1))),
    Large("voxelize",  # features of 2.16e9 elements
          lambda: arguments(many_points()[-5000:], **GRID, max_points=8, max_voxels=MANY // 8),
          (at("features", s_[-1000:], 0), at("indices", s_[-1000:], -1))),
    Large("_voxelize_backward",
          lambda: arguments(last_row(MANY, *[3.0] * 9), rows := counting(MANY, MANY), rows * 0,
                            torch.ones_like(rows), no_arg(), "mean", torch.float32),
          (at("out", -1, 3), total("out", 27))),
    Large("voxel_cells",
          lambda: arguments(changed(torch.full((1 << 29,), 7), -1, (1 << 63) - 1), 20, [0, 0, 0]),
          (at("out", -1, [7, *[(1 << 20) - 1] * 3]), at("out", 0, [0, 1, 1, 1]))),
    Large("unique_cells", lambda: arguments(many_cells((-1, 2), 5), bits=3),
          (at("counts", ..., [2, 3 * MANY]), at("point_voxel", [0, -1], [0, 1]),
           at("indices", [0, 1, -1], [[1, 1, 1], [1, 1, 5], [-1, -1, -1]]))),
    Large("serialize",
          lambda: arguments(changed(many_cells((0, 2), 5), (-1, 0), 0), ["z"], depth=3),
          (at("codes", s_[0, [0, 1, -1]], [71, 7, 3]),
           at("order", s_[0, [0, 1, -1]], [3 * MANY - 1, 1, 0]),
           at("inverse", s_[0, [0, 1, -1]], [3 * MANY - 1, 1, 0]))),
    Large("voxel_sum", lambda: arguments(*many_sums()), (at("out", -1, [5, 1 << 31, 1] * 9),)),
    Large("voxel_mean_of_sums",
          lambda: arguments(ops.voxel_sum(*many_sums()),
                            torch.ones(MANY // 3, dtype=torch.int32), torch.float32),
          (at("out", -1, 5.5), at("out", 0, 1))),
    Large("transform_points",
          lambda: arguments(many_points(), torch.eye(4)[None, :3] * 2),
          (at("out", -1, [127, 125, 14]), at("out", 0, [1, 1, 2]))),
    Large("merge_sweeps",
          lambda: arguments(many_points()[None], torch.eye(4)[None, :3] * 2),
          (at("points", -1, [127, 125, 14, 5] + [0] * 5), at("counts", 1, [MANY, MANY, 0, 0]))),
    Large("crop_points",
          lambda: arguments(many_points(), keep_range=[63.0, 0.0, 0.0, 64.0, 64.0, 8.0]),
          (at("points", 0, [LAST[0] + 0.5, LAST[1] + 0.5, 7, 5] + [0] * 5),
           at("points", s_[1:], 0), at("counts", 0, [MANY, 1, MANY - 1, 0, 0]))),
    Large("unpack_points",
          lambda: arguments(changed(torch.zeros(9 * MANY, dtype=torch.uint8), -1, 200), 9, [8],
                            ["u1"]),
          (at("out", -1, 200), total("out", 200))),
    Large("ray_visibility",  # 2,400,000,000 cells of 5 cm
          lambda: arguments(torch.tensor([[99.99, 99.99, 29.99]]),
                            torch.tensor([[99.0, 99.99, 29.99]]), [0.05] * 3,
                            [0.0, 0.0, 0.0, 100.0, 100.0, 30.0]),
          (at("visibility", s_[0, -1, -1, -20:], [1] * 19 + [2]),
           total("visibility", 20 + 2))),
)  # fmt: skip

# ---- Sampling, neighbors and grouping

NEAR = [[0.9, 0.9, 0.9]]  # nearest to the far point
TWO_QUERIES = [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


def wide_rows() -> Tensor:
    """[1, 3, 9]: the last row holds fours."""
    return changed(torch.zeros(1, 3, 9), (0, 2), 4.0)


def filled(value: int, *shape: int) -> Tensor:
    return torch.full(shape, value, dtype=torch.int32)


def two_segments() -> Tensor:
    return torch.tensor([0, MANY - 1, MANY])


def segment_winners() -> tuple[tuple, dict]:
    out, arg = ops.segment_reduce(many_points(), two_segments(), "max")
    return arguments(out, two_segments(), arg, MANY, "max")


def distances() -> Tensor:
    """[1, 50_000, 50_000], 2.5e9 elements: zeros, except those of the first and the last point."""
    rows = torch.zeros(1, 50_000, 50_000)
    rows[0, -1, :-1] = 1.0
    rows[0, 0, 7], rows[0, -1, 7], rows[0, 0, -1] = 0.5, 0.5, 1.0
    return rows


def grouped(offset: float) -> tuple[Tensor, Tensor]:
    """40 points, of which one lies beside the others, and MANY // 4 queries at the origin."""
    points = changed(torch.zeros(1, 40, 3), (0, 1), offset)
    return points, torch.zeros(1, MANY // 4, 3)


def wide_layer(dtype: torch.dtype) -> tuple[tuple, dict]:
    n, channels = 1 << 24, 130  # 2.2e9 features
    points, weight = torch.zeros(1, n, 3), torch.eye(channels, dtype=dtype)
    features = torch.zeros(1, n, channels, dtype=dtype)
    features[0, -1] = torch.arange(channels)
    return arguments(points, points[:, :1], features, ints([[n - 1, n - 2]]), ints([2]), [weight],
                     [weight[0] * 0], use_xyz=False)  # fmt: skip


PACKED = [0, 5, 3 * MANY]  # a short cloud before a long one
NEIGHBORS = (
    Large("gather_points",
          lambda: arguments(many_points()[None], ints([MANY - 1, 0, MANY, -1])),
          (at("out", s_[0, :, 2], [7, 1, 0, 0]),)),
    Large("_gather_points_backward",
          lambda: arguments(torch.ones(1, MANY, 9),
                            changed(filled(-1, 1, MANY), (0, -1), MANY - 1), MANY),
          (at("out", (0, -1), 1), total("out", 9))),
    Large("segment_reduce", lambda: arguments(many_points(), two_segments(), "max"),
          (at("out", s_[:, 2], [1, 7]), at("arg", s_[:, 2], [0, MANY - 1]))),
    Large("segment_reduce",
          lambda: arguments(torch.arange(27.0).view(3, 9), torch.arange(MANY + 1),
                            index=filled(2, MANY)),
          (at("out", s_[-1000:], [list(range(18, 27))] * 1000),)),
    Large("_segment_reduce_backward", segment_winners,
          (at("out", s_[-1, :4], [63.5, 62.5, 7, 5]), at("out", (0, 2), 1))),
    Large("group_points", lambda: arguments(wide_rows(), filled(2, 1, MANY // 8, 8)),
          (at("out", s_[0, -1000:], 4),)),
    Large("group_points",
          lambda: arguments(many_points(), ints([4, 5], [MANY - 1, 4]),
                            **clouds([0, 5, MANY], [0, 1, 2])),
          (at("out", s_[..., 2], [[1, 0], [7, 0]]),)),
    Large("_group_points_backward",  # whole numbers below 2^24: exact sums
          lambda: arguments(torch.ones(1, MANY // 8, 8, 9), counting(MANY, 1000).view(1, -1, 8),
                            1000),
          (at("out", ..., MANY / 1000),)),
    Large("neighbor_rows",
          lambda: arguments(filled(3, 1, MANY, 9), 4,
                            count=changed(filled(9, 1, MANY), (0, -1), 2)),
          (at("out", (0, -1), [3, 3] + [-1] * 7), total("out", 27 * MANY - 7 * 4))),
    Large("three_interpolate",
          lambda: arguments(torch.ones(1, 1, 9), filled(0, 1, MANY, 3), torch.ones(1, MANY, 3)),
          (at("out", s_[0, -1000:], 3),)),
    Large("three_interpolate",
          lambda: arguments(many_points(), ints([4, 5, -1], [MANY - 1, 4, 5]), torch.ones(2, 3),
                            **clouds([0, 5, MANY], [0, 1, 2])),
          (at("out", s_[:, 2], [1, 8]),)),
    Large("_three_interpolate_backward",  # exact sums, as above
          lambda: arguments(torch.ones(1, MANY, 9), torch.ones(1, 1000, 9),
                            counting(3 * MANY, 1000).view(1, -1, 3), torch.ones(1, MANY, 3)),
          (at("grad_features", ..., 3 * MANY / 1000), at("grad_weight", ..., 9))),
    Large("interpolation_weights",
          lambda: arguments(changed(torch.ones(3 * MANY, 3), -1, [0.0, math.inf, math.inf])),
          (at("out", -1, [1, 0, 0]), at("out", s_[:-1], 1 / 3))),
    Large("_interpolation_weights_backward",
          lambda: arguments(last_row(3 * MANY, 1.0, 0.0, 0.0), torch.ones(3 * MANY, 3)),
          (negative("out", (-1, 0)), positive("out", (-1, 1)), at("out", s_[:-1], 0))),
    Large("interpolate_features",
          lambda: arguments(torch.zeros(1, MANY, 3), torch.zeros(1, 1, 3),
                            torch.full((1, 1, 9), 5.0)),
          (at("out", s_[0, -1000:], 5), at("out", s_[0, :1000], 5))),
    Large("_neighbor_distance_backward",
          lambda: arguments(torch.full((1, 2, 2), 0.5), last_row(3 * MANY, 1.0, 1.0, 1.0)[None],
                            torch.zeros(1, 2, 3), ints([[0, 3 * MANY - 1], [-1, 3 * MANY]])),
          (at("grad_points", (0, -1), [1] * 3), total("grad_points", 3),
           at("grad_query", ..., [[[-1] * 3, [0] * 3]]))),
    Large("_neighbor_distance_backward",  # a cloud takes fewer slots; sums of chunks round
          lambda: arguments(torch.full((2, MANY // 2, 9), 0.5), torch.ones(2, 2, 3),
                            torch.zeros(2, MANY // 2, 3), filled(1, 2, MANY // 2, 9)),
          (at("grad_query", ..., -9), at("grad_points", s_[:, 0], 0),
           *(at("grad_points", (cloud, 1), pytest.approx([9.0 * (MANY // 2)] * 3, rel=1.3e-6))
             for cloud in (0, 1)))),
    Large("furthest_point_sample", lambda: arguments(far_point_last()[None], 3),
          (at("idx", ..., [[0, 3 * MANY - 1, 1]]), at("dist2", ..., [[math.inf, 1, 0]]))),
    Large("furthest_point_sample_ragged",
          lambda: arguments(far_point_last(), *map(torch.tensor, ([0, 5, 3 * MANY], [0, 1, 3])), 4),
          (at("idx", ..., [0, 5, 3 * MANY - 1, -1]),
           at("dist2", ..., [math.inf, math.inf, 1, 0]))),
    Large("furthest_point_sample_with_dist", lambda: arguments(distances(), 3),
          (at("out", ..., [[0, 49_999, 7]]),)),
    Large("knn",  # 2.16e9 slots
          lambda: arguments(torch.eye(3)[None], last_row(MANY, 2.0, 2.0, 2.0)[None], 9),
          (at("idx", s_[0, -1000:, :3], [[0, 1, 2]] * 1000), at("idx", s_[0, -1, 3:], -1),
           at("dist2", s_[0, -2:, 0], [1, 9]))),
    Large("knn",
          lambda: arguments(far_point_last(), torch.tensor(NEAR * 2), 2,
                            **clouds(PACKED, [0, 1, 2])),
          (at("idx", ..., [[0, 1], [3 * MANY - 1, 5]]),)),
    Large("three_nn",
          lambda: arguments(torch.tensor(NEAR), far_point_last(),
                            **clouds(PACKED, [0, 0, 1])),
          (at("idx", ..., [[3 * MANY - 1, 5, 6]]),)),
    Large("ball_query",  # 2.4e9 slots
          lambda: arguments(torch.zeros(1, 40, 3), torch.zeros(1, MANY, 3), 0.5, 10),
          (at("idx", s_[0, -1000:], [list(range(10))] * 1000), at("count", ..., 10),
           at("dist2", s_[0, -1000:], 0))),
    Large("ball_query",
          lambda: arguments(far_point_last(), torch.tensor(TWO_QUERIES), 0.5, 2,
                            **clouds([5, 3 * MANY], [0, 2])),
          (at("idx", ..., [[3 * MANY - 1] * 2, [5, 6]]), at("count", ..., [1, 2]))),
    Large("radius_neighbors",
          lambda: arguments(far_point_last(), torch.tensor([[1.0, 0.0, 0.0], [9.0, 0.0, 0.0]]),
                            0.5, 2),
          (at("index", ..., [3 * MANY - 1, -1]), at("offsets", ..., [0, 1, 1]))),
    Large("radius_neighbors",  # 2.4e9 entries
          lambda: arguments(torch.zeros(10, 3), torch.zeros(MANY, 3), 0.5, 10 * MANY - 3,
                            return_dist2=False),
          (at("count", ..., 10 * MANY), at("index", s_[-1007:-7], list(range(10)) * 100),
           at("offsets", s_[-2:], [10 * MANY - 10, 10 * MANY - 3]))),
    Large("query_and_group",  # 2.9e9 elements
          lambda: arguments(*(call := grouped(0.25)), call[0], [0.5], [8]),
          (at("grouped", s_[0, -1000:, 1], 0.25),)),
    Large("_query_and_group_backward",
          lambda: arguments(torch.ones(1, 1, 1, 5).expand(1, MANY // 4, 8, 5), *grouped(0.0),
                            filled(7, 1, MANY // 4, 8), 2, [0.5], [8]),
          (at("grad_query", ..., -8), at("grad_points", (0, 7), 2 * MANY),
           at("grad_points", s_[0, :7], 0), at("grad_points", s_[0, 8:], 0),
           at("grad_features", (0, 7), 2 * MANY))),
    *(Large("group_mlp_max", lambda dtype=dtype: wide_layer(dtype),
            (at("out", ..., [[list(range(130))]]),))
      for dtype in (torch.bfloat16, torch.float32)),
)  # fmt: skip


def elements(values: Any) -> list[int]:
    """Of each tensor, and of the storage that it is a view of."""
    tensors = [t for value in values for t in (value if is_tensor_list(value) else [value])]
    tensors = [t for t in tensors if isinstance(t, Tensor)]
    return [max(t.numel(), t.untyped_storage().size() // t.element_size()) for t in tensors]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, id=c.op)
        for c in (*DETECTION, *PILLARS, *SPARSE, *NORMS, *VOXELS, *NEIGHBORS)
    ],
)
def test_the_last_elements_are_read_and_written(case):
    op = getattr(ops, case.op)
    positional, named = case.call()
    outs = op(*positional, **named)
    outs = (outs,) if isinstance(outs, Tensor) else outs
    size = max(elements([*positional, *named.values(), *outs]))
    assert size >= 1 << 31 or case.op in FEW
    names = [out.name or "out" for out in op.default._schema.returns]
    outputs = dict(zip(names, outs, strict=True))
    for output, place, holds in case.expected:
        part = outputs[output][place]
        assert holds(part), f"{output}[{place}]: {part}"


# ---- Calls that follow each other


def test_voxel_downsample_and_its_steps():
    points = many_points()
    cells = torchvox.voxel_keys(points, [1.0, 1.0, 8.0])
    assert cells.counts.tolist() == [[MANY, 0, 0]] * 2
    groups = torchvox.voxel_group(cells.keys)
    assert groups.counts.tolist() == [CELLS + 1, MANY]
    assert groups.perm[-1] == MANY - 1 and groups.point_voxel[-1] == CELLS
    del cells
    means = torchvox.voxel_mean(points, groups.offsets, groups.perm)
    assert means[CELLS, :4].tolist() == points[-1, :4].tolist()
    assert means[0, :4].tolist() == [0.5, 0.5, 1.0, 2.0]
    assert not means[-1].any()
    del means, groups
    out = torchvox.voxel_downsample(points, [1.0, 1.0, 8.0], order="key", trim=True)
    assert out.num_points.sum() == MANY and out.out.shape == (CELLS + 1, 9)
    assert out.out[-1, :4].tolist() == points[-1, :4].tolist()


def test_ray_voxels_and_ray_regions():
    """More than 2^31 visits."""
    points, origins, map_origin = many_points(), torch.zeros(1, 3), [0.0, 0.0, 0.0]
    visits = torchvox.ray_voxels(points, origins, 0.01, map_origin, 1 << 30)
    assert visits.counts[0, 1] > 1 << 31 and visits.counts[0, 0] == 1 << 30
    assert visits.offsets[-1] == visits.counts[0, 1]
    assert visits.indices.numel() > 1 << 31 and visits.indices[0].tolist() == [0] * 4
    del visits
    regions = torchvox.ray_regions(points, origins, 0.01, map_origin, 1 << 20)
    assert regions.counts[0, 0] == regions.counts[0, 1] > CELLS
