# SPDX-License-Identifier: Apache-2.0
"""How cost grows with size, and the plots of it: nothing may explode, no curve may have a cliff.
The curves of the filter also hold a GPU against a CPU, with copies and without."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

import torchvox
from benchmarks import filter, grids, sampling, voxelize
from benchmarks.clouds import Clouds, Recipe, colored, cube, street
from benchmarks.results import COMPARED, Measurement, grouped, where
from benchmarks.runner import SLOW_S, Settings, run_case
from benchmarks.suite import Case, Implementation, expect

MOST_SAMPLES = 16384
COLORS = ("#5ec8ff", "#ffb454", "#c792ea", "#8b98a9")


class BesideCpu(filter.Downsample):
    """The filter on a GPU, beside itself with the copies from and to the host, and on the CPU."""

    def others(self) -> Iterator[Implementation]:
        if self.device.type == "cuda":
            host = self.on("cpu")

            def call() -> torch.Tensor:
                arguments = {**self.arguments, "points": host["points"].to(self.device)}
                return torchvox.voxel_downsample(**arguments, trim=True).out.cpu()

            def check(means: torch.Tensor) -> str:
                expect(torch.equal(means, self.outputs[0][: len(means)].cpu()), "other means")
                return "the same means"

            yield Implementation("host to host", call, check)
            yield Implementation("CPU", host.run, lambda result: self.same(self.outputs, result))


class Curve(NamedTuple):
    """Cost over one size. Its sizes on the CPU end at `cpu_most`."""

    name: str
    axis: str
    sizes: Sequence[float]
    cpu_most: float
    case: Callable[[Any], Case]


def curves() -> list[Curve]:
    def voxels(cloud: Recipe, **options: Any) -> Case:
        case = voxelize.row("growth", cloud, "0.2 m", 10, out_dtype=torch.half)
        return replace(case, options={**case.options, **options})

    def samples(count: int) -> Case:
        return sampling.row("growth", cube(1, count), min(count // 4, MOST_SAMPLES))

    def filtered(count: int, size: float = 0.25, order: str = "first") -> Case:
        row = filter.row("growth", colored(street(count)), size, order=order)
        return replace(row, kind=BesideCpu)

    counts = [1000 * n for n in (10, 30, 100, 300, 1000, 3000, 10_000)]
    sizes, images = [1.0, 0.5, 0.2, 0.1, 0.05, 0.02], [1 << n for n in range(8, 13)]
    clouds, more, by_size = [1 << n for n in range(10, 21, 2)], [1000, 3000, *counts], filter.SIZES
    quarter, small = "points of a cube, a quarter sampled, at most 16k", "points, 0.25 m voxels"
    sweep, of_survey = "a sweep of 111k points", partial(filtered, filter.SURVEY)
    by_key = partial(filtered, order="key")
    return [
        Curve("voxelize-points", "points, 0.2 m voxels, P = 10", counts, 3_000_000,
              lambda count: voxels(street(count))),
        Curve("voxelize-size", f"voxel size in m, {sweep}", sizes, 1.0,
              lambda size: voxels(Clouds.sweep, voxel_size=[size] * 3)),
        Curve("fps-points", quarter, clouds, 1 << 18, samples),
        Curve("bev-cells", f"cells along each side, {sweep}", images, 4096,
              lambda count: grids.image_row("growth", dtype=torch.uint8, cells=count)),
        Curve("filter-first", f"{small}, order first", more, 3_000_000, filtered),
        Curve("filter-key", f"{small}, order key", more, 3_000_000, by_key),
        Curve("filter-size", "voxel size in m, 648k points", by_size, 1.0, of_survey),
    ]  # fmt: skip


def run(clouds: Clouds, settings: Settings, chosen: Sequence[Curve] = ()) -> list[Measurement]:
    """One measurement for each curve, size and implementation, without other libraries. An
    implementation that became slow is left out at larger sizes."""
    measurements: list[Measurement] = []
    for curve in chosen or curves():
        slow: set[str] = set()
        for size in curve.sizes:
            if settings.device == "cpu" and size > curve.cpu_most:
                continue
            part = replace(settings, peers=[], skip=frozenset(slow))
            for measurement in run_case(curve.case(size), clouds, part):
                measurements.append(_at(curve, size, measurement))
                name, us = measurement["implementation"], measurements[-1]["us"]
                if us is None or us > 1e6 * SLOW_S[settings.device]:
                    slow.add(name)
                print(f"{curve.name} {size:g} | {name} | {us} us", flush=True)
            if settings.device == "cuda":
                torch.cuda.empty_cache()
    return measurements


def _at(curve: Curve, size: float, measurement: Measurement) -> Measurement:
    """The measurement with its place on the curve."""
    figure = next((key for key in COMPARED if key in measurement), "us")
    us, samples = measurement.get(figure), measurement.get("size", {}).get("num_samples")
    place = {"curve": curve.name, "axis": curve.axis, "at": size, "figure": figure, "us": us}
    per_sample = {"us_per_sample": round(us / samples, 4)} if us and samples else {}
    return {**measurement, **place, **per_sample}


def draw(results: dict[str, Any], folder: Path) -> None:
    """One picture per curve, with logarithmic axes."""
    from torchvox.viz import style

    curves = grouped(results["growth"], "curve")
    for name, measurements in curves.items():
        style.save(_figure(name, measurements, results["machine"]), folder / f"{name}.png")
    print(f"wrote {len(curves)} plots to {folder}")


def _figure(name: str, measurements: list[Measurement], machine: dict[str, Any]) -> Any:
    from torchvox.viz import style

    figure = style.new_figure(9.6, 6.0)
    ax = figure.add_subplot(facecolor=style.PANEL)
    rows = grouped(measurements, "implementation")

    def line(figure: str, name: str, form: str, **how: Any) -> None:
        points = [(m["at"], m[figure]) for m in rows[name] if m.get(figure) is not None]
        if points:
            ax.plot(*zip(*points, strict=True), form, **how)

    for implementation, color in zip(rows, COLORS, strict=False):
        line("us", implementation, "o-", color=color, label=implementation)
    line("floor_us", "torchvox", ":", color=style.FAINT, label="floor of torchvox")
    per_sample = {"color": COLORS[0], "label": "torchvox, per sample", "markersize": 4}
    line("us_per_sample", "torchvox", "s--", **per_sample)
    ax.set(xscale="log", yscale="log")
    sizes = sorted({m["at"] for m in measurements})
    ax.set_xticks(sizes, [f"{size:,g}" if size < 1e6 else f"{size / 1e6:.1f}M" for size in sizes])
    ax.minorticks_off()
    if name.endswith("-size"):
        ax.invert_xaxis()
    ax.set_xlabel(measurements[0]["axis"], color=style.FAINT)
    ax.set_ylabel("time per call [us]", color=style.FAINT)
    ax.tick_params(colors=style.FAINT, which="both")
    ax.grid(color=style.GRID, linewidth=0.6)
    ax.legend(facecolor=style.PANEL, edgecolor=style.GRID, labelcolor=style.INK, fontsize=9)
    ax.set_title(f"{name}  ·  {where(machine)}", loc="left", fontsize=13, **style.FONT)
    return figure
