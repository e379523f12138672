# SPDX-License-Identifier: Apache-2.0
"""From the packets of a lidar to boxes by one program, on a GPU one CUDA graph; it is exported with
raw sweeps and their poses as its inputs.

    python examples/sensor_to_boxes.py [--scans 5] [--device cpu] [--export program.pt2]
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import torchvox
from torchvox.data import generate_drive
from torchvox.graphs import GraphRunner
from torchvox.models import get_model
from torchvox.nn import SensorInput

SWEEPS, POINTS = 2, 100_000
CAR = [-2.0, -1.0, -2.0, 2.0, 1.0, 0.5]


class SensorToBoxes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.detector = get_model("center_world_small", "default")
        self.sensor = SensorInput(4, sweeps=SWEEPS, points=POINTS, age=False, drop_boxes=CAR)

    def forward(self, *ring: Tensor) -> tuple[Tensor, ...]:
        """ring: points [S, N, 4], lengths [S], poses [S, 3, 4], order [S]; or some, or none."""
        return tuple(self.detector(*self.sensor(*ring)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scans", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--export", type=Path, help="file of torch.export to write")
    args = parser.parse_args()
    model = SensorToBoxes().to(args.device).eval()
    ring, run = model.sensor, model
    if args.device.startswith("cuda"):
        run = GraphRunner(model, columns=4, batch=SWEEPS, buckets=[POINTS], device=args.device)
    for k, scan in enumerate(generate_drive(scans=args.scans)):
        data = scan.points.to(args.device).contiguous().view(torch.uint8).flatten()
        points = torchvox.unpack_points(data, 16, offsets=[0, 4, 8, 12], types=["f4"] * 4)
        ring.push(points, scan.pose, time=0.1 * k)
        with torch.no_grad():
            boxes, scores, _, count, _ = run(ring.points, ring.lengths)
        rows = f"{int(ring.lengths.sum())} points of {min(k + 1, SWEEPS)} sweeps"
        print(f"{rows}: {int(count)} boxes, {scores[0, 0]:.2f} at {boxes[0, 0, :2].tolist()}")
    if args.export:
        inputs = (ring.points, ring.lengths, ring.poses, ring.order)
        torch.export.save(torch.export.export(model, inputs), args.export)


if __name__ == "__main__":
    main()
