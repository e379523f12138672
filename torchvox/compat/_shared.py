# SPDX-License-Identifier: Apache-2.0
"""What the adapters of the PointNet++ family share."""

from typing import Any, Callable, Optional

import torch
from torch import Tensor, nn

import torchvox

# fmt: off
PUBLIC = [
    "BallQuery", "GatherOperation", "GroupAll", "GroupingOperation", "QueryAndGroup",
    "ThreeInterpolate", "ThreeNN", "ball_query", "gather_operation", "grouping_operation",
    "three_interpolate", "three_nn",
]
# fmt: on


def offsets_of(counts: Tensor) -> Tensor:
    """[B + 1] from the rows of each cloud."""
    return nn.functional.pad(counts.cumsum(0), (1, 0))


def write(function: str, out: Tensor, value: Tensor, where: Optional[Tensor] = None) -> int:
    """Into a tensor of the caller's, whose strides and dtype stay; `where` alone, if given. 1, as
    the compiled functions return."""
    if out.shape != value.shape:
        raise ValueError(
            f"{function}: the output must be {list(value.shape)}, got {list(out.shape)}"
        )
    with torch.no_grad():
        value = value.to(out.dtype)
        out.copy_(value if where is None else torch.where(where, value, out))
    return 1


def add(function: str, out: Tensor, value: Tensor) -> int:
    """A gradient, which the compiled functions add to what the caller has."""
    return write(function, out, value + out.detach() if out.shape == value.shape else value)


def function_class(name: str, apply: Callable[..., Any]) -> type:
    """In place of an autograd function of the peer, for its `apply`."""
    return type(name, (), {"apply": staticmethod(apply), "__doc__": apply.__doc__})


def gather_operation(features: Tensor, idx: Tensor) -> Tensor:
    """[B, C, N] by [B, M]: [B, C, M]."""
    return torchvox.gather_points(features, idx, channels_first=True)


def grouping_operation(features: Tensor, idx: Tensor) -> Tensor:
    """[B, C, N] by [B, M, k]: [B, C, M, k]."""
    return torchvox.group_points(features, idx, channels_first=True)


def ball_query(radius: float, nsample: int, xyz: Tensor, new_xyz: Tensor) -> Tensor:
    """[B, M, nsample] int32."""
    return torchvox.ball_query(xyz, new_xyz, radius, nsample, convention="pointnet2").idx


def three_nn(unknown: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Distances, which have no gradient, and int32 indices; inf and 0 where there is no point."""
    dist2, idx = torchvox.three_nn(unknown.detach(), known.detach(), convention="pointnet2")
    return dist2.sqrt(), idx.clamp(min=0)


def three_interpolate(features: Tensor, idx: Tensor, weight: Tensor) -> Tensor:
    """[B, C, M] by [B, N, 3]: [B, C, N]; weight has no gradient."""
    return torchvox.three_interpolate(features, idx, weight.detach(), channels_first=True)


BallQuery = function_class("BallQuery", ball_query)
GatherOperation = function_class("GatherOperation", gather_operation)
GroupingOperation = function_class("GroupingOperation", grouping_operation)
ThreeInterpolate = function_class("ThreeInterpolate", three_interpolate)
ThreeNN = function_class("ThreeNN", three_nn)


class QueryAndGroup(nn.Module):
    """Balls of xyz less their center, beside features: [B, 3 + C, M, nsample]."""

    def __init__(self, radius: float, nsample: int, use_xyz: bool = True) -> None:
        super().__init__()
        self.radius, self.nsample, self.use_xyz = radius, nsample, use_xyz

    def forward(self, xyz: Tensor, new_xyz: Tensor, features: Optional[Tensor] = None) -> Tensor:
        assert features is not None or self.use_xyz, "features or use_xyz must be given"
        grouped = torchvox.query_and_group(
            xyz,
            new_xyz,
            None if features is None else features.transpose(1, 2),
            [self.radius],
            [self.nsample],
            use_xyz=self.use_xyz,
            convention="pointnet2",
        ).grouped
        return grouped.permute(0, 3, 1, 2).contiguous()


class GroupAll(nn.Module):
    """All points as one group: [B, 3 + C, 1, N]; new_xyz is not read."""

    def __init__(self, use_xyz: bool = True) -> None:
        super().__init__()
        self.use_xyz = use_xyz

    def forward(
        self, xyz: Tensor, new_xyz: Optional[Tensor], features: Optional[Tensor] = None
    ) -> Tensor:
        columns = [xyz.transpose(1, 2)] if self.use_xyz or features is None else []
        return torch.cat(columns + ([] if features is None else [features]), 1).unsqueeze(2)
