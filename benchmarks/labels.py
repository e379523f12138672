# SPDX-License-Identifier: Apache-2.0
"""Time per keyframe of torchvox labels, on a made set of nuScenes' size and layout:
python benchmarks/labels.py --scenes 20 --folder /tmp/labels --device cuda --sweeps 10,10"""

import argparse
import json
import math
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

LENS = [[1266.4, 0, 816.3], [0, 1266.4, 491.5], [0, 0, 1]]
KINDS = ("vehicle.car", "human.pedestrian.adult", "movable_object.barrier", "animal")


def sweep(tick, columns, beams, rng):
    """[columns * beams, 5]: a road 1.84 m below, and walls on both sides, by range and noise."""
    angle = np.repeat(np.arange(columns) * (math.tau / columns), beams)
    slope = np.tile(np.tan(np.linspace(-0.53, 0.18, beams)), columns)
    wall = np.minimum(9 / np.abs(np.sin(angle)).clip(0.1), 40 + 9 * np.sin(7 * angle + tick))
    reach = np.minimum(wall, np.where(slope < 0, -1.84 / np.minimum(slope, -1e-9), np.inf))
    rows = np.stack([np.cos(angle), np.sin(angle), slope, angle, 0 * angle], 1)
    return (rows * (reach + rng.normal(0, 0.02, reach.shape))[:, None]).astype(np.float32)


def make_set(root, scenes, keyframes=40, columns=1085, beams=32, objects=40, size=(1600, 900)):
    """nuScenes' tables, and sweeps at 20 Hz; a keyframe each 0.5 s, of six cameras."""
    tables, rng = defaultdict(list), np.random.default_rng(0)

    def turn(yaw):
        return [math.cos(yaw / 2), 0, 0, math.sin(yaw / 2)]

    def add(table, token, **values):
        tables[table].append({"token": token, **values})

    (root / "v1.0-made").mkdir(parents=True)
    (root / "sweeps").mkdir()
    add("sensor", "lidar", channel="LIDAR_TOP")
    add("calibrated_sensor", "lidar", sensor_token="lidar", translation=[0.9, 0, 1.84],
        rotation=turn(-1.57), camera_intrinsic=[])  # fmt: skip
    for i in range(6):  # at multiples of 60 degrees; z of a camera is ahead
        c, s = 0.5 * math.cos(i * math.pi / 6), -0.5 * math.sin(i * math.pi / 6)
        add("sensor", name := f"CAM_{i}", channel=name)
        add("calibrated_sensor", name, sensor_token=name, translation=[1.5, 0, 1.5],
            rotation=[c + s, -c - s, c - s, s - c], camera_intrinsic=LENS)  # fmt: skip
    tables["category"] = [{"token": n, "name": n, "index": i} for i, n in enumerate(KINDS)]
    for scene in range(scenes):
        add("scene", f"{scene}", name=f"scene-{scene:04}")
        for tick in range(10 * keyframes - 9):
            key, token, time_ = tick % 10 == 0, f"{scene}.{tick}", 10**15 + 50_000 * tick
            sample, file = f"{scene}-{(tick + 5) // 10}", f"sweeps/{scene}_{tick}.pcd.bin"
            sweep(tick, columns, beams, rng).tofile(root / file)
            add("ego_pose", token, rotation=turn(0.003 * tick),
                translation=[600 + 0.4 * tick, 1600 + 0.01 * tick, 0])  # fmt: skip
            row = dict(timestamp=time_, ego_pose_token=token, sample_token=sample, filename=file,
                       is_key_frame=key, width=size[0], height=size[1])  # fmt: skip
            add("sample_data", token, calibrated_sensor_token="lidar", **row)
            if key:
                add("sample", sample, timestamp=time_, scene_token=f"{scene}")
                for i in range(6):
                    add("sample_data", f"{token}/{i}", calibrated_sensor_token=f"CAM_{i}", **row)
        for i in range(objects):
            x, y = rng.uniform([600, 1592], [600 + 4 * keyframes, 1608])
            add("instance", name := f"{scene}:{i}", category_token=KINDS[i % 4])
            for k in range(i % 3, keyframes - i % 2):
                add("sample_annotation", f"{name}.{k}", sample_token=f"{scene}-{k}",
                    instance_token=name, translation=[x + 3.0 * k * (i % 2), y, 0.7],
                    size=[2, 4.5, 1.6], rotation=turn(0.4 * i + 0.1 * k * (i % 2)))  # fmt: skip
    for name, rows in tables.items():
        (root / "v1.0-made" / f"{name}.json").write_text(json.dumps(rows))
    return root


if __name__ == "__main__":
    from torchvox.cli import main

    parser = argparse.ArgumentParser()
    for name, default in (("--scenes", 20), ("--keyframes", 40)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--folder", type=Path, default=Path("labels_bench"))
    args, options = parser.parse_known_args()  # further options are those of the command
    if not (root := args.folder / "set").exists():
        make_set(root, args.scenes, args.keyframes)
    report, out = args.folder / "report.json", args.folder / f"gts{time.time_ns()}"
    start = time.perf_counter()
    main(["labels", str(root), "-o", str(out), "--cameras", "--json", str(report), *options])
    spent, rows = time.perf_counter() - start, json.loads(report.read_text())["keyframes"]
    alone, each = np.median([row["ms"] for row in rows]), 1e3 * spent / len(rows)
    print(f"{each:.1f} ms per keyframe of {len(rows)}, all included; {alone:.1f} ms for its arrays")
