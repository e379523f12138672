# SPDX-License-Identifier: Apache-2.0
"""Two ranks with different numbers of points train like one process with all of them: voxel means
by DistributedDataParallel alone, a pillar net with moments that are summed over the ranks."""

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

VOXELS = {"voxel_size": [0.25, 0.25, 1.0], "point_cloud_range": [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]}
PILLARS = {"voxel_size": [1.0, 1.0, 4.0], "point_cloud_range": [-4.0, -3.0, -2.0, 4.0, 3.0, 2.0]}
SPREAD = torch.tensor([2.0, 1.5, 0.5, 1.0])
# The points of each rank, and the arguments of the net.
CASES = {
    "voxel means": ((70, 9), None),
    "pillars": ((200, 30), "reference"),
    "pillars on one rank alone": ((120, 0), "none"),
}


class VoxelMeans(nn.Module):
    """Learned point features, averaged over each voxel, through a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 6)
        self.head = nn.Linear(9, 3)

    def forward(self, points: Tensor) -> Tensor:
        import torchvox

        points = torch.cat([points[:, :3], self.encode(points)], 1)
        means = torchvox.voxelize(points, **VOXELS, max_points=5, max_voxels=16, reduce="mean")
        return self.head(means.features)


def cloud_of(case: str, rank: int) -> Tensor:
    points, pads = CASES[case]
    g = torch.Generator().manual_seed(rank)
    if pads is None:
        return torch.rand(points[rank], 4, generator=g, dtype=torch.float64)
    return torch.randn(points[rank], 4, generator=g).double() * SPREAD


def fresh_net(case: str) -> nn.Module:
    from torchvox.nn import PillarFeatureNet

    torch.manual_seed(7)
    pads = CASES[case][1]
    if pads is None:
        return VoxelMeans().double()
    net = PillarFeatureNet(4, [9], **PILLARS, max_points=3, pad_semantics=pads, sync=True).double()
    net.pfn_layers[0].norm.weight.data[::3] *= -1
    return net.train()


def loss_of(case: str, net: nn.Module, clouds: list[Tensor]) -> Tensor:
    import torchvox

    if CASES[case][1] is None:
        return sum(net(cloud).square().sum() for cloud in clouds)
    points = torch.cat(clouds)
    offsets = torch.tensor([0, *map(len, clouds)], device=points.device).cumsum(0)
    found = torchvox.voxel_map(
        points, **PILLARS, max_points=3, max_voxels=48, batch_offsets=offsets
    )
    maps = (found.indices, found.num_points, found.point_voxel, found.point_slot)
    canvas = net(points, *maps, len(clouds))
    # Each cell of each sample weighs something else.
    weights = torch.linspace(-1, 2, canvas[0].numel()).view(canvas[0].shape).to(canvas)
    return (canvas * weights).sum()


def train_one_step(rank: int, case: str, backend: str, folder: str) -> None:
    """In a process of its own: gradients and running statistics of one rank, saved to a file."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    torch.distributed.init_process_group(backend, meeting, rank=rank, world_size=2)
    device = torch.device("cpu") if backend == "gloo" else torch.device("cuda", rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # No find_unused_parameters: every parameter gets its gradient on every rank.
    ids = None if device.type == "cpu" else [rank]
    net = fresh_net(case).to(device)
    model = nn.parallel.DistributedDataParallel(net, device_ids=ids, broadcast_buffers=False)
    loss_of(case, model, [cloud_of(case, rank).to(device)]).backward()
    found = [p.grad.cpu() for p in net.parameters()], [b.cpu() for b in net.buffers()]
    torch.save(found, Path(folder) / f"rank{rank}.pt")
    os._exit(0)  # gloo's destructor may wait for ever, as tests/train/test_two_processes.py says


@pytest.mark.parametrize("backend", ["gloo", pytest.param("nccl", marks=pytest.mark.multigpu)])
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[] if c == "pillars" else pytest.mark.slow) for c in CASES]
)
def test_two_ranks_have_the_gradients_and_statistics_of_one_process(case, backend, tmp_path):
    sys.path.insert(0, str(Path(__file__).parent))  # where spawned processes look for this module
    mp.spawn(train_one_step, (case, backend, str(tmp_path)), nprocs=2)
    net = fresh_net(case)
    loss_of(case, net, [cloud_of(case, rank) for rank in range(2)]).backward()
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first[0], second[0], strict=True))
    expected = [p.grad / 2 for p in net.parameters()]  # DDP averages
    torch.testing.assert_close(first[0], expected, rtol=1e-10, atol=1e-10)
    for _, buffers in (first, second):
        torch.testing.assert_close(buffers, list(net.buffers()), rtol=1e-12, atol=1e-12)
