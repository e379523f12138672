# SPDX-License-Identifier: Apache-2.0
"""Public names of the reader of nuScenes."""

from torchvox.data.readers.nuscenes import NuScenes

__all__ = ["NuScenes"]
