# SPDX-License-Identifier: Apache-2.0
"""Rows of the table of test_large.py: what they are made of, and those of boxes and pillars."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import torchvox

marks = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.usefixtures("memory_of_one_case")]
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

# ---- Sparse convolution

LINE = 1 << 24  # cells; 33 lines of them, the last one with nine
WIDTH = 130  # channels: 2.2e9 features of LINE rows


def line_rows() -> Tensor:
    """[2^29 + 9, 4]: every cell of the lines, in order."""
    index = torch.arange((1 << 29) + 9, dtype=torch.int32)
    zeros = torch.zeros_like(index)
    return torch.stack([zeros, zeros, index >> 24, index & (LINE - 1)], 1)


def mirrored_layer(**options: Any) -> dict[str, Any]:
    """Output row r is row LINE - 1 - r of the features, of which the first and last are not 0."""
    features = torch.zeros(LINE, WIDTH, dtype=torch.half)
    features[0], features[-1] = torch.arange(WIDTH), 2.0
    weight = torch.eye(WIDTH, dtype=torch.half).view(WIDTH, 1, 1, 1, WIDTH)
    table = torch.arange(LINE, dtype=torch.int32).flip(0)[None]
    return {"features": features, "weight": weight, "neighbors": table, **options}


def mirrored_gradient() -> tuple[tuple, dict]:
    grad = changed(torch.zeros(LINE, WIDTH, dtype=torch.half), -1, 1.0)
    layer = mirrored_layer()
    return arguments(grad, **layer, inverse=layer["neighbors"])


SPARSE = (
    Large("sparse_subm_map", lambda: arguments(line_rows(), [1, 64, LINE], 1, [1, 1, 3]),
          (at("counts", 0, [n := (1 << 29) + 9, n, 3 * n - 66, 0]),
           at("neighbors", s_[:, [0, -1]], [[-1, n - 2], [0, n - 1], [1, -1]]))),
    Large("sparse_conv_map",
          lambda: arguments(line_rows(), [1, 64, LINE], 1, [1, 1, 2], stride=[1, 1, 2],
                            padding=[0, 0, 1], max_rows=(1 << 28) + 50),
          (at("counts", 0, [m := (1 << 28) + 32 + 5, m, n, 0]),
           at("out_indices", [m - 1, m], [[0, 0, 32, 4], [-1] * 4]),
           at("neighbors", s_[:, [0, m - 1]], [[-1, n - 2], [0, n - 1]]),
           at("inverse", s_[:, -1], [-1, m - 1]))),
    Large("sparse_schedule",
          lambda: arguments(torch.arange(1 << 30, dtype=torch.int32)[None], [1, 1, 1]),
          (at("out", [0, (r := 1 << 30) - 1, r, r + 1, -1], [0, r - 1, 1, 0, r - 1]),)),
    Large("sparse_conv", lambda: arguments(**mirrored_layer()),
          (at("out", -1, list(range(WIDTH))), at("out", 0, 2), at("out", s_[1:-1], 0))),
    Large("_sparse_conv_backward", mirrored_gradient,
          (at("grad_features", 0, 1), total("grad_features", WIDTH), at("grad_bias", ..., 1),
           at("grad_weight", s_[:, 0, 0, 0], [list(range(WIDTH))] * WIDTH))),
)  # fmt: skip

# ---- Sparse rows


def last_of(value: float) -> Tensor:
    """[MANY, 9]: zeros, and the last row."""
    return last_row(MANY, *[value] * 9)


def identity() -> Tensor:
    return torch.arange(MANY, dtype=torch.int32)[None]


NORMS = (
    Large("sparse_batch_norm",
          lambda: arguments(last_of(MANY), torch.ones(9), torch.zeros(9), 1e-3),
          (at("batch_mean", ..., 1), at("batch_var", ..., MANY), positive("out", -1),
           negative("out", s_[:-1]))),
    Large("_sparse_batch_norm_backward",
          lambda: arguments(last_of(1), last_of(2), torch.ones(9), 1.0, torch.zeros(9),
                            torch.full((9,), 3.0), False),
          (at("grad_bias", ..., 1), at("grad_weight", ..., 1), total("grad_features", 4.5))),
    Large("sparse_max_pool", lambda: arguments(last_of(5), identity()),
          (total("out", 45), at("arg", -1, [MANY - 1] * 9))),
    Large("_sparse_max_pool_backward",
          lambda: arguments(last_of(3), identity().T.expand(MANY, 9).contiguous(), identity()),
          (at("out", -1, [3] * 9), total("out", 27))),
)  # fmt: skip
