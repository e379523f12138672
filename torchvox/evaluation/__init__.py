# SPDX-License-Identifier: Apache-2.0
"""How good detections are: the measures of KITTI, of nuScenes, and one that needs no camera."""

from torchvox.evaluation import kitti, lidar, nuscenes

__all__ = ["kitti", "lidar", "nuscenes"]
