# SPDX-License-Identifier: Apache-2.0
"""torchvox info: what is in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from torchvox.cli.options import Layout, cloud_reader
from torchvox.cli.work import console, for_each
from torchvox.io import PointCloud, find_clouds, grid_around


def info(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files or folders.")],
    layout: Layout = None,
) -> None:
    """Show points, columns, bounds and origin of point-cloud files."""
    files = find_clouds(paths)
    read = cloud_reader(files, layout)
    if len(files) == 1:
        _describe(read(files[0]), files[0])
        return
    for_each(files, files, lambda path, _: _line(read(path), path))


def _describe(cloud: PointCloud, path: Path) -> None:
    out = console()
    finite = cloud.finite()
    table = Table(title=escape(str(path)), title_justify="left", title_style="bold")
    for heading in ("column", "min", "median", "max", "not finite"):
        table.add_column(heading, justify="left" if heading == "column" else "right")
    for name, values in zip(cloud.columns, cloud.points.T, strict=True):
        good = values[np.isfinite(values)].astype(np.float64)
        bounds = (good.min(), np.median(good), good.max()) if len(good) else (np.nan,) * 3
        table.add_row(escape(name), *(f"{b:,.3f}" for b in bounds), f"{len(values) - len(good):,}")
    out.print(table)
    out.print(f"points    {len(cloud):,}, of which {int((~finite).sum()):,} are not finite")
    out.print(f"unit      {cloud.unit}")
    out.print(f"size      {path.stat().st_size:,} bytes")
    if cloud.origin.any():
        shift = ", ".join(f"{v:,.4f}" for v in cloud.origin)
        out.print(
            f"origin    {shift} (in float64, add it to get the file's coordinates)", soft_wrap=True
        )
    if finite.any():
        grid = grid_around(cloud)
        point_cloud_range = ",".join(f"{v:g}" for v in grid.point_cloud_range)
        out.print(
            f"derived   --range={point_cloud_range} --voxel-size={grid.voxel_size[0]:g}",
            soft_wrap=True,
        )


def _line(cloud: PointCloud, path: Path) -> str:
    xyz = cloud.points[cloud.finite(), :3]
    spans = zip("xyz", xyz.min(axis=0), xyz.max(axis=0), strict=True) if len(xyz) else ()
    bounds = "  ".join(f"{axis} {low:.1f}..{high:.1f}" for axis, low, high in spans)
    return f"{path.name}  {len(cloud):,} points  {','.join(cloud.columns)}  {bounds}"
