# SPDX-License-Identifier: Apache-2.0
"""python -m benchmarks.picture build/bench.json -o docs/speed.svg: how many times as fast as the
fastest other implementation each op is, or with --by case each case, from the results of a run.

A dot is a case; the bar of an op ends at the median of its cases. Times are compared as in the
tables: by graph time where both have one, else by that of the CPU, else eager. Only results that
were checked and timed are shown, those slower than another implementation too.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results import comparison, grouped, number, torchvox_of, where
from torchvox._util.extras import require
from torchvox.io.writers import atomic_path

BAR, DOT, INK, FAINT = "#4c8fd6", "#1f5f9e", "#7d8590", "#7d859055"  # on light and dark grounds


class Factor(NamedTuple):
    """times: as fast as `peer`, the fastest other implementation of the case."""

    times: float
    peer: str
    case: str


def factors(results: dict[str, Any], by: str = "op") -> dict[str, list[Factor]]:
    """Per op, or per case, the factors of cases that another implementation does, ascending."""
    by_op: dict[str, list[Factor]] = {}
    timed = [row for row in results["measurements"] if row["status"] == "timed"]
    for op, rows in sorted(grouped(timed, by).items()):
        for case, same in grouped(rows, "case").items():
            mine = torchvox_of(same)
            pairs = [(comparison(row, mine), row) for row in same if row is not mine]
            others = [Factor(both[1], row["implementation"], case) for both, row in pairs if both]
            if others:
                by_op.setdefault(op, []).append(min(others))
    return {op: sorted(each) for op, each in by_op.items()}


def draw(
    results: dict[str, Any], path: Path, ops: Sequence[str] = (), by: str = "op"
) -> None:  # fmt: skip
    """Writes the chart, an SVG without a background; ops in this order, or by factor."""
    by_op = factors(results, by)
    missing = [op for op in ops if op not in by_op]
    if missing or not by_op:
        raise ValueError(f"no op with another implementation beside it: {missing or 'none at all'}")
    median = {op: statistics.median(f.times for f in by_op[op]) for op in by_op}
    order = list(ops) or sorted(by_op, key=lambda op: -median[op])
    why, size = "to draw pictures", (8.0, 1.3 + 0.3 * len(order))
    matplotlib = require("matplotlib", why)
    figure = require("matplotlib.figure", why).Figure(figsize=size, layout="constrained")
    figure.patch.set_alpha(0.0)
    ax = figure.add_subplot()
    ax.patch.set_alpha(0.0)
    ax.set_xscale("log")
    for place, op in enumerate(order):
        times = [f.times for f in by_op[op]]
        ax.barh(place, median[op] - 1, left=1, height=0.62, color=BAR, linewidth=0)
        ax.plot(times, [place] * len(times), "o", color=DOT, markersize=3.2, clip_on=False)
        middle = min(by_op[op], key=lambda f: abs(f.times - median[op]))
        words = {"va": "center", "fontsize": 8, "color": INK, "textcoords": "offset points"}
        label, end = f"{number(median[op])}x  {middle.peer}", (max(*times, 1.0), place)
        ax.annotate(label, end, xytext=(7, 0), **words)
    least, most = (f(t.times for op in order for t in by_op[op]) for f in (min, max))
    ax.set_xlim(min(0.8, 0.8 * least), most * 12)  # with room for the words
    ax.axvline(1, color=INK, linewidth=1)
    ax.set_yticks(range(len(order)), order)
    ax.set_ylim(len(order) - 0.4, -0.6)
    ax.minorticks_off()
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,g}x")
    ax.tick_params(colors=INK, labelsize=8.5, length=0)
    ax.grid(axis="x", color=FAINT, linewidth=0.6)
    ax.set_axisbelow(True)
    for side in ax.spines.values():
        side.set_visible(False)
    machine = results["machine"]
    title = f"Speed beside the fastest other implementation: {where(machine)}"
    title = f"{title}, torch {machine['torch']}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=9.5, color=INK)
    # The same results give the same file; words stay words.
    style = {"svg.hashsalt": "torchvox", "svg.fonttype": "none"}
    with matplotlib.rc_context(style), atomic_path(path) as draft:
        figure.savefig(draft, format="svg", metadata={"Date": None}, transparent=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picture", description=__doc__)
    parser.add_argument("results", type=Path, help="JSON of python -m benchmarks")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/speed.svg"))
    parser.add_argument("--ops", default="", help="with commas between; all without it")
    parser.add_argument("--by", choices=("op", "case"), default="op")
    options = parser.parse_args()
    ops = [op for op in options.ops.split(",") if op]
    draw(json.loads(options.results.read_text()), options.output, ops, options.by)


if __name__ == "__main__":
    main()
