# SPDX-License-Identifier: Apache-2.0
"""Rotated boxes: their cases, and the baselines in torch operations."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Iterator, Sequence

import torch
from torch import Tensor

import torchvox
from benchmarks.clouds import Clouds
from benchmarks.suite import (
    Case,
    CaseSpec,
    Facts,
    Implementation,
    NotApplicable,
    Outputs,
    Target,
    WrongResult,
    graph_us,
)

TOLERANCE = 2e-3  # of an IoU: corners that nearly coincide upset the baseline's sorting
SHARE_KEPT = 0.98  # of boxes, by libraries whose IoU rounds otherwise
PAIRS_AT_ONCE = {"cuda": 1 << 22, "cpu": 1 << 18}
PAIRS_MOST = {"cuda": 1 << 25, "cpu": 1 << 21}  # a baseline that needs more is left out


def candidates(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """boxes [count, 7] and scores [count] as a detector gives them over a KITTI range: nine of ten
    about one of some objects, the better the nearer."""
    g = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([[3.9, 1.6, 1.56], [0.8, 0.6, 1.73], [1.76, 0.6, 1.73]])
    objects = 60
    place = torch.rand(objects, 7, generator=g) * torch.tensor([69.0, 79, 1, 0, 0, 0, 6.28])
    place[:, 3:6] = sizes[torch.randint(0, 3, (objects,), generator=g)]
    near = place[torch.randint(0, objects, (count,), generator=g)]
    jitter = torch.randn(count, 7, generator=g)
    near += jitter * torch.tensor([0.5, 0.5, 0.1, 0.1, 0.05, 0.05, 0.1])
    anywhere = torch.rand(count, generator=g) < 0.1
    far = torch.rand(count, 2, generator=g) * torch.tensor([69.0, 79])
    near[:, :2] = torch.where(anywhere[:, None], far, near[:, :2])
    scores = torch.exp(-jitter[:, :2].square().sum(1)) * torch.rand(count, generator=g)
    return near, scores


@dataclass(frozen=True)
class IouCase(Case):
    """Every a [N, 7] with every b [M, 7]."""

    a: Tensor
    b: Tensor
    mode: str
    source: str = "candidates"
    op: str = "rotated_iou"

    def facts(self) -> Facts:
        return {"rows": len(self.a), "columns": len(self.b), "mode": self.mode}

    def torchvox(self) -> Outputs:
        return (torchvox.rotated_iou(self.a, self.b, mode=self.mode),)

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        call = partial(baseline_iou, self.a, self.b, self.mode == "3d")
        yield Implementation("corners, sorted by angle", call, partial(compare_iou, outputs))


@dataclass(frozen=True)
class NmsCase(Case):
    """boxes [B, N, 7], scores [B, N]."""

    boxes: Tensor
    scores: Tensor
    threshold: float
    most: int
    source: str = "candidates"
    op: str = "rotated_nms"

    def facts(self) -> Facts:
        clouds, boxes = self.scores.shape
        return {"clouds": clouds, "boxes": boxes, "threshold": self.threshold, "most": self.most}

    def torchvox(self) -> Outputs:
        return torchvox.rotated_nms(self.boxes, self.scores, self.threshold, self.most)

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        def check(kept: Tensor) -> str:
            if not torch.equal(kept.cpu(), outputs[0].cpu()):
                raise WrongResult("other boxes are kept")
            return "the same boxes"

        name = "IoU matrix of torchvox, loop on the host"
        yield Implementation(name, partial(host_loop, self), check)


@dataclass(frozen=True)
class InsideCase(Case):
    """points [B, N, 3], boxes [B, G, 7]."""

    points: Tensor
    boxes: Tensor
    mode: str
    source: str
    op: str = "points_in_boxes"

    def facts(self) -> Facts:
        clouds, points = self.points.shape[:2]
        boxes = self.boxes.size(1)
        return {"clouds": clouds, "points": points, "boxes": boxes, "mode": self.mode}

    def torchvox(self) -> Outputs:
        return (torchvox.points_in_boxes(self.points, self.boxes, mode=self.mode),)

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        name, check = "every point in every frame", partial(compare_inside, outputs)
        yield Implementation(name, partial(broadcast_inside, self), check, True)


@dataclass(frozen=True)
class QueryCase(Case):
    """points [1, N, 3], boxes [1, G, 7]."""

    points: Tensor
    boxes: Tensor
    k: int
    grid: list[int] | None
    source: str
    op: str = "box_query"

    def facts(self) -> Facts:
        points, boxes = self.points.size(1), self.boxes.size(1)
        return {"points": points, "boxes": boxes, "k": self.k, "grid": str(self.grid)}

    def torchvox(self) -> Outputs:
        return torchvox.box_query(self.points, self.boxes, self.k, grid=self.grid)

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        def check(index: Tensor) -> str:
            wrong = int((index != outputs[0].view_as(index)).sum())
            if wrong > index.numel() // 1000 + 3:
                raise WrongResult(f"{wrong} of {index.numel()} slots differ")
            return f"{wrong} of {index.numel()} slots differ, by rounding at faces"

        name = "mask of torchvox, stable sort"
        yield Implementation(name, partial(sorted_query, self), check)


def compare_iou(outputs: Outputs, iou: Tensor, tolerance: float = TOLERANCE) -> str:
    off = float((iou - outputs[0]).abs().max())
    if not off <= tolerance:
        raise WrongResult(f"an IoU is off by {off:.1e}")
    return f"every IoU within {off:.0e}"


def compare_kept(case: NmsCase, outputs: Outputs, kept: Sequence[Tensor]) -> str:
    """Rows of each sample as another library keeps them, which goes on past `most`. Where an IoU
    rounds to the other side of the threshold, one box goes for another."""
    found = [rows[: case.most].to(outputs[0].device) for rows in kept]
    expected = [rows[rows >= 0].long() for rows in outputs[0]]
    pairs = list(zip(found, expected, strict=True))
    if all(torch.equal(theirs, mine) for theirs, mine in pairs):
        return "the same boxes"
    common = sum(int(torch.isin(theirs, mine).sum()) for theirs, mine in pairs)
    share = common / sum(max(len(theirs), len(mine)) for theirs, mine in pairs)
    if share < SHARE_KEPT:
        raise WrongResult(f"{100 * share:.1f} % of the kept boxes are the same")
    return f"{100 * share:.2f} % of the kept boxes are the same"


def compare_inside(outputs: Outputs, found: Tensor) -> str:
    wrong = int((found != outputs[0]).sum())
    if wrong > found.numel() // 1000 + 3:
        raise WrongResult(f"{wrong} of {found.numel()} differ")
    return f"{wrong} of {found.numel()} differ, by rounding at faces"


def baseline_iou(a: Tensor, b: Tensor, volume: bool) -> Tensor:
    """The corners of either box inside the other and the crossings of edges, sorted by angle."""
    device = a.device.type
    if len(a) * len(b) > PAIRS_MOST[device]:
        raise NotApplicable(f"{len(a) * len(b):.1e} pairs of 24 points")
    rows = max(1, PAIRS_AT_ONCE[device] // max(1, len(b)))
    return torch.cat([_iou_rows(part, b, volume) for part in a.split(rows)])


def _corners(boxes: Tensor) -> Tensor:
    """[.., 4, 2]"""
    signs = boxes.new_tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]]) / 2
    at = signs * boxes[..., None, 3:5]
    c, s = boxes[..., 6:7].cos(), boxes[..., 6:7].sin()
    turned = torch.stack([at[..., 0] * c - at[..., 1] * s, at[..., 0] * s + at[..., 1] * c], -1)
    return turned + boxes[..., None, :2]


def _inside(points: Tensor, boxes: Tensor) -> Tensor:
    d = points - boxes[..., None, :2]
    c, s = boxes[..., 6:7].cos(), boxes[..., 6:7].sin()
    along, across = d[..., 0] * c + d[..., 1] * s, d[..., 1] * c - d[..., 0] * s
    half = boxes[..., None, 3:5] / 2 + 1e-5
    return (along.abs() <= half[..., 0]) & (across.abs() <= half[..., 1])


def _iou_rows(a: Tensor, b: Tensor, volume: bool) -> Tensor:
    a, b = torch.broadcast_tensors(a[:, None], b[None])
    p, q = _corners(a), _corners(b)
    along_p, along_q = (p.roll(-1, -2) - p)[..., :, None, :], (q.roll(-1, -2) - q)[..., None, :, :]
    between = q[..., None, :, :] - p[..., :, None, :]
    turn = _cross(along_p, along_q)
    t, u = _cross(between, along_q) / turn, _cross(between, along_p) / turn
    crosses = (turn != 0) & (t >= 0) & (t <= 1) & (u >= 0) & (u <= 1)
    crossings = p[..., :, None, :] + torch.where(crosses, t, 0)[..., None] * along_p
    points = torch.cat([p, q, crossings.flatten(-3, -2)], -2)
    valid = torch.cat([_inside(p, b), _inside(q, a), crosses.flatten(-2)], -1)
    count = valid.sum(-1, keepdim=True)
    center = (points * valid[..., None]).sum(-2) / count.clamp(min=1)
    points = (points - center[..., None, :]) * valid[..., None]
    angle = torch.where(valid, torch.atan2(points[..., 1], points[..., 0]), 1e9)
    order = angle.argsort(-1)
    points = points.gather(-2, order[..., None].expand_as(points))
    last = torch.arange(24, device=a.device) == count - 1
    after = torch.where(last[..., None], points[..., :1, :], points.roll(-1, -2))
    shared = (_cross(points, after) * (count > 2)).sum(-1).abs() / 2
    size_a, size_b = a[..., 3] * a[..., 4], b[..., 3] * b[..., 4]
    if volume:
        top = torch.minimum(a[..., 2] + a[..., 5] / 2, b[..., 2] + b[..., 5] / 2)
        bottom = torch.maximum(a[..., 2] - a[..., 5] / 2, b[..., 2] - b[..., 5] / 2)
        shared = shared * (top - bottom).clamp(min=0)
        size_a, size_b = size_a * a[..., 5], size_b * b[..., 5]
    return shared / (size_a + size_b - shared)


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def host_loop(case: NmsCase) -> Tensor:
    """As upstream libraries do it: the matrix of suppressions goes to the host, which walks it row
    by row."""
    found = torch.full((len(case.boxes), case.most), -1, dtype=torch.int32)
    for b, (boxes, scores) in enumerate(zip(case.boxes, case.scores, strict=True)):
        if len(boxes) ** 2 > 1 << 28:
            raise NotApplicable(f"a matrix of {len(boxes) ** 2:.1e}")
        order = scores.argsort(descending=True, stable=True)
        boxes = boxes[order]
        suppresses = (torchvox.rotated_iou(boxes, boxes) > case.threshold).cpu().numpy()
        dead, kept = suppresses[0] & False, []
        for i in range(len(boxes)):
            if not dead[i] and len(kept) < case.most:
                kept.append(i)
                dead |= suppresses[i]
        found[b, : len(kept)] = order[kept].int().cpu()
    return found


def broadcast_inside(case: InsideCase) -> Tensor:
    points, boxes = case.points[:, None], case.boxes[:, :, None]
    d = points[..., :3] - boxes[..., :3]
    c, s = boxes[..., 6].cos(), boxes[..., 6].sin()
    along, across = d[..., 0] * c + d[..., 1] * s, d[..., 1] * c - d[..., 0] * s
    half = boxes[..., 3:6] / 2
    inside = (along.abs() < half[..., 0]) & (across.abs() < half[..., 1])
    inside &= d[..., 2].abs() <= half[..., 2]
    if case.mode == "mask":
        return inside
    if case.mode == "count":
        return inside.sum(-1).int()
    return torch.where(inside.any(1), inside.int().argmax(1), -1).int()


def sorted_query(case: QueryCase) -> Tensor:
    grid = case.grid or [1, 1, 1]
    (_, ny, nz), cells = grid, math.prod(grid)
    mask = torchvox.points_in_boxes(case.points, case.boxes, mode="mask")
    box, row = mask[0].nonzero(as_tuple=True)
    chosen = case.boxes[0, box]
    d = case.points[0, row] - chosen[:, :3]
    c, s = chosen[:, 6].cos(), chosen[:, 6].sin()
    local = torch.stack([d[:, 0] * c + d[:, 1] * s, d[:, 1] * c - d[:, 0] * s, d[:, 2]], 1)
    most = torch.tensor(grid, device=d.device)
    cell = ((local + chosen[:, 3:6] / 2) / (chosen[:, 3:6] / most)).long().clamp(min=0)
    x, y, z = torch.minimum(cell, most - 1).unbind(1)
    cell = (x * ny + y) * nz + z
    key, order = (box * cells + cell).sort(stable=True)
    slot = torch.arange(len(key), device=d.device) - torch.searchsorted(key, key)
    index = torch.full((mask.size(1) * cells, case.k), -1, dtype=torch.int32, device=d.device)
    fits = slot < case.k
    index[key[fits], slot[fits]] = row[order][fits].int()
    return index


def iou_case(name: str, rows: int, columns: int, mode: str = "bev") -> CaseSpec:
    def build(clouds: Clouds) -> IouCase:
        a, b = candidates(rows)[0], candidates(columns, seed=1)[0]
        return IouCase(a.to(clouds.device), b.to(clouds.device), mode)

    return CaseSpec(name, build)


def nms_case(
    name: str,
    boxes: int,
    threshold: float,
    most: int,
    targets: Sequence[Target] = (),
    samples: int = 1,
) -> CaseSpec:
    def build(clouds: Clouds) -> NmsCase:
        made = [candidates(boxes, seed) for seed in range(samples)]
        stacked, scores = (torch.stack(parts) for parts in zip(*made, strict=True))
        return NmsCase(stacked.to(clouds.device), scores.to(clouds.device), threshold, most)

    return CaseSpec(name, build, tuple(targets))


def inside_case(name: str, boxes: int, mode: str) -> CaseSpec:
    def build(clouds: Clouds) -> InsideCase:
        points, source = clouds.sweep()
        made = candidates(boxes)[0].to(clouds.device)
        made[:, 1] -= 40
        made[:, 2] -= 1.5
        return InsideCase(points[None, :, :3].contiguous(), made[None], mode, source)

    return CaseSpec(name, build)


def query_case(name: str, k: int, grid: list[int] | None = None) -> CaseSpec:
    """128 boxes among 16,384 points of a sweep."""

    def build(clouds: Clouds) -> QueryCase:
        points, source = clouds.sweep()
        points = points[:: max(1, len(points) // 16384)][:16384]
        made = candidates(128)[0].to(clouds.device)
        made[:, 1] -= 40
        made[:, 2] -= 1.5
        return QueryCase(points[None, :, :3].contiguous(), made[None], k, grid, source)

    return CaseSpec(name, build)


def cases(targets: Sequence[Target]) -> list[CaseSpec]:
    return [
        nms_case("rotated_nms 4096, threshold 0.01", 4096, 0.01, 500, targets),
        nms_case("rotated_nms 4096, threshold 0.7", 4096, 0.7, 4096),
        nms_case("rotated_nms 6 x 1000, threshold 0.2", 1000, 0.2, 83, samples=6),
        iou_case("rotated_iou 1024 x 1024", 1024, 1024),
        iou_case("rotated_iou 3d 1024 x 1024", 1024, 1024, "3d"),
        inside_case("points_in_boxes sweep, 50 boxes, index", 50, "index"),
        inside_case("points_in_boxes sweep, 50 boxes, count", 50, "count"),
        query_case("box_query 16k, 128 boxes, k 512", 512),
        query_case("box_query 16k, 128 boxes, 14^3 cells, k 127", 127, [14, 14, 14]),
    ]


def gpu_cases() -> list[CaseSpec]:
    return [
        *cases(graph_us(60)),
        nms_case("rotated_nms 50k, threshold 0.2", 50_000, 0.2, 500),
        nms_case("rotated_nms 50k, nothing suppressed", 50_000, 1.0, 50_000),
        iou_case("rotated_iou 4096 x 4096", 4096, 4096),
        inside_case("points_in_boxes sweep, 50 boxes, mask", 50, "mask"),
    ]


def cpu_cases() -> list[CaseSpec]:
    return cases(())
