# SPDX-License-Identifier: Apache-2.0
"""What holds of every measure, for lists of boxes at random, and the official programs' numbers.

golden.json has the results of nuscenes-devkit 1.2.0 and mmdet3d 1.4.0 for the lists of seed 1, as
tests/evaluation/golden.py of commit 3d14238 recorded them.
"""

import json
from pathlib import Path

import box_lists
import pytest

from torchvox.evaluation import kitti, lidar, nuscenes

CLASSES = ["Car", "Pedestrian", "Cyclist"]
GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())
MEASURES = {
    "kitti": (box_lists.kitti_frames, lambda t, f: kitti.evaluate(t, f, CLASSES)),
    "lidar": (box_lists.lidar_scenes, lambda t, f: lidar.evaluate(t, f, CLASSES)),
    "nuscenes": (
        box_lists.nuscenes_samples,
        lambda t, f, ego, racks: nuscenes.evaluate(t, f, ego=ego, racks=racks),
    ),
}


@pytest.mark.parametrize(("which", "count"), [("kitti", 60), ("nuscenes", 40)])
def test_the_numbers_of_the_official_program_come_out(which, count):
    frames, evaluate = MEASURES[which]
    expected = GOLDEN[which]
    assert evaluate(*frames(1, count)) == pytest.approx(expected, abs=1e-6, nan_ok=True)
    assert len(set(expected.values())) > 60  # the numbers differ


@pytest.mark.parametrize("which", MEASURES)
def test_the_order_of_frames_and_detections_changes_nothing(which):
    frames, evaluate = MEASURES[which]
    truth, found, *places = frames(21, 20)
    found = box_lists.with_distinct_scores(found, "scores" if which == "lidar" else "score")
    backward = [box_lists.rows(f, slice(None, None, -1)) for f in found][::-1]
    got = evaluate(truth[::-1], backward, *(place[::-1] for place in places))
    assert got == pytest.approx(evaluate(truth, found, *places), nan_ok=True)
