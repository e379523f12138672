# SPDX-License-Identifier: Apache-2.0
"""Pack clouds of different sizes into a batch for the voxel ops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchvox.io.cloud import PointCloud


def collate_points(
    clouds: Sequence[Tensor | np.ndarray | PointCloud],
) -> tuple[Tensor, Tensor]:
    """Concatenated clouds and the offsets where each begins; a `collate_fn` for torch's DataLoader.

    clouds: B tensors or arrays [N_i, C] of one dtype, device and C, or clouds of `read_cloud`, each
        about its own origin; any N_i may be 0.
    Returns points [sum N_i, C] and batch_offsets [B + 1] int64 on the same device, cloud b being
    points[batch_offsets[b] : batch_offsets[b + 1]].
    Raises ValueError (no cloud, shape) and TypeError (dtype, not a tensor). Differentiable.
    """
    tensors = [_tensor_of(cloud) for cloud in clouds]
    _check(tensors)
    sizes = torch.tensor([0, *(len(tensor) for tensor in tensors)], dtype=torch.int64)
    batch_offsets = sizes.cumsum(0).to(tensors[0].device)
    return torch.cat(tensors), batch_offsets


def _tensor_of(cloud: Tensor | np.ndarray | PointCloud) -> Tensor:
    if isinstance(cloud, PointCloud):
        return cloud.tensor()
    return torch.from_numpy(cloud) if isinstance(cloud, np.ndarray) else cloud


def _check(clouds: Sequence[Tensor]) -> None:
    if len(clouds) == 0:
        raise ValueError("collate_points: clouds must hold at least one cloud, got none")
    first = clouds[0]
    for i, cloud in enumerate(clouds):
        if not isinstance(cloud, Tensor):
            raise TypeError(
                f"collate_points: clouds[{i}] must be a tensor, got {type(cloud).__name__}"
            )
        width = first.shape[1] if first.dim() == 2 else "C"
        if cloud.dim() != 2 or cloud.shape[1] != width:
            raise ValueError(
                f"collate_points: clouds[{i}] must be [N, {width}], got {list(cloud.shape)}"
            )
        if cloud.dtype != first.dtype or cloud.device != first.device:
            raise TypeError(
                f"collate_points: clouds[{i}] must be {first.dtype} on {first.device}, "
                f"got {cloud.dtype} on {cloud.device}"
            )
