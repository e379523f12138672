# SPDX-License-Identifier: Apache-2.0
"""PillarFeatureNet with sync over two processes trains as one process does with both clouds."""

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

GRID = {"voxel_size": [1.0, 1.0, 4.0], "point_cloud_range": [-4.0, -3.0, -2.0, 4.0, 3.0, 2.0]}
POINTS = {"uneven": (200, 30), "none on one": (120, 0)}  # of each rank


def cloud_of(points: int, rank: int) -> Tensor:
    values = torch.randn(points, 4, generator=torch.Generator().manual_seed(rank))
    return values.double() * torch.tensor([2.0, 1.5, 0.5, 1.0])


def fresh_net(pad_semantics: str) -> nn.Module:
    from torchvox.nn import PillarFeatureNet

    torch.manual_seed(7)
    net = PillarFeatureNet(
        4, [9], **GRID, max_points=3, pad_semantics=pad_semantics, sync=True
    ).double()
    net.pfn_layers[0].norm.weight.data[::3] *= -1
    return net.train()


def loss_of(net: nn.Module, clouds: list[Tensor]) -> Tensor:
    """Each cell of each sample weighs something else."""
    import torchvox

    lengths = [len(cloud) for cloud in clouds]
    points = torch.cat(clouds)
    offsets = torch.tensor([0, *lengths], device=points.device).cumsum(0)
    found = torchvox.voxel_map(points, **GRID, max_points=3, max_voxels=48, batch_offsets=offsets)
    maps = (found.indices, found.num_points, found.point_voxel, found.point_slot)
    canvas = net(points, *maps, len(clouds))
    weights = torch.linspace(-1, 2, canvas[0].numel()).view(canvas[0].shape).to(canvas)
    return (canvas * weights).sum()


def train_one_step(rank: int, case: str, pad_semantics: str, backend: str, folder: str) -> None:
    """In a process of its own: gradients and running statistics of one rank, saved to a file."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    torch.distributed.init_process_group(backend, meeting, rank=rank, world_size=2)
    device = torch.device("cpu") if backend == "gloo" else torch.device("cuda", rank)
    net = fresh_net(pad_semantics).to(device)
    ids = None if device.type == "cpu" else [rank]
    model = nn.parallel.DistributedDataParallel(net, device_ids=ids, broadcast_buffers=False)
    cloud = cloud_of(POINTS[case][rank], rank).to(device)
    loss_of(model, [cloud]).backward()
    found = [p.grad.cpu() for p in net.parameters()], [b.cpu() for b in net.buffers()]
    torch.save(found, Path(folder) / f"rank{rank}.pt")
    os._exit(0)  # gloo's destructor may wait for ever, as tests/train/test_two_processes.py says


@pytest.mark.parametrize("backend", ["gloo", pytest.param("nccl", marks=pytest.mark.multigpu)])
@pytest.mark.parametrize(
    ("case", "pad_semantics"), [("uneven", "reference"), ("none on one", "none")]
)
def test_two_ranks_have_the_statistics_and_gradients_of_one_process(
    case, pad_semantics, backend, tmp_path
):
    sys.path.insert(0, str(Path(__file__).parent))  # where spawned processes look for this module
    mp.spawn(train_one_step, (case, pad_semantics, backend, str(tmp_path)), nprocs=2)
    net = fresh_net(pad_semantics)
    loss_of(net, [cloud_of(n, rank) for rank, n in enumerate(POINTS[case])]).backward()
    for rank in range(2):
        gradients, buffers = torch.load(tmp_path / f"rank{rank}.pt")
        for got, parameter in zip(gradients, net.parameters(), strict=True):
            want = parameter.grad / 2  # DDP averages
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
        for got, want in zip(buffers, net.buffers(), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
