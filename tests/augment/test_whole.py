# SPDX-License-Identifier: Apache-2.0
"""Whole scans that are mirrored, turned, scaled and shifted: boxes go with their points."""

import math

import pytest
import torch
from helpers import assert_same_bits

import torchvox
from torchvox.augment import WholeScan, flip_x, flip_y, scale, shift, turn
from torchvox.augment.nudge import Nudge
from torchvox.augment.objects import collect_objects
from torchvox.augment.paste import Paste

B, N, G = 4, 500, 6
NAMES = ("points", "num_points", "boxes", "labels", "num_boxes", "weight")
ON = torch.tensor([True, False, True, True])


def scans(columns=9, device="cpu", seed=0):
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
    points, boxes = scans(columns, device)
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
    points, boxes = scans(9, device)
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
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        WholeScan(**options)


@pytest.mark.gpu
def test_nothing_waits_for_the_device_and_everything_captures():
    points, boxes = scans(9, "cuda")
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
