# SPDX-License-Identifier: Apache-2.0
"""The BEV rasters of real scans."""

import pytest
import torch
from bev_cases import assert_all_as_reference, assert_as_reference, call, scan


@pytest.mark.parametrize("name", ["hdl64", "kitti", "nuscenes"])
@pytest.mark.parametrize("orientation", ["grid", "image"])
def test_real_scans(device, name, orientation):
    points = scan(name)
    bounds = [-50.0, -50.0, -3.0, 50.0, 50.0, 2.0]
    _, _, counts = assert_all_as_reference(
        device, points, bounds, [512, 512], orientation=orientation
    )
    assert counts[0, 1:].sum() == len(points) and counts[0, 1] > 0.8 * len(points)


def test_codes_of_a_real_scan(device):
    points, bounds = scan(), [-50.0, -50.0, -3.0, 50.0, 50.0, 2.0]
    for dtype in (torch.uint8, torch.uint16):
        codes, _ = assert_as_reference(
            device, "bev_max_height", points, bounds, [1024, 1024], out_dtype=dtype
        )
        assert codes.int().max() > 200
    assert call(device, "bev_max_height", points, bounds, [1024, 1024])[0].max() < 2
