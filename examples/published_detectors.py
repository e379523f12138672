# SPDX-License-Identifier: Apache-2.0
"""Published weights of pillar detectors: import them and check what they compute.

The weights belong to their authors and are neither downloaded nor shipped here: get a file from its
page, then

    python examples/published_detectors.py                             # known files, their pages
    python examples/published_detectors.py pointpillar_7728.pth        # import and check
    python examples/published_detectors.py latest.pth --scan 000008.bin --layout kitti -o model.pt

It checks that every tensor is used exactly once and that there are as many as in the published
network; that heads and boxes equal those of the original network, re-implemented in plain torch, on
a generated street or on your scan; and for files of OpenMMLab, that the contents have the hash in
their name.
"""

import argparse
import hashlib
import re
import sys
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional

import torch
from torch import Tensor

from torchvox.io import read_cloud
from torchvox.models import save
from torchvox.models.importing import import_checkpoint, parity

PCDET = "github.com/open-mmlab/OpenPCDet, model zoo"
MMDET = "github.com/open-mmlab/mmdetection3d, configs/"


class Published(NamedTuple):
    """name: start of the file's name. tensors: their number. says: accuracy by its authors.
    settings: what its tensors and names do not show."""

    name: str
    layout: str
    page: str
    tensors: int
    says: str
    settings: Dict[str, Any] = {}  # noqa: RUF012, never written


NUSCENES = f"{PCDET}, nuScenes"
HV = "hv_pointpillars_secfpn_6x8_160e_kitti-3d-3class_"
OLD = {"head.grid": "ends", "head.area": [0.0, -39.68, 70.4, 39.68]}
ROWS = [
    ("pointpillar_7728", "openpcdet", f"{PCDET}, KITTI", 127, "KITTI car 77.28 AP (R11, moderate)"),
    ("pp_multihead_nds5823", "openpcdet", NUSCENES, 421, "nuScenes 44.63 mAP, 58.23 NDS"),
    ("cbgs_pp_centerpoint", "openpcdet", NUSCENES, 458, "nuScenes 50.03 mAP, 60.70 NDS"),
    (f"{HV}2022", "mmdet3d", f"{MMDET}pointpillars", 126, "KITTI mean 64.07 AP (moderate)"),
    (f"{HV}2020", "mmdet3d_0", f"{MMDET}pointpillars, releases before 1.0", 126, "", OLD),
    (
        *("centerpoint_02pillar_second_secfpn", "mmdet3d", f"{MMDET}centerpoint", 414),
        "nuScenes 49.12 mAP, 59.66 NDS",
    ),
]
PUBLISHED = [Published(*row) for row in ROWS]


def check_hash(path: Path) -> Optional[str]:
    """What is wrong with a file whose name ends with its hash; None if nothing is."""
    match = re.search(r"-([0-9a-f]{8})\.pth$", path.name)
    if match is None:
        return None
    actual = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return (
        None if actual == match[1] else f"its hash is {actual}, not {match[1]}: download it again"
    )


def points_of(scan: Path, layout: Optional[str], columns: int) -> Tensor:
    """[N, columns] of x, y, z, intensity, age in seconds; zeros for missing columns."""
    cloud = read_cloud(scan, layout)
    named = dict(zip(cloud.columns, torch.from_numpy(cloud.points).T, strict=True))
    names = ["x", "y", "z", "intensity", "time"][:columns]
    zeros = torch.zeros(len(cloud.points))
    return torch.stack([named.get(name, zeros) for name in names], 1)


def show_boxes(model: torch.nn.Module, points: Tensor, most: int = 10) -> None:
    with torch.no_grad():
        boxes, scores, labels, count, _ = model(points[None], torch.tensor([len(points)]).int())
    print(f"{int(count[0])} boxes; the best: label, score, x, y, z, l, w, h, yaw")
    for box, score, label in zip(boxes[0, :most], scores[0], labels[0], strict=False):
        if label >= 0:
            values = " ".join(f"{value:7.2f}" for value in box[:7].tolist())
            print(f"  {model.classes[int(label)]:<22} {float(score):.3f} {values}")


def check(path: Path, scan: Optional[Path], layout: Optional[str], output: Optional[Path]) -> bool:
    published = next((one for one in PUBLISHED if path.name.startswith(one.name)), None)
    trouble = check_hash(path)
    if trouble is not None:
        print(f"{path.name}: {trouble}")
        return False
    layout_and_settings = () if published is None else (published.layout, published.settings)
    imported = import_checkpoint(path, *layout_and_settings)
    columns = imported.model.config()["config"]["columns"]
    points = None if scan is None else points_of(scan, layout, columns)
    report = parity(imported, points)
    for name, value in report.rows():
        print(f"{name:<34} {value}")
    if published is not None and published.says:
        print(f"{'accuracy, by its authors':<34} {published.says}")
    if published is not None and published.tensors != imported.used:
        print(f"{path.name} has {imported.used} tensors, the published one {published.tensors}")
        return False
    trouble = report.trouble()
    print("same as the original" if trouble is None else f"NOT the original: {trouble}")
    if points is not None:
        show_boxes(imported.model, points)
    if output is not None and trouble is None:
        save(imported.model, output)
        print(f"wrote {output}")
    return trouble is None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path, nargs="?", help="a file that you downloaded")
    parser.add_argument("--scan", type=Path, help="a point cloud to compare on")
    parser.add_argument("--layout", help="columns of a .bin scan: kitti, nuscenes or a list")
    parser.add_argument("-o", "--output", type=Path, help="the model, for torchvox detect")
    args = parser.parse_args()
    if args.checkpoint is None:
        for one in PUBLISHED:
            print(f"{one.name:<55} {one.tensors} tensors; {one.page}; {one.says or '-'}")
        return 0
    return 0 if check(args.checkpoint, args.scan, args.layout, args.output) else 1


if __name__ == "__main__":
    sys.exit(main())
