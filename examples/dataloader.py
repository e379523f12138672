# SPDX-License-Identifier: Apache-2.0
"""Clouds of different sizes through a DataLoader: workers thin them on the CPU, `collate_points`
packs them with offsets, and the packed batch is voxelized on the model's device.

    python examples/dataloader.py                     # workers by fork
    python examples/dataloader.py --start spawn       # workers by spawn
"""

import argparse
import sys

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import torchvox
from torchvox.data import collate_points

RANGE = [0.0, -40.0, -3.0, 80.0, 40.0, 3.0]
VOXEL = [0.4, 0.4, 6.0]


class Clouds(Dataset):
    """Random clouds; a real data set would read files. Runs in the workers."""

    def __init__(self, clouds: int) -> None:
        self.clouds = clouds

    def __len__(self) -> int:
        return self.clouds

    def __getitem__(self, i: int) -> Tensor:
        generator = torch.Generator().manual_seed(i)
        cloud = torch.rand(500 + 300 * i, 4, generator=generator)
        cloud = cloud * torch.tensor([80.0, 80.0, 6.0, 1.0]) - torch.tensor([0.0, 40.0, 3.0, 0.0])
        # An op in a worker: keep the first point of each pillar. It runs on the CPU without a CUDA
        # context, so that fork is safe.
        return torchvox.voxelize(cloud, VOXEL, RANGE, 1, -1, trim=True).features[:, 0].clone()


def batches(workers: int, start: str, device: torch.device, clouds: int = 8):
    """Yields the voxels of each batch of four clouds."""
    loader = DataLoader(
        Clouds(clouds),
        batch_size=4,
        num_workers=workers,
        multiprocessing_context=start if workers else None,
        collate_fn=collate_points,
        pin_memory=device.type == "cuda",
    )
    for points, batch_offsets in loader:
        yield torchvox.voxelize(
            points.to(device, non_blocking=True),
            VOXEL,
            RANGE,
            8,
            4096,
            batch_offsets=batch_offsets.to(device, non_blocking=True),
            reduce="mean",
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--start", choices=["fork", "spawn"], default="fork")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for i, voxels in enumerate(batches(args.workers, args.start, device)):
        counts, shape = voxels.counts[1:, 0].tolist(), list(voxels.features.shape)
        print(f"batch {i} on {device}: voxels per cloud {counts}, features {shape}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
