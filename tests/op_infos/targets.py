# SPDX-License-Identifier: Apache-2.0
"""Targets and losses of detection heads."""

import torch
from torch import Tensor

from .op_info import DTYPES, INF, NAN, Call, OpInfo, generator, in_dtypes, refused

BATCH, HEIGHT, WIDTH = 2, 6, 7
SIZES = torch.tensor([[3.9, 1.6, 1.5], [0.8, 0.6, 1.7], [2.0, 1.0, 1.5]])
AREA = [0.0, -3.0, -1.0, 7.0, 3.0, 1.0]


def anchor_grid(height: int = HEIGHT, width: int = WIDTH, classes: int = 2) -> Tensor:
    """[H, W, 2 * classes, 7]: two rotations a class, cells of 1 m from AREA's lower corner on."""
    boxes = torch.zeros(height, width, classes, 2, 7)
    boxes[..., 0] = torch.arange(width)[:, None, None] + 0.5
    boxes[..., 1] = torch.arange(height)[:, None, None, None] - 2.5
    boxes[..., 2] = -0.5
    boxes[..., 3:6] = SIZES[:classes, None]
    boxes[..., 1, 6] = 1.57
    return boxes.flatten(2, 3)


def taught(n: int, seed: int = 0, columns: int = 7, classes: int = 2) -> Call:
    """boxes, labels, weight and num_boxes: many like anchors, some equal, some between two, some
    without an area or not finite, some ignored, some that are not there."""
    g = generator(seed + 71)
    labels = torch.randint(0, classes, (BATCH, n), generator=g)
    boxes = torch.randn(BATCH, n, columns, generator=g)
    boxes[..., 0] = torch.rand(BATCH, n, generator=g) * 9 - 1
    boxes[..., 1] = torch.rand(BATCH, n, generator=g) * 8 - 4
    jitter = torch.rand(BATCH, n, 1, generator=g) * 0.6 + 0.7
    boxes[..., 3:6] = SIZES[labels] * jitter
    boxes[..., ::3, 0:2] = (boxes[..., ::3, 0:2] * 2).round() / 2  # on centers and half way
    boxes[..., ::3, 3:6] = SIZES[labels[:, ::3]]
    boxes[..., ::3, 6] = torch.randint(0, 4, boxes[..., ::3, 6].shape, generator=g) * 1.57
    boxes[:, 1::6] = boxes[:, 0::6][:, : boxes[:, 1::6].size(1)]
    labels[:, 1::12] = labels[:, 0::12][:, : labels[:, 1::12].size(1)]
    boxes[:, 4::11, 3] = 0.0
    boxes[:, 5::13, 4] = -1.0
    boxes[:, 7::17, 6] = NAN
    boxes[:, 8::19, 0] = INF
    boxes[:, 9::23, 6] = torch.pi / 4
    labels[:, 10::9] = -1
    weight = (torch.rand(BATCH, n, generator=g) < 0.8).float()
    return {
        "boxes": boxes,
        "labels": labels,
        "weight": weight,
        "num_boxes": torch.tensor([n, max(0, n - 3)]).int(),
    }


def anchor_call(n: int, seed: int = 0, **options) -> Call:
    call = {
        **taught(n, seed),
        "anchors": anchor_grid(),
        "class_of_anchor": [0, 0, 1, 1],
        "matched": [0.6, 0.6, 0.5, 0.5],
        "unmatched": [0.45, 0.45, 0.35, 0.35],
    }
    return {**call, **options}


def center_call(n: int, seed: int = 0, **options) -> Call:
    call = {
        **taught(n, seed, classes=3),
        "point_cloud_range": AREA,
        "pillar_size": [0.25, 0.25, 4.0],
        "cells": 2,
        "size": [12, 14],
        "task_of_class": [0, 1, 1],
        "max_objects": 9,
    }
    return {**call, **options}


def loss_call(
    n: int,
    seed: int = 0,
    codes: int = 7,
    bins: bool = True,
    height: int = 3,
    boxes: int = 8,
    last: bool = False,
    **options,
) -> Call:
    """Maps of `height` x n cells, and assignments at random. last: channels behind the anchors."""
    g = generator(seed + 5)
    anchors = anchor_grid(height, n)
    per_cell = anchors.size(2)

    def channels(values: int) -> Tensor:
        out = torch.randn(BATCH, per_cell * values, height, n, generator=g)
        if last:
            out = out.unflatten(1, (per_cell, values)).permute(0, 3, 4, 1, 2).contiguous()
        return out

    rows = taught(boxes, seed, 9 if codes >= 9 else 7)
    rows["boxes"][:, :, [0, 1, 6]] = rows["boxes"][:, :, [0, 1, 6]].nan_to_num(0.5, 2.0, 2.0)
    if codes >= 9:
        rows["boxes"][:, ::2, 7:] = NAN
    assigned = torch.randint(-4, boxes, (BATCH, height, n, per_cell), generator=g).clamp(min=-2)
    call = {
        "cls": channels(2),
        "box": channels(codes),
        "direction": channels(2) if bins else None,
        "anchors": anchors,
        "boxes": rows["boxes"],
        "labels": rows["labels"],
        "assigned": assigned.int(),
        "dir_offset": 0.78539,
    }
    return {**call, **options}


def without_samples(call: Call) -> Call:
    return {k: v[:0] if torch.is_tensor(v) and k != "anchors" else v for k, v in call.items()}


def in_float64(call: Call) -> Call:
    maps = ("cls", "box", "direction")
    return {k: v.double() if k in maps and v is not None else v for k, v in call.items()}


def backward_call(n: int, seed: int = 0, **options) -> Call:
    grad = torch.randn(BATCH, 3, generator=generator(seed + 6))
    return {"grad": grad, **loss_call(n, seed, **options)}


MULTIHEAD = {"codes": 10, "bins": False, "beta": 0.0, "negative_weight": 2.0,
             "code_weights": [1.0] * 8 + [0.2] * 2}  # fmt: skip
MMDET = {"codes": 9, "mode": "mmdet", "code_weights": [1.0] * 7 + [0.2] * 2, "dir_limit": 0.5}


LOSS_ERRORS = (
    ("cls", lambda t: t[:, :3], ValueError, "cls must be"),
    ("box", lambda t: t[:, :24], ValueError, "box must have 7 to 10 values"),
    ("box", lambda t: t[:, :, 1:], ValueError, "box must be"),
    ("box", lambda t: torch.cat([t, t[:, :8]], 1), ValueError, "boxes must have 9 columns"),
    ("direction", lambda t: t[:, :4], ValueError, "direction must have 2 bins"),
    ("anchors", lambda t: t[:, :, :0], ValueError, r"anchors must be \[H, W, A, 7\]"),
    ("boxes", lambda t: torch.cat([t, t]), ValueError, "with the B of cls"),
    ("code_weights", [1.0] * 6, ValueError, "code_weights must be one number"),
)  # fmt: skip

OPS = [
    OpInfo(
        "anchor_targets",
        anchor_call,
        varying={"boxes": 1, "labels": 1, "weight": 1},
        sample_inputs={
            "mmdet": lambda: anchor_call(40, mode="mmdet"),
            "mmdet, all classes together": lambda: anchor_call(
                40, mode="mmdet", class_of_anchor=[-1] * 4, min_pos=[0.3, 0.0, 0.3, 0.2]
            ),
            "overlapping classes": lambda: anchor_call(40, class_of_anchor=[0, -1, 1, 7]),
            "all boxes teach": lambda: anchor_call(40, weight=None, num_boxes=None),
            "no anchors": lambda: anchor_call(5, anchors=anchor_grid(0)),
            "no samples": lambda: without_samples(anchor_call(5)),
            "more boxes than a block takes": lambda: anchor_call(300),
        },
        error_inputs=(
            ("anchors", lambda t: torch.cat([t] * 17, 2), ValueError, "anchors must be"),
            *refused("class_of_anchor", ValueError, "class_of_anchor must be", [0, 0, 1, -2],
                     [0, 0, 1, 2**31]),
            ("matched", [0.5, 0.5, 0.5, 0.0], ValueError, "matched must be"),
            ("min_pos", [0.5, 0.5, 0.5, -1.0], ValueError, "min_pos must be"),
        ),
        kernels=3,  # rectangles, best overlaps, assignment
    ),
    OpInfo(
        "center_targets",
        center_call,
        varying={"boxes": 1, "labels": 1, "weight": 1},
        sample_inputs={
            "all boxes teach": lambda: center_call(40, weight=None, num_boxes=None),
            "no slots": lambda: center_call(40, max_objects=0),
            "slots to spare": lambda: center_call(40, max_objects=100, min_radius=0),
            "wide": lambda: center_call(40, overlap=0.0, min_radius=5),
            "tasks apart": lambda: center_call(40, task_of_class=[3, 0, 1], overlap=0.7),
            "one cell": lambda: center_call(40, size=[1, 1], cells=12),
            "more boxes than a block takes": lambda: center_call(300, max_objects=40),
            "no samples": lambda: without_samples(center_call(5)),
        },
        error_inputs=(
            *refused("pillar_size", ValueError, "pillar_size must be", [1.0, 0.0], [INF, 1.0]),
            *refused("size", ValueError, r"size must be \(H", [0, 4], [1 << 16, 1 << 15]),
            *refused("task_of_class", ValueError, "task_of_class must", [-1], [64], [0] * 65),
            *refused("overlap", ValueError, "overlap must be", -0.1, 1.0),
            ("min_radius", 1 << 30, ValueError, "min_radius must be"),
        ),
        huge={
            "max_objects": (1 << 31) - 1,
            "size": [46340, 46340],
            "task_of_class": list(range(64)),
        },
        kernels=2,  # slots, heat maps
    ),
    OpInfo(
        "anchor_loss",
        loss_call,
        varying={"cls": 3, "box": 3, "direction": 3, "anchors": 1, "assigned": 2},
        sample_inputs={
            "multihead": lambda: loss_call(40, **MULTIHEAD),
            "mmdet": lambda: loss_call(40, **MMDET),
            "pairs with directions": lambda: loss_call(20, codes=8),
            "no directions": lambda: loss_call(20, bins=False),
            "channels behind": lambda: loss_call(20, last=True, code_weights=[0.5] * 7),
            "float64": lambda: in_float64(loss_call(20)),
            "nothing assigned": lambda: loss_call(
                20, assigned=torch.full((BATCH, 3, 20, 4), -1, dtype=torch.int32)
            ),
            "large logits": lambda: loss_call(
                20, cls=torch.linspace(-120, 120, 960).reshape(2, 8, 3, 20)
            ),
            "no boxes": lambda: loss_call(20, boxes=0),
            "no samples": lambda: without_samples(loss_call(5)),
            **in_dtypes(lambda: loss_call(20), "cls", "box", "direction",
                        dtypes={k: DTYPES[k] for k in ("float16", "bfloat16")}),
        },
        gradients=("cls", "box", "direction"),
        gradcheck_inputs={
            "second": lambda: in_float64(loss_call(3, height=2)),
            "multihead": lambda: in_float64(loss_call(3, height=2, **MULTIHEAD)),
            "mmdet": lambda: in_float64(loss_call(3, height=2, last=True, **MMDET)),
        },
        error_inputs=LOSS_ERRORS,
        kernels=2,  # terms, sums
    ),
    OpInfo(
        "_anchor_loss_backward",
        backward_call,
        varying={"cls": 3, "box": 3, "direction": 3, "anchors": 1, "assigned": 2},
        sample_inputs={
            "multihead": lambda: backward_call(20, **MULTIHEAD),
            "mmdet": lambda: backward_call(20, **MMDET),
        },
        error_inputs=LOSS_ERRORS,
    ),
]  # fmt: skip
