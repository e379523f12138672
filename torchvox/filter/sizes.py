# SPDX-License-Identifier: Apache-2.0
"""The number of voxels for a voxel size, and a voxel size for a number of voxels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchvox._util.errors import expect
from torchvox.ops.filter import voxel_keys

BITS = 21  # of an axis of a key


def voxels_by_level(points: Tensor, voxel_size: float, levels: int) -> list[int]:
    """Numbers of voxels at voxel_size, twice that, four times, ...: `levels` sizes from one sort.

    points: [N, C >= 3] in any dtype of voxel_keys, keyed in float64 with the origin 0; points that
        are not finite are skipped.
    levels: 1 to 21.
    Raises ValueError for a size that is not positive and finite, or too small for the extent of the
    points.
    """
    expect(0 < voxel_size < math.inf, "voxels_by_level: voxel_size must be positive", voxel_size)
    expect(1 <= levels <= BITS, f"voxels_by_level: levels must be 1 to {BITS}", levels)
    xyz, low, high = _finite(points)
    if not len(xyz):
        return [0] * levels
    block = 2 ** (levels - 1)  # a key names cells of every level when they begin at whole blocks
    lower = [math.floor(math.floor(v / voxel_size) / block) * block for v in low]
    cells = max(math.floor(v / voxel_size) - first for v, first in zip(high, lower, strict=True))
    bits = max(cells.bit_length(), 1)
    if bits > BITS:
        least = voxel_size * 2 ** (bits - BITS)
        raise ValueError(
            f"voxels_by_level: voxel_size {voxel_size:g} needs {bits} bits on an axis, a key has "
            f"{BITS}: take voxel_size >= {least:g}"
        )
    keys = voxel_keys(xyz, [voxel_size] * 3, lower=lower, bits=bits).keys.sort().values
    return [1 + int((keys >> 3 * level).diff().count_nonzero()) for level in range(levels)]


def suggest_voxel_size(points: Tensor, target: float = 0.1) -> float:
    """The voxel size, of three digits, whose number of voxels is nearest to `target` times that of
    the finite points.

    points: as in voxels_by_level. target: voxels / points, above 0, at most 1.
    Raises ValueError for another target, or points that are all in one place.
    """
    expect(0 < target <= 1, "suggest_voxel_size: target must be above 0, at most 1", target)
    xyz, low, high = _finite(points)
    extent = max((b - a for a, b in zip(low, high, strict=True)), default=0.0)
    expect(
        0 < extent < math.inf, "suggest_voxel_size: points must differ by a finite extent", extent
    )
    finest = _rounded(extent / 2 ** (BITS - 2))
    ratios = {
        finest * 2**level: count / len(xyz)
        for level, count in enumerate(voxels_by_level(xyz, finest, BITS - 2))
    }
    above = [size for size, ratio in ratios.items() if ratio > target]
    if above and above[-1] * 2 in ratios:
        small, large = above[-1], above[-1] * 2
        while (size := _rounded(math.sqrt(small * large))) not in ratios:
            ratios[size] = voxels_by_level(xyz, size, 1)[0] / len(xyz)
            small, large = (size, large) if ratios[size] > target else (small, size)
    return _rounded(min(ratios, key=lambda size: abs(ratios[size] - target)))


def _finite(points: Tensor) -> tuple[Tensor, list[float], list[float]]:
    """Finite points [N, 3] float64 and their box."""
    xyz = points[:, :3].double()
    xyz = xyz[torch.isfinite(xyz).all(1)]
    if not len(xyz):
        return xyz, [], []
    return xyz, xyz.amin(0).tolist(), xyz.amax(0).tolist()


def _rounded(size: float) -> float:
    return float(f"{size:.3g}")
