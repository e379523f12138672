# SPDX-License-Identifier: Apache-2.0
"""Raw points to boxes: what a detector promises about any scan."""

import pytest
import torch
from detectors import SMALL, fused, scan, small
from helpers import assert_same_bits

import torchvox
from torchvox import models
from torchvox.models.detection import detector

each = pytest.mark.parametrize("name", SMALL)
BOXES, SCORES, LABELS, COUNT, OVERFLOW = range(5)


def test_the_kitti_network_has_the_size_of_its_reference():
    model = detector("pointpillars_kitti")
    assert sum(p.numel() for p in model.parameters()) == 4_834_888
    assert len(model.state_dict()) == 126
    (anchors,) = (task.boxes for task in model.decoder.tasks)
    assert anchors.shape == (248, 216, 6, 7) and anchors[..., 0].numel() == 321_408
    torch.testing.assert_close(anchors[0, 0, 0], torch.tensor([0, -39.68, -1, 3.9, 1.6, 1.56, 0]))
    torch.testing.assert_close(
        anchors[-1, -1, 5], torch.tensor([69.12, 39.68, 0.265, 1.76, 0.6, 1.73, 1.57])
    )


@each
@torch.inference_mode()
def test_boxes_are_found_and_unused_rows_are_empty(name):
    model = small(name)
    outputs = model(*scan(model, 5000, 0, 1, 3000))
    boxes, scores, labels, count, overflow = outputs
    assert [t.dtype for t in outputs] == [torch.float32] * 2 + [torch.int32] * 3
    assert boxes.size(2) == (7 if "anchors" in name else 9) and int(count[0]) > 3
    used = torch.arange(boxes.size(1)) < count[:, None]
    assert torch.isfinite(boxes).all() and (scores[used] >= 0.1).all()
    assert (boxes[~used] == 0).all() and (scores[~used] == 0).all() and (labels[~used] == -1).all()
    assert ((labels[used] >= 0) & (labels[used] < len(model.classes))).all()
    assert (boxes[..., 3:6][used] > 0).all() and (overflow >= 0).all()


@each
@torch.inference_mode()
def test_rows_that_are_not_finite_do_not_exist(name):
    model = small(name)
    points, count = scan(model, 2000)
    assert (~points[..., :3].isfinite()).any() and points[..., 3:].isinf().any()
    kept = points[0][points[0].isfinite().all(1)]
    expected = model(kept[None], torch.tensor([len(kept)], dtype=torch.int32))
    assert_same_bits(model(points, count), expected)


@torch.inference_mode()
def test_without_a_count_every_row_is_a_point():
    model = small("anchors")
    points, count = scan(model, 2000, 2000)
    for call in (model, torch.jit.script(model)):
        assert_same_bits(call(points), model(points, count))
    for arguments, words in (((points.numpy(),), "points must be a tensor, got ndarray; torchvox"),
                             ((points, 7), "num_points must be a tensor, got int")):  # fmt: skip
        with pytest.raises(TypeError, match=words):
            model(*arguments)


@each
@pytest.mark.one_of("variant")
@pytest.mark.parametrize("variant", ["as built", "merged"])
@torch.inference_mode()
def test_a_batch_of_no_scans_gives_no_rows(name, variant):
    model = small(name) if variant == "as built" else fused(small(name))
    expected = model(*scan(model, 5))
    found = model(torch.zeros(0, 5, model.columns), torch.zeros(0, dtype=torch.int32))
    assert [t.shape for t in found] == [(0, *t.shape[1:]) for t in expected]


@torch.inference_mode()
def test_counts_past_the_buffer_and_below_0_are_those_of_its_ends():
    model = small("anchors")
    points, count = scan(model, 500, 500)
    over, below = torch.tensor([501, 2**31 - 1]), torch.tensor([-1, -(2**31)])
    assert_same_bits(model(points, over.int()), model(points, count))
    assert_same_bits(model(points, below.int()), model(points, 0 * count))


@each
@torch.inference_mode()
def test_an_empty_scan_is_a_count_of_0_and_gives_what_an_empty_canvas_gives(name):
    model = small(name)
    points = torch.full((1, 2, model.columns), float("nan"))
    none = model(points, torch.tensor([0], dtype=torch.int32))
    assert_same_bits(model(points, torch.tensor([2], dtype=torch.int32)), none)
    if isinstance(model, models.VoxelNeXt):
        heat = torch.cat(model.maps(points, torch.tensor([0], dtype=torch.int32))[0], 1)
        assert (heat == -float("inf")).all()
        return
    canvas = model.canvas(points, torch.tensor([0], dtype=torch.int32))
    assert (canvas == 0).all()


@pytest.mark.parametrize("name", ["centers", "centers, voxels"])
@torch.inference_mode()
def test_a_factor_of_a_column_is_that_of_the_points_before_the_model(name):
    plain = small(name, "model.args.column_scale=[]")
    scaled = small(name, "model.args.column_scale=[1, 1, 1, 0.25, 2]")
    scaled.load_state_dict(plain.state_dict())
    points, count = scan(plain, 2000)
    before = points * torch.tensor([1, 1, 1, 0.25, 2])
    assert_same_bits(scaled.canvas(points, count), plain.canvas(before, count))
    fast = models.fuse_batch_norms(scaled)
    assert not fast.scaled
    torch.testing.assert_close(
        fast.canvas(points, count), plain.canvas(before, count), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", ["anchors", "tasks", "centers"])
@torch.inference_mode()
def test_boxes_that_turn_clockwise_come_out_as_ours(name):
    """One set of maps read in two conventions: what one reads as l, w, h and a yaw, the other reads
    as w, l, h and a yaw from -y, clockwise. Suppression is off, so that boxes go in pairs."""
    rules = ["model.args.detections.score=0.02", "model.args.detections.nms=[1.0]"]
    ours = small(name, *rules)
    theirs = small(name, *rules, "model.args.detections.box_format=wlh_clockwise")
    maps = ours.maps(*scan(ours, 3000))
    boxes, scores, _, count, _ = ours.decoder(maps)
    turned, other_scores, *_ = theirs.decoder(maps)
    assert_same_bits(other_scores, scores)
    used = int(count[0])
    assert used > 5
    rows, found = boxes[0, :used].double(), turned[0, :used].double()
    torch.testing.assert_close(found[:, [0, 1, 2, 4, 3, 5]], rows[:, :6])
    apart = found[:, 6] + rows[:, 6] + torch.pi / 2
    torch.testing.assert_close(apart.cos(), torch.ones_like(apart), rtol=0, atol=1e-6)
    torch.testing.assert_close(found[:, 7:], rows[:, 7:])


def test_wrong_inputs_are_errors_that_name_them():
    model = small("anchors")
    count = torch.tensor([5], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"points must be \[B, N, 4\], got \[1, 5, 3\]"):
        model(torch.zeros(1, 5, 3), count)
    with pytest.raises(ValueError, match=r"num_points must be \[B\]"):
        model(torch.zeros(2, 5, 4), count)
    with pytest.raises(ValueError, match="fused first"):
        models.merge_heads(model)
    with pytest.raises(ValueError, match="a detector is needed, got Linear"):
        models.merge_heads(torch.nn.Linear(1, 1))


@torch.inference_mode()
def test_the_canvas_ends_with_what_the_rays_of_each_scan_saw():
    names = "model.args.visibility.channels=[free, occupied, free_top, slices:2]"
    model = small("anchors, visibility", names)
    points, count = scan(model, 900, 0, 1)
    canvas = model.canvas(points, count)
    assert canvas.is_contiguous(memory_format=torch.channels_last)
    names, grid = model.visibility.channels, ([0.16, 0.16, 0.5], model.point_cloud_range)
    for b in range(3):
        rows = points[b, : count[b]]
        rows = rows[rows.isfinite().all(1)]
        seen = torchvox.ray_visibility(rows, torch.zeros(1, 3), *grid).visibility
        planes = torchvox.visibility_channels(seen, names, *grid)
        assert_same_bits((canvas[b : b + 1, -5:],), (planes,), f"scan {b}")
    assert (canvas[0, -5] > 0).sum() > 10 * (canvas[0, :-5].amax(0) > 0).sum()


def test_unknown_planes_are_refused():
    with pytest.raises(ValueError, match=r"free, occupied, .* from 1 to 8, got height"):
        small("anchors, visibility", "model.args.visibility.channels=[height]")
    with pytest.raises(ValueError, match=r"visibility.height must be .* 0"):
        small("anchors, visibility", "model.args.visibility.height=0")


@pytest.mark.parametrize("name", ["anchors, voxels", "centers, rows"])
@torch.inference_mode()
def test_rows_that_are_measured_are_those_that_the_detector_needs(name):
    """With caps of just these the maps of two equal scans are those without caps; with fewer by one
    in any place they are others."""
    points, count = (t.repeat_interleave(2, 0) for t in scan(small(name), 3000))
    voxels, rows = models.measure_rows(small(name), [points[0, :9], points[0]])
    assert 1000 < voxels < 3000 and len(rows) == len(small(name)._config.sparse.channels)
    uncapped = small(name, "model.args.max_voxels=[-1, -1]", "model.args.sparse.max_rows=[]")
    expected = uncapped.maps(points, count)[0][0]
    for place in range(-1, len(rows)):
        least = [most - (i == place) for i, most in enumerate(rows)]
        caps = f"model.args.max_voxels=[1, {voxels}]", f"model.args.sparse.max_rows={least}"
        model = small(name, *caps)
        model.load_state_dict(uncapped.state_dict())  # whose last bias follows from its scores
        assert torch.equal(model.maps(points, count)[0][0], expected) == (place == -1)
    with pytest.raises(ValueError, match=r"a detector on voxels .* got PointPillars and 2 clouds"):
        models.measure_rows(small("anchors"), points)
