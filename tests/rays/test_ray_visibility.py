# SPDX-License-Identifier: Apache-2.0
"""What rays see of a grid: free, occupied, unknown."""

import numpy as np
import pytest
import torch
from helpers import DATA, check_op

import torchvox

OCCUPIED = 2
SKIP, NO_HIT, HIT_ONLY, SECONDARY = 1, 2, 4, 8
ROW = [0.0, 0.0, 0.0, 8.0, 1.0, 1.0]  # eight cells along x


@pytest.mark.parametrize(
    ("end", "how", "row", "reached"),
    [
        (3.5, {}, [1, 1, 1, 2, 0, 0, 0, 0], 0),
        (9.5, {}, [1] * 8, 2),
        (3.5, {"start": -2.5}, [1, 1, 1, 2, 0, 0, 0, 0], 0),
        (-1.5, {"start": 9.5}, [1] * 8, 2),
        (0.6, {}, [2, 0, 0, 0, 0, 0, 0, 0], 0),
        (-3.5, {"start": -0.5}, [0] * 8, 2),
        (3.5, {"flags": SKIP}, [0] * 8, -1),
        (3.5, {"flags": NO_HIT}, [1, 1, 1, 0, 0, 0, 0, 0], 0),
        (3.5, {"flags": HIT_ONLY}, [0, 0, 0, 2, 0, 0, 0, 0], 0),
        (3.5, {"flags": SECONDARY}, [0, 1, 1, 2, 0, 0, 0, 0], 0),
        (0.6, {"flags": SECONDARY}, [2, 0, 0, 0, 0, 0, 0, 0], 0),
        # Blockers stop a ray between its first and its last voxel.
        (5.5, {"blockers": [2, 3]}, [1, 1, 2, 0, 0, 0, 0, 0], 1),
        (9.5, {"blockers": [2]}, [1, 1, 2, 0, 0, 0, 0, 0], 1),
        (5.5, {"blockers": [0, 5]}, [1, 1, 1, 1, 1, 2, 0, 0], 0),
        (5.5, {"flags": NO_HIT, "blockers": [2]}, [1, 1, 0, 0, 0, 0, 0, 0], 1),
        (5.5, {"flags": HIT_ONLY, "blockers": [2]}, [0, 0, 0, 0, 0, 2, 0, 0], 0),
    ],
)
def test_one_ray_along_x_by_hand(end, how, row, reached, device):
    options = {"ray_flags": torch.tensor([how.get("flags", 0)], dtype=torch.uint8)}
    options["blockers"] = torch.zeros(1, 1, 1, 8, dtype=torch.bool)
    options["blockers"][..., how.get("blockers", [])] = True
    ends, starts = (torch.tensor([[x, 0.5, 0.5]]) for x in (end, how.get("start", 0.5)))
    seen = check_op("ray_visibility", device, ends, starts, [1.0] * 3, ROW, **options)
    assert seen[0].flatten().tolist() == row and int(seen[1]) == reached
    assert seen[2][0].tolist() == seen[2][1].tolist()


def test_an_end_wins_over_rays_that_pass_it(device):
    ends = torch.tensor([[3.5, 0.5, 0.5], [5.5, 0.5, 0.5]])
    for order in ([0, 1], [1, 0]):
        found = check_op(
            "ray_visibility", device, ends[order], torch.tensor([[0.5] * 3]), [1.0] * 3, ROW
        )
        assert found[0].flatten().tolist() == [1, 1, 1, 2, 1, 2, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_occupied_cells_are_the_voxels_of_a_sweep(dtype, device):
    """No cell is lost against voxelize, in any dtype."""
    path = DATA / "lidar" / "nuscenes_sweep.pcd.bin"
    if not path.exists():
        pytest.skip(f"no {path}")
    points = torch.from_numpy(np.fromfile(path, np.float32).reshape(-1, 5)[:, :3].copy()).to(dtype)
    grid = {"voxel_size": [0.4] * 3, "point_cloud_range": [-40.0, -40.0, -1.0, 40.0, 40.0, 5.4]}
    points, origins = points.to(device), torch.zeros(1, 3, device=device)
    voxels = torchvox.voxel_map(points, grid["voxel_size"], grid["point_cloud_range"], 1, -1)
    rows = voxels.indices[voxels.indices[:, 0] >= 0].long()
    volume = torchvox.ray_visibility(points, origins, **grid).visibility
    assert (volume[tuple(rows.T)] == OCCUPIED).all()
    assert (volume == OCCUPIED).sum() == len(rows)
