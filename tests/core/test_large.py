# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs of 2^31 elements and more: every address is 64 bits wide.

Each case puts what it looks for behind element 2^31 and checks the rest by sums. A case takes some
seconds and less than 100 GiB on the GPU, where its tensors are made. test_surface.py demands one of
every op.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from samples import is_tensor_list
from torch import Tensor

import torchvox

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.usefixtures("memory_of_one_case")]

ops = torch.ops.torchvox
s_ = np.s_
MANY = 240_000_000  # rows of 9 columns: 2.16e9 elements, 8.6 GB
CELLS = 32 * 64  # of many_points(), without LAST
LAST = (63, 62)  # the cell (x, y) of the last point, alone in it
AREA = [0.0, 0.0, 0.0, 64.0, 64.0, 8.0]
BEV = {"point_cloud_range": AREA, "size": [64, 64]}
GRID = {"voxel_size": [1.0, 1.0, 8.0], "point_cloud_range": AREA}
FEW = ("voxel_csr",)  # its tensors are lists of points, of which there are fewer than 2^31


class Large(NamedTuple):
    op: str
    call: Callable[[], tuple[tuple, dict]]  # its arguments, made when the case runs
    expected: tuple[tuple[str, Any, Callable[[Tensor], Any]], ...]  # output, place, what holds


def arguments(*positional: Any, **named: Any) -> tuple[tuple, dict]:
    return positional, named


def at(output: str, place: Any, value: Any) -> tuple:
    """Every element equals a number, or all of them a list."""
    if isinstance(value, (int, float)):
        return output, place, lambda part: (part == value).all()
    return output, place, lambda part: part.tolist() == value


def total(output: str, value: float, place: Any = ...) -> tuple:
    """The sum."""

    def holds(part: Tensor) -> bool:
        return part.sum(dtype=torch.double if part.is_floating_point() else torch.long) == value

    return output, place, holds


def positive(output: str, place: Any) -> tuple:
    return output, place, lambda part: (part > 0).all()


def negative(output: str, place: Any) -> tuple:
    return output, place, lambda part: (part < 0).all()


def ints(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def clouds(offsets: list[int], query_offsets: list[int]) -> dict[str, Tensor]:
    """Options of two packed clouds."""
    offsets, query_offsets = torch.tensor(offsets), torch.tensor(query_offsets)
    return {"batch_offsets": offsets, "query_batch_offsets": query_offsets}


def changed(tensor: Tensor, place: Any, value: Any) -> Tensor:
    tensor[place] = torch.as_tensor(value, dtype=tensor.dtype)
    return tensor


def last_row(rows: int, *values: float) -> Tensor:
    """[rows, columns]: zeros, and the last row."""
    return changed(torch.zeros(rows, len(values)), -1, values)


def counting(rows: int, modulus: int) -> Tensor:
    return torch.arange(rows, dtype=torch.int32) % modulus


def many_points() -> Tensor:
    """[MANY, 9]: points over the cells of columns 0 to 31, and the last one alone in LAST."""
    points = torch.zeros(MANY, 9)
    index = torch.arange(MANY, dtype=torch.int32)
    points[:, 0] = (index % 32).float() + 0.5
    points[:, 1] = (index // 32 % 64).float() + 0.5
    points[:, 2], points[:, 3] = 1.0, 2.0
    points[-1, :4] = torch.tensor([LAST[0] + 0.5, LAST[1] + 0.5, 7.0, 5.0])
    return points


def far_point_last() -> Tensor:
    """[3 * MANY, 3]: points at the origin, and the last one a meter away."""
    return last_row(3 * MANY, 1.0, 0.0, 0.0)


# ---- Boxes and detection

BOX = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]
ANCHOR = [0.0, 0.0, 0.0, 3.0, 4.0, 1.0, 0.0]
SIDE = 4096  # cells of one anchor


def filled_map(channels: int, cells: int, fill: float) -> Tensor:
    return torch.full((1, channels, 1, cells), fill, dtype=torch.half)


def anchor_maps() -> tuple[tuple, dict]:
    cells = 1 << 28  # boxes of 2.1e9 values
    cls = changed(filled_map(2, cells, -9.0), (0, 1, 0, -1), 3.0)
    box = changed(filled_map(8, cells, 0.0), (0, 6, 0, -1), 1.0)
    anchors = torch.tensor(ANCHOR).expand(1, cells, 1, 7)
    return arguments([cls], [box], None, [anchors], 0.5, [0.1], 10, 5)


def center_maps() -> tuple[tuple, dict]:
    cells = 1 << 30  # more than 2^31 values of a task
    offset, dim, rot = (filled_map(channels, cells, 0.0) for channels in (2, 3, 2))
    heatmap = changed(filled_map(1, cells, -9.0), s_[..., -1], 3.0)
    dim[0, 2, 0, -1] = 1.0
    return arguments([heatmap], [offset], [heatmap], [dim], [rot], None, [1.0, 1.0],
                     [0.0, 0.0, 0.0, 1.0, 1.0, 1.0], 1, 0.5, [0.2], 10, 5)  # fmt: skip


def two_rows_of_boxes(shift: float) -> tuple[Tensor, Tensor]:
    """[65_536, 7] and [33_000, 7]: squares of 1 m, one every 2 m; b lies `shift` beside a."""
    a = torch.tensor(BOX).repeat(65_536, 1)
    a[:, 0] = torch.arange(65_536) * 2
    b = a[:33_000].clone()
    b[:, 0] += shift
    return a, b


def one_scored_box() -> tuple[Tensor, Tensor]:
    n = 310_000_000
    boxes = changed(torch.zeros(1, n, 7), (0, -1), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0])
    scores = changed(torch.full((1, n), math.nan), (0, -1), 1.0)
    return boxes[:, -70_000:], scores[:, -70_000:]


def points_and_boxes() -> tuple[Tensor, Tensor]:
    box = [LAST[0] + 0.5, LAST[1] + 0.5, 7.0, 0.5, 0.5, 0.5, 0.3]
    return many_points()[None], torch.tensor([[box] * 9])


def candidates() -> tuple[tuple, dict]:
    scenes, tries = 310_000, 1000  # 2.2e9 numbers
    boxes = torch.tensor(BOX)
    rows = changed(boxes.expand(scenes, 1, tries, 7).clone(), (-1, 0, -1, 0), 5.0)
    group = changed(torch.full((scenes, 1), -1), -1, 0)
    return arguments(boxes.expand(scenes, 1, 7), rows, group)


def wide_anchors() -> Tensor:
    """[SIDE, SIDE, 1, 7]: squares side by side."""
    anchors = torch.tensor(BOX).expand(SIDE, SIDE, 1, 7).clone()
    anchors[..., 0] = torch.arange(SIDE)[None, :, None]
    anchors[..., 1] = torch.arange(SIDE)[:, None, None]
    return anchors


def boxes_to_assign() -> tuple[tuple, dict]:  # 2.2e9 anchors
    boxes = changed(torch.tensor(BOX).expand(130, 1, 7).clone(), s_[-1, 0, :2], SIDE - 1)
    labels = changed(torch.full((130, 1), -1), -1, 0)
    return arguments(boxes, labels, None, None, wide_anchors(), [0], [0.6], [0.45])


def boxes_to_draw() -> tuple[tuple, dict]:
    side = 1 << 15
    boxes = changed(torch.tensor(BOX).expand(3, 1, 7).clone(), s_[-1, 0, :2], side - 1)
    area = [0.0, 0.0, 0.0, side, side, 1.0]
    return arguments(boxes, torch.zeros(3, 1).int(), None, None, area, [1.0, 1.0], 1, [side] * 2,
                     [0], max_objects=1)  # fmt: skip


def logits() -> tuple:
    cls, box = (torch.zeros(1, channels, SIDE, SIDE).half() for channels in (130, 7))  # 2.2e9
    assigned = changed(torch.full((1, SIDE, SIDE, 1), -2, dtype=torch.int32), s_[0, -1, -1], -1)
    return cls, box, None, wide_anchors(), torch.tensor([[BOX]]), ints([0]), assigned


DETECTION = (
    Large("box_decode",
          lambda: arguments(last_row(MANY, 1, 0, 0, 0, 0, 0, 0, 5, 6),
                            torch.tensor(ANCHOR).expand(MANY, 7)),
          (at("out", -1, [5, 0, 0, 3, 4, 1, 0, 5, 6]), at("out", s_[:-1, 0], 0))),
    Large("anchor_decode_nms", anchor_maps,
          (at("count", ..., [1]), at("labels", ..., [[1] + [-1] * 4]),
           at("boxes", s_[0, 0, 3:6], [3, 4, 1]))),
    Large("center_decode_nms", center_maps,
          (at("count", ..., [1]), at("boxes", (0, 0, 0), (1 << 30) - 1),
           at("boxes", s_[0, 0, 3:5], 1), at("boxes", (0, 0, 5), pytest.approx(math.e, rel=4e-3)))),
    Large("rotated_iou", lambda: arguments(*two_rows_of_boxes(0.0)),
          (at("out", (32_999, 32_999), 1), at("out", (65_535, 32_999), 0), total("out", 33_000))),
    Large("_rotated_iou_backward",
          lambda: arguments(torch.ones(65_536, 33_000), *two_rows_of_boxes(0.5)),
          (positive("grad_a", s_[:33_000, 0]), at("grad_a", s_[33_001:], 0),
           negative("grad_b", s_[:, 0]))),
    Large("rotated_nms", lambda: arguments(*one_scored_box(), 0.5, 10),
          (at("index", (0, 0), 69_999), at("count", ..., [1]))),
    Large("points_in_boxes", lambda: arguments(*points_and_boxes(), mode="count"),
          (at("out", ..., [[1] * 9]),)),
    Large("points_in_boxes", lambda: arguments(*points_and_boxes(), mode="mask"),
          (at("out", s_[0, :, -1], True), total("out", 9))),
    Large("box_query", lambda: arguments(*points_and_boxes(), 1 << 23, grid=[4, 4, 4]),
          (total("count", 9), ("index", ..., lambda index: (index >= 0).sum() == 9),
           ("index", ..., lambda index: index.max() == MANY - 1))),
    Large("place_boxes", candidates, (at("out", (-1, 0), 999), at("out", s_[:-1], -1))),
    Large("anchor_targets", boxes_to_assign,
          (at("assigned", (-1, -1, -1, 0), 0), at("num_pos", ..., [0] * 129 + [1]),
           total("assigned", 1 - 130 * SIDE**2))),
    Large("center_targets", boxes_to_draw,
          (at("heatmap", s_[:, 0, -1, -1], [0, 0, 1]), at("cell", (-1, 0, 0), (1 << 30) - 1))),
    Large("anchor_loss", lambda: arguments(*logits()),
          (at("out", (0, 0), pytest.approx(130 * 0.75 * 0.25 * math.log(2), rel=1e-5)),
           at("out", s_[0, 1:], 0))),
    Large("_anchor_loss_backward", lambda: arguments(torch.ones(1, 3), *logits()),
          (positive("grad_cls", s_[0, :, -1, -1]), at("grad_cls", s_[0, :, :-1], 0))),
)  # fmt: skip

# ---- Pillars

SAMPLES = 9000  # canvases of 64 x 64 cells and 64 channels: 2.4e9 elements
SUM = 2 * CELLS + 5  # of column 3, one point per cell


def many_pillars() -> dict[str, Any]:
    """Arguments of the pillar ops: many_points(), of which each cell has one."""
    points = many_points()
    voxels = torchvox.voxel_map(points, **GRID, max_points=1, max_voxels=-1)
    indices, num_points = voxels.indices[:4096], voxels.num_points[:4096]
    return {"points": points, "indices": indices, "num_points": num_points, **GRID, "max_points": 1,
            "point_voxel": voxels.point_voxel, "point_slot": voxels.point_slot}  # fmt: skip


def pillar_layer() -> dict[str, Any]:
    """One channel: the feature in column 3."""
    weight = changed(torch.zeros(1, 15), (0, 3), 1.0)
    return {"weight": weight, "bias": torch.zeros(1), "batch_size": 1}


def pillar_winners() -> tuple[tuple, dict]:
    call = many_pillars()
    canvas, mean, arg = ops._pillar_encode_train(**call, **pillar_layer())
    names = ("points", "indices", *GRID)
    call = {name: call[name] for name in names}
    return arguments(torch.ones_like(canvas), mean, arg, **call, dtype=torch.float32)


def many_outputs() -> dict[str, Any]:
    """A layer of MANY outputs over nine columns; the last one is that of a column of variance 1."""
    weight = changed(torch.zeros(MANY, 9), (-1, 3), 2.0)
    moments = torch.zeros(55, dtype=torch.float64)
    moments[0], moments[4], moments[10 + 9 + 8 + 7] = 4.0, 8.0, 20.0
    return {"moments": moments, "weight": weight, "gamma": torch.ones(MANY), "eps": 1e-12}


def last_pillar() -> Tensor:
    return ints([SAMPLES - 1, 0, 63, 63])


def last_canvas() -> Tensor:
    canvas = torch.zeros(SAMPLES, 64, 64, 64, dtype=torch.half)
    return changed(canvas, s_[-1, :, 63, 63], 1)


PILLARS = (
    Large("pillar_encode", lambda: arguments(**many_pillars(), **pillar_layer()),
          (at("out", (0, 0, *LAST[::-1]), 5), total("out", SUM))),
    Large("_pillar_encode_train", lambda: arguments(**many_pillars(), **pillar_layer()),
          (at("arg", CELLS, [MANY - 1]), at("mean", (CELLS, 2), 7), total("canvas", SUM))),
    Large("_pillar_encode_backward", pillar_winners,
          (at("grad_bias", ..., [CELLS + 1]), at("grad_weight", (0, 3), SUM))),
    Large("pillar_moments", lambda: arguments(**many_pillars()),
          (at("out", 0, CELLS + 1), at("out", 4, SUM))),
    Large("pillar_norm", lambda: arguments(**many_outputs(), beta=torch.zeros(MANY)),
          (at("folded_weight", -1, [0, 0, 0, 1, 0, 0, 0, 0, 0]), total("folded_weight", 1),
           at("folded_bias", -1, -2), at("mean", -1, 4),
           at("var", -1, pytest.approx(16 / 3, abs=1e-6)))),
    Large("_pillar_norm_backward",
          lambda: arguments(torch.zeros(MANY, 9), torch.ones(MANY), **many_outputs()),
          (at("to_gamma", -1, -2), total("to_beta", MANY))),
    Large("pillar_scatter",
          lambda: arguments(torch.ones(1, 64).half(), last_pillar(), SAMPLES, [64, 64]),
          (at("out", s_[-1, :, 63, 63], 1), total("out", 64))),
    Large("_pillar_scatter_backward", lambda: arguments(last_canvas(), last_pillar()),
          (total("out", 64),)),
)  # fmt: skip

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
    "case", [pytest.param(c, id=c.op) for c in (*DETECTION, *PILLARS, *VOXELS, *NEIGHBORS)]
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


MAP = {"voxel_size": 1.0, "map_origin": [0.0, 0.0, 0.0]}
SENSOR = [1.0, -0.5, -2.0, 3.0]
REGIONS = (1 << 22) + 100  # of 512 voxels: 2.15e9
# The last voxel of the last region.
LAST_VOXEL = [8 * ((REGIONS - 1) & 4095) + 7.5, 8 * ((REGIONS - 1) >> 12) + 7.5, 7.5]


@pytest.fixture
def state(memory_of_one_case):
    """Regions 0 to REGIONS - 1 along x and y, all free; the last one holds one occupied voxel."""
    state = torchvox.occupancy_state(REGIONS + 4, device="cuda")
    x, bias = torch.arange(REGIONS), 1 << 20
    keys = bias << 42 | (bias + (x >> 12)) << 21 | (bias + (x & 4095))
    logodds = torch.full((REGIONS, 512), -100, dtype=torch.int16)
    logodds[-1, -1] = 700
    layers = [torch.zeros(REGIONS, dtype=torch.int32), logodds, *state[5:]]
    counts = torchvox.occupancy_insert_(state, keys, layers, sensor=SENSOR)
    assert counts.tolist() == [[REGIONS, REGIONS, 0, REGIONS, REGIONS, 0, 0, 0]]
    return state


def test_occupancy_query_and_occupancy_crop_and_occupancy_raycast(state):
    last = torch.tensor([LAST_VOXEL], dtype=torch.float64)
    voxel = torchvox.occupancy_query(state, last, **MAP)
    assert voxel.label.tolist() == [1] and voxel.logodds.tolist() == [700 / 1024]
    ray = torchvox.occupancy_raycast(state, last, last - torch.tensor([[5.0, 0, 0]]), **MAP)
    assert ray.status.tolist() == [1] and ray.distance.tolist() == [4.5]
    crop = torchvox.occupancy_crop(
        state, **MAP, cell_size=[1.0] * 3, point_cloud_range=[0.0, 8.0, 0.0, 8192.0, 8200.0, 33.0]
    )
    assert crop.label.numel() > 1 << 31 and int((crop.label == 1).sum()) == 1


def test_occupancy_extract_and_occupancy_decay_and_occupancy_remove(state):
    rows = torchvox.occupancy_extract(state, 10)
    assert rows.counts.tolist()[0][:2] == [1, 1]
    assert rows.indices[0].tolist() == [0, *(int(x) for x in LAST_VOXEL[::-1])]
    assert torchvox.occupancy_extract(state, 1, select="free").counts[0, 1] == REGIONS * 512 - 1
    decayed = torchvox.occupancy_decay_(state, 1 << 16, 0, 100)
    assert decayed.counts[0, 0] == REGIONS and decayed.empty.sum() == REGIONS - 1
    counts = torchvox.occupancy_remove_(state, decayed.empty)
    assert counts.tolist()[0][:5] == [REGIONS - 1, REGIONS - 1, 0, 0, 1]
    assert state[4][0, -1] == 700 and int((state[4] != -32768).sum()) == 1


def test_occupancy_integrate_adds_regions_behind(state):
    points, origins = torch.tensor([[-4.5, 0.5, 0.5]]), torch.tensor([[-0.5, 0.5, 0.5]])
    options = {**MAP, "sensor": SENSOR, "max_touched": 100}
    counts = torchvox.occupancy_integrate_(state, points, origins, **options)
    assert counts[0, 8:12].tolist() == [1, 1, REGIONS + 1, 0]
    assert int((state[4][REGIONS] != -32768).sum()) == 5


def test_occupancy_integrate_and_occupancy_insert_with_samples():
    """Rows of samples whose covariances are more than 2^31 numbers; two regions have the last."""
    rows = (1 << 31) // 3072 + 9
    layers = ("logodds", "sample_mean", "sample_cov")
    state = torchvox.occupancy_state(4, layers=layers, sample_rows=rows, device="cuda")
    state[3][2] = rows - 2  # as if the others were of regions that are not here
    points = torch.tensor([[0.25, 0.5, 0.5], [0.75, 0.5, 0.5], [8.5, 0.25, 0.5]])
    options = {"ndt": [0.1, 0.2, 3.0, -1.0, 9.0], **MAP, "sensor": SENSOR}
    counts = torchvox.occupancy_integrate_(
        state, points, points, origin_index=torch.arange(3), **options
    )
    assert counts[0, 11:14].tolist() == [0, 0, 2]
    refused = torchvox.occupancy_integrate_(state, points[:1] + 64, points[:1] + 64, **options)
    assert refused[0, 11] == 4
    state[3][3] = 0
    samples = torchvox.occupancy_extract(state, 2)
    assert samples.num_samples.tolist() == [2, 1]
    assert samples.mean.tolist() == [[0.0, 0.0, 0.0], [0.0, -0.25, 0.0]]
    copy = torchvox.occupancy_state(2, layers=layers, sample_rows=2, device="cuda")
    whole = [t if len(t) == 0 else t[:2] if len(t) == 4 else t for t in (state[2], *state[4:])]
    keys, order = state[1][:2].sort()
    inserted = [t[order] if len(t) == 2 else t for t in whole]
    assert torchvox.occupancy_insert_(copy, keys, inserted, sensor=SENSOR)[0, 5] == 0
    assert torch.equal(torchvox.occupancy_extract(copy, 2).mean, samples.mean)
    counts = torchvox.occupancy_remove_(state, state[1] == keys[0])
    assert counts[0, 4] == 1 and counts[0, 7] == rows - 1
    assert torchvox.occupancy_extract(state, 1).num_samples.tolist() in ([1], [2])
