# SPDX-License-Identifier: Apache-2.0
"""No launch plan changes a bit: every kernel, every instruction set, real scans."""

import pytest
import torch
from helpers import assert_same_bits, cube, forced, lattice, real_scan
from search_cases import CLOUDS, check_knn, queries_of

ops = torch.ops.torchvox
PLANS = {
    "scan": {"knn_kernel": "scan"},
    "tiles": {"knn_kernel": "tiles"},
    "tiles of a sort": {"knn_kernel": "tiles", "knn_order": "sort"},
    "select": {"knn_kernel": "select"},
}
SCANS = {
    "lidar/kitti_000008.bin": 4,
    "lidar/hdl64_360.bin": 4,
    "lidar/nuscenes_sweep.pcd.bin": 5,
    "indoor/scannet_scene0000_00.bin": 6,
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", CLOUDS)
def test_every_kernel_of_every_cloud(device, name, plan):
    points = CLOUDS[name]
    with forced(**PLANS[plan]):
        for k in (1, 5, 20, 40, 100, 200):
            check_knn(device, points, queries_of(points), k)
        for options in ({"norm": 1}, {"dist_order": "loop"}):
            check_knn(device, points, queries_of(points), 9, **options)


@pytest.mark.parametrize("plan", PLANS)
def test_every_kernel_of_packed_clouds_and_lengths(device, plan):
    points, query = lattice(1500, seed=1, batch=3), lattice(30, seed=2, batch=3) + 0.25
    lengths, counts = torch.tensor([0, 1100, 9999]), torch.tensor([30, 20, 0])
    offsets = {
        "batch_offsets": torch.tensor([10, 1400, 1400, 4400]),
        "query_batch_offsets": torch.tensor([0, 40, 60, 89]),
    }
    with forced(**PLANS[plan]):
        check_knn(device, points, query, 9, lengths=lengths, query_lengths=counts)
        check_knn(device, points.flatten(0, 1), query.flatten(0, 1), 6, **offsets)


@pytest.mark.parametrize("instructions", [0, 1, 2])
@pytest.mark.parametrize("k", [3, 64, 65, 300])
def test_every_instruction_set_of_the_cpu(instructions, k):
    for points in (cube(3000, seed=k), lattice(3000, seed=k)):
        query = queries_of(points, 40)
        with forced(knn_kernel="scan"):
            expected = ops.knn(points, query, k)
        with forced(knn_kernel="tiles", knn_cpu=instructions):
            assert_same_bits(tuple(ops.knn(points, query, k)), tuple(expected))


@pytest.mark.parametrize("name", SCANS)
def test_real_scans(device, name):
    """Quantized coordinates, points on points: ties everywhere."""
    points = real_scan(name, SCANS[name])[None, :, :3].contiguous()
    query = queries_of(points, 64)
    with forced(knn_kernel="scan"):
        expected = ops.knn(points, query, 50)
    for k in (3, 16, 50):
        nearest = ops.knn(points.to(device), query.to(device), k)
        assert_same_bits(tuple(nearest), tuple(t[..., :k].contiguous() for t in expected), f"k {k}")


@pytest.mark.gpu
def test_more_points_than_are_put_in_order_at_once():
    """Batches of large clouds share a workspace that stops growing."""
    points = cube(1 << 17, seed=1).repeat(260, 1, 1).cuda()
    points += torch.arange(260, device="cuda")[:, None, None]
    query = points[:, :40].contiguous()
    with forced(knn_kernel="tiles"):
        _, idx = ops.knn(points, query, 1)
    assert (idx[..., 0] == torch.arange(40, device="cuda")).all()
