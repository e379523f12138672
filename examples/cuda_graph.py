# SPDX-License-Identifier: Apache-2.0
"""Capture once, replay with other points: every torchvox op has static shapes, reads nothing back
and allocates from torch's pool, so a CUDA graph can capture it. Clouds of different sizes share a
graph: its buffer has room for the largest, and `num_valid`, on the device, is the number of points.

    python examples/cuda_graph.py
"""

import sys

import torch
from torch import Tensor

import torchvox

RANGE = [0.0, -40.0, -3.0, 80.0, 40.0, 3.0]
CAPACITY = 50_000


def process(points: Tensor, num_valid: Tensor) -> tuple[Tensor, ...]:
    voxels = torchvox.voxelize(
        points, [0.2, 0.2, 6.0], RANGE, 10, 20_000, num_valid=num_valid, reduce="mean"
    )
    height, bev_counts = torchvox.bev_max_height(points, RANGE, [400, 400], num_valid=num_valid)
    idx, dist2 = torchvox.furthest_point_sample(points[None, :, :3], 256, lengths=num_valid)
    return (*voxels, height, bev_counts, idx, dist2)


def cloud(size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(size, 4, generator=generator)
    return points * torch.tensor([80.0, 80.0, 6.0, 1.0]) - torch.tensor([0.0, 40.0, 3.0, 0.0])


def main() -> int:
    if not torch.cuda.is_available():
        print("cuda_graph: skipped, there is no CUDA GPU")
        return 0
    points = torch.zeros(CAPACITY, 4, device="cuda")
    num_valid = torch.zeros(1, dtype=torch.int32, device="cuda")

    # Warm up on a side stream, as torch asks, then capture.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        process(points, num_valid)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = process(points, num_valid)

    for seed, size in enumerate((CAPACITY, 1000, 0, 33_333)):
        points[:size].copy_(cloud(size, seed))  # rows past num_valid keep old points: not read
        num_valid.fill_(size)
        graph.replay()
        expected = process(points, num_valid)
        same = all(
            torch.equal(a.nan_to_num(), e.nan_to_num()) if a.is_floating_point() else a.equal(e)
            for a, e in zip(outputs, expected, strict=True)
        )
        print(
            f"{size:>6} points: {int(outputs[4][0, 0])} voxels, {'same' if same else 'OTHER'} bits"
        )
        if not same:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
