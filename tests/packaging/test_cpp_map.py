# SPDX-License-Identifier: Apache-2.0
"""A map that C++ makes without Python is that of the class."""

import re
import subprocess

import numpy as np
import pytest
import shipping
import torch
from shipping import call, clean_env, saved_points

from torchvox import OccupancyMap, transform_points
from torchvox.data import generate_drive


@pytest.fixture(scope="session")
def runner(tmp_path_factory):
    return shipping.runner(tmp_path_factory, "map_runner")


@pytest.mark.slow
def test_the_map_is_that_of_the_class(runner, tmp_path, device):
    drive = generate_drive(scans=3, azimuths=90)
    scans = [torch.zeros(0, 4), *[scan.points[:, :4].contiguous() for scan in drive]]
    poses = torch.stack([drive[0].pose, *[scan.pose for scan in drive]]).double()
    np.savetxt(tmp_path / "poses.txt", poses.reshape(4, 12), fmt="%.17g")
    made, told = OccupancyMap(0.1), []
    for points, pose in zip(scans, poses, strict=True):
        moved = (made.query(transform_points(points, pose[None])).label == 0).sum()
        counts = made.integrate(points, pose=pose)[0]
        told.append([int(n) for n in (counts[0], counts[6], counts[10], moved)])
    paths = saved_points(tmp_path, scans)
    command = [runner, device, "0.1", "4", tmp_path / "poses.txt", tmp_path / "map.pt", *paths]
    said = call(*command, env=clean_env()).stdout
    line = r"(\d+) rays, (\d+) visits, (\d+) regions, (\d+) points"
    assert [[*map(int, row)] for row in re.findall(line, said)] == told
    assert told[-1][2] > 4096 and told[-1][3] > 0  # it grew
    keys, logodds = torch.load(tmp_path / "map.pt", weights_only=True)
    regions = made.read()
    assert torch.equal(keys, regions.keys) and torch.equal(logodds, regions.logodds)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["1 0 0 0 0 1 0 0 0 0 1", "1 0 0 0 0 1 0 x 0 0 1 0", None])
def test_other_numbers_of_poses_are_refused(runner, tmp_path, text):
    if text is not None:
        (tmp_path / "poses.txt").write_text(text)
    (tmp_path / "scan.bin").write_bytes(bytes(32))
    command = [runner, "cpu", "0.1", "4", tmp_path / "poses.txt", tmp_path / "map.pt"]
    command.append(tmp_path / "scan.bin")
    done = subprocess.run(command, env=clean_env(), capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "12 numbers for each of 1 scans" in done.stderr
    assert not (tmp_path / "map.pt").exists()
