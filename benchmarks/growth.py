# SPDX-License-Identifier: Apache-2.0
"""How cost grows with size, and the plots of it: nothing may explode, no curve may have a cliff."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import torch

from benchmarks.bev import BEVCase
from benchmarks.clouds import Clouds
from benchmarks.sampling import SamplingCase
from benchmarks.suite import SLOW_S, Case, CaseSpec, Measurement, Settings, run_case
from benchmarks.voxel import GRIDS, VoxelCase

MOST_SAMPLES = 16384


@dataclass(frozen=True)
class Curve:
    """Cost over one size. Its sizes on the CPU end at `cpu_most`."""

    name: str
    axis: str
    sizes: Sequence[float]
    cpu_most: float
    build: Callable[[Clouds, Any], Case]

    def points(self, device: str) -> list[float]:
        return [size for size in self.sizes if device == "cuda" or size <= self.cpu_most]


def curves() -> list[Curve]:
    voxel_grid = GRIDS["0.2 m"]

    def points(clouds: Clouds, count: int) -> Case:
        return VoxelCase(*clouds.street(count), *voxel_grid, 10, out_dtype=torch.half)

    def voxel_size(clouds: Clouds, size: float) -> Case:
        return VoxelCase(*clouds.sweep(), [size] * 3, voxel_grid[1], 10, out_dtype=torch.half)

    def samples(clouds: Clouds, count: int) -> Case:
        return SamplingCase(*clouds.cube(1, count), min(count // 4, MOST_SAMPLES))

    def cells(clouds: Clouds, count: int) -> Case:
        return BEVCase(*clouds.sweep(), cells=count, dtype=torch.uint8)

    counts = [10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000]
    sizes = [1.0, 0.5, 0.2, 0.1, 0.05, 0.02]
    clouds = [1 << n for n in range(10, 21, 2)]
    images = [1 << n for n in range(8, 13)]
    sweep = "a sweep of 111k points"
    cube = "points of a cube, a quarter sampled, at most 16k"
    return [
        Curve("voxelize-points", "points, 0.2 m voxels, P = 10", counts, 3_000_000, points),
        Curve("voxelize-size", f"voxel size in m, {sweep}", sizes, 1.0, voxel_size),
        Curve("fps-points", cube, clouds, 1 << 18, samples),
        Curve("bev-cells", f"cells along each side, {sweep}", images, 4096, cells),
    ]


def run(clouds: Clouds, settings: Settings, chosen: Sequence[Curve] = ()) -> list[Measurement]:
    """One measurement for each curve, size and implementation: torchvox and the baselines."""
    measurements: list[Measurement] = []
    for curve in chosen or curves():
        skip: set[str] = set()
        for size in curve.points(settings.device):
            spec = CaseSpec(curve.name, lambda clouds, c=curve, s=size: c.build(clouds, s))
            for measurement in run_case(
                spec, clouds, replace(settings, upstream=[], skip=frozenset(skip))
            ):
                measurements.append(_short(curve, size, measurement))
                us = measurements[-1]["us"]
                if us is None or us > 1e6 * SLOW_S[settings.device]:
                    skip.add(measurement["implementation"])
                print(
                    f"{curve.name} {size:g} | {measurement['implementation']} | {us} us", flush=True
                )
            if settings.device == "cuda":
                torch.cuda.empty_cache()
    return measurements


def _short(curve: Curve, size: float, measurement: Measurement) -> Measurement:
    figure = next((key for key in ("graph_us", "best_us", "eager_us") if key in measurement), None)
    short = {"curve": curve.name, "axis": curve.axis, "at": size}
    kept = ("implementation", "status", "reason", "floor_us")
    short |= {key: measurement[key] for key in kept if key in measurement}
    short |= {"figure": figure, "us": measurement.get(figure)}
    samples = measurement.get("size", {}).get("samples")
    if samples and figure:
        short["us_per_sample"] = round(short["us"] / samples, 4)
    return short


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """One picture per curve, with logarithmic axes."""
    from torchvox.viz import style

    paths = []
    for name, measurements in by_curve(results["growth"]):
        path = folder / f"{name}.png"
        style.save(_figure(name, measurements, results["machine"]), path)
        paths.append(path)
    print(f"wrote {len(paths)} plots to {folder}")
    return paths


def _size(value: float) -> str:
    """10k, 1M, 0.02."""
    if value >= 1e6:
        return f"{value / 1e6:.0f}M"
    return f"{value / 1e3:.0f}k" if value >= 1e4 else f"{value:g}"


def by_curve(measurements: list[Measurement]) -> Iterator[tuple]:
    for name in dict.fromkeys(measurement["curve"] for measurement in measurements):
        yield name, [m for m in measurements if m["curve"] == name]


def _figure(name: str, measurements: list[Measurement], machine: dict[str, Any]) -> Any:
    from torchvox.viz import style

    colors = ("#5ec8ff", "#ffb454", "#c792ea", "#8b98a9")
    figure = style.new_figure(9.6, 6.0)
    ax = figure.add_subplot(facecolor=style.PANEL)
    names = dict.fromkeys(m["implementation"] for m in measurements)

    def line(figure: str, name: str, style_: str, **how: Any) -> None:
        mine = [
            m for m in measurements if m["implementation"] == name and m.get(figure) is not None
        ]
        if mine:
            ax.plot([m["at"] for m in mine], [m[figure] for m in mine], style_, **how)

    for name_, color in zip(names, colors, strict=False):
        line("us", name_, "o-", color=color, label=name_)
    line("floor_us", "torchvox", ":", color=style.FAINT, label="floor of torchvox")
    per_sample = {"color": colors[0], "label": "torchvox, per sample", "markersize": 4}
    line("us_per_sample", "torchvox", "s--", **per_sample)
    ax.set(xscale="log", yscale="log")
    sizes = sorted({m["at"] for m in measurements})
    ax.set_xticks(sizes, [_size(size) for size in sizes])
    ax.minorticks_off()
    if name == "voxelize-size":
        ax.invert_xaxis()
    ax.set_xlabel(measurements[0]["axis"], color=style.FAINT)
    ax.set_ylabel("time per call [us]", color=style.FAINT)
    ax.tick_params(colors=style.FAINT, which="both")
    ax.grid(color=style.GRID, linewidth=0.6)
    for spine in ax.spines.values():
        spine.set_color(style.GRID)
    ax.legend(facecolor=style.PANEL, edgecolor=style.GRID, labelcolor=style.INK, fontsize=9)
    where = machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} threads"
    ax.set_title(f"{name}  ·  {where}", loc="left", fontsize=13, **style.FONT)
    return figure
