# SPDX-License-Identifier: Apache-2.0
"""The results of a benchmark run as tables: titles, headers and cells of text."""

from __future__ import annotations

from typing import Any, NamedTuple

SCHEMA = 2
FIGURES = {  # of a measurement -> header
    "graph_us": "graph us",
    "eager_us": "eager us",
    "cpu_us": "CPU us",
    "best_us": "best us",
    "wall_us": "median us",
    "launches": "launches",
    "floor_us": "floor us",
    "times_floor": "x floor",
    "mrays_per_s": "Mrays/s",
    "mvisits_per_s": "Mvisits/s",
}
COMPARED = ("graph_us", "best_us", "eager_us")  # by the first one that both have


class Table(NamedTuple):
    title: str
    header: list[str]
    rows: list[list[str]]


def machine_line(results: dict[str, Any]) -> str:
    """Where the figures come from, in one line."""
    facts = results["machine"]
    where = [f"{facts['cpu']}, {facts['threads']} threads", f"torch {facts['torch']}"]
    if facts["device"] == "cuda":
        where.insert(0, f"{facts['gpu']}, driver {facts['driver']}, CUDA {facts['cuda']}")
    state = " with changes" if facts["dirty"] else ""
    where += [f"torchvox {facts['torchvox']} at {facts['commit']}{state}", facts["date"]]
    return "; ".join([*where, f"copy {facts['copy_gb_per_s']:,.0f} GB/s"])


def tables(results: dict[str, Any]) -> list[Table]:
    """One table per op, then one per growth curve."""
    found = []
    for op in dict.fromkeys(row["op"] for row in results["measurements"]):
        found.append(_op_table(op, [row for row in results["measurements"] if row["op"] == op]))
    for curve in dict.fromkeys(row["curve"] for row in results["growth"]):
        found.append(_curve_table([row for row in results["growth"] if row["curve"] == curve]))
    return found


def markdown(results: dict[str, Any], shown: list[Table] | None = None) -> str:
    """All tables in Markdown, or these, for docs/benchmark_results.md."""
    lines = [machine_line(results) + ".", ""]
    for table in tables(results) if shown is None else shown:
        cells = [table.header, ["---"] * len(table.header), *table.rows]
        lines += [f"**{table.title}**", "", *(f"| {' | '.join(row)} |" for row in cells), ""]
    return "\n".join(lines)


def _op_table(op: str, rows: list[dict[str, Any]]) -> Table:
    figures = [key for key in FIGURES if any(key in row for row in rows)]
    header = ["case", "implementation", *(FIGURES[key] for key in figures)]
    header += ["MB", "vs torchvox", "target"]
    cells, last = [], None
    for row in rows:
        mine = next(
            r for r in rows if r["case"] == row["case"] and r["implementation"] == "torchvox"
        )
        size = row.get("size", {})
        moved = (size.get("read", 0) + size.get("written", 0)) / 1e6
        name = row["case"] if row["case"] != last else ""
        cells.append([name, row["implementation"], *(number(row.get(key)) for key in figures)])
        cells[-1] += [f"{moved:.2f}" if name else "", _factor(row, mine), _target(row)]
        last = row["case"]
    return Table(op, header, cells)


def _factor(row: dict[str, Any], mine: dict[str, Any]) -> str:
    if row["status"] != "timed":
        return f"{row['status']}: {row['reason']}"
    if row is mine:
        return ""
    for key in COMPARED:
        if key in row and mine.get(key):
            return f"{row[key] / mine[key]:.2f}x"
    return ""


def _target(row: dict[str, Any]) -> str:
    """<= 18 us graph: met"""
    said = []
    for target in row.get("targets", ()):
        verdict = {True: "met", False: "MISSED", None: "not judged"}[target["met"]]
        figure = FIGURES[target["figure"]].removesuffix(" us")
        said.append(f"{figure} {target['text']}: {verdict}")
    return "; ".join(said)


def _curve_table(rows: list[dict[str, Any]]) -> Table:
    """us by size, one column per implementation; FPS per sample too."""
    implementations = list(dict.fromkeys(row["implementation"] for row in rows))
    each = any("us_per_sample" in row for row in rows)
    header = [rows[0]["axis"], *(f"{implementation}, us" for implementation in implementations)]
    header += ["torchvox, us per sample"] if each else []
    cells = []
    for at in dict.fromkeys(row["at"] for row in rows):
        here = {row["implementation"]: row for row in rows if row["at"] == at}
        line = [f"{at:,g}" if at < 1 else f"{at:,.0f}"]
        line += [
            number(here[implementation]["us"]) if implementation in here else ""
            for implementation in implementations
        ]
        line += [number(here["torchvox"].get("us_per_sample"))] if each else []
        cells.append(line)
    return Table(f"growth: {rows[0]['curve']}", header, cells)


def number(value: float | None) -> str:
    """Three digits or so: 0.412, 12.3, 14,201."""
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 100 else f"{value:.0f}"
