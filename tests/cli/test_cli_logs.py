# SPDX-License-Identifier: Apache-2.0
"""torchvox map, clean and labels on Argoverse 2 logs, Waymo Open segments and E57 files."""

import warnings

import logs
import numpy as np
import pytest
import torch

from torchvox.data import occupancy_labels
from torchvox.data.label_scenes import LabelOptions
from torchvox.io import open_recording
from torchvox.mapping import Evidence, OccupancyMap

pytest.importorskip("pyarrow", reason="the extra arrow is not installed")
pytest.importorskip("pye57", reason="the extra e57 is not installed")


@pytest.mark.parametrize("kind", ["argoverse", "waymo", "e57"])
def test_map_and_clean(torchvox_cli, kind, tmp_path):
    path = logs.build(kind, tmp_path)
    recording, evidence, rays = open_recording(path), Evidence(4.0), []
    expected = OccupancyMap(4.0)
    for number, scan in enumerate(recording.scans()):
        pose, starts = recording.pose(number), np.zeros(3) if scan.origins is None else scan.origins
        both = (scan.table.xyz, np.broadcast_to(starts, scan.table.xyz.shape))
        rays.append([torch.from_numpy(v.astype(float) @ pose[:, :3].T + pose[:, 3]) for v in both])
        evidence.add(*rays[-1])
        expected.integrate(*rays[-1])
    torchvox_cli("map", path, "--voxel", "4", "-o", "map.npz").ok()
    assert OccupancyMap.load(tmp_path / "map.npz").equal(expected)
    odd = torchvox_cli("map", path, "-o", "odd.npz", "--odom", "/odom")
    odd.assert_one_sentence(2, "lists the poses of its scans: remove odom")
    verdict = evidence.verdict()
    call = ("clean", path, "--voxel", "4", "-o", "all.ply", "--removed", "b.ply", "--labels", "c")
    origin = ("--origin", "100,200,0") if kind == "e57" else ()
    torchvox_cli(*call, *origin).ok(f"scans     {len(rays)} of {len(rays)}")
    for number, (points, origins) in enumerate(rays):
        (file,) = (tmp_path / "c").glob(f"*{number:06d}.label.npy")
        reason = verdict.at(points, origins).reason.numpy()
        np.testing.assert_array_equal(np.load(file), reason)
    if kind != "argoverse":
        odd = torchvox_cli(*call[:4], "-o", "odd.laz", *origin)
        assert odd.code == 2 and "in LAS files intensity must be from 0 to 1" in odd.err
        assert not (tmp_path / "odd.laz").exists()


@pytest.mark.parametrize("kind", ["argoverse", "waymo"])
def test_labels(torchvox_cli, kind, tmp_path):
    """Each lidar is a sweep with its own origin; points of tracks are carried along."""
    recording = open_recording(path := logs.build(kind, tmp_path))
    limits, classes, options = [-8.0, -8, -4, 8, 8, 4], [], LabelOptions()
    poses = torch.from_numpy(np.stack([recording.pose(i) for i in range(3)]))
    found = [recording.boxes(i) for i in range(3)]
    boxes, sweeps, starts = torch.full((3, 2, 7), torch.nan, dtype=torch.float64), [], []
    for i, (scan, (own, names, tracks)) in enumerate(zip(recording.scans(), found, strict=True)):
        sweeps.append(torch.tensor(scan.table.xyz))
        starts.append(torch.from_numpy(scan.origins))
        label = torch.full((len(scan.table),), -1)
        for box, name, track in zip(own, names, tracks, strict=True):
            ahead = poses[i, :2, :2] @ torch.tensor([np.cos(box[6]), np.sin(box[6])])
            world = [*(poses[i, :, :3] @ torch.from_numpy(box[:3]) + poses[i, :, 3]), *box[3:6]]
            boxes[i, "ab".index(track)] = torch.tensor([*world, torch.atan2(ahead[1], ahead[0])])
            off = sweeps[i].numpy() - box[:3]
            c, s = np.cos(box[6]), np.sin(box[6])
            inside = np.abs(off @ np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])) < box[3:6] / 2
            label[torch.from_numpy(inside.all(1)) & (label < 0)] = options.number(name)
        classes.append(label)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call = ("labels", path, "--every", "1", "--sweeps", "all", "--voxel", "1")
        torchvox_cli(*call, "--bounds=-8,-8,-4,8,8,4").ok("labelled 3 of 3")
    grid = ([1.0] * 3, limits, classes, boxes)
    for i, file in enumerate(sorted((tmp_path / "gts").glob("*/*/labels.npz"))):
        assert file.parent.name == str(recording.stamps[i])
        expected = occupancy_labels(sweeps, poses, i, *grid, origins=starts).semantics
        with np.load(file) as arrays:
            np.testing.assert_array_equal(arrays["semantics"], expected.permute(2, 1, 0))
        assert {0, 17, 255} <= {*expected.unique().tolist()}
        assert (3 in expected) is (kind == "argoverse" and i != 1)  # a bus
