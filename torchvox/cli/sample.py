# SPDX-License-Identifier: Apache-2.0
"""torchvox sample: furthest point sampling of files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

import torchvox
from torchvox._util.errors import WrongUseError
from torchvox.cli import options
from torchvox.cli.options import option, option_class
from torchvox.cli.work import Clock, Output, cloud_title, run_on_each
from torchvox.io import Grid, PointCloud, grid_around

FORMATS = (".npz", ".npy", ".png")


@option_class
class SampleOptions(options.CloudOptions):
    samples: int = option(4096, "Number of points to sample.", "--samples", "-n", min=0)
    start: str = option("0", "Index of the first sample, or random (see --seed).")
    seed: int = option(0, "Random seed for --start random.")
    file_format: str | None = option(
        None, "npz, npy (points only) or png (picture).", "--format", show_default="npz"
    )


@options.command
def sample(args: SampleOptions) -> None:
    """Choose points that cover a cloud evenly, each the furthest from those before it.

    Examples:
        torchvox sample scan.ply -n 1024 -o samples.npz
        torchvox sample objects/ -n 2048 --format npy -o sampled/
    """
    start = args.start
    if start != "random" and not start.isdecimal():
        raise WrongUseError(f"--start takes random or an index from 0, got {start!r}")

    def work(cloud: PointCloud, clock: Clock) -> Output:
        if start != "random" and int(start) >= max(len(cloud), 1):
            raise WrongUseError(
                f"--start {start} is past the {len(cloud):,} points of {cloud.path}"
            )
        return sample_cloud(cloud, clock, args.samples, start, args.seed)

    run_on_each(args, "samples", FORMATS, work)


def sample_cloud(
    cloud: PointCloud,
    clock: Clock,
    count: int,
    start: str = "0",
    seed: int = 0,
    place: Grid | None = None,
) -> Output:
    """place: what the picture shows, in file coordinates; by default all points."""
    xyz = cloud.tensor(clock.device)[None, :, :3].contiguous()
    generator = torch.Generator().manual_seed(seed)

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        if start == "random":
            return torchvox.furthest_point_sample(xyz, count, start="random", generator=generator)
        return torchvox.furthest_point_sample(xyz, count, start=int(start))

    idx, dist2 = clock(draw)
    filled = idx[0] >= 0
    chosen, dist2 = idx[0][filled].cpu().numpy().astype(np.int64), dist2[0][filled]
    samples = replace(cloud, points=cloud.points[chosen])
    arrays = {"points": samples.points, "idx": chosen, "dist2": dist2.cpu().numpy()}
    arrays["columns"] = np.array(cloud.columns)
    line = f"{len(chosen):,} of {len(cloud):,} points, "
    line += coverage(dist2, cloud.unit, int(cloud.finite().sum()))

    def look() -> dict[str, Any]:
        return {
            "xyz": cloud.points[:, :3] + cloud.origin,
            "chosen": chosen,
            "point_cloud_range": (place or grid_around(cloud).moved(cloud.base)).point_cloud_range,
            "unit": cloud.unit,
            "note": f"{cloud_title(cloud)}: {line}",
        }

    return Output(line, arrays, "samples_picture", look, samples)


def coverage(dist2: torch.Tensor, unit: str, points: int) -> str:
    """How well the samples cover the points, in words. dist2: [S], of the sampling.

    The last sample was the point furthest from those before it, so no point is further away.
    """
    if len(dist2) >= points > 0:
        return "every point is a sample"
    finite = dist2[torch.isfinite(dist2)]
    if len(finite) == 0:
        return "too few samples to say how well they cover the cloud"
    return f"every point within {float(finite[-1]) ** 0.5:.3g} {unit} of a sample"
