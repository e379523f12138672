# SPDX-License-Identifier: Apache-2.0
"""Rotated boxes."""

import torch
from torch import Tensor

from .op_info import Call, OpInfo, cloud, generator, refused

OTHERS = 9


def boxes_of(n: int, seed: int = 0, columns: int = 7) -> Tensor:
    """[n, columns] float32: overlapping boxes, some equal, some touching, some without volume, some
    not finite."""
    g = generator(seed + 31)
    boxes = torch.randn(n, columns, generator=g) * 2
    boxes[:, 3:6] = 0.4 + 3 * torch.rand(n, 3, generator=g)
    boxes[1::7] = boxes[0::7][: boxes[1::7].size(0)]
    boxes[2::7] = boxes[0::7][: boxes[2::7].size(0)]
    boxes[2::7, 0] += boxes[2::7, 3]
    boxes[3::9, 6] = torch.pi / 2
    boxes[4::23, 3] = 0.0
    boxes[6::29, 4] = -1.0
    boxes[8::31, 6] = float("nan")
    boxes[10::37, 0] = float("inf")
    boxes[12::41, 5] = -2.0
    return boxes


def iou_call(n: int, seed: int = 0, **options) -> Call:
    return {"a": boxes_of(n, seed), "b": boxes_of(OTHERS, seed + 1, 9), **options}


def batches(n: int, m: int, seed: int = 0) -> Call:
    a = torch.stack([boxes_of(n, seed), boxes_of(n, seed + 5)])
    return {"a": a, "b": torch.stack([boxes_of(m, seed + 2), boxes_of(m, seed + 3)])}


def paired(n: int = 40, **options) -> Call:
    a, b = boxes_of(n), boxes_of(n)
    b[::2, :2] += 0.3
    b[::3, 6] += 0.4
    return {"a": a, "b": b, "paired": True, **options}


def double(call: Call) -> Call:
    return {k: v.double() if torch.is_tensor(v) else v for k, v in call.items()}


IOU_SAMPLE_INPUTS = {
    "3d": lambda: iou_call(40, mode="3d"),
    "batch": lambda: batches(33, 70),
    "batch, 3d, float64": lambda: {**double(batches(5, 70)), "mode": "3d"},
    "paired": paired,
    "paired, 3d": lambda: paired(mode="3d"),
    "paired batch": lambda: {**batches(20, 20), "paired": True},
    "float64": lambda: double(iou_call(40)),
    "far away": lambda: {
        k: t + 1e5 * (torch.arange(t.size(-1)) < 2) for k, t in iou_call(40).items()
    },
    "iof": lambda: iou_call(40, metric="iof"),
    "iof, 3d, paired": lambda: paired(mode="3d", metric="iof"),
    "overlap": lambda: iou_call(40, metric="overlap"),
    "overlap, 3d, float64": lambda: {**double(batches(5, 70)), "mode": "3d", "metric": "overlap"},
    "no others": lambda: {"a": boxes_of(5), "b": torch.zeros(0, 7)},
}


def gradcheck_pairs(**options) -> Call:
    """float64 pairs that overlap in general position, one apart from the rest."""
    g = generator(5)
    a = torch.randn(12, 8, generator=g, dtype=torch.float64)
    a[:, 3:6] = 1 + 2 * torch.rand(12, 3, generator=g, dtype=torch.float64)
    b = a + 0.3 * torch.randn(12, 8, generator=g, dtype=torch.float64)
    b[:, 3:6] = 1 + 2 * torch.rand(12, 3, generator=g, dtype=torch.float64)
    b[3, 0] += 40
    return {"a": a, "b": b, "paired": True, **options}


def gradcheck_matrix(**options) -> Call:
    pairs = gradcheck_pairs()
    return {"a": pairs["a"][:5, :7], "b": pairs["b"][:7], **options}


def backward_call(n: int, seed: int = 0) -> Call:
    call = iou_call(n, seed)
    grad = torch.randn(n, OTHERS, generator=generator(seed + 4))
    return {"grad": grad, **call}


def nms_call(n: int, seed: int = 0, **options) -> Call:
    boxes = torch.stack([boxes_of(n, seed, 9), boxes_of(n, seed + 1, 9)])
    scores = (torch.rand(2, n, generator=generator(seed)) * 20).round() / 20
    scores[:, 5::17] = float("nan")
    scores[:, 7::19] = -0.0
    return {
        "boxes": boxes,
        "scores": scores,
        "threshold": 0.2,
        "max_out": 20,
        "lengths": torch.tensor([n, n - n // 4]),
        **options,
    }


def nms_groups(n: int) -> Tensor:
    return torch.randint(-2, 2, (2, n), generator=generator(9))


NMS_SAMPLE_INPUTS = {
    "groups": lambda: nms_call(150, group=nms_groups(150)),
    "int32 groups": lambda: nms_call(40, group=nms_groups(40).int(), threshold=0.0),
    "circle": lambda: nms_call(150, mode="circle", threshold=1.0),
    "all wanted": lambda: nms_call(150, max_out=200, lengths=None, threshold=0.7),
    "nothing wanted": lambda: nms_call(40, max_out=0),
    "nothing suppressed": lambda: nms_call(40, threshold=1.0),
    "no samples": lambda: nms_call(
        4, boxes=torch.zeros(0, 4, 7), scores=torch.zeros(0, 4), lengths=None
    ),
}
NMS_ERRORS = (
    ("boxes", lambda t: t[..., :6], ValueError, r"boxes must be \[B, N, 7\]"),
    ("lengths", torch.zeros(3, dtype=torch.int32), ValueError, r"lengths must be \[B\]"),
    ("threshold", -0.1, ValueError, "threshold must be >= 0"),
)


def inside_call(n: int, seed: int = 0, **options) -> Call:
    return {
        "points": torch.stack([cloud(n, 4, seed), cloud(n, 4, seed + 1)]),
        "boxes": torch.stack([boxes_of(OTHERS, seed), boxes_of(OTHERS, seed + 1)]),
        "lengths": torch.tensor([n, n - n // 4]),
        **options,
    }


INSIDE_SAMPLE_INPUTS = {
    "mask": lambda: inside_call(300, mode="mask"),
    "count": lambda: inside_call(3000, mode="count"),
    "margin": lambda: inside_call(300, mode="mask", margin=0.1),
    "box lengths": lambda: inside_call(
        300, mode="count", box_lengths=torch.tensor([99, 2], dtype=torch.int32)
    ),
    "first of some": lambda: inside_call(300, box_lengths=torch.tensor([5, -1])),
    "float64": lambda: double(inside_call(300)) | {"lengths": torch.tensor([300, 225])},
    "many boxes": lambda: inside_call(
        40, mode="mask", boxes=torch.stack([boxes_of(200), boxes_of(200, 1)])
    ),
    "no boxes": lambda: inside_call(40, boxes=torch.zeros(2, 0, 7)),
    "no points, count": lambda: inside_call(0, mode="count"),
}
TWO_COLUMNS = ("points", lambda t: t[..., :2], ValueError, r"points must be \[B, N, C\]")


def query_call(n: int, seed: int = 0, **options) -> Call:
    return {"k": 20, **inside_call(n, seed), **options}


QUERY_SAMPLE_INPUTS = {
    "grid": lambda: query_call(300, k=3, grid=[3, 2, 4], margin=0.2),
    "large grid": lambda: query_call(40, k=2, grid=[17, 16, 16]),
    "box lengths": lambda: query_call(
        300, box_lengths=torch.tensor([99, 2], dtype=torch.int32), grid=[1, 1, 2]
    ),
    "float64": lambda: double(query_call(300, grid=[2, 2, 2])) | {"lengths": None},
    "no slots": lambda: query_call(300, k=0),
    "no boxes": lambda: query_call(40, boxes=torch.zeros(2, 0, 7)),
    "no points": lambda: query_call(0, grid=[2, 1, 1]),
}
QUERY_ERRORS = (
    TWO_COLUMNS,
    *refused("grid", ValueError, "grid must be", [1, 1], [1, 0, 1], [1 << 16, 1 << 15, 1]),
)


def place_call(n: int, seed: int = 0, tries: int = 3, **options) -> Call:
    """n boxes over some 20 m; candidates alone and together, some of which overlap."""
    g = generator(seed + 77)
    boxes = torch.stack([boxes_of(n, seed), boxes_of(n, seed + 1)])
    boxes[..., :2] *= 4
    candidates = torch.stack([boxes_of(12 * tries, seed + 2), boxes_of(12 * tries, seed + 3)])
    candidates = candidates.reshape(2, 12, tries, 7)
    candidates[..., :2] *= 5
    candidates[:, 5] = candidates[:, 4]
    candidates[:, 9, :, 0] = candidates[:, 8, :, 0] + 0.3
    call = {
        "boxes": boxes,
        "candidates": candidates,
        "group": torch.tensor(
            [[7, 0, 3, -1, 3, 3, 9, 1, 3, 9, 3, 2], [2] * 6 + [-5, 1, 1, 9, 0, 1]]
        ),
        "lengths": torch.tensor([n, max(0, n - 3)]).int(),
        "replaces": torch.randint(-2, 12, (2, 12), generator=g),
    }
    return {**call, **options}


PLACE_SAMPLE_INPUTS = {
    "greedy": lambda: place_call(40, mode="greedy"),
    "few boxes": lambda: place_call(3, replaces=None),
    "few boxes, greedy": lambda: place_call(3, mode="greedy", lengths=None),
    "one try": lambda: place_call(12, tries=1, replaces=None),
    "many tries": lambda: place_call(80, tries=70),
    "no tries": lambda: place_call(9, tries=0),
    "no candidates": lambda: place_call(
        9, candidates=torch.zeros(2, 0, 1, 7), group=torch.zeros(2, 0).int(), replaces=None
    ),
}
OPS = [
    OpInfo(
        "rotated_iou",
        iou_call,
        varying={"a": 0},
        sample_inputs=IOU_SAMPLE_INPUTS,
        gradients=("a", "b"),
        gradcheck_inputs={
            "paired": gradcheck_pairs,
            "paired, 3d": lambda: gradcheck_pairs(mode="3d"),
            "matrix": gradcheck_matrix,
            "matrix, 3d": lambda: gradcheck_matrix(mode="3d"),
            "iof, paired": lambda: gradcheck_pairs(metric="iof"),
            "iof, matrix, 3d": lambda: gradcheck_matrix(mode="3d", metric="iof"),
            "overlap": lambda: gradcheck_pairs(metric="overlap"),
            "overlap, matrix, 3d": lambda: gradcheck_matrix(mode="3d", metric="overlap"),
        },
        error_inputs=(("paired", True, ValueError, r"b must be \["),),
    ),
    OpInfo(
        "_rotated_iou_backward",
        backward_call,
        varying={"grad": 0, "a": 0},
        sample_inputs={
            "paired": lambda: {"grad": torch.ones(40), **paired()},
            "one side": lambda: {**backward_call(40), "for_b": False, "mode": "3d"},
            "iof": lambda: {**backward_call(40), "metric": "iof"},
        },
    ),
    OpInfo(
        "rotated_nms",
        nms_call,
        varying={"boxes": 1, "scores": 1},
        sample_inputs=NMS_SAMPLE_INPUTS,
        error_inputs=NMS_ERRORS,
        kernels=3,
        plans=("nms_order",),
    ),
    OpInfo(
        "points_in_boxes",
        inside_call,
        varying={"points": 1},
        sample_inputs=INSIDE_SAMPLE_INPUTS,
        error_inputs=(TWO_COLUMNS,),
    ),
    OpInfo(
        "box_query",
        query_call,
        varying={"points": 1},
        sample_inputs=QUERY_SAMPLE_INPUTS,
        error_inputs=QUERY_ERRORS,
        huge={"k": (1 << 31) - 1, "grid": [1 << 10, 1 << 10, 1 << 10]},
        kernels=2,
    ),
    OpInfo("place_boxes", place_call, varying={"boxes": 1}, sample_inputs=PLACE_SAMPLE_INPUTS),
]
