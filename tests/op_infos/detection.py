# SPDX-License-Identifier: Apache-2.0
"""Decoding of heads: small maps whose logits tie, some of them not finite."""

import torch
from torch import Tensor

from .op_info import HALVES, Call, OpInfo, generator, in_dtypes

WIDTH, ANCHORS, BATCH = 3, 2, 2
GRID = {"voxel_size": [0.5, 0.5, 4.0], "point_cloud_range": [0.0, -8.0, -3.0, 8.0, 8.0, 1.0]}


def head_map(channels: int, n: int, seed: int, scale: float = 1.0) -> Tensor:
    """[BATCH, channels, n, WIDTH] in quarters, so that values tie."""
    values = torch.randn(BATCH, channels, n, WIDTH, generator=generator(seed)) * scale
    return (values * 4).round() / 4


def spoilt(maps: Tensor) -> Tensor:
    """With values that are not finite here and there."""
    flat = maps.flatten()
    flat[7::31], flat[11::43], flat[23::57] = float("nan"), float("inf"), float("-inf")
    return flat.view_as(maps)


def anchors(n: int) -> Tensor:
    """[n, WIDTH, ANCHORS, 7] half a meter apart."""
    y, x, a = torch.meshgrid(
        torch.arange(n), torch.arange(WIDTH), torch.arange(ANCHORS), indexing="ij"
    )
    size = torch.where(a == 0, 3.9, 0.8)
    columns = [x * 0.5, y * 0.5 - 8, a * 0.0 - 1, size, size * 0.4, size * 0.0 + 1.5, a * 1.57]
    return torch.stack([c.float() for c in columns], -1)


def anchor_call(
    n: int, seed: int = 0, classes: tuple[int, ...] = (3,), code: int = 7, bins: int = 2, **options
) -> Call:
    """A head for each number of classes."""
    heads = range(len(classes))
    directions = [head_map(ANCHORS * bins, n, seed + h + 18) for h in heads]
    call = {
        "cls": [spoilt(head_map(ANCHORS * c, n, seed + h) - 1) for h, c in enumerate(classes)],
        "box": [spoilt(head_map(ANCHORS * code, n, seed + h + 9, 0.5)) for h in heads],
        "direction": directions if bins else None,
        "anchors": [anchors(n) for _ in heads],
        "score_threshold": 0.3,
        "nms_threshold": [0.1],
        "pre": 50,
        "post": 20,
        "dir_offset": 0.78539,
    }
    return {**call, **options}


CENTER_MAPS = {"offset": 2, "z": 1, "dim": 3, "rot": 2, "vel": 2}  # channels


def center_call(
    n: int, seed: int = 0, classes: tuple[int, ...] = (2, 1), velocity: bool = True, **options
) -> Call:
    heads = range(len(classes))
    maps = {
        "heatmap": [spoilt(head_map(c, n, seed + h) - 1) for h, c in enumerate(classes)],
        **{
            name: [spoilt(head_map(channels, n, seed + h + k, 0.5)) for h in heads]
            for k, (name, channels) in enumerate(CENTER_MAPS.items(), start=5)
        },
    }
    if not velocity:
        maps["vel"] = None
    thresholds = {"score_threshold": 0.3, "nms_threshold": [0.2]}
    return {**maps, **GRID, "stride": 2, **thresholds, "pre": 40, "post": 15, **options}


def decode_call(n: int, seed: int = 0, code: int = 7, bins: int = 2, **options) -> Call:
    g = generator(seed)
    deltas = spoilt(torch.randn(BATCH, n, code, generator=g))
    call = {
        "deltas": deltas,
        "anchors": torch.randn(n, 7, generator=g).abs() + 0.5,
        "direction": spoilt(torch.randn(BATCH, n, bins, generator=g)) if bins else None,
        "dir_offset": 0.78539,
    }
    return {**call, **options}


def no_samples(call: Call) -> Call:
    return {
        k: [t[:0] for t in v] if isinstance(v, list) and k != "anchors" and v and
        isinstance(v[0], Tensor) else v
        for k, v in call.items()
    }  # fmt: skip


BY_CLASS = {"group": "class", "closed": False}
SHARED = {**BY_CLASS, "shared_pre": True, "global_post": True}

ANCHOR_SAMPLE_INPUTS = {
    "by class": lambda: anchor_call(40, **BY_CLASS),
    "shared": lambda: anchor_call(40, **SHARED, dir_limit=1.0, dir_flip=True),
    "heads": lambda: anchor_call(20, classes=(1, 2, 2), code=10, bins=0, **BY_CLASS),
    "heads together": lambda: anchor_call(20, classes=(1, 2), code=9),
    "heads apart": lambda: anchor_call(20, classes=(1, 2), code=8, group="task"),
    "shared heads": lambda: anchor_call(20, classes=(1, 2), **SHARED),
    "by class, sorted": lambda: anchor_call(40, **BY_CLASS, global_post=True),
    "everything passes": lambda: anchor_call(40, score_threshold=0.0, pre=5000, post=3000),
    "nothing passes": lambda: anchor_call(40, score_threshold=1.0),
    "circle": lambda: anchor_call(
        40, **BY_CLASS, nms="circle", nms_threshold=[1.0, 0.25, 4.0], class_labels=[5, 0, 2]
    ),
    "one candidate": lambda: anchor_call(40, pre=1, post=1),
    "none before": lambda: anchor_call(40, pre=0),
    "none after": lambda: anchor_call(40, post=0),
    "four bins": lambda: anchor_call(40, bins=4, dir_limit=0.5),
    "no samples": lambda: no_samples(anchor_call(40)),
    **in_dtypes(lambda: anchor_call(40), "cls", "box", "direction", dtypes=HALVES),
}
CENTER_SAMPLE_INPUTS = {
    "best class": lambda: center_call(40, best_class=True, closed=True),
    "no velocity": lambda: center_call(40, velocity=False, rot_order="cos_sin"),
    "range": lambda: center_call(40, post_range=[0.5, -7.0, -1.0, 6.0, 20.0, 1.0]),
    "circle": lambda: center_call(40, nms="circle", nms_threshold=[4.0, 0.5]),
    "by class": lambda: center_call(40, group="class", global_post=True, class_labels=[1, 2, 0]),
    "together": lambda: center_call(40, group="none", pre=30),
    "everything passes": lambda: center_call(40, score_threshold=-1.0, pre=4000, post=9),
    "no samples": lambda: no_samples(center_call(40)),
    **in_dtypes(lambda: center_call(40), "heatmap", *CENTER_MAPS, dtypes=HALVES),
}
DECODE_SAMPLE_INPUTS = {
    "pair": lambda: decode_call(40, code=8),
    "velocity": lambda: decode_call(40, code=9, bins=3, dir_limit=1.0, dir_flip=True),
    "pair and velocity": lambda: decode_call(40, code=10, bins=0),
    "anchors of each": lambda: decode_call(40, anchors=torch.ones(BATCH, 40, 7)),
    "one": lambda: decode_call(1, deltas=torch.ones(7), anchors=torch.ones(7), direction=None),
    **in_dtypes(lambda: decode_call(40), "deltas", "direction", dtypes=HALVES),
}

NO_MAPS = {name: [] for name in ("cls", "box", "direction", "anchors")}
NO_CENTERS = {name: [] for name in ("heatmap", *CENTER_MAPS)}
# Without a tensor there is no device, unless a compiler has chosen one.
NO_TENSOR = "must (have a tensor or more, got none|be 1 to 8 maps, got 0)"
OPTION_ERRORS = (
    ("nms_threshold", [0.1, 0.2, 0.3, 0.4], ValueError, "nms_threshold must be one number"),
    ("class_labels", [1], ValueError, "class_labels must be one label a class"),
    ("class_labels", [0, 1, -1], ValueError, r"class_labels must be in \[0"),
)

OPS = [
    OpInfo(
        "box_decode",
        decode_call,
        varying={"deltas": 1, "anchors": 0, "direction": 1},
        sample_inputs=DECODE_SAMPLE_INPUTS,
        error_inputs=(("dir_limit", 1e39, ValueError, "dir_limit must be finite in float32"),),
        inference=True,
    ),
    OpInfo(
        "anchor_decode_nms",
        anchor_call,
        varying={"cls": 2, "box": 2, "direction": 2, "anchors": 0},
        sample_inputs=ANCHOR_SAMPLE_INPUTS,
        error_inputs=(
            *OPTION_ERRORS,
            ("cls", NO_MAPS, ValueError, f"cls {NO_TENSOR}"),
            ("box", lambda ts: [t[:, :, 1:] for t in ts], ValueError, "box must .* W of cls"),
            ("shared_pre", True, ValueError, "group must be 'class' with shared_pre"),
        ),
        inference=True,
        huge={"post": 1 << 30},
        kernels=5,  # a memset, selection and order, two of NMS, rows
        plans=("decode_kernels",),
    ),
    OpInfo(
        "center_decode_nms",
        center_call,
        varying=dict.fromkeys(("heatmap", *CENTER_MAPS), 2),
        sample_inputs=CENTER_SAMPLE_INPUTS,
        error_inputs=(
            *OPTION_ERRORS,
            ("heatmap", NO_CENTERS, ValueError, f"heatmap {NO_TENSOR}"),
            ("voxel_size", [0.5, 0.0, 1.0], ValueError, "voxel_size must be finite"),
        ),
        inference=True,
        huge={"post": 1 << 30},
        kernels=5,  # a memset, selection and order, two of NMS, rows
        plans=("decode_kernels",),
    ),
]
