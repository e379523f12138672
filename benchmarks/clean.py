# SPDX-License-Identifier: Apache-2.0
"""python -m benchmarks.clean: what of generated drives is kept and removed, as a Markdown table.

SA is the share of static points that are kept, DA that of moving points that are removed, AA the
geometric mean: in percent of points, means over the seeds. ms a scan: both passes, without files;
the median of the seeds. dufomap is measured beside torchvox where it is installed.
"""

import argparse
import importlib.util
import math
import time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import torchvox
from torchvox.data import generate_drive
from torchvox.mapping import Evidence


class Row(NamedTuple):
    """voxel: meters. off: standard deviation of x, y and z of poses in meters, with 1 mrad of yaw
    for 5 cm. origin: a corner of a voxel, in voxels."""

    voxel: float
    off: float = 0.0
    origin: float = 0.0
    walkers: int = 0


ROWS = [Row(0.2), Row(0.2, origin=0.5), Row(0.2, 0.02), Row(0.2, 0.05), Row(0.1, 0.05), Row(0.3),
        Row(0.1), Row(0.1, walkers=5), Row(0.2, walkers=5)]  # fmt: skip


Scan = tuple[Tensor, Tensor]  # points [N, 3] float32, pose [3, 4] that they are said to have


def drive(seed: int, row: Row, scans: int, azimuths: int) -> tuple[list[Scan], Tensor]:
    """Scans, and which of all their points are in the box of an object that moves."""
    generated = generate_drive(seed, scans, azimuths=azimuths, walkers=row.walkers)
    boxes = torch.stack([scan.boxes for scan in generated])
    moves = (boxes - boxes[:1]).abs().amax((0, 2)) > 1e-6
    source, made, moving = np.random.default_rng(seed), [], []
    for scan in generated:
        world = torchvox.transform_points(scan.points, scan.pose[None])
        moving.append(torchvox.points_in_boxes(world, scan.boxes[moves]) >= 0)
        *off, turn = source.normal(size=4) * row.off
        c, s = math.cos(turn * 0.02), math.sin(turn * 0.02)
        yaw = torch.tensor([[c, -s, 0], [s, c, 0], [0, 0, 1]], dtype=torch.float64)
        pose = torch.cat([yaw @ scan.pose[:, :3], scan.pose[:, 3:] + torch.tensor(off)[:, None]], 1)
        made.append((scan.points[:, :3].contiguous(), pose))
    return made, torch.cat(moving)


def by_torchvox(scans: list[Scan], row: Row, device: str) -> list[Tensor]:
    """Which points moved, [N] bool for each scan."""
    evidence = Evidence(row.voxel, origin=[row.origin * row.voxel] * 3, device=device)
    for points, pose in scans:
        evidence.add(points, pose=pose)
    verdict = evidence.verdict()
    return [verdict.at(points, pose=pose).reason > 0 for points, pose in scans]


def by_dufomap(scans: list[Scan], row: Row, _: str) -> list[Tensor]:
    """d_s is 0.2 m, d_p one voxel; the origin is moved by moving the world."""
    from dufomap import dufomap

    peer, calls = dufomap(row.voxel, 0.2, 1, num_threads=torch.get_num_threads()), []
    for points, pose in scans:
        place = pose[:, 3] - row.origin * row.voxel
        world = (points.double() @ pose[:, :3].T + place).float().numpy()
        calls.append((world, [*place.tolist(), 1, 0, 0, 0]))
        peer.run(*calls[-1], cloud_transform=False)
    peer.oncePropagateCluster(if_cluster=False, if_propagate=True)
    return [torch.from_numpy(peer.segment(*call, cloud_transform=False) > 0) for call in calls]


def cells(name: str, row: Row, args: argparse.Namespace) -> list[str]:
    """SA / DA / AA and ms a scan of a way to label."""
    way, device = (by_torchvox, args.device) if name == "torchvox" else (by_dufomap, "cpu")
    seconds, results = [], []
    for seed in range(args.seeds):
        scans, moving = drive(seed, row, args.scans, args.azimuths)
        here = [(points.to(device), pose.to(device)) for points, pose in scans]
        if seed == 0:
            way(here[:2], row, device)
        start = time.perf_counter()
        removed = torch.cat(way(here, row, device)).cpu()  # which waits for the device
        seconds.append((time.perf_counter() - start) / len(scans))
        static, moved = (~removed[~moving]).double().mean(), removed[moving].double().mean()
        results.append([static, moved, (static * moved).sqrt()])
        if device == "cuda":
            same = torch.equal(removed, torch.cat(way(scans, row, "cpu")))
            assert same, "the labels are not those of the CPU"
    means = " / ".join(f"{100 * value:.2f}" for value in np.mean(results, 0))
    return [means, f"{1e3 * float(np.median(seconds)):.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clean", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    for name, number in {"seeds": 5, "scans": 38, "azimuths": 1750, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    names = ["torchvox", "dufomap"][: 2 if importlib.util.find_spec("dufomap") else 1]
    heads = [text for name in names for text in (name, "ms a scan")]
    print(f"{args}\n\n| voxel, off, origin, walkers | {' | '.join(heads)} |")
    print(f"|---|{'---|' * len(heads)}", flush=True)
    for row in ROWS:
        figures = [cell for name in names for cell in cells(name, row, args)]
        print(f"| {', '.join(map(str, row))} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
