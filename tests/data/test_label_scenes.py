# SPDX-License-Identifier: Apache-2.0
"""Labels of scenes against loops over points, boxes through time, and bits of any machine."""

import math
import os
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.labels import make_set
from torchvox.data import LabelOptions, LabelScene, scene_rows
from torchvox.data.label_scenes import Scene, Sweep
from torchvox.data.label_stages import label_keyframes
from torchvox.data.portable_math import atan2
from torchvox.data.readers.nuscenes_scenes import Objects
from torchvox.reference.rays import ray_visibility

ROOT = Path(__file__).resolve().parents[2]
CPU, TURN = torch.device("cpu"), math.pi - 0.1
GRID = {"voxel_size": 1.0, "point_cloud_range": (-10.0, -6.0, -2.0, 10.0, 6.0, 2.0)}
TINY = {"scenes": 2, "keyframes": 3, "columns": 60, "beams": 8, "objects": 16, "size": (24, 12)}


def pose(yaw, place):
    c, s = math.cos(yaw), math.sin(yaw)
    return np.array([[c, -s, 0, place[0]], [s, c, 0, place[1]], [0, 0, 1, place[2]]])


def slow_labels(sweeps, key):
    """[4, 12, 20] labels by loops: points of things that moved are carried along, or dropped."""
    ends, origins, flags, classes = [], [], [], []
    there, (turn, place) = sweeps[key], np.split(sweeps[key].pose, [3], axis=1)
    mine = dict(zip(there.tracks, there.boxes, strict=True))
    for number, sweep in enumerate(sweeps):
        points = sweep.points.astype(np.float64)
        for point, start in zip(points, np.broadcast_to(sweep.origins, points.shape), strict=True):
            at = turn.T @ (sweep.pose[:, :3] @ start + sweep.pose[:, 3] - place[:, 0])
            origins.append(start if number == key else at)
            world, flag, label = sweep.pose[:, :3] @ point + sweep.pose[:, 3], 0, -1
            for track, box, its in zip(sweep.tracks, sweep.boxes, sweep.labels, strict=True):
                c, s = math.cos(box[6]), math.sin(box[6])
                off = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]]) @ (world - box[:3])
                if (np.abs(off) < box[3:6] / 2).all():
                    to, label = mine.get(track), its
                    near = to is not None and np.linalg.norm(to[:3] - box[:3]) <= 0.1
                    if near and abs(math.remainder(to[6] - box[6], math.tau)) <= 0.02:
                        break
                    flag, world = 4, np.full(3, np.nan)
                    if to is not None:
                        c, s = math.cos(to[6]), math.sin(to[6])
                        world = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]) @ off + to[:3]
                    break
            ends.append(point if number == key else turn.T @ (world - place[:, 0]))
            flags, classes = [*flags, flag], [*classes, label]
    seen, reached, _ = ray_visibility(
        torch.tensor(np.array(ends)).float(), torch.tensor(np.array(origins)),
        [1.0] * 3, list(GRID["point_cloud_range"]), origin_index=torch.arange(len(ends)),
        ray_flags=torch.tensor(flags, dtype=torch.uint8),
    )  # fmt: skip
    labels = np.array([255, 17, 0])[seen[0].numpy()]
    votes = {}
    for end, hit, label in zip(ends, reached.tolist(), classes, strict=True):
        if hit == 0 and label >= 0:
            cell = tuple(np.floor(np.float32(end) - [-10, -6, -2]).astype(int)[::-1])
            votes.setdefault(cell, Counter())[label] += 1
    for cell, count in votes.items():
        labels[cell] = min(count, key=lambda label: (-count[label], label))
    return labels


def random_sweeps(rng, count):
    """Things 6 m apart: one stands with jitter, others move, turn, come and go, one has no track;
    half of the points are in them."""
    sweeps, start = [], rng.uniform(-math.pi, math.pi, 4)
    for i in range(count):
        tracks = ["stands", "moves", "comes" if i % 3 else "", (i, "alone")]
        boxes = [[6.0 * k - 9, rng.uniform(-2, 2) * (k > 0), 0, 3, 2, 2, a + i * (k > 0)]
                 for k, a in enumerate(start)]  # fmt: skip
        boxes[0] = np.add(boxes[0], [*rng.uniform(-0.04, 0.04, 3), 0, 0, 0, 0.015 * (i % 2)])
        rows = [k for k, track in enumerate(tracks) if track]
        boxes, own = np.array(boxes, float)[rows], pose(0.2 * i, [0.5 * i, 0.1 * i, 0.3])
        inside = boxes[rng.integers(len(rows), size=60), :3] + rng.uniform(-1, 1, (60, 3))
        world = np.concatenate([inside, rng.uniform(-12, 12, (60, 3)) * [1, 1, 0.2]])
        points = ((world - own[:, 3]) @ own[:, :3]).astype(np.float32)
        objects = boxes, [tracks[k] for k in rows], [4, 7, 2, 4][: len(rows)]
        origins = rng.uniform(-0.5, 0.5, (len(points) if i % 2 else 1, 3))
        sweeps.append(Sweep(points, own, *objects, origins=origins))
    return sweeps


@pytest.mark.parametrize("seed", range(5))
def test_labels_are_those_of_loops_over_all_points(seed):
    sweeps = random_sweeps(np.random.default_rng(seed), 5)
    scene = Scene({f"{k}": k for k in (0, 2, 4)}, 5, sweeps.__getitem__)
    options = LabelOptions(**GRID, sweeps=(1, 1))
    made = list(label_keyframes(scene, ["0", "2", "4"], options, CPU))
    for (key, first, end), (arrays, facts) in zip([(0, 0, 2), (2, 1, 4), (4, 3, 5)], made,
                                                  strict=True):  # fmt: skip
        expected = slow_labels(sweeps[first:end], key - first)
        assert {17, 255, 0, 7} <= {*expected.flat} and facts["carried"] and facts["dropped"]
        np.testing.assert_array_equal(arrays["semantics"], expected.T)


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (-1, {}),
        (0, {0: (0, TURN)}),
        (5, {0: (1, math.pi)}),
        (9, {0: (1.8, math.pi + 0.08)}),
        (10, {0: (2, 0.1 - math.pi), 1: (7, 0)}),
        (20, {0: (2, 1 - math.pi)}),
        (21, {}),
    ],
)
def test_objects_move_between_annotations_by_the_shorter_arc(time, expected):
    boxes = np.array([[0, 0, 0, 4, 2, 1, TURN], [2, 0, 0, 5, 2, 1, -TURN],
                      [2, 0, 0, 5, 2, 1, 1 - math.pi], [7, 0, 0, 1, 1, 1, 0]])  # fmt: skip
    times, first = np.array([0, 10, 20, 10]), np.array([0, 3, 4])
    there, now = Objects(times, boxes, first, ["a", "b"], ["car"] * 2).at(time)
    assert there.tolist() == [*expected]
    for row, (x, yaw) in zip(now, expected.values(), strict=True):
        assert row[0] == pytest.approx(x)
        assert abs(math.remainder(row[6] - yaw, math.tau)) < 1e-12
        assert row[3] in (1, 4 if time < 10 else 5)


def test_an_angle_is_that_of_its_vector():
    angle = torch.linspace(-math.pi, math.pi, 9999, dtype=torch.float64)
    for length in (1e-3, 1.0, 1e6):
        found = atan2(length * angle.sin(), length * angle.cos())
        assert (found - angle).abs().max() < 2e-15
    assert atan2(*torch.zeros(2, 1, dtype=torch.float64)) == 0


SCRIPT = """
import sys
sys.path.insert(0, "tests/data")
from test_label_scenes import digests
print(digests(*sys.argv[1:]))
"""


def digests(root, folder):
    options = LabelOptions(cameras=True, point_cloud_range=(-40, -40, -3, 40, 40, 3.4))
    stage = LabelScene(folder, options, "cpu")
    return [
        frame["sha256"]
        for row in scene_rows([root], folder, options)
        for frame in stage.frames(row)
    ]


def test_any_machine_gives_the_same_bits(tmp_path):
    root, here = make_set(tmp_path / "set", **TINY), {"OMP_NUM_THREADS": "2"}
    here |= {"NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F", "ATEN_CPU_CAPABILITY": "default"}
    command = [sys.executable, "-c", SCRIPT, str(root), str(tmp_path / "other")]
    here = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/tests", **here}
    done = subprocess.run(command, env=here, cwd=ROOT, capture_output=True, text=True, check=True)
    own = digests(root, tmp_path / "own")
    assert done.stdout.strip() == str(own) and len({*own}) == 6


def test_a_stage_pickles_and_keeps_errors_in_rows(tmp_path):
    options = LabelOptions(sweeps=(1, 1))
    rows = scene_rows([make_set(tmp_path / "set", **TINY)], tmp_path, options)
    stage = pickle.loads(pickle.dumps(LabelScene(tmp_path / "gts", options, "cpu")))
    made = [stage(row) for row in [*rows, {**rows[0], "path": "/none"}]]
    assert [(row["files"], row["failed"]) for row in made] == [(3, 0), (3, 0), (0, 3)]
    assert made[2]["error"] == "/none does not exist" and not made[0]["error"]
    path = tmp_path / "set" / "v1.0-made" / "scene.json"
    path.write_text(path.read_text().replace("scene-0001", "../over"))
    (tmp_path / "set").rename(tmp_path / "odd")
    _, row = scene_rows([tmp_path / "odd"], tmp_path / "other", options)
    assert "'../over' cannot be the name of a folder" in stage(row)["error"]
