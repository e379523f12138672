# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of docs/gallery.md, from data that torchvox generates:
python configs/docs/pictures.py FOLDER"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchvox import data, mapping, transform_points, viz
from torchvox.cli.demo import demo
from torchvox.data.worlds import shapes
from torchvox.data.worlds.street import CLASSES

DEMO = ("overview", "bev_height", "bev_intensity", "voxel_density", "samples", "downsample", "map")
STREET = (0.0, -30.0, -4.0, 70.0, 30.0, 4.0)


def boxes() -> Any:
    street = data.World("val", sensor="hdl64", view="front")
    scan = {key: value[0].numpy() for key, value in street.batch([3]).items()}
    known = scan["boxes"][: scan["num_boxes"]]
    labels = scan["labels"][: len(known)]
    note = f"{scan['num_points']:,} points and {len(known)} boxes of a generated street"
    xyz = scan["points"][: scan["num_points"], :3]
    return viz.boxes_picture(
        xyz, known, labels, CLASSES, STREET, title="Boxes of a scan", note=note
    )


def parts() -> Any:
    made = data.generate_shapes(range(len(shapes.CLASSES)), points=2048, seed=1)
    clouds = zip(made["points"].numpy(), made["parts"].numpy(), shapes.CLASSES, strict=True)
    panels = [viz.Panel(xyz, name, labels) for xyz, labels, name in clouds]
    return viz.clouds_picture(panels, "Shapes and their parts")


def clean() -> Any:
    drive = data.generate_drive(0, 19, step=0.8, walkers=5)[::2]
    evidence = mapping.Evidence(0.2)
    for scan in drive:
        evidence.add(scan.points, pose=scan.pose)
    verdict = evidence.verdict()
    moved = torch.cat([verdict.at(s.points, pose=s.pose).reason > 0 for s in drive]).numpy()
    xyz = torch.cat([transform_points(s.points, s.pose[None]) for s in drive]).numpy()
    near = (np.abs(xyz[:, :2] - [8, 0]) < [22, 15]).all(axis=1)
    panes = [viz.Pane(f"{name}: {rows.sum():,} points", xyz[rows], xyz[rows, 2])
             for name, rows in (("before", near), ("after", near & ~moved))]  # fmt: skip
    scale = viz.Scale("z  [m]", -0.2, 3.0)
    note = f"{len(drive)} scans of a generated drive with two cars and five people that move"
    return viz.comparison_picture(panes, "What moved", note, scale)


DRAWN: dict[str, Callable[[], Any]] = {"boxes": boxes, "clean": clean, "shapes": parts}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    demo(output=folder, device="cpu")  # those of DEMO
    for name, draw in DRAWN.items():
        viz.save(draw(), folder / f"{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
