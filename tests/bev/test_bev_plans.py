# SPDX-License-Identifier: Apache-2.0
"""No launch plan of bev_max_height changes a bit; crowded cells have the mean of the reference."""

import pytest
import torch
from bev_cases import RANGE, assert_as_reference, call, cloud, ops, polluted
from helpers import assert_same_bits, forced

PLANS = ["dense", "cleared", "started", "small"]
SIZES = [[1, 1], [5, 7], [4, 2], [32, 20], [301, 201]]  # crowded, odd and nearly empty canvases
DTYPES = [torch.float32, torch.uint8, torch.uint16]
each_op = pytest.mark.parametrize("name", ["bev_max_height", "bev_max_height_with_index"])
each_plan = pytest.mark.parametrize("plan", PLANS)


@pytest.mark.gpu
@each_op
@each_plan
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_every_plan_gives_the_bits_of_the_reference(name, plan, dtype, size):
    for fill in (0.0, float("nan")):
        with forced(bev_table=plan):
            assert_as_reference("cuda", name, polluted(), RANGE, size, out_dtype=dtype, fill=fill)


@pytest.mark.gpu
@each_op
@each_plan
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_plan_replays_with_other_points(name, plan, dtype):
    static, options = polluted().cuda(), {"out_dtype": dtype}
    with forced(bev_table=plan):
        graph = torch.cuda.CUDAGraph()
        call("cuda", name, static, RANGE, [300, 201], **options)
        with torch.cuda.graph(graph):
            outs = getattr(ops, name)(static, RANGE, [300, 201], **options)
        for seed in range(5):
            points = polluted(seed=seed)
            static.copy_(points)
            graph.replay()
            expected = call("cpu", name, points, RANGE, [300, 201], **options)
            assert_same_bits([o.cpu() for o in outs], expected, f"replay {seed}")


@pytest.mark.parametrize("size", [[1, 1], [2, 2], [3, 3]])
def test_crowded_cells_have_the_mean_of_the_reference(device, size):
    points = cloud(12_000, spread=1.0)
    assert_as_reference(device, "bev_rasterize", points, RANGE, size, ["intensity_mean"])
