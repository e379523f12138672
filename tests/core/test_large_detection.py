# SPDX-License-Identifier: Apache-2.0
"""Box, detection and pillar ops beyond 2^31 elements."""

import torch
from large import LAST, MANY, many_points, marks

import torchvox

pytestmark = marks


def test_box_decode():
    deltas = torch.zeros(MANY, 9)
    deltas[-1] = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 5.0, 6.0])
    anchors = torch.tensor([0.0, 0, 0, 3, 4, 1, 0]).expand(MANY, 7)
    boxes = torchvox.box_decode(deltas, anchors)
    assert boxes[-1].tolist() == [5.0, 0, 0, 3, 4, 1, 0, 5, 6]
    assert (boxes[:-1, 0] == 0).all()


def wide_maps(channels: int, cells: int, fill: float) -> torch.Tensor:
    return torch.full((1, channels, 1, cells), fill, dtype=torch.half)


def test_anchor_decode_nms():
    cells = 1 << 28  # boxes of 2.1e9 values
    cls, box = wide_maps(2, cells, -9.0), wide_maps(8, cells, 0.0)
    cls[0, 1, 0, -1] = 3.0
    box[0, 6, 0, -1] = 1.0
    anchors = torch.tensor([0.0, 0, 0, 3, 4, 1, 0]).expand(1, cells, 1, 7)
    out = torchvox.anchor_decode_nms([cls], [box], None, [anchors], 0.5, [0.1], 10, 5)
    assert (out.count.tolist(), out.labels.tolist()) == ([1], [[1] + [-1] * 4])
    assert out.boxes[0, 0, 3:6].tolist() == [3, 4, 1]


def test_center_decode_nms():
    cells = 1 << 30  # more than 2^31 values of a task
    maps = {name: wide_maps(c, cells, 0.0) for name, c in (("offset", 2), ("dim", 3), ("rot", 2))}
    heatmap = wide_maps(1, cells, -9.0)
    heatmap[..., -1] = 3.0
    maps["dim"][0, 2, 0, -1] = 1.0
    out = torchvox.center_decode_nms(
        [heatmap], [maps["offset"]], [heatmap], [maps["dim"]], [maps["rot"]], None,
        [1.0, 1.0], [0.0, 0, 0, 1, 1, 1], 1, 0.5, [0.2], 10, 5,
    )  # fmt: skip
    assert out.count.tolist() == [1] and out.boxes[0, 0, 0] == cells - 1
    assert out.boxes[0, 0, 3:6].tolist() == [1.0, 1.0, out.boxes[0, 0, 5].item()]
    assert out.boxes[0, 0, 5] > 2.7


def boxes_in_a_row(n: int) -> torch.Tensor:
    """[n, 7]: squares of 1 m, one every 2 m."""
    boxes = torch.zeros(n, 7)
    boxes[:, 0] = torch.arange(n) % 65536 * 2
    boxes[:, 3:6] = 1.0
    return boxes


def test_rotated_iou():
    a, b = boxes_in_a_row(65_536), boxes_in_a_row(33_000)
    iou = torchvox.rotated_iou(a, b)
    assert iou[32_999, 32_999] == 1 and iou[65_535, 32_999] == 0
    assert iou.sum(dtype=torch.float64) == 33_000
    b[:, 0] += 0.5
    grad = torch.ones(65_536, 33_000)
    grad_a, grad_b = torch.ops.torchvox._rotated_iou_backward(grad, a, b)
    assert (grad_a[:33_000, 0] > 0).all() and (grad_a[33_001:] == 0).all()
    assert (grad_b[:, 0] < 0).all()


def test_rotated_nms():
    boxes = torch.zeros(1, 310_000_000, 7)
    boxes[0, -1, 3:6] = 1.0
    scores = torch.full((1, boxes.size(1)), float("nan"))
    scores[0, -1] = 1.0
    index, count = torchvox.rotated_nms(boxes[:, -70_000:], scores[:, -70_000:], 0.5, 10)
    assert index[0, 0] == 69_999 and count.tolist() == [1]


def test_points_in_boxes():
    points = many_points()[None]
    boxes = torch.tensor([[LAST[0] + 0.5, LAST[1] + 0.5, 7.0, 0.5, 0.5, 0.5, 0.3]])
    boxes = boxes[None].repeat(1, 9, 1)
    assert torchvox.points_in_boxes(points, boxes, mode="count").tolist() == [[1] * 9]
    assert torchvox.points_in_boxes(points, boxes)[0, -1] == 0
    mask = torchvox.points_in_boxes(points, boxes, mode="mask")
    assert mask[0, :, -1].all() and mask.sum() == 9
    index, count = torchvox.box_query(points, boxes, 1 << 23, grid=[4, 4, 4])
    assert count.sum() == 9 and (index >= 0).sum() == 9 and index.max() == points.size(1) - 1


PILLARS = {"voxel_size": [1.0, 1.0, 8.0], "point_cloud_range": [0.0, 0.0, 0.0, 64.0, 64.0, 8.0]}


def many_pillars() -> tuple[dict, int]:
    """What the pillar ops take of many_points(), a point a pillar; the row of the last one."""
    points = many_points()
    found = torchvox.voxel_map(points, **PILLARS, max_points=1, max_voxels=-1)
    names = ("indices", "num_points", "point_voxel", "point_slot")
    call = {"points": points, **{name: getattr(found, name)[:] for name in names}}
    call["indices"], call["num_points"] = call["indices"][:4096], call["num_points"][:4096]
    return {**call, **PILLARS, "max_points": 1}, int(found.point_voxel[-1])


def pillar_layer() -> dict:
    """One channel: the feature in column 3."""
    weight = torch.zeros(1, 15)
    weight[0, 3] = 1.0
    return {"weight": weight, "bias": torch.zeros(1), "batch_size": 1}


def test_pillar_encode():
    call, row = many_pillars()
    canvas = torchvox.pillar_encode(**call, **pillar_layer())
    assert canvas[0, 0, LAST[1], LAST[0]] == 5.0
    assert canvas.sum() == 2 * 32 * 64 + 5
    canvas, mean, arg = torch.ops.torchvox._pillar_encode_train(**call, **pillar_layer())
    assert arg[row].tolist() == [MANY - 1] and mean[row, 2] == 7.0
    assert canvas.sum() == 2 * 32 * 64 + 5
    kept = {name: call[name] for name in ("points", "indices", *PILLARS)}
    grad_weight, grad_bias = torch.ops.torchvox._pillar_encode_backward(
        torch.ones_like(canvas), mean, arg, **kept, dtype=torch.float32
    )
    assert grad_bias.item() == 32 * 64 + 1 and grad_weight[0, 3] == 2 * 32 * 64 + 5


def test_pillar_moments():
    call, _ = many_pillars()
    moments = torchvox.pillar_moments(**call)
    assert moments[0] == 32 * 64 + 1 and moments[4] == 2 * 32 * 64 + 5


def many_outputs() -> dict:
    """A layer of MANY outputs over nine columns; the last one is that of a column of variance 1."""
    weight = torch.zeros(MANY, 9)
    weight[-1, 3] = 2.0
    moments = torch.zeros(55, dtype=torch.float64)
    moments[0], moments[4], moments[10 + 9 + 8 + 7] = 4.0, 8.0, 20.0
    return {"moments": moments, "weight": weight, "gamma": torch.ones(MANY)}


def test_pillar_norm():
    beta = torch.zeros(MANY)
    weight, bias, mean, var = torchvox.pillar_norm(**many_outputs(), beta=beta, eps=1e-12)
    assert weight[-1].tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0] and weight.sum() == 1
    assert (bias[-1], mean[-1]) == (-2, 4) and abs(var[-1] - 16 / 3) < 1e-6


def test__pillar_norm_backward():
    call = many_outputs()
    ones = torch.ones(MANY)
    _, to_gamma, to_beta = torch.ops.torchvox._pillar_norm_backward(
        torch.zeros_like(call["weight"]), ones, **call, eps=1e-12
    )
    assert to_gamma[-1] == -2 and to_beta.sum(dtype=torch.float64) == MANY


SAMPLES = 9000  # canvases of 64 x 64 cells and 64 channels: 2.4e9 elements


def last_pillar() -> torch.Tensor:
    return torch.tensor([[SAMPLES - 1, 0, 63, 63]], dtype=torch.int32)


def test_pillar_scatter():
    feats = torch.ones(1, 64, dtype=torch.half)
    canvas = torchvox.pillar_scatter(feats, last_pillar(), SAMPLES, [64, 64])
    assert canvas[-1, :, 63, 63].sum() == 64
    assert canvas.sum(dtype=torch.float64) == 64
    grad = torch.zeros(SAMPLES, 64, 64, 64, dtype=torch.half)
    grad[-1, :, 63, 63] = 1
    assert torch.ops.torchvox._pillar_scatter_backward(grad, last_pillar()).sum() == 64
