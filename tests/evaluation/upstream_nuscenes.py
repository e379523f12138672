# SPDX-License-Identifier: Apache-2.0
"""nuscenes-devkit's result for lists of boxes: `PYTHON upstream_nuscenes.py IN.json OUT.json`, in
an environment that has nuscenes-devkit 1.2.0. Only its configuration, filters, matching and metrics
run; the tables that its filters look into are made here.
"""

import json
import sys

import numpy as np
from nuscenes.eval.common.config import config_factory
from nuscenes.eval.common.data_classes import EvalBoxes
from nuscenes.eval.common.loaders import add_center_dist, filter_eval_boxes
from nuscenes.eval.detection.algo import accumulate, calc_ap, calc_tp
from nuscenes.eval.detection.data_classes import DetectionBox, DetectionMetrics
from pyquaternion import Quaternion

ERRORS = {"trans": "trans_err", "scale": "scale_err", "orient": "orient_err"}
ERRORS |= {"vel": "vel_err", "attr": "attr_err"}
NONE = {"traffic_cone": ("orient", "vel", "attr"), "barrier": ("vel", "attr")}


def place(box, i):
    length, width, height = box["lwh"][i]
    turned = list(Quaternion(axis=[0, 0, 1], angle=box["yaw"][i]))
    return {"translation": box["xyz"][i], "size": [width, length, height], "rotation": turned}


class Tables:
    """What the filters ask a data set."""

    def __init__(self, ego, racks):
        self.ego, self.racks = ego, racks

    def get(self, table, token):
        sample, _, i = token.partition("/")
        if table == "sample":
            anns = [f"{sample}/{i}" for i in range(len(self.racks[int(sample)]["yaw"]))]
            return {"anns": anns, "data": {"LIDAR_TOP": token}}
        if table == "sample_data":
            return {"ego_pose_token": token}
        if table == "ego_pose":
            return {"translation": [*self.ego[int(sample)], 0.0]}
        category = "static_object.bicycle_rack"
        return {"category_name": category, **place(self.racks[int(sample)], int(i))}


def eval_boxes(samples):
    boxes = EvalBoxes()
    for number, sample in enumerate(samples):
        listed = []
        for i, name in enumerate(sample["name"]):
            own = {"num_pts": sample["points"][i]} if "points" in sample else {}
            own |= {"detection_score": sample["score"][i]} if "score" in sample else {}
            listed.append(
                DetectionBox(
                    sample_token=str(number),
                    velocity=sample["velocity"][i],
                    detection_name=name,
                    attribute_name=sample["attribute"][i],
                    **place(sample, i),
                    **own,
                )
            )
        boxes.add_boxes(str(number), listed)
    return boxes


def main(source, target):
    with open(source) as file:
        given = json.load(file)
    config = config_factory("detection_cvpr_2019")
    tables = Tables(given["ego"], given["racks"])
    truth, found = (
        filter_eval_boxes(tables, add_center_dist(tables, eval_boxes(given[k])), config.class_range)
        for k in ("truth", "found")
    )
    metrics, result = DetectionMetrics(config), {}
    for name in config.class_names:
        for distance in config.dist_ths:
            data = accumulate(truth, found, name, config.dist_fcn_callable, distance)
            ap = calc_ap(data, config.min_recall, config.min_precision)
            metrics.add_label_ap(name, distance, ap)
            result[f"{name}/{distance}"] = ap
            if distance == config.dist_th_tp:
                for kind, column in ERRORS.items():
                    error = calc_tp(data, config.min_recall, column)
                    error = np.nan if kind in NONE.get(name, ()) else error
                    metrics.add_label_tp(name, column, error)
                    result[f"{name}/{kind}"] = error
    result |= {kind: metrics.tp_errors[column] for kind, column in ERRORS.items()}
    result |= {"mAP": metrics.mean_ap, "NDS": metrics.nd_score}
    with open(target, "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
