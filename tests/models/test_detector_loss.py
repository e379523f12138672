# SPDX-License-Identifier: Apache-2.0
"""The losses of detectors: terms by plain loops, boxes that come back, nets that learn."""

import math

import pytest
import torch

import torchvox
from torchvox.models import CenterPointPillars, CenterPointVoxel, PointPillars, Second, VoxelNeXt
from torchvox.models.detection.config import CenterLossConfig
from torchvox.models.detection.losses import gaussian_radius

BASE = {
    "classes": ["Car", "Pedestrian", "Cyclist"],
    "point_cloud_range": [0.0, -8.0, -2.0, 16.0, 8.0, 2.0],
    "pillar_size": [0.5, 0.5, 4.0],
    "max_pillars": [1024, 1024],
    "encoder": {"channels": [16]},
    "backbone": {"layers": [1], "strides": [2], "channels": [32]},
    "neck": {"strides": [1], "channels": [32]},
}
ANCHORS = [
    {"size": [3.9, 1.6, 1.56], "bottom": -1.8},
    {"size": [1.2, 1.1, 1.7], "bottom": -1.8},
    {"size": [1.8, 0.9, 1.7], "bottom": -1.8},
]
LOSS = {"matched": [0.5, 0.35, 0.35], "unmatched": [0.35, 0.25, 0.25]}
MULTIHEAD = {"beta": 0.0, "negative_weight": 2.0, "code_weights": [1.0] * 8 + [0.2] * 2}
TASKS = [["Pedestrian"], ["Cyclist", "Car"]]


def anchored(**loss):
    torch.manual_seed(0)
    head = {"anchors": ANCHORS, "direction": {"offset": 0.78539}}
    return PointPillars({**BASE, "head": head, "loss": {**LOSS, **loss}})


def headed(**loss):
    torch.manual_seed(0)
    head = {"anchors": ANCHORS, "tasks": TASKS, "shared": 16, "width": 16}
    return PointPillars({**BASE, "head": head, "loss": {**LOSS, **MULTIHEAD, **loss}})


def centered(**loss):
    torch.manual_seed(0)
    head = {"tasks": TASKS, "shared": 16, "width": 16}
    detections = {"pre": 64, "post": 20, "nms": [0.5], "score": 0.1}
    return CenterPointPillars({**BASE, "head": head, "loss": loss, "detections": detections})


def batch(device="cpu", seed=0, velocities=True):
    """Three scans: two boxes with points in them and one that is ignored, one box, none."""
    g = torch.Generator().manual_seed(seed)
    boxes = torch.zeros(3, 4, 9)
    boxes[0, 0] = torch.tensor([5.1, 1.2, -1.0, 3.8, 1.7, 1.5, 0.3, 1.0, -0.5])
    boxes[0, 1] = torch.tensor([10.3, -4.6, -0.9, 0.8, 0.7, 1.8, -2.0, math.nan, math.nan])
    boxes[0, 2] = torch.tensor([12.0, 5.0, -1.0, 4.0, 1.6, 1.5, 1.5, 0.0, 0.0])
    boxes[1, 0] = torch.tensor([3.0, -2.2, -0.9, 1.8, 0.6, 1.7, 2.9, 0.3, 0.1])
    labels = torch.tensor([[0, 1, 0, -1], [2, -1, -1, -1], [-1] * 4], dtype=torch.int32)
    weight = (labels >= 0).float()
    weight[0, 2] = 0
    points = torch.rand(3, 800, 4, generator=g) * torch.tensor([16.0, 16, 1, 1])
    points = points - torch.tensor([0.0, 8.0, 2.0, 0.0])
    inside = torch.rand(3, 4, 60, 3, generator=g) - 0.5
    near = (inside * boxes[:, :, None, 3:6] + boxes[:, :, None, :3]).flatten(1, 2)
    points[:, :240, :3] = torch.where(near.abs() > 0, near, points[:, :240, :3])
    num_points = torch.tensor([800, 700, 800], dtype=torch.int32)
    num_boxes = torch.tensor([3, 1, 0], dtype=torch.int32)
    boxes = boxes if velocities else boxes[..., :7].contiguous()
    return [t.to(device) for t in (points, num_points, boxes, labels, num_boxes, weight)]


def on_voxels(make):
    """The same detector behind sparse convolutions."""
    kept = {k: v for k, v in make().config()["config"].items() if k not in NOT_OF_VOXELS}
    sparse = {"layers": [1, 1, 1], "channels": [8, 8, 16], "out_channels": 16}
    more = {"voxel_size": [0.25, 0.25, 0.2], "max_voxels": [2048, 2048], "sparse": sparse}
    torch.manual_seed(0)
    kind = CenterPointVoxel if "conv_bias" in kept["head"] else Second
    return kind({**kept, **more, "neck": {"strides": [2], "channels": [32]}})


def second():
    return on_voxels(anchored)


def rows():
    """Of sparse convolutions alone."""
    kept = {k: v for k, v in on_voxels(centered).config()["config"].items() if k not in DENSE}
    torch.manual_seed(0)
    sparse = {"layers": [1] * 4, "channels": [8, 8, 16, 16], "joined": 2, "out_channels": 16}
    return VoxelNeXt({**kept, "voxel_size": [0.5, 0.5, 0.2], "sparse": sparse})


DENSE = ("backbone", "neck")
NOT_OF_VOXELS = ("pillar_size", "max_pillars", "encoder", "visibility")
MODELS = {
    "anchors": anchored,
    "anchors in tasks": headed,
    "centers": centered,
    "anchors, voxels": second,
    "centers, voxels": lambda: on_voxels(centered),
    "centers, rows": rows,
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_terms_add_up_and_every_parameter_learns(make, device):
    model = make().to(device).train()
    terms = model.loss(*batch(device))
    total = terms.pop("loss")
    assert torch.equal(total, torch.stack(list(terms.values())).sum()) and total > 0
    assert all(term.shape == () and term.dtype == torch.float32 for term in terms.values())
    total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_scans_without_boxes_are_background_and_no_more(make, device):
    """Nothing is divided by 0; whatever learns from boxes has gradients of exactly 0."""
    model = make().to(device).train()
    points, num_points, boxes, _, _, _ = batch(device)
    nothing = torch.full((3, 4), -1, dtype=torch.int32, device=device)
    terms = model.loss(points, num_points, boxes, nothing, torch.zeros_like(num_points))
    assert terms["boxes"] == 0 and terms.get("directions", 0) == 0 and terms["loss"] > 0
    terms["loss"].backward()
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(grad is not None and grad.isfinite().all() for grad in grads.values())
    of_boxes = [g for n, g in grads.items() if ".reg." in n or ".dim." in n or "head.box" in n]
    assert of_boxes and all((grad == 0).all() for grad in of_boxes)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_scores_of_its_class_do_not_matter_at_an_ignored_box(make, device):
    model = make().to(device).eval()
    points, num_points, *labelled = batch(device)
    maps = model.maps(points, num_points)

    def classes(weight):
        terms = model.teach(maps, *labelled[:-1], weight)
        return terms.get("classes", terms.get("heat"))

    weight = labelled[-1]
    before = classes(weight), classes(torch.ones_like(weight))
    # Of cars, whose box 2 of scan 0 is at this cell.
    known = {anchored: (0, slice(0, 6)), second: (0, slice(0, 6)), headed: (1, slice(4, 8))}
    task, scores = known.get(make, (1, slice(1, 2)))
    row, column = (6, 6) if make is rows else (13, 12)
    maps[0][task].data[0, scores, row, column] += 3.0
    assert torch.equal(classes(weight), before[0])
    assert classes(torch.ones_like(weight)) != before[1]


@pytest.mark.parametrize("normalizer", ["sample", "batch"])
@pytest.mark.parametrize("make", [anchored, headed])
def test_anchor_terms_are_sums_of_the_op_over_positives(make, normalizer):
    """Task by task, by hand; boxes of other tasks are none. Divided by sample or by batch."""
    model = make(normalizer=normalizer, weights=[3.0, 5.0, 7.0]).eval()
    points, num_points, boxes, labels, num_boxes, weight = batch(velocities=make is headed)
    maps, expected = model.maps(points, num_points), torch.zeros(3)
    tasks = [[0, 1, 2]] if make is anchored else [[1], [2, 0]]
    for task, mine in enumerate(tasks):
        own = torch.tensor([[mine.index(c) if c in mine else -1 for c in row]
                            for row in labels.tolist()])  # fmt: skip
        of = [i for i in range(len(mine)) for _ in range(2)]
        anchors = model.decoder.tasks[task].boxes
        assigned, positive = torchvox.anchor_targets(
            *(boxes, own, weight, num_boxes, anchors, of),
            *([LOSS[name][mine[i]] for i in of] for name in ("matched", "unmatched")),
        )
        options = {"dir_offset": 0.78539} if make is anchored else MULTIHEAD
        heads = [kind[task] if kind else None for kind in maps]
        sums = torchvox.anchor_loss(*heads, anchors, boxes, own, assigned, **options)
        count = positive.clamp(min=1)
        each = sums / count[:, None]
        expected += each.mean(0) if normalizer == "sample" else sums.sum(0) / count.sum()
    assert positive[2] == 0 < positive.sum()
    terms = model.loss(points, num_points, boxes, labels, num_boxes, weight)
    got = torch.stack([terms[name] for name in ("classes", "boxes", "directions")])
    torch.testing.assert_close(got, expected * torch.tensor([3.0, 5, 7]), rtol=1e-6, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("loss", [{}, {"peaks": "objects", "divisor": "eps"}])
def test_center_terms_are_those_of_the_formulas(loss):
    model = centered(**loss, heat_weight=3.0, box_weight=0.5).eval()
    given = batch()
    given[2][1, 1] = given[2][1, 0] + 0.02  # two objects of a class in a cell
    given[3][1, 1], given[4][1], given[5][1, 1] = 2, 2, 1
    maps = model.maps(*given[:2])
    found = model.criterion(maps, *given[2:])
    heat, cell, box, count = torchvox.center_targets(
        *(given[2], given[3], given[5], given[4], BASE["point_cloud_range"], BASE["pillar_size"]),
        *(2, [16, 16], [1, 0, 1]),
    )
    expected, boxes = [0.0, 0.0], given[2].double()
    for task, names in enumerate(TASKS):
        of = [BASE["classes"].index(name) for name in names]
        p, g = maps[0][task].double().sigmoid().clamp(1e-4, 1 - 1e-4), heat[:, of].double()
        peak = g == 1
        total = -(p.log() * (1 - p) ** 2)[peak].sum()
        total -= ((1 - p).log() * p**2 * (1 - g) ** 4)[~peak & (g >= 0)].sum()
        objects = int(count[:, task].sum())
        expected[0] += 3 * float(total) / max(1, objects if loss else int(peak.sum()))
        differences = 0.0
        for b in range(3):
            for at, row in zip(cell[b, task].tolist(), box[b, task].tolist(), strict=True):
                if at < 0:
                    continue
                x, y, z, *sizes, yaw, vx, vy = boxes[b, row].tolist()
                target = [x - at % 16, (y + 8) - at // 16, z, *map(math.log, sizes)]
                target += [math.cos(yaw), math.sin(yaw), vx, vy]
                held = torch.cat([m[task][b].flatten(1)[:, at] for m in maps[1:]]).tolist()
                for i, (a, t) in enumerate(zip(held, target, strict=True)):
                    if not math.isnan(t):
                        differences += abs(a - t) * (0.2 if i > 7 else 1.0)
        expected[1] += 0.5 * differences / (objects + 1e-4 if loss else max(1, objects))
    assert float(found["heat"]) == pytest.approx(expected[0], rel=2e-6)
    assert float(found["boxes"]) == pytest.approx(expected[1], rel=2e-6)


@torch.no_grad()
def test_rows_are_taught_by_their_distance_to_a_center_and_the_row_nearest_to_it():
    """In cells of 2 m; of two boxes of a class, one without a row at its center, the nearer."""
    model = rows().eval()
    given = batch()
    given[0][0, :, :2] = given[0][0, :, :2].clamp(min=-3.9)
    given[2][0, 3] = torch.tensor([9.1, -7.3, -1.0, 7.9, 5.1, 1.5, 0.3, 1.0, -0.5])
    given[3][0, 3], given[4][0], given[5][0, 3] = 0, 4, 1
    given[2][1, 3] = math.nan  # not in use
    maps = model.maps(*given[:2])
    found = model.criterion.targets(maps, *given[2:])
    active = (maps[0][0][:, 0] > -math.inf).nonzero().tolist()
    away = (given[2][..., :2] - torch.tensor([0.0, -8.0])) / 2
    expected, nearest = torch.full((3, 3, 8, 8), -1.0), {}
    for b, y, x in active:
        most = {(c, hidden): 0.0 for c in range(3) for hidden in (False, True)}
        for g in range(int(given[4][b])):
            at = away[b, g].tolist()
            best = min((math.dist(at, (u, v)), v, u) for a, v, u in active if a == b)[2:0:-1]
            nearest[b, g] = best[1] * 8 + best[0]
            sizes = [torch.tensor(float(s) / 2) for s in given[2][b, g, 3:5]]
            spread = (2 * float(gaussian_radius(*sizes, model.criterion.config)) + 1) / 6
            apart = min(math.dist((x, y), place) for place in (at, best))
            kind = int(given[3][b, g]), bool(given[5][b, g] == 0)
            most[kind] = max(most[kind], math.exp(-(apart**2) / (2 * spread**2)))
        for c in range(3):
            own, hidden = most[c, False], most[c, True]
            expected[b, c, y, x] = -1.0 if hidden > own else own
    torch.testing.assert_close(found.heatmap, expected)
    slots = {}
    for b in range(3):
        pairs = zip(found.box[b].flatten().tolist(), found.cell[b].flatten().tolist(), strict=True)
        slots |= {(b, g): cell for g, cell in pairs if g >= 0}
    assert slots == {place: nearest[place] for place in slots} and len(slots) == 4
    assert nearest[0, 3] // 8 > 0 and (found.heatmap == 1).sum() == 4
    with_slot = torchvox.center_targets(
        *(given[2], given[3], given[5], given[4], BASE["point_cloud_range"], BASE["pillar_size"]),
        *(4, [8, 8], [1, 0, 1]),
    )
    assert torch.equal(found.box, with_slot.box) and torch.equal(found.count, with_slot.count)


@pytest.mark.parametrize("length", [1.1, 3.7, 4.4, 9.0])
def test_the_radius_of_a_box_is_that_of_the_op(length):
    """As the Gaussian of a neighbor of its center tells."""
    boxes, label = torch.tensor([[[8.5, 0.5, 0, length * 2, length, 1, 0]]]), torch.zeros(1, 1)
    grid = [0, 0, 0, 32, 32, 1], [1, 1, 1], 1, [32, 32], [0]
    heat = torchvox.center_targets(boxes, label.int(), None, None, *grid, min_radius=1).heatmap
    sizes, config = boxes[0, 0, 3:5].unbind(), CenterLossConfig(min_radius=1)
    radius = float(gaussian_radius(*sizes, config))
    assert float(heat[0, 0, 0, 9]) == pytest.approx(math.exp(-18 / (2 * radius + 1) ** 2))


def test_maps_that_hold_the_targets_are_decoded_to_the_boxes():
    model = centered().eval()
    points, num_points, boxes, labels, num_boxes, _ = batch()
    boxes = boxes.nan_to_num(0.7)
    heat, cell, box, count = torchvox.center_targets(
        *(boxes, labels, None, num_boxes, BASE["point_cloud_range"], BASE["pillar_size"]),
        *(2, [16, 16], [1, 0, 1]),
    )
    maps = [[torch.zeros_like(m) for m in kind] for kind in model.maps(points, num_points)]
    for task, mine in enumerate(model.criterion.classes):
        maps[0][task] = torch.where(heat[:, mine] == 1, 9.0, -9.0)
        code = model.criterion.code(boxes, cell[:, task].clamp(min=0), box[:, task].clamp(min=0))
        widths = [kind[task].size(1) for kind in maps[1:]]
        for b in range(3):
            for i in range(int(count[b, task])):
                at = int(cell[b, task, i])
                for kind, part in zip(maps[1:], code[b, i].split(widths), strict=True):
                    kind[task][b].view(len(part), -1)[:, at] = part
    found, _scores, names, kept, _ = model.decoder(maps)
    assert kept.tolist() == [3, 1, 0]
    for b in range(2):
        mine, rows = boxes[b, : int(num_boxes[b])], found[b, : int(kept[b])]
        best = torch.cdist(mine[:, :3], rows[:, :3]).argmin(1)
        off = rows[best] - mine
        off[:, 6] -= (off[:, 6] / (2 * math.pi)).round() * 2 * math.pi
        assert off.abs().max() < 1e-4 and torch.equal(names[b, best], labels[b, : len(mine)].long())


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", list(MODELS.values())[:-1], ids=list(MODELS)[:-1])
def test_heads_give_the_same_maps_in_training_and_stay_in_half_precision(make, dtype, device):
    head = make().head.to(device)
    for module in head.modules():  # statistics that are those of evaluation
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval().train = lambda mode: None
    x = torch.randn(2, 32, 5, 7, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    seen = set()
    for module in head.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_pre_hook(lambda _, given: seen.add(given[0].dtype))
    with torch.autocast(device, dtype, enabled=dtype is not None):
        maps = [head.train(mode)(x) for mode in (True, False)]
    for mine, other in zip(*([m for kind in kinds for m in kind] for kinds in maps), strict=True):
        assert {mine.dtype, other.dtype} == seen == {dtype or torch.float32}
        torch.testing.assert_close(mine, other, atol=2e-2 if dtype else 1e-5, rtol=2e-2)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ({"matched": [0.6], "unmatched": [0.4]}, "must have one overlap per class, 3"),
        ({**LOSS, "unmatched": [0.6, 0.2, 0.2]}, "loss.unmatched must be above 0 and at most"),
        ({**LOSS, "mode": "second"}, "loss.mode must be one of pcdet, mmdet"),
        ({**LOSS, "code_weights": [1.0]}, "loss.code_weights must have one number per code, 7"),
        ({**LOSS, "beta": -1.0}, "loss.beta must be at least 0"),
        ({"matched": [0.6]}, "loss.unmatched is missing"),
        (None, "PointPillars: the configuration has no loss"),
    ],
)
def test_a_loss_that_does_not_fit_is_refused(loss, words):
    with pytest.raises(ValueError, match=words):
        PointPillars({**BASE, "head": {"anchors": ANCHORS}, "loss": loss}).loss(*batch())


def test_clockwise_boxes_have_no_loss():
    turned = {**BASE, "head": {"tasks": TASKS}, "detections": {"box_format": "wlh_clockwise"}}
    with pytest.raises(ValueError, match="must have boxes as lwh for a loss"):
        CenterPointPillars(turned).loss(*batch())


@pytest.mark.gpu
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_loss_waits_for_nothing_and_captures(make):
    model, given = make().cuda().train(), batch("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = model.loss(*given)["loss"]
        loss.backward()
        optimizer.step()
        return loss.detach()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    losses = []
    for _ in range(20):
        graph.replay()
        losses.append(float(loss))
    assert losses[-1] < losses[0]
