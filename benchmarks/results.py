# SPDX-License-Identifier: Apache-2.0
"""The results of a run as tables of text: for the JSON, which carries them, and for the pages of
docs/."""

from collections.abc import Sequence
from typing import Any, NamedTuple

Measurement = dict[str, Any]
SCHEMA = 3
FIGURES = {  # of a measurement -> header
    "graph_us": "graph us", "kernel_us": "kernel us", "eager_us": "eager us", "cpu_us": "CPU us",
    "best_us": "best us", "wall_us": "median us", "launches": "launches", "floor_us": "floor us",
    "times_floor": "x floor", "mrays_per_s": "Mrays/s", "mvisits_per_s": "Mvisits/s",
}  # fmt: skip
COMPARED = ("graph_us", "kernel_us", "best_us", "eager_us")  # by the first one that both have
PEER_HEADER = ["op", "size", "figure", "torchvox", "best peer", "which", "version", "ratio",
               "check"]  # fmt: skip
HEAD = """# Benchmark results

The output of `python -m benchmarks --markdown FILE...`; [benchmarks](benchmarks.md) says what every
column means and how it is measured.
"""


class Table(NamedTuple):
    title: str
    header: list[str]
    rows: list[list[str]]


def where(machine: dict[str, Any]) -> str:
    """The GPU, or the CPU with its threads."""
    cpu = f"{machine['cpu']}, {machine['threads']} threads"
    return machine["gpu"] if machine["device"] == "cuda" else cpu


def machine_line(machine: dict[str, Any]) -> str:
    """Where the figures come from, in one line."""
    words = [f"{machine['cpu']}, {machine['threads']} threads", f"torch {machine['torch']}"]
    if machine["device"] == "cuda":
        words.insert(0, f"{machine['gpu']}, driver {machine['driver']}, CUDA {machine['cuda']}")
    state = " with changes" if machine["dirty"] else ""
    words += [f"torchvox {machine['torchvox']} at {machine['commit']}{state}", machine["date"]]
    return "; ".join([*words, f"copy {machine['copy_gb_per_s']:,.0f} GB/s"])


def grouped(rows: Sequence[Measurement], key: str) -> dict[str, list[Measurement]]:
    groups: dict[str, list[Measurement]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def tables(results: dict[str, Any], one: bool = False) -> list[Table]:
    """One table per op, or one of all measurements; then one per growth curve."""
    ops = grouped(results["measurements"], "op")
    if one and ops:
        ops = {"measurements": results["measurements"]}
    made = [_measurements(op, rows) for op, rows in ops.items()]
    return made + [_curve(*curve) for curve in grouped(results["growth"], "curve").items()]


def display(results: dict[str, Any]) -> dict[str, Any]:
    """What `torchvox bench FILE` prints: the JSON carries it, because an installed package has no
    benchmarks."""
    shown = [table._asdict() for table in tables(results)]
    return {"tables": shown, "machine_line": machine_line(results["machine"])}


def page(runs: Sequence[dict[str, Any]]) -> str:
    """docs/benchmark_results.md: one section per run."""
    sections = [HEAD]
    for results in runs:
        sections.append(f"## {where(results['machine'])}\n")
        sections.append(markdown(results, tables(results, one=True)))
    return "\n".join(sections)


def markdown(results: dict[str, Any], chosen: Sequence[Table]) -> str:
    lines = [machine_line(results["machine"]) + ".", ""]
    for table in chosen:
        cells = [table.header, ["---"] * len(table.header), *table.rows]
        lines += [f"**{table.title}**", "", *(f"| {' | '.join(row)} |" for row in cells), ""]
    return "\n".join(lines)


def comparison(row: Measurement, mine: Measurement) -> tuple[str, float] | None:
    """The first figure that both have, and how many times as long `row` takes."""
    for key in COMPARED:
        if row.get(key) and mine.get(key):
            return key, row[key] / mine[key]
    return None


def torchvox_of(rows: Sequence[Measurement]) -> Measurement:
    return next((row for row in rows if row["implementation"] == "torchvox"), {"status": "absent"})


def _measurements(op: str, rows: list[Measurement]) -> Table:
    figures = [key for key in FIGURES if any(key in row for row in rows)]
    header = ["case", "implementation", *(FIGURES[key] for key in figures)]
    cells = []
    for case, same in grouped(rows, "case").items():
        for row in same:
            size, is_first = row.get("size", {}), row is same[0]
            moved = (size.get("read", 0) + size.get("written", 0)) / 1e6
            cells.append([case if is_first else "", row["implementation"]])
            cells[-1] += [number(row.get(key)) for key in figures]
            cells[-1] += [f"{moved:.2f}" if is_first else "", _factor(row, torchvox_of(same))]
            cells[-1].append("; ".join(map(_verdict, row.get("targets", ()))))
    return Table(op, [*header, "MB", "vs torchvox", "target"], cells)


def _factor(row: Measurement, mine: Measurement) -> str:
    if row["status"] != "timed":
        return f"{row['status']}: {row['reason']}"
    both = comparison(row, mine)
    return f"{both[1]:.2f}x" if both and row is not mine else ""


def _verdict(target: dict[str, Any]) -> str:
    """graph <= 18 us: met"""
    verdict = {True: "met", False: "MISSED", None: "not judged"}[target["met"]]
    return f"{FIGURES[target['figure']].removesuffix(' us')} {target['text']}: {verdict}"


def _curve(name: str, rows: list[Measurement]) -> Table:
    """Times by size, one column per implementation; those of samplers per sample too."""
    names = list(grouped(rows, "implementation"))
    per_sample = any("us_per_sample" in row for row in rows)
    header = [rows[0]["axis"], *(f"{name}, us" for name in names)]
    cells = []
    for at, same in grouped(rows, "at").items():
        here = {row["implementation"]: row for row in same}
        cells.append([f"{at:,g}" if at < 1 else f"{at:,.0f}"])
        cells[-1] += [number(here.get(name, {}).get("us")) for name in names]
        cells[-1] += [number(here["torchvox"].get("us_per_sample"))] * per_sample
    return Table(f"growth: {name}", header + ["torchvox, us per sample"] * per_sample, cells)


def peer_table(results: dict[str, Any]) -> Table:
    """A row for each case that a library did, with the figure that both have; for one that no
    library did right, a row that says what came instead."""
    versions, rows = results["machine"]["upstream"], []
    for case, same in grouped(results["measurements"], "case").items():
        mine = torchvox_of(same)
        peers = [row for row in same if package_of(row["implementation"], versions)]
        timed = [(comparison(row, mine), row) for row in peers if row["status"] == "timed"]
        head = [same[0]["op"], case.removeprefix(f"{same[0]['op']} ")]
        if both := [pair for pair in timed if pair[0]]:
            (figure, times), best = min(both, key=lambda pair: pair[0][1])
            figures = [FIGURES[figure].removesuffix(" us"), number(mine[figure])]
            figures += [number(best[figure]), best["implementation"]]
            version = versions[package_of(best["implementation"], versions)]
            rows.append([*head, *figures, version, f"{times:.2f}x", best["check"]])
        elif peers:
            without = [row for row in (mine, *peers) if "reason" in row]
            said = [f"{row['implementation']} {_factor(row, mine)}" for row in without]
            rows.append([*head, *[""] * 6, "; ".join(said)])
    return Table("peers", PEER_HEADER, rows)


def package_of(implementation: str, versions: dict[str, str | None]) -> str | None:
    """The package whose name an implementation's name begins with; None for plain torch."""
    names = [name for name in versions if versions[name] and implementation.startswith(name)]
    return max(names, key=len, default=None)


def number(value: float | None) -> str:
    """Three digits or so: 0.412, 12.3, 14,201."""
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 100 else f"{value:.0f}"
