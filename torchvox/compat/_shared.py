# SPDX-License-Identifier: Apache-2.0
"""Conventions, dtypes, checks and functions that several adapters have in common."""

import inspect
import re
import sys
from collections.abc import Sequence
from typing import Any, Callable, Dict, Optional, Tuple, Union

import numpy as np
import torch
from torch import Tensor, nn

import torchvox
from torchvox.ops.annotations import IouMode, OverlapMetric

Array = Union[np.ndarray, Tensor]
Numbers = Union[Sequence[float], Array]
HALVES = (torch.float16, torch.bfloat16)


def offsets_of(counts: Tensor) -> Tensor:
    """[B + 1] from the rows of each cloud."""
    return nn.functional.pad(counts.cumsum(0), (1, 0))


def packed_clouds(counts: Tensor, query_counts: Tensor) -> Dict[str, Any]:
    """Options of ops for packed clouds, with indices that begin at 0 in each."""
    offsets, query_offsets = offsets_of(counts), offsets_of(query_counts)
    options = {"batch_offsets": offsets, "query_batch_offsets": query_offsets}
    return {**options, "local_index": True}


def group_packed(features: Tensor, cnt: Tensor, idx: Tensor, idx_cnt: Tensor) -> Tensor:
    """[M, C, k] of [N, C] by local [M, k], a transposed view."""
    return torchvox.group_points(features, idx, **packed_clouds(cnt, idx_cnt)).transpose(1, 2)


def offsets_of_ends(ends: Tensor) -> Tensor:
    """[B + 1] offsets from [B] ends, without the leading 0."""
    return nn.functional.pad(ends, (1, 0))


def floats(values: Numbers) -> Sequence[float]:
    """Sizes and ranges given as lists, tuples, arrays or tensors."""
    return values.tolist() if isinstance(values, (np.ndarray, Tensor)) else values


def check_index(what: str, index: Tensor, low: int, size: int) -> None:
    """Raise IndexError for an index outside [low, size), as the peer does on the CPU. On CUDA it
    would need a synchronization."""
    if index.device.type == "cpu" and index.numel() > 0 and not torch.compiler.is_compiling():
        least, most = torch.aminmax(index)
        wrong = int(least if int(least) < low else most)
        if not low <= wrong < size:
            raise IndexError(
                what + ": index must be " + str(low) + " to " + str(size - 1) + " (size "
                + str(size) + "), got " + str(wrong)
            )  # fmt: skip


def widened(tensor: Tensor) -> Tensor:
    """The tensor, half precision as float32."""
    return tensor.float() if tensor.dtype in HALVES else tensor


def rotated_iou(
    boxes_a: Tensor,
    boxes_b: Tensor,
    mode: IouMode = "bev",
    metric: OverlapMetric = "iou",
    paired: bool = False,
) -> Tensor:
    """`torchvox.rotated_iou` of boxes in any precision, in that of boxes_a."""
    a, b = widened(boxes_a), widened(boxes_b)
    return torchvox.rotated_iou(a, b, mode=mode, paired=paired, metric=metric).to(boxes_a.dtype)


def paired_iou(
    boxes_a: Tensor, boxes_b: Tensor, mode: IouMode = "bev", metric: OverlapMetric = "iou"
) -> Tensor:
    """[N, 1] of the pairs of boxes."""
    return rotated_iou(boxes_a, boxes_b, mode, metric, paired=True)[:, None]


def from_bottom(boxes: Tensor) -> Tensor:
    """Boxes with z of the center, from boxes with z of the bottom."""
    centered = boxes.clone()
    centered[..., 2].add_(boxes[..., 5], alpha=0.5)
    return centered


def rows_of(features: Tensor, idx: Tensor) -> Tensor:
    """[M, k, C] of [N, C] by [M, k]; an index out of range gives zeros and has no gradient."""
    return torch.ops.torchvox.group_points(features[None], idx[None])[0]


def scattered(grad: Tensor, idx: Tensor, rows: int) -> Tensor:
    """The gradient of `rows_of`: [N, C] of [M, k, C]."""
    return torch.ops.torchvox._group_points_backward(grad[None], idx[None], rows)[0]


def put(
    what: str, out: Tensor, value: Union[Tensor, Tuple[Tensor, Tensor]], add: bool = False
) -> None:
    """Write a value, or (value, mask), into the caller's tensor, whose strides and dtype stay."""
    new, mask = value if isinstance(value, tuple) else (value, None)
    if out.shape != new.shape:
        raise ValueError(f"{what} must be {list(new.shape)}, got {list(out.shape)}")
    with torch.no_grad():
        new = new.to(out.dtype)
        new = new if mask is None else torch.where(mask, new, out)
        out.copy_(out + new if add else new)


def compiled(declaration: str, function: Callable[..., Any]) -> Callable[..., Optional[int]]:
    """A compiled function of the peer, whose arguments go by position.

    declaration: "name(input, .. -> output, +output, ..) = 1". Outputs are tensors of the caller's,
    + adds to what is there, as gradients do; = 1: what is returned, else None. function: takes
    those arguments that it has a parameter for, and returns a value, or a list, for the outputs, as
    `put` has them.
    """
    match = re.fullmatch(r"(\w+)\((.*) -> (.*)\)( = 1)?", declaration)
    assert match is not None, declaration
    name, outputs, returns = match[1], match[3].split(", "), 1 if match[4] else None
    names = [*match[2].split(", "), *(output.lstrip("+") for output in outputs)]
    parameters = inspect.signature(function).parameters

    def call(*arguments: Any) -> Optional[int]:
        if len(arguments) != len(names):
            raise TypeError(f"{name}({', '.join(names)}) got {len(arguments)}")
        inputs = zip(names, arguments, strict=True)
        with torch.no_grad():
            result = function(**{key: value for key, value in inputs if key in parameters})
        results = result if isinstance(result, list) else [result]
        tensors = arguments[-len(outputs) :]
        for output, tensor, value in zip(outputs, tensors, results, strict=True):
            put(f"{name}: {output.lstrip('+')}", tensor, value, output[0] == "+")
        return returns

    call.__name__ = call.__qualname__ = name
    call.__module__ = sys._getframe(1).f_globals["__name__"]
    call.__doc__ = getattr(function, "func", function).__doc__  # of a partial, that of its function
    by_position = [inspect.Parameter(key, inspect.Parameter.POSITIONAL_ONLY) for key in names]
    call.__signature__ = inspect.Signature(by_position)  # type: ignore[attr-defined]
    return call


def function_class(apply: Callable[..., Any]) -> type:
    """A class with `apply`, in place of an autograd function of the peer."""
    return type(apply.__name__, (), {"apply": staticmethod(apply), "__doc__": apply.__doc__})


def gather_operation(features: Tensor, idx: Tensor) -> Tensor:
    """[B, C, N] by [B, M]: [B, C, M]."""
    return torchvox.gather_points(features, idx, channels_first=True)


def grouping_operation(features: Tensor, idx: Tensor) -> Tensor:
    """[B, C, N] by [B, M, k]: [B, C, M, k]."""
    return torchvox.group_points(features, idx, channels_first=True)


def ball_query(radius: float, nsample: int, xyz: Tensor, new_xyz: Tensor) -> Tensor:
    """[B, M, nsample] int32: first hits by index, padded with the first; 0 in an empty ball."""
    return torchvox.ball_query(xyz, new_xyz, radius, nsample, convention="pointnet2").idx


def three_nn(unknown: Tensor, known: Tensor) -> Tuple[Tensor, Tensor]:
    """Distances without gradient and int32 indices; inf and 0 for missing points."""
    dist2, idx = torchvox.three_nn(unknown.detach(), known.detach(), convention="pointnet2")
    return dist2.sqrt(), idx.clamp(min=0)


def three_interpolate(features: Tensor, idx: Tensor, weight: Tensor) -> Tensor:
    """[B, C, M] by [B, N, 3]: [B, C, N]; weight has no gradient."""
    return torchvox.three_interpolate(features, idx, weight.detach(), channels_first=True)


class QueryAndGroup(nn.Module):
    """[B, 3 + C, M, nsample]: xyz of each ball relative to its center, then features."""

    def __init__(self, radius: float, nsample: int, use_xyz: bool = True) -> None:
        super().__init__()
        self.radius, self.nsample, self.use_xyz = radius, nsample, use_xyz

    def forward(self, xyz: Tensor, new_xyz: Tensor, features: Optional[Tensor] = None) -> Tensor:
        assert features is not None or self.use_xyz, "features or use_xyz must be given"
        columns = None if features is None else features.transpose(1, 2)
        call = xyz, new_xyz, columns, [self.radius], [self.nsample]
        balls = torchvox.query_and_group(*call, use_xyz=self.use_xyz, convention="pointnet2")
        return balls.grouped.permute(0, 3, 1, 2).contiguous()


class GroupAll(nn.Module):
    """[B, 3 + C, 1, N]: all points as one group; new_xyz is not read."""

    def __init__(self, use_xyz: bool = True) -> None:
        super().__init__()
        self.use_xyz = use_xyz

    def forward(self, xyz: Tensor, new_xyz: object, features: Optional[Tensor] = None) -> Tensor:
        columns = [xyz.transpose(1, 2)] if self.use_xyz or features is None else []
        return torch.cat(columns + ([] if features is None else [features]), 1).unsqueeze(2)


BallQuery, GatherOperation = function_class(ball_query), function_class(gather_operation)
GroupingOperation, ThreeNN = function_class(grouping_operation), function_class(three_nn)
ThreeInterpolate = function_class(three_interpolate)
