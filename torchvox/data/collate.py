# SPDX-License-Identifier: Apache-2.0
"""Pack clouds of different sizes into a batch for the voxel ops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchvox._util.errors import expect
from torchvox.io.cloud import PointCloud


def collate_points(clouds: Sequence[Tensor | np.ndarray | PointCloud]) -> tuple[Tensor, Tensor]:
    """Concatenated clouds and the offsets where each begins; a `collate_fn` for torch's DataLoader.

    clouds: B tensors or arrays [N_i, C] of one dtype, device and C, or clouds of `read_cloud`, each
        about its own origin; any N_i may be 0.
    Returns points [sum N_i, C] and batch_offsets [B + 1] int64 on the same device, cloud b being
    points[batch_offsets[b] : batch_offsets[b + 1]].
    Raises ValueError (no cloud, shape) and TypeError (dtype, not a tensor). Differentiable.

    >>> points, batch_offsets = torchvox.collate_points([torch.zeros(3, 4), torch.zeros(2, 4)])
    >>> points.shape, batch_offsets
    (torch.Size([5, 4]), tensor([0, 3, 5]))
    """
    tensors = [cloud.tensor() if isinstance(cloud, PointCloud) else cloud for cloud in clouds]
    tensors = [torch.from_numpy(one) if isinstance(one, np.ndarray) else one for one in tensors]
    _check(tensors)
    sizes = torch.tensor([0, *(len(tensor) for tensor in tensors)], dtype=torch.int64)
    batch_offsets = sizes.cumsum(0).to(tensors[0].device)
    return torch.cat(tensors), batch_offsets


def _check(clouds: Sequence[Tensor]) -> None:
    expect(len(clouds) > 0, "collate_points: clouds must hold at least one cloud", 0)
    first = clouds[0]
    for i, cloud in enumerate(clouds):
        rule = f"collate_points: clouds[{i}] must be"
        if not isinstance(cloud, Tensor):
            raise TypeError(f"{rule} a tensor, got {type(cloud).__name__}")
        width = first.shape[1] if first.dim() == 2 else "C"
        shape = list(cloud.shape)
        expect(len(shape) == 2 and shape[1] == width, f"{rule} [N, {width}]", shape)
        own, others = (f"{one.dtype} on {one.device}" for one in (cloud, first))
        if own != others:
            raise TypeError(f"{rule} {others}, got {own}")
