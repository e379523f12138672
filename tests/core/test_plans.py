# SPDX-License-Identifier: Apache-2.0
"""No launch plan changes a bit: every combination of the plans of an op, over its sample inputs.

Plans of the GPU are compared with the CPU too, where nothing is forced.
"""

import re
from itertools import product

import pytest
import torch
from helpers import PLANS, ROOT, assert_same_bits, forced, real_scan
from samples import OPS, on, run, sample_inputs

# Of a block size that must be one of a table, and of other bits: tests of their domains force them.
ELSEWHERE = {"fps_threads", "fps_points_per_thread", "group_mlp", "sparse_tensor_cores"}


def test_every_plan_of_the_kernels_belongs_to_an_op():
    headers = "".join(path.read_text() for path in (ROOT / "csrc/kernels").rglob("*.h"))
    names = set(re.findall(r'PlanOverride \w+\{\s*"(\w+)"', headers))
    assert names == {name for op in OPS for name in op.plans} | ELSEWHERE


def combinations(op, device: str) -> list[dict]:
    """Each a value of every plan of the op on that device."""
    names = [name for name in op.plans if device in PLANS[name].devices]
    values = product(*(PLANS[name].values for name in names))
    return [dict(zip(names, chosen, strict=True)) for chosen in values] if names else []


@pytest.mark.parametrize(
    ("op", "device", "plans"),
    [
        pytest.param(
            *(op, device, plans),
            id=f"{op}-{device}-{', '.join(map(str, plans.values()))}",
            marks=[pytest.mark.gpu] if device == "cuda" else [],
        )
        for op in OPS
        for device in ("cpu", "cuda")
        for plans in combinations(op, device)
    ],
)
def test_every_plan_gives_the_same_bits(op, device, plans):
    for name, make in {**sample_inputs(op), "3000": lambda: op.call(3000, 1)}.items():
        expected = run(op, make())
        with forced(**op.exact, **plans):
            outputs = run(op, on(device, make()))
        assert_same_bits(outputs, expected, f"{op}, {name}")


SCANS = {
    "lidar/kitti_000008.bin": 4,
    "lidar/hdl64_360.bin": 4,
    "lidar/nuscenes_sweep.pcd.bin": 5,
    "indoor/scannet_scene0000_00.bin": 6,
}
RANGE = [-50.0, -50.0, -3.0, 50.0, 50.0, 2.0]
# Arguments of ops from [N, C] points and their [1, N, 3] coordinates, a view of wider rows.
SCAN_CALLS = {
    "voxelize": lambda points, _: (points, [0.2, 0.2, 5.0], RANGE, 5, 20_000),
    "bev_max_height": lambda points, _: (points, RANGE, [512, 512]),
    "bev_max_height_with_index": lambda points, _: (points, RANGE, [512, 512]),
    "knn": lambda _, xyz: (xyz, xyz[:, ::500], 50),
    "ball_query": lambda _, xyz: (xyz, xyz[:, ::100], 0.8, 32),
    "radius_neighbors": lambda _, xyz: (xyz[0], xyz[0, ::100], 0.4, 50_000),
    "furthest_point_sample": lambda _, xyz: (xyz[:, ::4], 200),
}


@pytest.mark.parametrize("name", SCAN_CALLS)
@pytest.mark.parametrize("scan", SCANS)
def test_real_scans_have_the_same_bits_in_every_plan(scan, name, device):
    """Quantized coordinates, points on points, rings: ties everywhere."""
    points = real_scan(scan, SCANS[scan])
    op = next(op for op in OPS if op.name == name)
    call = getattr(torch.ops.torchvox, name)
    expected = call(*SCAN_CALLS[name](points, points[None, :, :3]))
    points = points.to(device)
    for plans in combinations(op, device) or [{}]:
        with forced(**plans):
            outputs = call(*SCAN_CALLS[name](points, points[None, :, :3]))
        assert_same_bits(outputs, expected, f"{plans}")
