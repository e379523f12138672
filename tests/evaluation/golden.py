# SPDX-License-Identifier: Apache-2.0
"""Results of the official programs for lists of boxes, and golden.json, which keeps two of them:

TORCHVOX_NUSCENES_PYTHON=.. TORCHVOX_MMDET3D_PYTHON=.. python tests/evaluation/golden.py

Each variable names the interpreter of an environment of its own (docs/evaluation.md).
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import box_lists
import numpy as np
import torch

from torchvox.ops.boxes import rotated_iou

HERE = Path(__file__).parent
GOLDEN = HERE / "golden.json"
SEED = 1
SIZES = {"kitti": 60, "nuscenes": 40}
VARIABLES = {"kitti": "TORCHVOX_MMDET3D_PYTHON", "nuscenes": "TORCHVOX_NUSCENES_PYTHON"}


def plain(value):
    """Lists for arrays, whatever they lie in."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(v) for v in value] if isinstance(value, list) else np.asarray(value).tolist()


def from_above(frame):
    (x, y, z), (h, w, l) = frame["location"].T, frame["size"].T  # noqa: E741
    return torch.from_numpy(np.stack([x, z, h / 2 - y, l, w, h, -frame["ry"]], 1))


def inputs(which: str, seed: int, frames: int, overlaps: bool = True) -> dict:
    if which == "nuscenes":
        names = ("truth", "found", "ego", "racks")
        return dict(zip(names, box_lists.nuscenes_samples(seed, frames), strict=True))
    truth, found = box_lists.kitti_frames(seed, frames)
    given = {"truth": truth, "found": found}
    if overlaps:
        given["overlaps"] = {
            metric: [
                rotated_iou(from_above(f), from_above(t), mode=metric)
                for t, f in zip(truth, found, strict=True)
            ]
            for metric in ("bev", "3d")
        }
        loose = [[0.7, 0.5, 0.5], [0.5, 0.25, 0.25], [0.5, 0.25, 0.25]]
        given["least"] = {"strict": loose[:1] * 3, "loose": loose}
    return given


def official(which: str, given: dict) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in.json"), Path(folder, "out.json")
        source.write_text(json.dumps(plain(given)))
        python = os.environ[VARIABLES[which]]
        subprocess.run([python, HERE / f"upstream_{which}.py", source, target], check=True)
        return json.loads(target.read_text())


if __name__ == "__main__":
    results = {which: official(which, inputs(which, SEED, n)) for which, n in SIZES.items()}
    rows = [
        f'"{w}": {json.dumps({k: round(v, 9) for k, v in r.items()})}' for w, r in results.items()
    ]
    GOLDEN.write_text("{" + ",\n".join(rows) + "}\n")
