# SPDX-License-Identifier: Apache-2.0
"""Maps of spheres around a sensor, and whether two maps have one file."""

import torch

from torchvox.mapping import NdtModel, OccupancyMap

CENTER = torch.zeros(1, 3)
COUNTED = ("logodds", "hit_miss")
MEANS = ("logodds", "sample_mean")
NDT = NdtModel(samples=1, reset=0.4, reset_samples=2)


def sphere(n: int = 800, seed: int = 0, radius: float = 3.0) -> torch.Tensor:
    away = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))
    return away / away.norm(dim=1, keepdim=True) * radius


def mapped(*seeds: int, **options) -> OccupancyMap:
    result = OccupancyMap(0.2, **{"capacity": 2000, **options})
    for seed in seeds:
        origin = (CENTER + 0.1 * seed).to(result.status.device)
        result.integrate(sphere(seed=seed).to(origin), origin)
    return result


def file_of(one: OccupancyMap, tmp_path) -> bytes:
    one.save(tmp_path / "saved.npz")
    return (tmp_path / "saved.npz").read_bytes()
