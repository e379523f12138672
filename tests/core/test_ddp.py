# SPDX-License-Identifier: Apache-2.0
"""Two ranks with different numbers of points train like one process with all of them."""

import os
import socket
import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

POINTS = (70, 9)  # of rank 0 and rank 1
CAPS = {"max_points": 5, "max_voxels": 16}
GRID = {"voxel_size": [0.25, 0.25, 1.0], "point_cloud_range": [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]}


class VoxelMeans(nn.Module):
    """Learned point features, averaged over each voxel, through a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 6)
        self.head = nn.Linear(9, 3)

    def forward(self, points: Tensor) -> Tensor:
        import torchvox

        points = torch.cat([points[:, :3], self.encode(points)], 1)
        return self.head(torchvox.voxelize(points, **GRID, **CAPS, reduce="mean").features)


def cloud_of(rank: int) -> Tensor:
    g = torch.Generator().manual_seed(rank)
    return torch.rand(POINTS[rank], 4, generator=g, dtype=torch.float64)


def fresh_model() -> VoxelMeans:
    torch.manual_seed(7)
    return VoxelMeans().double()


def loss_of(model: nn.Module, points: Tensor) -> Tensor:
    return model(points).square().sum()


def train_one_step(rank: int, port: int, backend: str, folder: str) -> None:
    """In a process of its own: the gradients of one rank, saved to a file."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.distributed.init_process_group(backend, rank=rank, world_size=len(POINTS))
    try:
        device = torch.device("cpu") if backend == "gloo" else torch.device("cuda", rank)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        # No find_unused_parameters: every parameter gets its gradient on every rank.
        ids = None if device.type == "cpu" else [rank]
        model = nn.parallel.DistributedDataParallel(fresh_model().to(device), device_ids=ids)
        loss_of(model, cloud_of(rank).to(device)).backward()
        grads = [p.grad.cpu() for p in model.parameters()]
        torch.save(grads, Path(folder) / f"rank{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.parametrize("backend", ["gloo", pytest.param("nccl", marks=pytest.mark.multigpu)])
def test_gradients_of_two_ranks_equal_those_of_one_process(backend, tmp_path):
    sys.path.insert(0, str(Path(__file__).parent))  # where spawned processes look for this module
    mp.spawn(
        train_one_step, args=(free_port(), backend, str(tmp_path)), nprocs=len(POINTS), join=True
    )
    model = fresh_model()
    sum(loss_of(model, cloud_of(rank)) for rank in range(len(POINTS))).backward()
    expected = [p.grad / len(POINTS) for p in model.parameters()]  # DDP averages
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in range(len(POINTS)))
    for a, b, want in zip(first, second, expected, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, want)
