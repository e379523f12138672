# SPDX-License-Identifier: Apache-2.0
"""Heads that score and refine anchors: one for all classes, or one per task."""

import math
from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchvox.models.detection.branches import FOCAL_BIAS, Decoder, TaskHead, side_by_side
from torchvox.models.detection.config import (
    AnchorConfig,
    AnchorHeadConfig,
    DetectionsConfig,
    DirectionConfig,
    MultiHeadConfig,
)
from torchvox.nn.conv import as_weight, for_onnx

QUARTER = math.pi / 2


class AnchorHead(nn.Module):
    """Scores, boxes and directions of anchors by one 1x1 convolution each.

    forward(x [B, C, H, W]) returns [[cls], [box], [dir]]: [B, A * classes, H, W], [B, A * code, H,
    W] and [B, A * bins, H, W]; no direction without bins.
    """

    def __init__(self, in_channels: int, classes: int, config: AnchorHeadConfig) -> None:
        super().__init__()
        count = _anchors_per_cell(config.anchors)
        bins = 0 if config.direction is None else config.direction.bins
        self.channels: List[int] = [count * classes, count * config.code_size, count * bins]
        self.cls = nn.Conv2d(in_channels, self.channels[0], 1)
        self.box = nn.Conv2d(in_channels, self.channels[1], 1)
        self.dir = nn.Conv2d(in_channels, self.channels[2], 1) if bins else None
        merged: Optional[nn.Module] = None
        self.merged = merged
        with torch.no_grad():
            self.cls.bias.fill_(FOCAL_BIAS)
            self.box.weight.normal_(0.0, 1e-3)

    def forward(self, x: Tensor) -> List[List[Tensor]]:
        if self.merged is not None:
            x = x.to(self.merged.weight.dtype)
            if not torch.jit.is_scripting() and for_onnx():
                outputs = F.conv2d(x, self.merged.weight[:, :, None, None], self.merged.bias)
            else:
                outputs = self.merged(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            cls, box, direction = outputs.split(self.channels, 1)
            return [[cls], [box], [direction] if self.channels[2] > 0 else []]
        x = as_weight(x, self.cls.weight)
        if not torch.jit.is_scripting() and self.training:
            return self._in_one(x)
        directions: List[Tensor] = []
        if self.dir is not None:
            directions.append(self.dir(x))
        return [[self.cls(x)], [self.box(x)], directions]

    @torch.jit.unused
    def _in_one(self, x: Tensor) -> List[List[Tensor]]:
        """The maps of one convolution, so that x has one gradient."""
        convs = [conv for conv in (self.cls, self.box, self.dir) if conv is not None]
        weight, bias = (torch.cat([getattr(c, k) for c in convs]) for k in ("weight", "bias"))
        cls, box, direction = F.conv2d(x, weight, bias).split(self.channels, 1)
        return [[cls], [box], [direction] if self.channels[2] > 0 else []]

    @torch.jit.unused
    def merge(self) -> None:
        """One linear map of the cells from now on, for inference."""
        self.merged = side_by_side([c for c in (self.cls, self.box, self.dir) if c is not None])
        self.cls = self.box = self.dir = None


class MultiHead(TaskHead):
    """Scores and boxes of anchors, a head per task. forward returns [cls, box, []] with a map per
    task each; the parts of the code of a box follow one another, and are then read as
    [A, code]."""

    def __init__(self, in_channels: int, classes: Sequence[str], config: MultiHeadConfig) -> None:
        anchors = anchors_of_tasks(classes, config)
        branches = []
        for names, mine in zip(config.tasks, anchors, strict=True):
            count = _anchors_per_cell(mine)
            code = {name: count * width for name, width in config.branches.items()}
            branches.append({"cls": count * len(names), **code})
        super().__init__(in_channels, branches, config, (config.shared_eps, config.shared_momentum))
        with torch.no_grad():
            for task in self.tasks:
                task["cls"].out.bias.fill_(FOCAL_BIAS)

    def forward(self, x: Tensor) -> List[List[Tensor]]:
        outputs = self.outputs(x)
        n = self.per_task
        box = [torch.cat(outputs[i + 1 : i + n], 1) for i in range(0, len(outputs), n)]
        return [outputs[::n], box, torch.jit.annotate(List[Tensor], [])]


class _Anchors(nn.Module):
    """Anchors of a task. turned: boxes are w, l, h and turn clockwise; here they become l, w, h and
    counterclockwise, and the code with them."""

    def __init__(self, boxes: Tensor, code_size: int, turned: bool) -> None:
        super().__init__()
        order, sign = list(range(code_size)), [1.0] * code_size
        if turned:
            if not boxes.is_meta:  # where only the shape counts
                yaw = -boxes[..., 6:].double() - QUARTER
                boxes = torch.cat([boxes[..., [0, 1, 2, 4, 3, 5]], yaw.float()], -1)
            order[3], order[4] = 4, 3
            sign[6] = -1.0
            if code_size in (8, 10):  # the cosine of the turned yaw is -sin, its sine -cos
                order[6], order[7] = 7, 6
                sign[7] = -1.0
        self.turned = turned
        count = boxes.size(2)
        columns = [a * code_size + k for a in range(count) for k in order]
        self.register_buffer("boxes", boxes, persistent=False)
        self.register_buffer("order", torch.tensor(columns), persistent=False)
        self.register_buffer("sign", torch.tensor(sign * count).view(-1, 1, 1), persistent=False)

    def code(self, box: Tensor) -> Tensor:
        """The map of codes for these anchors."""
        if not self.turned:
            return box
        return box.index_select(1, self.order) * self.sign.to(box.dtype)


class AnchorDecoder(Decoder):
    """From the maps of an anchor head to (boxes, scores, labels, count, overflow).

    tasks: the anchors of each, [ny, nx, A, 7].
    """

    def __init__(
        self,
        tasks: Sequence[Tensor],
        labels: Sequence[int],
        code_size: int,
        direction: Optional[DirectionConfig],
        detections: DetectionsConfig,
    ) -> None:
        super().__init__(labels, detections)
        self.tasks = nn.ModuleList(_Anchors(boxes, code_size, self.turned) for boxes in tasks)
        turn = DirectionConfig() if direction is None else direction
        self.dir_offset, self.dir_limit = float(turn.offset), float(turn.limit)
        if self.turned:  # the same directions, up to whole turns, of -yaw - pi / 2
            self.dir_offset, self.dir_limit = -QUARTER - self.dir_offset, 1.0 - self.dir_limit
        self.dir_flip = bool(turn.flip)

    def forward(self, maps: List[List[Tensor]]) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        anchors = [task.boxes for task in self.tasks]
        codes = [task.code(maps[1][i]) for i, task in enumerate(self.tasks)]
        direction: Optional[List[Tensor]] = None
        if len(maps[2]) > 0:
            direction = [m.detach() for m in maps[2]]
        return torch.ops.torchvox.anchor_decode_nms(
            [m.detach() for m in maps[0]],
            [m.detach() for m in codes],
            direction,
            anchors,
            self.score,
            self.nms,
            self.pre,
            self.post,
            group=self.group,
            shared_pre=self.shared_pre,
            global_post=self.global_post,
            closed=self.closed,
            dir_offset=self.dir_offset,
            dir_limit=self.dir_limit,
            dir_flip=self.dir_flip,
            class_labels=self.labels,
            nms=self.mode,
        )


def anchors_of_tasks(
    classes: Sequence[str], config: MultiHeadConfig
) -> List[Tuple[AnchorConfig, ...]]:
    """The anchors of the classes of each task; those of the configuration are in class order."""
    by_name = dict(zip(classes, config.anchors, strict=True))
    return [tuple(by_name[name] for name in names) for names in config.tasks]


def _anchors_per_cell(anchors: Sequence[AnchorConfig]) -> int:
    return sum(len(anchor.rotations) for anchor in anchors)


def anchor_boxes(
    anchors: Sequence[AnchorConfig], size: Sequence[int], area: Sequence[float], grid: str
) -> Tensor:
    """[ny, nx, A, 7] float32 (x, y, z center, l, w, h, yaw), A by class and then by rotation.

    size: (nx, ny) of the map. area: (x0, y0, x1, y1) that it covers. grid: "ends" or "centers".
    """
    shapes = torch.tensor(
        [
            [anchor.bottom + anchor.size[2] / 2, *anchor.size, yaw]
            for anchor in anchors
            for yaw in anchor.rotations
        ],
        dtype=torch.float64,
    )
    boxes = torch.empty(size[1], size[0], len(shapes), 7)
    if boxes.is_meta:  # the shape of a network that is not made
        return boxes
    axes = []
    for count, low, high in zip(size, area[:2], area[2:], strict=True):
        if grid == "ends":
            places = torch.linspace(low, high, count, dtype=torch.float64)
        else:
            step = (high - low) / count
            places = low + step * (torch.arange(count, dtype=torch.float64) + 0.5)
        axes.append(places)
    boxes[..., 0] = axes[0][None, :, None]
    boxes[..., 1] = axes[1][:, None, None]
    boxes[..., 2:] = shapes
    return boxes
