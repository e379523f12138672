# SPDX-License-Identifier: Apache-2.0
"""Rays beyond 2^31 elements, and visits beyond 2^31."""

import torch
from large import MANY, many_points, marks

import torchvox

pytestmark = marks

ORIGIN = [0.0, 0.0, 0.0]


def test_transform_points():
    poses = torch.eye(4, device="cuda")[None, :3] * 2
    out = torchvox.transform_points(many_points().cuda(), poses)
    assert out[-1].tolist() == [127.0, 125.0, 14.0] and out[0].tolist() == [1.0, 1.0, 2.0]


def test_ray_visibility():
    # 2,400,000,000 cells of 5 cm.
    grid = {"voxel_size": [0.05] * 3, "point_cloud_range": [0.0, 0.0, 0.0, 100.0, 100.0, 30.0]}
    ends = torch.tensor([[99.99, 99.99, 29.99]], device="cuda")
    volume = torchvox.ray_visibility(ends, torch.tensor([[99.0, 99.99, 29.99]]).cuda(), **grid)
    assert volume.visibility.numel() > 1 << 31
    row = volume.visibility[0, -1, -1]
    assert row[-1] == 2 and (row[-20:-1] == 1).all() and volume.visibility.sum() == 20 + 2


def test_ray_voxels_and_ray_regions():
    points = many_points().cuda()
    origins = torch.zeros(1, 3, device="cuda")
    found = torchvox.ray_voxels(points, origins, 0.01, ORIGIN, 1 << 30)
    assert found.counts[0, 1] > 1 << 31 and found.counts[0, 0] == 1 << 30
    assert found.offsets[-1] == found.counts[0, 1]
    assert found.indices.numel() > 1 << 31 and found.indices[0].tolist() == [0] * 4
    del found
    regions = torchvox.ray_regions(points, origins, 0.01, ORIGIN, 1 << 20)
    assert regions.counts[0, 0] == regions.counts[0, 1] > 2048
    assert points.numel() > 1 << 31 and len(points) == MANY
