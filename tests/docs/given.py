# SPDX-License-Identifier: Apache-2.0
"""What the Python blocks of a page take for granted: names, and files in the current folder. The
function of a page has its name."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchvox
from torchvox.data import generate_scan
from torchvox.io import PointTable, create_points

Names = dict[str, Any]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@functools.cache
def street() -> torch.Tensor:
    """A thinned scan [N, 4]."""
    return torch.from_numpy(generate_scan(0).points[::20])


def uniform(*shape: int, reach: float = 10.0) -> torch.Tensor:
    return reach * torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def cells() -> Names:
    return {
        **{"torchvox": torchvox, "points": uniform(300, 3, reach=1.0), "step": 0},
        **{"batch_offsets": torch.tensor([0, 100, 300]), "features": uniform(300, 8)},
    }


def clean() -> Names:
    scans = [street()[i::30, :3] for i in range(3)]
    return {"torchvox": torchvox, "scans": scans, "poses": [torch.eye(4)] * 3}


def downsample() -> Names:
    pytest.importorskip("laspy", reason="the extra las is not installed")
    times = np.linspace(0, 1, len(street()))
    table = PointTable(street()[:, :3].numpy(), {"gps_time": times})
    with create_points("scan.laz", table) as writer:
        writer.append(table)
    return {}


def recordings() -> Names:
    pytest.importorskip("rosbags", reason="the extra ros is not installed")
    from recordings import STAMP, cloud, points, write_recording

    poses = [("/odom", "nav_msgs/msg/Odometry", "os_sensor", [(STAMP, [0, 0, 0, 0, 0, 0, 1])])]
    write_recording(".", "mcap", {"/points": [cloud(points())]}, poses=poses)
    Path("drive/drive.mcap").rename("drive.mcap")
    return {"torchvox": torchvox}


def evaluation() -> Names:
    boxes = np.array([[20.0, 3.0, 0.0, 3.9, 1.6, 1.5, 0.1], [15.0, -4.0, 0.0, 4.1, 1.7, 1.5, 3.0]])
    score, name = {"score": np.ones(2)}, np.array(["Car", "Cyclist"])
    frame = {"name": name, "location": boxes[:, :3], "size": boxes[:, [5, 4, 3]], "ry": boxes[:, 6]}
    frame |= {"box": np.array([[10.0, 10.0, 90.0, 90.0]] * 2), "alpha": np.zeros(2)}
    seen = {"truncated": np.zeros(2), "occluded": np.zeros(2)}
    sample = {"name": np.array(["car", "bicycle"]), "xyz": boxes[:, :3], "lwh": boxes[:, 3:6]}
    sample |= {"yaw": boxes[:, 6], "velocity": np.zeros((2, 2)), "attribute": np.array(["", ""])}
    scene = {"boxes": boxes, "labels": np.array([0, 2])}
    rack = {"xyz": boxes[:1, :3], "lwh": boxes[:1, 3:6], "yaw": boxes[:1, 6]}
    return {
        **{"frames": [{**frame, **seen}], "frames_found": [{**frame, **score}]},
        **{"samples": [{**sample, "points": np.full(2, 9)}], "racks": [rack]},
        **{"samples_found": [{**sample, **score}], "ego": np.zeros((1, 3))},
        "scenes": [{**scene, "points": np.full(2, 9)}],
        "scenes_found": [{**scene, "scores": np.ones(2)}],
    }


def filter() -> Names:
    classification = torch.zeros(len(street()))
    return {"torchvox": torchvox, "points": street(), "classification": classification}


class Counted(torch.nn.Module):
    """Voxels of packed clouds, a small model to export."""

    def forward(self, points: torch.Tensor, batch_offsets: torch.Tensor) -> torch.Tensor:
        return torch.ops.torchvox.voxelize(
            *(points, [1.0, 1.0, 4.0], [0.0, 0.0, 0.0, 10.0, 10.0, 10.0], 8, 64),
            batch_offsets=batch_offsets,
            reduce="mean",
        )[0]


def export() -> Names:
    offsets = torch.tensor([0, 40, 100])
    names: Names = {"torch": torch, "model": Counted(), "points": uniform(100, 4).to(DEVICE)}
    names |= {"batch_offsets": offsets.to(DEVICE), "other_points": uniform(80, 4).to(DEVICE)}
    names |= {"other_offsets": torch.tensor([0, 5, 80], device=DEVICE)}
    if DEVICE == "cuda":
        grid = [1.0, 1.0, 4.0], [0.0, 0.0, 0.0, 10.0, 10.0, 10.0], 8, 64
        names |= {"graph": torch.cuda.CUDAGraph(), "scan": uniform(50, 4).cuda(), "n": 50}
        names |= {"num_valid": torch.ones(1, dtype=torch.int32, device="cuda")}
        names["process"] = lambda points, num_valid: torchvox.voxelize(
            points, *grid, num_valid=num_valid, reduce="mean"
        )
    return names


def maps() -> Names:
    identity = "1 0 0 0 0 1 0 0 0 0 1 0"
    Path("poses.txt").write_text(f"{identity}\n" * 3)
    Path("calib.txt").write_text(f"Tr: {identity}\n")
    scans = [street()[i::30, :3] for i in range(3)]
    times = np.linspace(0, 1, 3)
    return {
        **{
            "scans": scans,
            "points": scans[0].to(DEVICE),
            "origins": torch.zeros(1, 3, device=DEVICE),
        },
        **{"times": times, "gps_time": np.linspace(0, 1.2, len(scans[0]))},
        **{"lidar_to_body": np.eye(4), "torch": torch},
    }


def models() -> Names:
    points = uniform(1, 512, 6, reach=1.0).to(DEVICE)
    return {"points": points, "lengths": torch.tensor([400], device=DEVICE)}


def occupancy() -> Names:
    points = street()[::20, :3].double().to(DEVICE)
    origins = torch.zeros(1, 3, dtype=torch.float64, device=DEVICE)
    ends = {"a": points[:1], "b": points[50:51]}
    return {"torchvox": torchvox, "points": points, "origins": origins, **ends}


def quickstart() -> Names:
    street().numpy().tofile("000008.bin")
    grid = {"size": [0.2, 0.2, 4.0], "box": [-50.0, -50.0, -3.0, 50.0, 50.0, 1.0]}
    return {"clouds": [street()[:n] for n in (900, 0, 700)], **grid}


def rays() -> Names:
    return {"torch": torch, "torchvox": torchvox, "points": street()}


def recipes() -> Names:
    peers = ("mmcv", "pcdet", "pytorch3d", "torch_cluster", "pointops", "torch_scatter")
    torchvox.compat.install(*peers, python=True)
    boxes = uniform(40, 7) * torch.tensor([1.0, 1.0, 0.1, 0.3, 0.2, 0.2, 0.6]) + 0.1
    return {
        **{"xyz": uniform(2, 1000, 3, reach=2.0), "features": uniform(2, 1000, 8)},
        **{"points": street(), "boxes": boxes, "scores": uniform(40)},
        "flat": boxes[:, [0, 1, 3, 4, 6]],
    }


def switching() -> Names:
    Path("model_of_somebody.py").write_text("from pytorch3d.ops import knn_points\n")
    return {}


def training() -> Names:
    numbers = [f"{i:04}" for i in range(16)]
    for name in numbers:
        for kind in ("points", "boxes"):
            Path("mine", kind).mkdir(parents=True, exist_ok=True)
        street().numpy().tofile(f"mine/points/{name}.bin")
        rows = "class,x,y,z,l,w,h,yaw\nCar,9,2,0,4,2,2,0\nVan,9,-4,0,5,2,2,0\n"
        Path(f"mine/boxes/{name}.csv").write_text(rows)
    Path("mine/train.txt").write_text("\n".join(numbers))
    return {}
