# SPDX-License-Identifier: Apache-2.0
"""The tracker: objects keep their numbers, through gaps and jitter, and rules decide ties."""

import numpy as np
import pytest
import torch

from torchvox._util.errors import WrongUseError
from torchvox.data import generate_world
from torchvox.data.worlds.street import CLASSES
from torchvox.tracking import Tracker


def switches(frames, classes, share=0.1, seed=0):
    """How often objects change numbers while tracked. share: of boxes dropped; meters of noise."""
    tracker, random, last, count = Tracker(classes), np.random.default_rng(seed), {}, 0
    for k, (boxes, labels, objects) in enumerate(frames):
        kept = random.random(len(boxes)) >= share
        boxes[:, [0, 1, 7, 8]] += random.normal(0, share, (len(boxes), 4)) * [1, 1, 3, 3]
        found = tracker.update(boxes[kept], random.random(kept.sum()), labels[kept], k / 10)
        for one, number in zip(objects[kept].tolist(), found.tolist(), strict=True):
            before, frame = last.get(one, (number, k))
            count += before != number and k - frame <= 4
            last[one] = number, k
    assert len({number for number, _ in last.values()}) > 1
    return count


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_objects_of_generated_streets_keep_their_numbers(share):
    world = generate_world(range(48, 72), sensor="vlp16", frames=24, seed=2)
    world["boxes"][..., :3] += world["pose"][:, None, :, 3]
    frames = zip(*(world[name].numpy() for name in ("boxes", "labels", "instance")), strict=True)
    assert switches(frames, CLASSES, share) == 0


def test_crossing_pedestrians_are_mixed_up_once_at_most():
    """They pass each other 0.6 m apart; to be mixed up is a switch of either."""
    x, found = np.linspace(-2, 2, 41), []
    for seed in range(40):
        boxes = np.zeros((41, 2, 9))
        boxes[..., 0], boxes[..., 1], boxes[..., 7] = np.stack([x, -x], 1), [0.3, -0.3], [1, -1]
        frames = zip(boxes, np.zeros((41, 2), int), [np.arange(2)] * 41, strict=True)
        found.append(switches(frames, ["pedestrian"], seed=seed))
    assert max(found) <= 2 and sum(found) <= 4


def numbers(tracker, seconds, *rows, scores=None, labels=None):
    """Of boxes at x, y with vx, vy."""
    boxes, n = np.zeros((len(rows), 9)), len(rows)
    boxes[:, [0, 1, 7, 8]] = np.reshape(rows, (-1, 4))
    return tracker.update(boxes, scores or [1] * n, labels or [0] * n, seconds).tolist()


def test_a_track_coasts_along_its_velocity_and_then_ends():
    for missed, number in ((3, 0), (4, 1)):
        tracker = Tracker(["car"])
        assert numbers(tracker, 0.0, (0, 0, 20, 0)) == [0]
        assert all(numbers(tracker, 0.5 * (k + 1)) == [] for k in range(missed))
        last = 0.5 * (missed + 1)
        assert numbers(tracker, last, (20 * last, 0, 20, 0)) == [number]


def test_scores_go_first_then_distances_then_order_and_age():
    tracker = Tracker(["car", "Walker", "tree"], {"CAR": 4, "walker": 2})
    rows = (1, 0, 0, 0), (-1, 0, 0, 0), (9, 0, 0, 0), (9, 0, 0, 0)
    assert numbers(tracker, 0, *rows, scores=[1, 2, 0, 3], labels=[0, 0, 1, 2]) == [1, 0, 2, -1]
    rows = (0, 0, 0, 0), (0, 0, 0, 0), (11.001, 0, 0, 0), (11, 0, 0, 0), (1, 0, 0, 0)
    assert numbers(tracker, 1, *rows, labels=[0, 0, 1, 1, 1]) == [0, 1, 3, 2, 4]
    rows = (0, 0, 0, 0), (3, 0, 0, 0)
    assert numbers(tracker, 2, *rows, scores=[1, 2]) == [1, 0]
    assert numbers(tracker, 3, *rows, scores=[2, 1]) == [1, 0]
    assert numbers(tracker, 4, (1.5, 0, 0, 0)) == [0]


def test_frames_without_boxes_rows_that_are_none_and_unknown_velocities():
    tracker = Tracker(["car"])
    assert numbers(tracker, -3.0) == []
    boxes, labels = torch.full((3, 9), torch.nan), torch.tensor([0, -1, -1], dtype=torch.int32)
    boxes[0, :7] = 1.0
    for seconds, columns in ((0.0, 9), (5.0, 7), (9.0, 9)):
        found = tracker.update(boxes[:, :columns], torch.zeros(3), labels, seconds)
        assert found.dtype == np.int64 and found.tolist() == [0, -1, -1]


def test_bad_input_is_refused_and_leaves_the_tracks_alone():
    tracker = Tracker(["car"])
    numbers(tracker, 0.0, (0, 0, 0, 0))
    for box, score, label, seconds, message in (
        ([0] * 8, 1, 0, 1, r"boxes, scores, labels must be \[n, 7\] .* got \(\(1, 8\), \(1,\)"),
        ([0] * 9, 1, 1, 1, "labels must be below 1, got 1"),
        ([0] * 9, 1, -7, 1, r"labels must be whole numbers from -1 up, got \[-7"),
        ([0] * 9, 1, 0, "late", "Tracker: boxes, scores, labels, seconds: could not convert"),
        ([np.inf] * 9, 1, 0, 1, r"places and scores must be finite, got rows .*\[0\]"),
        ([0] * 9, 1, 0, 0.0, "time must rise from 0.0, got 0.0"),
    ):
        with pytest.raises(WrongUseError, match=message):
            tracker.update([box], [score], [label], seconds)
    assert numbers(tracker, 1.0, (0, 0, 0, 0), (9, 0, 0, 0)) == [0, 1]
    for options, message in (
        ({"classes": ["tree"]}, r"classes must name some of car, truck, .* got tree"),
        ({"distances": {"car": -1.0}}, "distances must be finite and not negative, got"),
        ({"coast": -1}, "coast must be 0 or more frames, got -1"),
    ):
        with pytest.raises(WrongUseError, match=message):
            Tracker(**{"classes": ["car"], **options})
