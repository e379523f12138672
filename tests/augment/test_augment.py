# SPDX-License-Identifier: Apache-2.0
"""Objects that are collected, pasted and nudged: as loops do it, and what holds of any draw; whole
scans that are mirrored, turned, scaled and shifted: boxes go with their points."""

import math

import numpy as np
import pytest
import torch
from helpers import assert_same_bits

import torchvox
from torchvox.augment import (
    Nudge,
    Paste,
    WholeScan,
    collect_objects,
    flip_x,
    flip_y,
    scale,
    shift,
    turn,
)
from torchvox.data.counter_random import Draws, mix
from torchvox.data.worlds.street import World
from torchvox.reference import place_boxes

NAMES = ("points", "num_points", "boxes", "labels", "num_boxes", "weight")
SIZES = torch.tensor([[4.0, 1.8, 1.5], [0.8, 0.6, 1.7], [1.8, 0.7, 1.7]])


def scans(seed=0, extent=5.0, n=600):
    """Boxes that may overlap, some to be ignored, and points in and around them; the last scan is
    empty. Past the ends stand points and boxes that must not be read."""
    rng, there = torch.Generator().manual_seed(seed), torch.tensor([5, 4, 3, 5, 1, 2, 5, 0])
    labels, boxes = torch.randint(0, 3, (8, 6), generator=rng), torch.randn(8, 6, 9, generator=rng)
    boxes[..., :2] *= extent
    boxes[..., 3:6] = SIZES[labels] * (1 + 0.1 * boxes[..., 3:6].clamp(-2, 2))
    at = torch.randint(0, 6, (8, n, 1), generator=rng).expand(-1, -1, 4)
    points = boxes[..., :4].gather(1, at) + 0.7 * torch.randn(8, n, 4, generator=rng)
    past = torch.arange(6) >= there[:, None]
    weight = (torch.rand(8, 6, generator=rng) < 0.8).float().masked_fill(past, 0)
    number, labels = (there > 0).int() * (n - 50), labels.masked_fill(past, -1).int()
    values = (points, number, boxes, labels, there.int(), weight, torch.arange(8) * 5 + 2)
    return dict(zip((*NAMES, "id"), values, strict=True))


def run(change, batch, step=3, seed=0):
    names = NAMES if isinstance(change, Paste) else ("points", "boxes", "num_boxes")
    step = torch.full((), step, device=batch["id"].device)
    out = change(*(batch[name] for name in names), batch["id"], step, seed)
    return {**batch, **dict(zip(names if names == NAMES else names[:2], out, strict=True))}


def inside(points, box):
    """Which points lie in a box, in float64."""
    x, y, z = (points[:, :3].double() - box[:3].double()).unbind(1)
    c, s = math.cos(box[6]), math.sin(box[6])
    flat = ((c * x + s * y).abs() < box[3] / 2) & ((c * y - s * x).abs() < box[4] / 2)
    return flat & (z.abs() <= box[5] / 2)


def test_every_object_with_weight_and_points_is_collected_in_order():
    batch, want = scans(), []
    for b, count in enumerate(batch["num_boxes"].tolist()):
        left = batch["points"][b, : batch["num_points"][b]]
        for g in range(count):
            box, mine = batch["boxes"][b, g], inside(left, batch["boxes"][b, g])
            rows, left = left[mine] - torch.tensor([*box[:3], 0]), left[~mine]
            if batch["weight"][b, g] > 0 and len(rows) >= 10:
                want.append((int(batch["labels"][b, g]), box, rows))
    labels, boxes, rows = zip(*sorted(want, key=lambda one: one[0]), strict=True)
    parts = [{name: t[i : i + 3] for name, t in batch.items()} for i in (0, 3, 6)]
    for found in (collect_objects(one, 3, min_points=10) for one in ([batch], parts)):
        assert found.labels.tolist() == [*labels] and len(want) > 10
        assert_same_bits((found.boxes, found.points), (torch.stack(boxes), torch.cat(rows)))
        assert found.offsets.tolist() == [0, *np.cumsum([len(one) for one in rows])]
    few = collect_objects(parts, 3, min_points=10, per_class=1)
    first = [rows[labels.index(label)] for label in range(3)]
    assert few.sizes == (1, 1, 1) and few.points.equal(torch.cat(first))


@pytest.mark.parametrize("fill, mode, most, room", [
    ("fixed", "both", 900, None), ("missing", "greedy", 900, None),
    ("fixed", "greedy", 70, None), ("missing", "both", 900, 3),
])  # fmt: skip
def test_objects_are_pasted_as_loops_do(fill, mode, most, room):
    batch, base, counts = scans(seed=1), collect_objects([scans()], 3), (4, 5, 3)
    change = Paste(base, counts, mode=mode, fill=fill, points=most, boxes=room)
    draws = Draws(0, "paste", mix(mix(batch["id"]) + 3))
    pick, _ = change._candidates(batch["labels"], batch["weight"], draws)
    out, met, refused = run(change, batch), 0, 0
    for b, there in enumerate(batch["num_boxes"].tolist()):
        labels, weight = batch["labels"][b, :there].tolist(), batch["weight"][b, :there].tolist()
        used = [label for label, w in zip(labels, weight, strict=True) if w > 0]
        group = []
        for label, count in enumerate(counts):
            more = max(0, count - used.count(label)) if fill == "missing" else count
            group += [label] * more + [-1] * (count - more)
        given = batch["boxes"][b : b + 1], base.boxes[pick[b]][None, :, None], torch.tensor([group])
        free = pick[b, place_boxes(*given, batch["num_boxes"][b : b + 1], mode)[0] == 0].tolist()
        scene, buffer = batch["points"][b].clone(), torch.full((most, 4), math.nan)
        used, kept = 0, []
        for i in free:
            rows = base.points[base.offsets[i] : base.offsets[i + 1]].clone()
            if used + len(rows) > most or len(kept) == room:
                break
            rows[:, :3] += base.boxes[i, :3]
            buffer[used : used + len(rows)], used, kept = rows, used + len(rows), [*kept, i]
            scene[inside(scene, base.boxes[i])] = math.nan
        met, refused = met + 12 - group.count(-1) - len(free), refused + len(free) - len(kept)
        assert_same_bits(out["points"][b], torch.cat([buffer, scene]))
        more = 6 + (room or 12) - there - len(kept)
        boxes = [batch["boxes"][b, :there], base.boxes[kept], torch.zeros(more, 9)]
        assert_same_bits(out["boxes"][b], torch.cat(boxes))
        assert out["labels"][b].tolist() == labels + base.labels[kept].tolist() + [-1] * more
        assert out["weight"][b].tolist() == weight + [1] * len(kept) + [0] * more
        assert out["num_boxes"][b] == there + len(kept)
    assert met > 10 and change.refused == refused and (refused > 5) == (room == 3 or most == 70)
    assert out["num_points"].equal(batch["num_points"] + most)


def test_objects_come_equally_often_and_none_twice():
    boxes = torch.cat([torch.arange(35.0)[:, None] * 10, torch.ones(35, 8)], 1)
    base, labels = collect_objects([scans()], 3), torch.tensor([0] * 2 + [1] * 33)
    base = base._replace(boxes=boxes, labels=labels, offsets=torch.arange(36), sizes=(2, 33))
    empty = {name: t[-1:].expand(4000, *t.shape[1:]) for name, t in scans(n=1).items()}
    out = run(Paste(base, (4, 7), points=16), {**empty, "id": torch.arange(4000)})
    assert (out["num_boxes"] == 9).all() and out["labels"][0, :9].tolist() == [0] * 2 + [1] * 7
    number = (out["boxes"][:, :9, 0] / 10).long()
    often = torch.zeros(4000, 35).scatter_add_(1, number, torch.ones(4000, 9))
    assert often.max() == 1 and (often.mean(0)[2:] - 7 / 33).abs().max() < 0.03


def test_what_is_pasted_meets_nothing_and_depends_on_seed_step_and_scan_alone(device):
    options, pasted = {"sensor": "vlp16", "size": 6, "points": 4096}, 0
    made = [World(split, **options).batch(range(6)) for split in ("train", "val")]
    train, batch = ({name: one[name].to(device) for name in (*NAMES, "id")} for one in made)
    base = collect_objects([train], 3)
    first, host = (Paste(one, (5, 5, 5)) for one in (base, collect_objects([made[0]], 3)))
    out, move = run(first, batch), Nudge(tries=9)
    some = {"box_lengths": out["num_boxes"], "mode": "count"}
    held = torchvox.points_in_boxes(out["points"], out["boxes"], **some)
    for b, (there, count) in enumerate(zip(batch["num_boxes"], out["num_boxes"], strict=True)):
        boxes, pasted = out["boxes"][b, :count], pasted + int(count - there)
        assert torchvox.rotated_iou(boxes[there:], boxes).count_nonzero() == count - there
        index = (boxes[there:, None] == base.boxes).all(2).int().argmax(1)
        assert held[b, there:count].equal(base.offsets.diff()[index].int())
    assert pasted > 40
    for change, on_host, scenes in ((first, host, batch), (move, move, out)):
        whole, order = run(change, scenes), torch.tensor([4, 1], device=device)
        few = run(change, {name: t[order] for name, t in scenes.items()})
        assert_same_bits([*few.values()], [t[order] for t in whole.values()])
        want = run(on_host, {name: t.cpu() for name, t in scenes.items()})
        assert_same_bits([t.cpu() for t in whole.values()], [*want.values()])
        for other in (run(change, scenes, 4), run(change, scenes, 3, 1)):
            assert (other["boxes"] != whole["boxes"]).flatten(1).any(1).all()


def test_objects_are_nudged_as_loops_do():
    batch, taken = scans(extent=3.0), set()
    out, draws = run(Nudge(0.4, 0.5, 4), batch), Draws(0, "nudge", mix(mix(batch["id"]) + 3))
    shift = draws.normal("shift", 72).view(8, 6, 4, 3) * 0.4
    angle = (draws.uniform("turn", 24).view(8, 6, 4) * 2 - 1) * 0.5
    for b, there in enumerate(batch["num_boxes"].tolist()):
        boxes, points, left = batch["boxes"][b].clone(), batch["points"][b].clone(), torch.ones(600)
        for g in range(there):
            mine = inside(batch["points"][b], batch["boxes"][b, g]) & (left > 0)
            left[mine], others = 0, torch.cat([boxes[:g], boxes[g + 1 : there]])
            tries = boxes[g].repeat(4, 1)
            tries[:, :3], tries[:, 6] = tries[:, :3] + shift[b, g], tries[:, 6] + angle[b, g]
            meets = torchvox.rotated_iou(tries, others).any(1).tolist()
            t = meets.index(False) if False in meets else -1
            taken.add(t)
            if t >= 0:
                c, s = math.cos(angle[b, g, t]), math.sin(angle[b, g, t])
                matrix, around = torch.tensor([[c, s], [-s, c]]), points[mine, :3] - boxes[g, :3]
                around[:, :2], tries[t, 7:] = around[:, :2] @ matrix, tries[t, 7:] @ matrix
                boxes[g], points[mine, :3] = tries[t], around + tries[t, :3]
        assert torch.allclose(out["boxes"][b], boxes, atol=1e-5)
        assert torch.allclose(out["points"][b], points, atol=1e-5)
    assert {0, 1, -1} <= taken


def test_what_cannot_be_pasted_is_refused():
    with pytest.raises(ValueError, match=r"per_class must be above 0, got \(5, 0\)"):
        collect_objects([scans()], 3, per_class=0)
    wrong = [("fill", "all"), ("counts", (1, 1)), ("counts", (0, -1, 2)), ("points", -1)]
    for name, value in (*wrong, ("boxes", -1)):
        with pytest.raises(ValueError, match=f"Paste: .*{name}.*, got"):
            Paste(collect_objects([scans()], 3), **{"counts": (1, 1, 1), name: value})


B, N, G = 4, 500, 6
ON = torch.tensor([True, False, True, True])


def crowds(columns=9, device="cpu", seed=0):
    """Points of which many lie in boxes, and rows of NaN; boxes."""
    g = torch.Generator().manual_seed(seed)
    boxes = torch.randn(B, G, columns, generator=g) * 2
    boxes[..., 2] *= 0.1
    boxes[..., 3:6] = torch.rand(B, G, 3, generator=g) * 3 + 1
    at = torch.randint(0, G, (B, N), generator=g)
    near = torch.gather(boxes[..., :3], 1, at[..., None].expand(-1, -1, 3))
    xyz = near + torch.randn(B, N, 3, generator=g)
    points = torch.cat([xyz, torch.rand(B, N, 1, generator=g)], -1)
    points[:, -9:] = math.nan
    return points.to(device), boxes.to(device)


STEPS = {
    "flip_x": lambda p, b: flip_x(p, b, ON.to(p.device)),
    "flip_y": lambda p, b: flip_y(p, b, ON.to(p.device)),
    "turn": lambda p, b: turn(p, b, torch.tensor([0.3, -2.0, 0.0, 3.1], device=p.device)),
    "scale": lambda p, b: scale(p, b, torch.tensor([0.9, 1.1, 1.0, 1.3], device=p.device)),
    "shift": lambda p, b: shift(p, b, torch.tensor([[1.0, -2.0, 0.5]] * B, device=p.device)),
}


@pytest.mark.parametrize("columns", [7, 9])
@pytest.mark.parametrize("step", STEPS)
def test_points_stay_in_their_boxes_and_boxes_overlap_as_before(step, columns, device):
    points, boxes = crowds(columns, device)
    before = points.clone(), boxes.clone()
    moved, found = STEPS[step](points, boxes)
    assert_same_bits((points, boxes), before)
    owner, after = (torchvox.points_in_boxes(*one) for one in ((points, boxes), (moved, found)))
    assert (after == owner).float().mean() > 0.995 and (owner >= 0).sum() > 500
    ious = [torchvox.rotated_iou(b[0], b[0], mode="3d") for b in (found, boxes)]
    assert torch.allclose(*ious, atol=1e-4) and (ious[0] > 0.01).sum() > G
    assert torch.isnan(moved[:, -9:]).all() and moved[:, :-9, 3].equal(points[:, :-9, 3])
    later = boxes.clone()  # velocities point where the boxes go
    later[..., :2] += 0.1 * boxes[..., 7:] if columns == 9 else 0
    went = (STEPS[step](points, later)[1][..., :2] - found[..., :2]) / 0.1
    assert columns == 7 or torch.allclose(went, found[..., 7:], atol=1e-3)


def test_what_is_drawn_depends_on_seed_step_and_scan_alone(device):
    points, boxes = crowds(9, device)
    ids, step = torch.tensor([5, 9, 2, 7], device=device), torch.tensor(3, device=device)
    change = WholeScan(flip_x=0.5, shift=0.1)
    whole = change(points, boxes, ids, step, 1)
    for rows in ([2, 0, 3, 1], [1]):
        few = change(points[rows], boxes[rows], ids[rows], step[None], 1)
        assert_same_bits(few, [t[rows] for t in whole])
    host = change(points.cpu(), boxes.cpu(), ids.cpu(), step.cpu(), 1)
    assert_same_bits([t.cpu() for t in whole], host)
    for other in (change(points, boxes, ids, step + 1, 1), change(points, boxes, ids, step, 2)):
        assert (other[1][..., :2] != whole[1][..., :2]).any((1, 2)).all()


def test_changes_have_the_configured_shares_and_limits():
    n = 4000
    points, boxes = torch.ones(n, 1, 3), torch.zeros(n, 1, 7)
    boxes[..., 3:6] = 1.0
    ids, step = torch.arange(n), torch.tensor(0)
    moved, found = WholeScan(flip_y=0.3, turn=0.0, scale=(1.0, 1.0))(points, boxes, ids, step, 0)
    assert abs((moved[:, 0, 1] < 0).float().mean() - 0.3) < 0.03
    moved, found = WholeScan(flip_y=0.0, turn=0.5)(points, boxes, ids, step, 0)
    assert found[..., 6].abs().max() <= 0.5 and abs(found[..., 6].std() - 0.5 / 3**0.5) < 0.02
    assert 0.95 <= found[..., 3].min() < 0.96 and 1.04 < found[..., 3].max() <= 1.05
    same = WholeScan(0.0, 0.0, 0.0, (1.0, 1.0))(points, boxes, ids, step, 0)
    assert_same_bits(same, (points, boxes))


@pytest.mark.parametrize(
    "options, words",
    [({"flip_x": 1.5}, "flips must be"), ({"turn": -0.1}, "turn must be"),
     ({"scale": (1.1, 0.9)}, "scale must be"), ({"shift": math.nan}, "shift must be")],
)  # fmt: skip
def test_what_cannot_be_changed_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        WholeScan(**options)


@pytest.mark.gpu
def test_nothing_waits_for_the_device_and_everything_captures():
    points, boxes = crowds(9, "cuda")
    ids, step = torch.arange(B, device="cuda"), torch.zeros((), dtype=torch.int64, device="cuda")
    ones, count = torch.ones(B, G, device="cuda"), torch.full_like(ids, G).int()
    labelled = (points, count * 0 + N, boxes, ones.int(), count, ones)
    batch = dict(zip(NAMES, labelled, strict=True))
    paste = Paste(collect_objects([batch], 2), (0, 9), boxes=4)
    change = WholeScan(flip_x=0.5, shift=0.1)

    def act():
        made = paste(*labelled, ids, step, 0)
        moved = Nudge(tries=9)(made[0], made[2], made[4], ids, step, 0)
        return [*made, *moved, *change(*moved, ids, step, 0), paste.refused]

    act()
    torch.cuda.set_sync_debug_mode("error")
    try:
        act()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = act()
    step.add_(4)
    graph.replay()
    assert_same_bits(out, act())
