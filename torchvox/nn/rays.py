# SPDX-License-Identifier: Apache-2.0
"""What rays see, as inputs of networks."""

from typing import List, Optional

import torch
from torch import Tensor, nn

from torchvox.ops.annotations import Sequence
from torchvox.ops.rays import Visibility


class RayVisibility(nn.Module):
    """`torchvox.ray_visibility` with its grid fixed; scriptable.

    forward takes the tensors of that function and returns its `Visibility`. Rows and columns of the
    volume [B, nz, ny, nx] are those of a canvas of `pillar_scatter` or `bev_rasterize` (orientation
    "grid") over the same range and cells; `torchvox.visibility_channels` reduces its heights.
    """

    def __init__(self, voxel_size: Sequence[float], point_cloud_range: Sequence[float]) -> None:
        super().__init__()
        self.voxel_size = [float(v) for v in voxel_size]
        self.point_cloud_range = [float(v) for v in point_cloud_range]
        torch.ops.torchvox.grid_size(self.voxel_size, self.point_cloud_range)  # checks both

    def forward(
        self,
        points: Tensor,
        origins: Tensor,
        origin_index: Optional[Tensor] = None,
        batch_offsets: Optional[Tensor] = None,
        num_valid: Optional[Tensor] = None,
        ray_flags: Optional[Tensor] = None,
        blockers: Optional[Tensor] = None,
    ) -> Visibility:
        visibility, reached, counts = torch.ops.torchvox.ray_visibility(
            points,
            origins,
            self.voxel_size,
            self.point_cloud_range,
            origin_index=origin_index,
            batch_offsets=batch_offsets,
            num_valid=num_valid,
            ray_flags=ray_flags,
            blockers=blockers,
        )
        return Visibility(visibility, reached, counts)

    def extra_repr(self) -> str:
        return f"voxel_size={self.voxel_size}, range={self.point_cloud_range}"


def channel_count(channels: Sequence[str], cells: int) -> int:
    """Planes that `visibility_channels` makes of a volume of `cells` cells along z."""
    count = 0
    for name in channels:
        planes = 1 if name in ("free", "occupied", "unknown", "free_top", "occupied_top") else 0
        if name.startswith("slices:") and name[7:].isdigit():
            planes = int(name[7:])
        if planes < 1 or planes > cells:
            raise ValueError(
                "visibility_channels: channels must be of free, occupied, unknown, free_top, "
                f"occupied_top and slices:K with K from 1 to {cells}, got {name}"
            )
        count += planes
    return count


def visibility_channels(
    volume: Tensor,
    channels: Sequence[str],
    voxel_size: Optional[Sequence[float]] = None,
    point_cloud_range: Optional[Sequence[float]] = None,
) -> Tensor:
    """Planes of a bird's-eye view from what is known of the cells above each place.

    volume: [B, nz, ny, nx] integers: 0 unknown, 1 free, 2 occupied, as of `ray_visibility`, or
        the labels of `occupancy_crop` + 1.
    channels: of "free", "occupied", "unknown" (shares of the nz cells), "free_top", "occupied_top"
        (z in meters of the upper face of the highest such cell; z0 of the range without one), and
        "slices:K" (K planes from below: the mean of K slices, free -1, unknown 0, occupied 1; slice
        k begins at cell floor(k * nz / K)).
    voxel_size, point_cloud_range: of the volume, for the tops alone.

    Returns [B, planes, ny, nx] float32, planes in the order of `channels`, to be concatenated with
    a canvas. Scriptable; no host synchronization; CPU and CUDA give the same bits. Raises
    ValueError (channels, shape, a missing grid).
    """
    me = "visibility_channels:"
    if volume.dim() != 4:
        raise ValueError(f"{me} volume must be [B, nz, ny, nx], got {list(volume.shape)}")
    cells = volume.size(1)
    channel_count(channels, cells)
    codes = {"unknown": 0, "free": 1, "occupied": 2}
    planes: List[Tensor] = []
    for name in channels:
        # Sums are whole numbers; one product in float64 is the same everywhere.
        if name.startswith("slices:"):
            count, signs = int(name[7:]), (volume == 2).char() - (volume == 1).char()
            for k in range(count):
                part = signs[:, k * cells // count : (k + 1) * cells // count]
                planes.append(part.sum(1, dtype=torch.int32).double() * (1.0 / part.size(1)))
        elif name.endswith("_top"):
            if voxel_size is None or point_cloud_range is None:
                raise ValueError(f"{me} {name} needs voxel_size and point_cloud_range")
            height = torch.arange(1, cells + 1, dtype=torch.int16, device=volume.device)
            here = (volume == codes[name[:-4]]).short() * height[:, None, None]
            planes.append(here.amax(1).double() * voxel_size[2] + point_cloud_range[2])
        else:
            total = (volume == codes[name]).sum(1, dtype=torch.int32)
            planes.append(total.double() * (1.0 / cells))
    return torch.stack(planes, 1).float()
