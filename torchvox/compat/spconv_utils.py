# SPDX-License-Identifier: Apache-2.0
"""Replaces the voxel generators of spconv: `spconv.utils` and `spconv.pytorch.utils` of 2.3.8, and
those of version 1.

Voxels are ordered by their first point, on every device. The host reads the number of voxels.
"""

import numpy as np
import torch

import torchvox
from torchvox.compat._errors import refuse, stubs
from torchvox.compat._shared import check_index, floats

__all__ = [
    "Point2VoxelCPU3d", "Point2VoxelGPU3d", "PointToVoxel", "VoxelGenerator", "VoxelGeneratorV2",
    "gather_features_by_pc_voxel_id",
]  # fmt: skip
NOT_COVERED = """
Point2VoxelCPU1d Point2VoxelCPU2d Point2VoxelCPU4d Point2VoxelGPU1d Point2VoxelGPU2d
Point2VoxelGPU4d non_max_suppression_cpu rbbox_intersection rbbox_iou rbbox_iou_loss
rotate_non_max_suppression_cpu
"""
PARTLY = {
    "PointToVoxel": "vsize_xyz of other than three axes",
    "VoxelGeneratorV2": "block_filtering=True",
}
DIFFERS = {
    "Point2VoxelCPU3d": "Empty slots take the mean of only their voxel; they are always cleared.",
    "Point2VoxelGPU3d": "Voxels are ordered by their first point; results are arrays on the host.",
    "PointToVoxel": "Ordered by their first point on the GPU too; slots are always cleared.",
    "VoxelGenerator": "Empty slots take the mean of only their voxel.",
}
__getattr__ = stubs("spconv.utils", NOT_COVERED)


def _voxels(points, size, bounds, most, most_points, mean):
    """Voxels, z y x, their numbers of points, and the voxel of each point. mean: fills empty slots
    with the mean of their voxel."""
    result = torchvox.voxelize(
        points, floats(size), floats(bounds), most_points, most, out_dtype=torch.float32, trim=True
    )
    voxels, counts = result.features, result.num_points
    if mean:
        slots = torch.arange(most_points, device=counts.device)
        means = voxels.sum(1, keepdim=True) / counts[:, None, None]
        voxels = torch.where((slots < counts[:, None])[..., None], voxels, means)
    return voxels, result.indices[:, 1:].contiguous(), counts, result.point_voxel.long()


class PointToVoxel:
    """Voxels float32 [M, P, C], indices int32 [M, 3] z y x, numbers of points int32 [M]."""

    def __init__(
        self, vsize_xyz, coors_range_xyz, num_point_features, max_num_voxels,
        max_num_points_per_voxel, device=torch.device("cpu:0"),  # noqa: B008
    ):  # fmt: skip
        if len(vsize_xyz) != 3:
            refuse(f"PointToVoxel: vsize_xyz of {len(vsize_xyz)} axes")
        self.ndim, self.device = 3, torch.device(device)
        self.grid_size = list(torchvox.grid_size(floats(vsize_xyz), floats(coors_range_xyz)))[::-1]
        self._plan = (vsize_xyz, coors_range_xyz, max_num_voxels, max_num_points_per_voxel)

    def __call__(self, pc, clear_voxels=True, empty_mean=False):
        return self.generate_voxel_with_id(pc, clear_voxels, empty_mean)[:3]

    @torch.no_grad()
    def generate_voxel_with_id(self, pc, clear_voxels=True, empty_mean=False):
        """The same and the voxel of each point, int64, -1 outside and past the limit."""
        assert pc.device.type == self.device.type, "your pc device is wrong"
        return _voxels(pc, *self._plan, empty_mean)


def gather_features_by_pc_voxel_id(seg_res_features, pc_voxel_id, invalid_value=0):
    """The features of each point's voxel, invalid_value where there is none."""
    check_index("gather_features_by_pc_voxel_id", pc_voxel_id, -1, len(seg_res_features))
    none = seg_res_features.new_full((1, *seg_res_features.shape[1:]), invalid_value)
    return torch.cat([seg_res_features, none])[pc_voxel_id.to(none.device)]  # -1: the last


class _Array(np.ndarray):
    """An array with the methods of cumm's tensors on the host."""

    def numpy(self):
        return np.array(self)

    def numpy_view(self):
        return self.view(np.ndarray)

    def cpu(self):
        return self


class Point2VoxelCPU3d:
    """`PointToVoxel` for arrays, of NumPy or cumm."""

    _device = "cpu"

    def __init__(
        self, vsize_xyz, coors_range_xyz, num_point_features, max_num_voxels,
        max_num_points_per_voxel,
    ):  # fmt: skip
        sizes = (num_point_features, max_num_voxels, max_num_points_per_voxel)
        self._generator = PointToVoxel(vsize_xyz, coors_range_xyz, *sizes, self._device)
        self.grid_size = self._generator.grid_size

    def _voxels(self, points, mean):
        array = points if isinstance(points, np.ndarray) else points.cpu().numpy()
        voxels = self._generator(torch.as_tensor(array, device=self._device), empty_mean=mean)
        return tuple(one.cpu().numpy().view(_Array) for one in voxels)

    def point_to_voxel(self, points, clear_voxels=True):
        return self._voxels(points, False)

    def point_to_voxel_empty_mean(self, points, clear_voxels=True):
        return self._voxels(points, True)


class Point2VoxelGPU3d(Point2VoxelCPU3d):
    """`Point2VoxelCPU3d` computed on the GPU."""

    _device = "cuda"
    point_to_voxel_hash = Point2VoxelCPU3d.point_to_voxel


class VoxelGenerator:
    """The generator of version 1: arrays in and out."""

    def __init__(
        self, voxel_size, point_cloud_range, max_num_points, max_voxels=20000, full_mean=True
    ):
        self.voxel_size = np.array(voxel_size, dtype=np.float32)
        self.point_cloud_range = np.array(point_cloud_range, dtype=np.float32)
        self.max_num_points_per_voxel = max_num_points
        self._max_voxels, self._mean = max_voxels, full_mean
        grid = floats(self.voxel_size), floats(self.point_cloud_range)
        self.grid_size = np.array(torchvox.grid_size(*grid))

    def generate(self, points, max_voxels=None):
        """(voxels, z y x, numbers of points)."""
        grid = (self.voxel_size, self.point_cloud_range)
        limits = (max_voxels or self._max_voxels, self.max_num_points_per_voxel)
        cloud = torch.from_numpy(np.ascontiguousarray(points))
        return tuple(one.numpy() for one in _voxels(cloud, *grid, *limits, self._mean)[:3])


class VoxelGeneratorV2(VoxelGenerator):
    """`VoxelGenerator` whose results are a dictionary."""

    def __init__(
        self, voxel_size, point_cloud_range, max_num_points, max_voxels=20000, full_mean=False,
        block_filtering=False, block_factor=8, block_size=3, height_threshold=0.1,
        height_high_threshold=2.0,
    ):  # fmt: skip
        assert full_mean is False, "don't use this."
        if block_filtering:
            refuse("VoxelGeneratorV2: block_filtering=True")
        super().__init__(voxel_size, point_cloud_range, max_num_points, max_voxels, False)

    def generate(self, points, max_voxels=None):
        """The results with voxel_point_mask [M, P, 1], 1 where a slot has a point."""
        voxels, coordinates, counts = super().generate(points, max_voxels)
        mask = np.arange(self.max_num_points_per_voxel) < counts[:, None]
        return {
            "voxels": voxels,
            "coordinates": coordinates,
            "num_points_per_voxel": counts,
            "voxel_point_mask": mask[..., None].astype(voxels.dtype),
            "voxel_num": len(voxels),
        }
