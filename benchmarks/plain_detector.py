# SPDX-License-Identifier: Apache-2.0
"""PointPillars in plain torch, to train beside torchvox: dynamic pillars, targets and losses
batched. Backbone, neck and the convolutions of the head are the detector's own."""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.case import WrongResult
from torchvox.ops import anchor_targets

Batch = dict[str, Tensor]


class PlainDetector(nn.Module):
    """The methods of a torchvox.models.PointPillars that a step of training calls."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        layer, config = model.encoder.pfn_layers[0], model._config
        self.linear = copy.deepcopy(layer.linear)
        self.norm = nn.BatchNorm1d(self.linear.out_features, eps=layer.norm.eps, momentum=0.01)
        self.backbone, self.neck = copy.deepcopy(model.backbone), copy.deepcopy(model.neck)
        head = copy.deepcopy(model.head)
        self.heads = nn.ModuleList([head.cls, head.box, head.dir])
        limits = torch.tensor(config.point_cloud_range)
        self.register_buffer("low", limits[:3])
        self.register_buffer("high", limits[3:])
        self.register_buffer("size", torch.tensor(config.pillar_size))
        self.nx, self.ny, _ = ((self.high - self.low) / self.size).round().int().tolist()
        self.register_buffer("anchors", model.decoder.tasks[0].boxes.flatten(0, 2))
        self.loss_config, self.offset = config.loss, config.head.direction.offset
        per_class = [len(anchor.rotations) for anchor in config.head.anchors]
        ends = [sum(per_class[: i + 1]) for i in range(len(per_class))]
        self.columns = [range(end - n, end) for end, n in zip(ends, per_class, strict=True)]
        self.to(self.linear.weight.device)

    def canvas(self, points: Tensor, num_points: Tensor) -> Tensor:
        batch, capacity = points.shape[:2]
        rows = points.flatten(0, 1)
        number = torch.arange(capacity, device=rows.device)
        there = (number < num_points[:, None]).flatten()
        inside = there & ((rows[:, :3] >= self.low) & (rows[:, :3] < self.high)).all(1)
        sample = torch.arange(batch, device=rows.device).repeat_interleave(capacity)[inside]
        rows = rows[inside]
        cell = ((rows[:, :3] - self.low) / self.size).floor()
        key = (sample * self.ny + cell[:, 1].long()) * self.nx + cell[:, 0].long()
        pillar, of, count = key.unique(return_inverse=True, return_counts=True)
        total = rows.new_zeros(len(pillar), 3).index_add_(0, of, rows[:, :3])
        mean = (total / count[:, None])[of]
        center = (cell + 0.5) * self.size + self.low
        x = torch.cat([rows, rows[:, :3] - mean, rows[:, :3] - center], 1)
        x = F.relu(self.norm(self.linear(x)))
        best = x.new_zeros(len(pillar), x.size(1)).scatter_reduce(
            0, of[:, None].expand_as(x), x, "amax", include_self=False
        )
        canvas = x.new_zeros(batch * self.ny * self.nx, x.size(1)).index_put((pillar,), best)
        return canvas.view(batch, self.ny, self.nx, -1).permute(0, 3, 1, 2)

    def features(self, canvas: Tensor) -> Tensor:
        return self.neck(self.backbone(canvas))

    def head(self, x: Tensor) -> list[list[Tensor]]:
        return [[conv(x)] for conv in self.heads]

    def targets(self, boxes: Tensor, labels: Tensor) -> Tensor:
        """[B, M]: the box of every anchor, -1 background, -2 ignored."""
        config, parts = self.loss_config, []
        by_cell = self.anchors.view(-1, sum(map(len, self.columns)), 7)
        for label, columns in enumerate(self.columns):
            anchors = by_cell[:, columns.start : columns.stop].flatten(0, 1)
            overlap = flat_overlap(boxes, anchors) * (labels == label)[..., None]  # [B, G, m]
            best, box = overlap.max(1)
            most = overlap.amax(2, keepdim=True)
            forced = ((overlap == most) & (most > 0)).any(1)
            kind = torch.where(best < config.unmatched[label], -1, -2)
            kind = torch.where((best >= config.matched[label]) | forced, box, kind)
            parts.append(kind.view(len(boxes), -1, len(columns)))
        return torch.cat(parts, 2).flatten(1)

    def teach(self, maps: list[list[Tensor]], boxes: Tensor, labels: Tensor) -> dict[str, Tensor]:
        batch, anchors = len(boxes), self.anchors
        assigned = self.targets(boxes, labels)
        positive, used, at = assigned >= 0, assigned > -2, assigned.clamp(min=0)
        count = positive.sum(1, keepdim=True).clamp(min=1)
        scores, codes, bins = (
            m[0].float().permute(0, 2, 3, 1).reshape(batch, assigned.size(1), -1) for m in maps
        )
        label = labels.long().gather(1, at).clamp(min=0)
        goal = F.one_hot(label, scores.size(2)) * positive[..., None]
        p = scores.sigmoid()
        weight = torch.where(goal > 0, 0.25 * (1 - p) ** 2, 0.75 * p**2) * used[..., None]
        entropy = F.binary_cross_entropy_with_logits(scores, goal.float(), reduction="none")

        rows = boxes.gather(1, at[..., None].expand(-1, -1, 7))
        diagonal = anchors[:, 3:5].square().sum(1, keepdim=True).sqrt()
        flat = (rows[..., :2] - anchors[:, :2]) / diagonal
        height = (rows[..., 2:3] - anchors[:, 2:3]) / anchors[:, 5:6]
        size = (rows[..., 3:6].clamp(min=1e-5) / anchors[:, 3:6]).log()
        turn = rows[..., 6:] - anchors[:, 6:]
        apart = codes[..., :6] - torch.cat([flat, height, size], 2)
        apart = torch.cat([apart, (codes[..., 6:] - turn).sin()], 2)
        smooth = F.smooth_l1_loss(apart, torch.zeros_like(apart), beta=1 / 9, reduction="none")
        share = positive / count
        half = ((rows[..., 6] - self.offset) % (2 * math.pi) / math.pi).floor().clamp(0, 1).long()
        direction = F.cross_entropy(bins.flatten(0, 1), half.flatten(), reduction="none")
        return {
            "classes": (weight * entropy / count[..., None]).sum() / batch,
            "boxes": 2.0 * (smooth.sum(2) * share).sum() / batch,
            "directions": 0.2 * (direction.view(batch, -1) * share).sum() / batch,
        }


def flat_overlap(boxes: Tensor, anchors: Tensor) -> Tensor:
    """[B, G, M]: overlap from above of boxes [B, G, 7] and anchors [M, 7], each along the axis that
    is nearer."""

    def corners(b: Tensor) -> tuple[Tensor, Tensor]:
        yaw = b[..., 6] - (b[..., 6] / math.pi + 0.5).floor() * math.pi
        size = torch.where((yaw.abs() >= math.pi / 4)[..., None], b[..., [4, 3]], b[..., 3:5])
        return b[..., :2] - size / 2, b[..., :2] + size / 2

    (low, high), (first, last) = corners(boxes), corners(anchors)
    size = torch.minimum(high[:, :, None], last) - torch.maximum(low[:, :, None], first)
    both = size.clamp(min=0).prod(3)
    area, other = (high - low).prod(2), (last - first).prod(1)
    return both / (area[..., None] + other - both).clamp(min=1e-6)


def plain_change(points: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Flips, turns and scales as `WholeScan` does, with torch's own random numbers."""
    batch = len(points)
    points, boxes = points.clone(), boxes.clone()
    sign = torch.randint(0, 2, (batch, 1), device=points.device) * 2.0 - 1.0
    angle = (torch.rand(batch, 1, device=points.device) - 0.5) * (math.pi / 2)
    factor = torch.rand(batch, 1, 1, device=points.device) * 0.1 + 0.95
    c, s = angle.cos(), angle.sin()
    for rows in (points, boxes):
        x, y = rows[..., 0], rows[..., 1] * sign
        rows[..., 0], rows[..., 1] = c * x - s * y, s * x + c * y
        rows[..., :3] *= factor
    boxes[..., 3:6] *= factor
    boxes[..., 6] = boxes[..., 6] * sign + angle
    return points, boxes


@torch.no_grad()
def compare(model: nn.Module, plain: PlainDetector, batch: Batch) -> str:
    """Raises WrongResult unless both see the same canvas, targets and losses, in float32."""
    cloud = batch["points"], batch["num_points"]
    mine, other = model.canvas(*cloud), plain.canvas(*cloud)
    if not torch.allclose(mine, other, atol=1e-4, rtol=1e-3):
        raise WrongResult(f"canvases differ by {float((mine - other).abs().max()):.3g}")
    config, boxes, labels = model._config.loss, batch["boxes"], batch["labels"]
    anchors = model.decoder.tasks[0].boxes
    of = [label for label, columns in enumerate(plain.columns) for _ in columns]
    limits = [[levels[label] for label in of] for levels in (config.matched, config.unmatched)]
    assigned, _ = anchor_targets(boxes, labels, None, None, anchors, of, *limits)
    apart = int((assigned.flatten(1) != plain.targets(boxes, labels)).sum())
    if apart > 1e-5 * assigned.numel():  # of rounding at the thresholds
        raise WrongResult(f"{apart} anchors differ")
    maps = model.head(model.features(mine))
    terms, others = model.teach(maps, boxes, labels, None, None), plain.teach(maps, boxes, labels)
    for name, term in terms.items():
        if not torch.allclose(term, others[name], rtol=1e-3, atol=1e-4):
            raise WrongResult(f"{name} is {float(term):.6g} and {float(others[name]):.6g}")
    return "same canvas, targets and losses in float32"
