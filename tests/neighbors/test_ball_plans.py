# SPDX-License-Identifier: Apache-2.0
"""No plan changes a bit: all points in index order, or cells around the queries."""

import pytest
import torch
from ball_cases import NAN, assert_as_reference, ops, spoilt
from helpers import assert_same_bits, cube, forced, lattice, real_scan

SPREAD = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
CLOUDS = {
    "cube": cube(1500),
    "spoilt": spoilt(1500),
    "lattice": lattice(1500),
    "one place": torch.full((1, 300, 3), 0.3),
    "line": torch.arange(500.0).reshape(1, 500, 1) * torch.tensor([0.002, 0.0, 0.0]),
    "far away": cube(700) + 1e6,
    "across the origin": cube(700) - 0.5,
    "all scales": (SPREAD * 10.0 ** torch.linspace(-20, 18, 500)[:, None])[None],
}

each_kernel = pytest.mark.parametrize("kernel", ["scan", "cells"])


@pytest.mark.one_of("radius")
@each_kernel
@pytest.mark.parametrize("name", CLOUDS)
@pytest.mark.parametrize("radius", [0.0, 1e-19, 0.03, 0.2, 1.0, 1e6, 1e19])
def test_every_cloud_at_every_scale(device, name, radius, kernel):
    points = CLOUDS[name]
    query = torch.cat([points[:, ::50], points[:, ::70] + 0.01], dim=1)
    with forced(ball_kernel=kernel):
        assert_as_reference(device, points, query, radius, 20)


@each_kernel
@pytest.mark.parametrize(
    "options",
    [
        {"closed": True},
        {"min_radius": 0.1, "fill": "pad"},
        {"min_radius": 0.1, "core_dist2": 0.002, "dist_order": "loop"},
        {"core_dist2": 0.25},
        {"core_dist2": -1.0},
        {"radius2": 0.03},
        {"lengths": torch.tensor([0, 700]), "query_lengths": torch.tensor([9, 30])},
    ],
    ids=lambda o: "-".join(o),
)
def test_every_option(device, options, kernel):
    points, query = spoilt(1000, batch=2), spoilt(40, seed=1, batch=2)
    with forced(ball_kernel=kernel):
        assert_as_reference(device, points, query, 0.2, 10, **options)


@each_kernel
@pytest.mark.parametrize("k", [1, 3, 32, 33, 100, 512, 600])
@pytest.mark.parametrize("radius", [0.05, 0.3, 0.8])
def test_balls_of_fewer_and_of_more_points_than_k(device, k, radius, kernel):
    points = cube(3000, seed=4)
    with forced(ball_kernel=kernel):
        assert_as_reference(device, points, cube(20, seed=k), radius, k)
        assert_as_reference(device, points.flip(1), cube(20, seed=k), radius, k)


@each_kernel
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_halves_and_fewer_axes(device, d, dtype, kernel):
    points, query = cube(400, d, batch=2).to(dtype), cube(30, d, seed=1, batch=2).to(dtype)
    with forced(ball_kernel=kernel):
        assert_as_reference(device, points, query, 0.1, 9)


@each_kernel
def test_many_clouds_whose_cells_share_buckets(device, kernel):
    points, query = lattice(16, side=3, batch=500), lattice(4, side=3, seed=1, batch=500)
    with forced(ball_kernel=kernel):
        assert_as_reference(device, points, query, 1.5, 4)


@pytest.mark.parametrize(
    ("scan", "columns", "radius"),
    [("lidar/kitti_000008.bin", 4, 0.8), ("indoor/scannet_scene0000_00.bin", 6, 0.1)],
)
def test_real_scans_in_every_plan(device, scan, columns, radius):
    points = real_scan(scan, columns)[None, :, :3].to(device)  # a view of wider rows
    query = points[:, ::40]
    with forced(ball_kernel="scan"):
        expected = ops.ball_query(points, query, radius, 32)
    with forced(ball_kernel="cells"):
        assert_same_bits(ops.ball_query(points, query, radius, 32), expected, scan)
    assert_same_bits(ops.ball_query(points, query, radius, 32), expected, scan)
    assert expected[2].max() == 32


@each_kernel
@pytest.mark.parametrize("level", [0, 1, 2])
def test_every_instruction_set_of_the_cpu(level, kernel):
    with forced(ball_kernel=kernel, ball_cpu=level):
        assert_as_reference("cpu", spoilt(500, batch=2), cube(60, seed=1, batch=2), 0.2, 12)


@pytest.mark.gpu
def test_a_replayed_graph_follows_new_points():
    points, query = cube(40_000, seed=1).cuda(), cube(300, seed=2).cuda()
    ops.ball_query(points, query, 0.05, 32)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = ops.ball_query(points, query, 0.05, 32)
    for seed in (3, 4):
        points.copy_(cube(40_000, seed=seed))
        points[0, seed] = NAN
        graph.replay()
        expected = ops.ball_query(points.cpu(), query.cpu(), 0.05, 32)
        assert_same_bits(tuple(o.cpu() for o in outputs), expected)
