# SPDX-License-Identifier: Apache-2.0
"""Labels of sweeps, by geometry: what stands, what moves, what a camera sees."""

import numpy as np
import pytest
import torch
from helpers import assert_same_bits, real_scan

import torchvox
from torchvox.data import Camera, generate_drive, occupancy_labels, write_labels

FREE, UNKNOWN = 17, 255
VOXEL, RANGE = [0.5, 0.5, 0.5], [0.0, -8.0, -2.0, 16.0, 8.0, 2.0]  # 32 x 32 x 8 cells
STILL = torch.eye(4, dtype=torch.float64)[:3]
LENS = torch.tensor([[200.0, 0, 199.5], [0, 200, 149.5], [0, 0, 1]])
FORWARD = torch.tensor([[0, 0, 1.0, 0.25], [-1, 0, 0, 0.25], [0, -1, 0, 0.25]]).double()


def wall(x: float, y: tuple[float, float], z: tuple[float, float], step: float = 0.1):
    """Points of a plate across the x axis."""
    ys, zs = torch.arange(*y, step) + step / 2, torch.arange(*z, step) + step / 2
    ys, zs = torch.meshgrid(ys, zs, indexing="ij")
    return torch.stack([torch.full_like(ys, x), ys, zs], -1).view(-1, 3)


def planar(x: float, y: float, heading: float) -> torch.Tensor:
    c, s = np.cos(heading), np.sin(heading)
    return torch.tensor([[c, -s, 0, x], [s, c, 0, y], [0, 0, 1, 0]], dtype=torch.float64)


def cells(box: list[float]) -> tuple[slice, slice, slice]:
    """z, y, x of the cells of a box of the grid."""
    at = [round((v - RANGE[i % 3]) / VOXEL[i % 3]) for i, v in enumerate(box)]
    return tuple(slice(at[i], at[i + 3]) for i in (2, 1, 0))


def test_a_wall_is_occupied_the_way_to_it_free_and_the_rest_unknown(device, tmp_path):
    sweep = wall(10.25, (-8, 8), (-2, 2)).to(device)
    labels = occupancy_labels([sweep], STILL[None], 0, VOXEL, RANGE)
    semantics = labels.semantics.cpu()
    assert (semantics[cells([10, -8, -2, 10.5, 8, 2])] == 0).all()
    assert (semantics[cells([10.5, -8, -2, 16, 8, 2])] == UNKNOWN).all()
    assert (semantics[cells([2, -1, -0.5, 10, 1, 0.5])] == FREE).all()
    assert torch.equal(labels.mask_lidar.cpu(), semantics != UNKNOWN)
    assert labels.mask_camera is None
    write_labels(tmp_path / "labels.npz", labels)
    with np.load(tmp_path / "labels.npz") as file:  # Occ3D's layout: x, y, z
        assert sorted(file.files) == ["mask_lidar", "semantics"]
        assert file["mask_lidar"].dtype == file["semantics"].dtype == np.uint8
        np.testing.assert_array_equal(file["semantics"], semantics.numpy().T)
        np.testing.assert_array_equal(file["mask_lidar"], file["semantics"] != UNKNOWN)


def test_a_moved_box_leaves_no_trail_and_no_hole(device):
    """A plate comes nearer and turns while the sensor turns and moves before a wall."""
    sweeps, poses, boxes = [], [], []
    face, behind = wall(-0.45, (-1.4, 1.4), (-0.9, 0.9)), wall(14.25, (-7, 7), (-2, 2))
    for i, heading in enumerate((0.0, 0.2, -0.1)):
        boxes.append([[12.0 - 3 * i, 1.0 - i, 0, 1, 3, 2, 0.4 * i]])
        plate = torchvox.transform_points(face, planar(*boxes[i][0][:2], 0.4 * i)[None])
        poses.append(planar(0.3 * i, 0.1 * i, heading))
        seen = torch.cat([plate, behind.double()])
        sweeps.append(((seen - poses[i][:, 3]) @ poses[i][:, :3]).float().to(device))
    boxes = torch.tensor(boxes, dtype=torch.float64)
    labels = occupancy_labels(sweeps, torch.stack(poses), 0, VOXEL, RANGE, boxes=boxes)
    alone = occupancy_labels(sweeps[:1], torch.stack(poses[:1]), 0, VOXEL, RANGE)
    occupied = labels.semantics == 0
    # Every sweep's plate lies on that of the keyframe.
    assert torch.equal(occupied, alone.semantics == 0)
    trail = occupancy_labels(sweeps, torch.stack(poses), 0, VOXEL, RANGE)
    assert ((trail.semantics == 0) & ~occupied).sum() > 20


@pytest.mark.gpu
def test_the_gpu_gives_the_labels_of_the_cpu():
    sweeps, poses, boxes = zip(*generate_drive(1, 4, azimuths=500, step=0.8), strict=True)
    grid = [0.4, 0.4, 0.4], [-20.0, -20.0, -1.4, 28.0, 20.0, 2.2]
    poses, boxes = torch.stack(poses), torch.stack(boxes)
    classes = [(sweep[:, 3] * 40).long() for sweep in sweeps]
    forward = torch.cat([FORWARD, torch.eye(4, dtype=torch.float64)[3:]])
    cameras = [Camera(LENS, poses[2] @ forward, (400, 300))]
    cpu = occupancy_labels(sweeps, poses, 2, *grid, classes, boxes, cameras)
    moved = [[tensor.cuda() for tensor in given] for given in (sweeps, classes)]
    gpu = occupancy_labels(moved[0], poses.cuda(), 2, *grid, moved[1], boxes.cuda(), cameras)
    assert len(cpu.semantics.unique()) > 6 and cpu.mask_camera.any()
    assert all(t.is_cuda for t in gpu)
    assert_same_bits(tuple(t.cpu() for t in gpu), tuple(cpu))


def test_an_object_that_the_keyframe_lacks_is_left_out():
    boxes = torch.tensor([[[torch.nan] * 7], [[6, 0, 0, 1.0, 3, 3, 0]]])
    sweeps = [wall(12.25, (-4, 4), (-1, 1)), wall(6.25, (-1, 1), (-1, 1))]
    labels = occupancy_labels(sweeps, STILL.expand(2, 3, 4), 0, VOXEL, RANGE, boxes=boxes)
    alone = occupancy_labels(sweeps[:1], STILL[None], 0, VOXEL, RANGE)
    assert torch.equal(labels.semantics, alone.semantics)


def test_a_cell_has_the_class_of_most_of_its_points_and_ties_go_to_the_lowest(device):
    at = [[4.25, 0.25, 0.25]] * 5 + [[4.25, 2.25, 0.25]] * 4 + [[4.25, 4.25, 0.25]] * 3
    given = [9, 3, 9, 9, 3, 8, 2, 8, 2, 255, 17, -1]
    first = torch.tensor([*at, [20.0, 0, 0]]), torch.tensor([*given, 5])
    second = torch.tensor([[4.25, 2.25, 0.25]] * 2), torch.tensor([255, 7])
    sweeps, classes = ([t.to(device) for t in pair] for pair in zip(first, second, strict=True))
    poses = STILL.expand(2, 3, 4)
    labels = occupancy_labels(sweeps, poses, 0, VOXEL, RANGE, classes, other=16)
    found = [int(labels.semantics[4, y, 8]) for y in (16, 20, 24)]
    assert found == [9, 2, 16]
    classes[1][0] = 8
    labels = occupancy_labels(sweeps, poses, 0, VOXEL, RANGE, classes, other=16)
    assert int(labels.semantics[4, 20, 8]) == 8
    assert set(labels.semantics.unique().tolist()) == {8, 9, 16, FREE, UNKNOWN}


def test_a_camera_sees_through_a_window_and_not_through_the_wall(device):
    """The wall at x = 8 has a window of y, z from -1 to 1; behind it another wall at x = 14."""
    near = wall(8.25, (-8, 8), (-2, 2))
    near = near[(near[:, 1:].abs() > 1).any(1)]
    sweep = torch.cat([near, wall(14.25, (-8, 8), (-2, 2))]).to(device)
    cameras = [Camera(LENS, FORWARD, (400, 300))]
    labels = occupancy_labels([sweep], STILL[None], 0, VOXEL, RANGE, cameras=cameras)
    seen = labels.mask_camera.cpu()
    assert seen[cells([8, -6, -2, 8.5, 6, 2])].all()  # the wall, window included
    assert seen[cells([2, -1, -1, 8, 1, 1])].all()
    # Rays through the window reach |y - 0.25| < 1.25 * (x - 0.25) / 8 or so, and no further.
    assert seen[cells([14, -0.5, -0.5, 14.5, 1, 1])].all()
    assert not seen[cells([14, 3.5, -2, 14.5, 8, 2])].any()
    assert not seen[cells([9, 2.5, -2, 14, 8, 2])].any()
    assert not seen[cells([14.5, -8, -2, 16, 8, 2])].any()
    assert not seen[cells([0, 4, -2, 2, 8, 2])].any()  # outside the picture
    # A camera alone may know free space that no lidar ray went through, and the reverse.
    assert (labels.mask_lidar.cpu() & ~seen).any() and (seen & ~labels.mask_lidar.cpu()).any()
    turned = Camera(LENS, FORWARD * torch.tensor([-1.0, 1, -1, 1]), (400, 300))
    behind = occupancy_labels([sweep], STILL[None], 0, VOXEL, RANGE, cameras=[turned])
    assert behind.mask_camera.sum() <= 2


def test_no_cell_that_voxelize_finds_is_lost():
    sweep = real_scan("lidar/nuscenes_sweep.pcd.bin", 5)
    grid = [0.4, 0.4, 0.4], [-40.0, -40.0, -1.0, 40.0, 40.0, 5.4]
    pose = torch.tensor([[0.6, -0.8, 0, 1e5], [0.8, 0.6, 0, 4e6], [0, 0, 1, 30]]).double()
    labels = occupancy_labels([sweep], pose[None], 0, *grid)
    voxels = torchvox.voxelize(sweep[:, :4], *grid, 1, -1, trim=True).indices.long()
    occupied = torch.zeros(16, 200, 200, dtype=torch.bool)
    occupied[tuple(voxels[:, 1:].T)] = True
    assert torch.equal(labels.semantics == 0, occupied)
    assert (labels.semantics == FREE).sum() > 5 * len(voxels)


@pytest.mark.parametrize("points", [torch.zeros(0, 4), torch.full((3, 4), torch.nan)])
def test_nothing_is_known_without_points(points, device):
    camera = Camera(LENS, FORWARD, (4, 0))
    given = [points.to(device)] * 2, STILL.expand(2, 3, 4), 1, VOXEL, RANGE
    classes = [torch.zeros(len(points), dtype=torch.long)] * 2
    labels = occupancy_labels(*given, classes, torch.ones(2, 1, 7), [camera])
    assert (labels.semantics == UNKNOWN).all() and not labels.mask_lidar.any()
    assert not labels.mask_camera.any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sweeps": []}, "keyframe must name one of 0 sweeps, got 0"),
        ({"poses": STILL}, r"poses must be \[1, 3, 4\], got \[3, 4\]"),
        ({"keyframe": 1}, "keyframe must name one of 1 sweeps, got 1"),
        ({"boxes": torch.zeros(2, 3, 7)}, r"boxes must be \[1, K, 7\], got \[2, 3, 7\]"),
        ({"boxes": torch.zeros(7)}, r"boxes must be \[1, K, 7\], got \[7\]"),
        ({"classes": [torch.zeros(2)]}, r"classes must have shapes \[\[3\]\], got \[\[2\]\]"),
        ({"cameras": [Camera(LENS, torch.eye(4), (4, 3))]}, r"pose must be \[3, 4\], got \[4, 4\]"),
        ({"unknown": -1}, r"labels must be 0 to 255, got \(17, -1, 0\)"),
    ],
)
def test_what_does_not_fit_is_named(change, words):
    arguments = {"sweeps": [torch.zeros(3, 4)], "poses": STILL[None], "keyframe": 0, **change}
    with pytest.raises(ValueError, match=f"occupancy_labels: .*{words}"):
        occupancy_labels(**arguments, voxel_size=VOXEL, point_cloud_range=RANGE)
