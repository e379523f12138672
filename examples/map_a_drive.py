# SPDX-License-Identifier: Apache-2.0
"""An occupancy map of a drive: from scans and poses to free, occupied and unknown space.

    python examples/map_a_drive.py                   # a generated drive, on the GPU if there is one
    python examples/map_a_drive.py --save map.npz    # and the map as a file: torchvox info map.npz

The same for files: torchvox map scans/ --layout kitti --poses poses.txt -o map.npz --html
"""

import argparse
import time
from pathlib import Path

import torch

import torchvox
from torchvox.data import generate_drive


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scans", type=int, default=20)
    parser.add_argument("--save", type=Path, help="a map.npz, .bt, .ot, .ply or .las")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    drive = generate_drive(scans=args.scans, azimuths=900)
    occupancy = torchvox.OccupancyMap(voxel_size=0.2, device=args.device)
    rays, seconds = 0, 0.0
    for scan in drive:
        points, pose = scan.points[:, :3].to(args.device), scan.pose.to(args.device)
        start = time.perf_counter()
        # A point in space that was free before has moved there: query before integrating the scan.
        ends = torchvox.transform_points(points, pose[None])
        moved = int((occupancy.query(ends).logodds < -1.5).sum())
        rays += int(occupancy.integrate(points, pose=pose)[0, 0])
        seconds += time.perf_counter() - start
    print(f"{len(drive)} scans, {rays:,} rays in {seconds:.2f} s on {args.device}")
    print(f"{moved:,} points of the last scan are in space that was free")
    for kind in ("occupied", "free"):
        print(f"{len(occupancy.extract(kind).points):,} {kind} voxels")

    # Line of sight from the first position, 1 m above the road, up to the first obstacle.
    eye = torch.tensor([[0.0, 0.0, 1.0]], device=args.device)
    turn = torch.arange(0, 360, 45, device=args.device).deg2rad()
    around = eye + 30 * torch.stack([turn.cos(), turn.sin(), 0 * turn], 1)
    seen = occupancy.raycast(around, eye)
    meters = (f"{d:.1f}" for d in seen.distance.tolist())
    print("sight at 0, 45, ... 315 degrees, up to 30 m:", ", ".join(meters))
    if args.save:
        occupancy.save(args.save)


if __name__ == "__main__":
    main()
