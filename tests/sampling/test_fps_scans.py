# SPDX-License-Identifier: Apache-2.0
"""Furthest point sampling of real scans, whose coordinates are quantized and full of ties."""

import numpy as np
import pytest
import torch
from fps_cases import assert_as_reference, assert_ragged_as_reference
from helpers import real_scan

SCANS = {
    "kitti": ("lidar/kitti_000008.bin", 4),
    "hdl64": ("lidar/hdl64_360.bin", 4),
    "nuscenes": ("lidar/nuscenes_sweep.pcd.bin", 5),
    "scannet": ("indoor/scannet_scene0000_00.bin", 6),
}


def scan(name):
    file, columns = SCANS[name]
    return real_scan(file, columns)[:, :3].contiguous()


@pytest.mark.parametrize("tie", ["lowest", "mmcv"])
@pytest.mark.parametrize("name", SCANS)
def test_whole_scans(device, name, tie):
    points = scan(name)[None]
    exhausted = "repeat" if tie == "mmcv" else "distinct"
    idx, dist2 = assert_as_reference(device, points, 96, tie=tie, exhausted=exhausted)
    assert len(set(idx[0].tolist())) == 96 and (dist2[0, 1:] <= dist2[0, :-1]).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", SCANS)
def test_two_thousand_samples(device, name):
    assert_as_reference(device, scan(name)[None], 2048)


def test_scans_of_different_sizes_in_one_call(device):
    clouds = [scan(name)[:9000] for name in SCANS]
    batch_offsets = torch.tensor(np.cumsum([0, *map(len, clouds)]))
    out_offsets = torch.tensor([0, 40, 60, 100, 101])
    assert_ragged_as_reference(device, torch.cat(clouds), batch_offsets, out_offsets, 101)
