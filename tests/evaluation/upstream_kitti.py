# SPDX-License-Identifier: Apache-2.0
"""mmdet3d's KITTI result for lists of boxes: `PYTHON upstream_kitti.py IN.json OUT.json`, in
an environment where mmdet3d 1.4.0 lies without its dependencies, with numba. Its matching stands on
the overlaps in the input: its own of rotated boxes need CUDA and are wrong for equal boxes.
"""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np

DIFFICULTIES = ["easy", "moderate", "hard"]
METRICS = ["2d", "bev", "3d"]
CLASSES = ["Car", "Pedestrian", "Cyclist"]
NAMES = {"box": "bbox", "size": "dimensions", "ry": "rotation_y"}


def matching():
    """The one file of mmdet3d, without the package around it."""
    root = Path(importlib.util.find_spec("mmdet3d").submodule_search_locations[0])
    path = root / "evaluation/functional/kitti_utils/eval.py"
    spec = importlib.util.spec_from_file_location("kitti_eval", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(source, target):
    with open(source) as file:
        given = json.load(file)
    upstream, frames = matching(), {}
    for kind in ("truth", "found"):
        frames[kind] = [{NAMES.get(k, k): np.array(v) for k, v in f.items()} for f in given[kind]]
        for frame in frames[kind]:
            frame["bbox"] = frame["bbox"].reshape(-1, 4)
    own = upstream.calculate_iou_partly

    def overlaps(found, truth, metric, num_parts=50):
        if metric == 0:
            return own(found, truth, metric, num_parts)
        each = [np.array(o, np.float64) for o in given["overlaps"][METRICS[metric]]]
        counts = [np.array([len(f["name"]) for f in frames]) for frames in (found, truth)]
        each = [o.reshape(d, g) for o, d, g in zip(each, *counts, strict=True)]
        return each, each, *counts

    upstream.calculate_iou_partly = overlaps
    least = np.array([given["least"][level] for level in ("strict", "loose")])
    result = {}
    for number, metric in enumerate(METRICS):
        curves = upstream.eval_class(
            frames["truth"],
            frames["found"],
            [0, 1, 2],
            [0, 1, 2],
            number,
            least,
            compute_aos=metric == "2d",
            num_parts=len(frames["truth"]),
        )
        kinds = {metric: "precision"} | ({"aos": "orientation"} if metric == "2d" else {})
        for kind, key in kinds.items():
            for recall, mean in (("R11", upstream.get_mAP11), ("R40", upstream.get_mAP40)):
                means = mean(curves[key])
                for (c, d, level), value in np.ndenumerate(means):
                    place = f"{('strict', 'loose')[level]}/{CLASSES[c]}/{DIFFICULTIES[d]}"
                    result[f"{kind}/{place}/{recall}"] = value
    with open(target, "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
