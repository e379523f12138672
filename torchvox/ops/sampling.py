# SPDX-License-Identifier: Apache-2.0
"""Furthest point sampling, and the features of the samples."""

from numbers import Integral
from typing import Dict, List, NamedTuple, Optional, Union, overload

import torch
from torch import Tensor

from torchvox.ops.annotations import Nonfinite, Sequence, Start
from torchvox.ops.conventions import Options, options_of

__all__ = [
    "Samples",
    "furthest_point_sample",
    "furthest_point_sample_ragged",
    "furthest_point_sample_with_dist",
]


# docs/sampling.md says what the options mean. The blocks of a PointNet++ kernel have min(N, cap)
# threads, a power of two; larger ones give the same order of ties, so tie_block is the cap.
_TORCHVOX = {
    "tie": "lowest",
    "tie_block": 1024,
    "dist_order": "pn2",
    "exhausted": "distinct",
    "skip_origin": False,
    "init_dist2": None,
}
_POINTNET2 = {**_TORCHVOX, "tie": "mmcv", "exhausted": "repeat", "init_dist2": 1e10}
_LOOP = {**_TORCHVOX, "dist_order": "loop", "exhausted": "repeat"}
FURTHEST_POINT_SAMPLE_CONVENTIONS: Dict[str, Options] = {
    "torchvox": _TORCHVOX,
    "mmcv": _POINTNET2,
    "openpcdet": _POINTNET2,
    "openpoints": _POINTNET2,
    "pointops": _POINTNET2,
    "pointnet2": {**_POINTNET2, "tie_block": 512, "skip_origin": True},  # Pointnet2_PyTorch
    "pytorch3d": _LOOP,
    "torch_cluster": _LOOP,  # as its CPU code breaks ties
}
WITH_DIST_CONVENTIONS: Dict[str, Options] = {
    "torchvox": {"tie": "lowest", "tie_block": 1024, "init_dist": None},
    "mmcv": {"tie": "mmcv", "tie_block": 1024, "init_dist": 1e10},
}


class Samples(NamedTuple):
    """Result of `furthest_point_sample` [B, S], packed [max_total].

    idx: int32, the points sampled; -1 in slots without a sample.
    dist2: float32, float64 for float64 points: squared distance to the nearest earlier sample,
        +inf for starts, 0 in slots without a sample.
    """

    idx: Tensor
    dist2: Tensor


def _random_starts(
    points: Tensor, lengths: Optional[Tensor], generator: Optional[torch.Generator]
) -> Tensor:
    """One start per cloud, [B] int64, uniform in [0, length)."""
    clouds, capacity = points.shape[:2]
    draw = torch.rand(clouds, dtype=torch.float64, device=points.device, generator=generator)
    size = torch.full_like(draw, capacity) if lengths is None else lengths.clamp(0, capacity)
    return torch.minimum(draw * size, size - 1).long()  # rounding may reach the size itself


@overload
def furthest_point_sample(
    points: Tensor,
    num_samples: int,
    *,
    lengths: Optional[Tensor] = None,
    counts: Optional[Tensor] = None,
    start: Union[int, Start] = 0,
    start_idx: Optional[Tensor] = None,
    nonfinite: Nonfinite = "skip",
    convention: str = "torchvox",
    generator: Optional[torch.Generator] = None,
) -> Samples: ...
@overload
def furthest_point_sample(
    points: Tensor,
    num_samples: Sequence[int],
    *,
    lengths: Optional[Tensor] = None,
    counts: Optional[Tensor] = None,
    start: Union[int, Start] = 0,
    start_idx: Optional[Tensor] = None,
    nonfinite: Nonfinite = "skip",
    convention: str = "torchvox",
    generator: Optional[torch.Generator] = None,
) -> List[Samples]: ...
def furthest_point_sample(
    points: Tensor,
    num_samples: Union[int, Sequence[int]],
    *,
    lengths: Optional[Tensor] = None,
    counts: Optional[Tensor] = None,
    start: Union[int, Start] = 0,
    start_idx: Optional[Tensor] = None,
    nonfinite: Nonfinite = "skip",
    convention: str = "torchvox",
    generator: Optional[torch.Generator] = None,
) -> Union[Samples, List[Samples]]:
    """Samples well spread over each cloud: each is the point furthest from all samples before it.

    points: [B, N, D] float16, bfloat16, float32 or float64, D >= 1, N < 2^31; any strides. Halves
        are widened first. Points that are not finite are never sampled.
    num_samples: S, samples per cloud. A list [S0, S1, ...] samples once, max(S) times, and gives
        one Samples per size: the first S1 samples are also the sampling of the S0 first ones, so
        this serves all levels of a network. Only of convention "torchvox".
    lengths: [B] int32 or int64, points of each cloud that exist, clamped to [0, N]. None: N.
    counts: [B] int32 or int64, samples wanted of each cloud, clamped to [0, S]. None: S.
    start: index of the first sample in every cloud; "random" draws one per cloud from `generator`,
        which lives on the points' device.
    start_idx: [B] or [B, s] int32 or int64, one start or a set of starts per cloud, emitted first,
        as given; `start` is then ignored. A start that is not a finite point of its cloud becomes
        the first candidate.
    nonfinite: "skip", or "last": after all others, in index order; not where samples repeat.
    convention: of ties, rounding and what follows when no point is left. "torchvox": ties go to the
        lowest index; once every point lies at distance 0 of a sample, the points left come in index
        order, then -1. "mmcv", "openpcdet", "openpoints", "pointops", "pointnet2", "pytorch3d",
        "torch_cluster": the samples of that library, which repeats a point then; "pointnet2" never
        takes points with |p|^2 <= 1e-3. All are in docs/sampling.md.

    Returns `Samples`. Not differentiable; `gather_points` of the result is. O(N) memory; a sample's
    time does not grow with N for D <= 3 (float64 and D > 3 pass over the whole cloud for each
    sample).
    Raises ValueError (shapes, ranges, options) and TypeError (dtypes).

    >>> points = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [9, 0, 0], [4, 0, 0]]])
    >>> torchvox.furthest_point_sample(points, 3).idx
    tensor([[0, 2, 3]], dtype=torch.int32)
    """
    options = options_of("furthest_point_sample", FURTHEST_POINT_SAMPLE_CONVENTIONS, convention)
    if isinstance(start, str):
        if start != "random":
            raise ValueError(
                f"furthest_point_sample: start must be an index or 'random', got {start!r}"
            )
        start = 0
        if lengths is not None and lengths.shape != points.shape[:1]:
            raise ValueError(
                "furthest_point_sample: lengths must be [B], one length per cloud, got "
                f"{list(lengths.shape)}"
            )
        if start_idx is None and points.dim() == 3:
            start_idx = _random_starts(points, lengths, generator)
    whole = (Integral, torch.SymInt)
    levels = None if isinstance(num_samples, whole) else num_samples
    if levels is not None:
        levels = list(levels) if hasattr(levels, "__iter__") else [levels]
        if not levels or min(levels) < 0:
            raise ValueError(
                f"furthest_point_sample: num_samples must be sizes >= 0, at least one, got {levels}"
            )
        if convention != "torchvox":
            raise ValueError(
                "furthest_point_sample: convention must be 'torchvox' with a list of sizes, got "
                f"{convention!r}"
            )
    idx, dist2 = torch.ops.torchvox.furthest_point_sample(
        points,
        num_samples if levels is None else max(levels),
        lengths=lengths,
        counts=counts,
        start=start,
        start_idx=start_idx,
        nonfinite=nonfinite,
        **options,
    )
    if levels is None:
        return Samples(idx, dist2)
    return [Samples(idx[:, :size], dist2[:, :size]) for size in levels]


def furthest_point_sample_ragged(
    points: Tensor,
    batch_offsets: Tensor,
    out_offsets: Tensor,
    max_total: int,
    *,
    start: int = 0,
    start_idx: Optional[Tensor] = None,
    nonfinite: Nonfinite = "skip",
    convention: str = "torchvox",
    local_index: bool = False,
) -> Samples:
    """`furthest_point_sample` of clouds of different sizes that lie one after another.

    points: [T, D], T < 2^31. batch_offsets: [B + 1] int32 or int64, non-decreasing, on the points'
        device: cloud b owns rows batch_offsets[b] to batch_offsets[b + 1].
    out_offsets: [B + 1] int32 or int64: the samples of cloud b fill the slots out_offsets[b] to
        out_offsets[b + 1]. max_total: slots of the output; those outside out_offsets hold -1 and 0.
        Offsets are clamped to the sizes, never read on the host.
    start, start_idx: local to their cloud. local_index: idx counts from the cloud's first row
        instead of row 0 of points. The other options are those of `furthest_point_sample`.

    Returns `Samples`.
    """
    op = "furthest_point_sample_ragged"
    options = options_of(op, FURTHEST_POINT_SAMPLE_CONVENTIONS, convention)
    idx, dist2 = torch.ops.torchvox.furthest_point_sample_ragged(
        points,
        batch_offsets,
        out_offsets,
        max_total,
        start=start,
        start_idx=start_idx,
        nonfinite=nonfinite,
        **options,
        local_index=local_index,
    )
    return Samples(idx, dist2)


def furthest_point_sample_with_dist(
    distances: Tensor,
    num_samples: int,
    *,
    lengths: Optional[Tensor] = None,
    start: int = 0,
    convention: str = "torchvox",
) -> Tensor:
    """`furthest_point_sample` over given distances, as of features: F-FPS of 3DSSD.

    distances: [B, N, N] float32, row i those from point i; N < 2^31. Values are used as given, need
        not be symmetric, and one that is NaN says nothing.
    num_samples: S, samples per cloud. lengths: [B] int32 or int64, points of each cloud that exist,
        clamped to [0, N]. None: N.
    start: the first sample of every cloud, 0 where a cloud has no such point. After it come the
        points with the largest distance to the samples before them, the smallest entry in the
        rows of those; where no point is left at a distance, points repeat.
    convention: "torchvox": ties go to the lowest index; "mmcv": ties as its kernel breaks them, and
        distances above 1e10 count as that.

    Returns idx [B, S] int32; -1 in a cloud without points.

    Not differentiable.
    Raises ValueError (shapes, ranges, options) and TypeError (dtypes).
    """
    op = "furthest_point_sample_with_dist"
    return torch.ops.torchvox.furthest_point_sample_with_dist(
        distances,
        num_samples,
        lengths=lengths,
        start=start,
        **options_of(op, WITH_DIST_CONVENTIONS, convention),
    )
