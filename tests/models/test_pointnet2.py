# SPDX-License-Identifier: Apache-2.0
"""The PointNet++ models: one sampling, lengths, precision, arguments."""

import pytest
import torch
from helpers import assert_same_bits
from nets import CLASSES, OBJECT, SMALL, Calls, classifier, inputs, segmenter

from torchvox import models

each_model = pytest.mark.parametrize("name", SMALL)
each_preset = pytest.mark.parametrize("preset", ["yanx27", "pn2"])


@each_model
@each_preset
def test_scores_come_per_cloud_or_per_point(name, preset):
    model = SMALL[name](preset=preset)
    scores = model(*inputs(model, 70))
    assert scores.shape == ((3, CLASSES) if name == "classifier" else (3, 70, CLASSES))
    assert scores.dtype == torch.float32
    sums = scores.exp().sum(-1)
    assert torch.allclose(sums, torch.ones(())) == (preset == "yanx27")


@each_model
def test_a_cloud_is_sampled_once(name):
    model = SMALL[name]()
    with torch.no_grad(), Calls() as calls:
        model(*inputs(model, 70))
    assert calls.count("furthest_point_sample") == 1
    assert calls.count("query_and_group") == 2


@pytest.mark.parametrize(("preset", "taken"), [("yanx27", True), ("pn2", False)])
def test_only_yanx27_takes_a_point_at_the_origin_as_a_center(preset, taken):
    model = classifier(preset=preset)
    (points,) = inputs(model, OBJECT[0]["points"])  # as many as centers
    points[:, 5] = 0.01
    centers = model.encode(points, None)[0][1]
    assert ((centers == 0.01).all(-1).sum(1) == int(taken)).all()


@each_model
def test_full_lengths_give_the_scores_of_no_lengths(name):
    model = SMALL[name]()
    some = inputs(model, 70)
    assert_same_bits(model(*some, torch.full((3,), 70)), model(*some))


@each_model
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_never_casts_coordinates(name, dtype):
    model = SMALL[name]()
    some = inputs(model, 70)
    expected = model(*some)
    with torch.no_grad(), torch.autocast("cpu", dtype), Calls() as calls:
        scores = model(*some)
    for op, args in calls.seen:
        assert args[0].dtype == torch.float32, op
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, expected, rtol=0.1, atol=0.15)


def test_a_step_under_autocast_trains():
    model = classifier().train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(*inputs(model, 70)).square().mean()
    loss.backward()
    assert all(
        p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters()
    )


def test_the_order_of_points_matters_only_through_the_first():
    """Furthest point sampling from the same start, balls that hold fewer than k points."""
    levels = [{**OBJECT[0], "neighbors": [64]}, {**OBJECT[1], "neighbors": [32, 32]}, OBJECT[2]]
    torch.manual_seed(0)
    model = models.PointNet2Classifier(CLASSES, levels=levels, head=[16]).eval()
    (points,) = inputs(model, 60)
    order = torch.cat([torch.zeros(1, dtype=torch.long), 1 + torch.randperm(59)])
    torch.testing.assert_close(model(points[:, order]), model(points))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"preset": "pn3"}, ValueError, "preset must be one of"),
        ({"scales": "all"}, ValueError, "scales must be ssg or msg"),
        ({"closd": True}, TypeError, "unknown argument 'closd'"),
        ({"in_channels": 2}, ValueError, "at least 3"),
        ({"levels": OBJECT[:2]}, ValueError, "must take all points"),
        ({"levels": OBJECT[2:]}, ValueError, "ever fewer points"),
        ({"levels": [OBJECT[1], OBJECT[0], OBJECT[2]]}, ValueError, "ever fewer points"),
        ({"dropout": [0.1]}, ValueError, "one rate per layer"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        models.PointNet2Classifier(CLASSES, **options)


def test_points_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"points must be \[B, N, 5\], got \[1, 40, 6\]"):
        segmenter()(torch.zeros(1, 40, 6))


@torch.no_grad()
@pytest.mark.parametrize("column", range(6))
def test_a_point_with_a_column_that_is_not_finite_does_not_exist(column):
    model = classifier(in_channels=6)
    (points,) = inputs(model, 70)
    for value in (float("nan"), float("inf")):
        bad = points.clone()
        bad[:, 5, column] = value
        rest = torch.cat([points[:, :5], points[:, 6:]], 1)
        torch.testing.assert_close(model(bad), model(rest))
