# SPDX-License-Identifier: Apache-2.0
"""The peer table of a run: torchvox beside the best other library, case by case."""

from typing import Any

from torchvox.cli.bench_table import COMPARED, FIGURES, Table, number

HEADER = ["op", "size", "figure", "torchvox", "best peer", "which", "version", "ratio", "check"]


def peer_table(results: dict[str, Any]) -> Table:
    """A row for each case that a library did, with the figure that both have; for one that no
    library did right, a row that says what came instead. Times are in us."""
    versions = results["machine"]["upstream"]
    rows = []
    for case in dict.fromkeys(row["case"] for row in results["measurements"]):
        here = [row for row in results["measurements"] if row["case"] == case]
        mine = next(row for row in here if row["implementation"] == "torchvox")
        peers = [row for row in here if package_of(row["implementation"], versions)]
        timed = [(ratio(row, mine), row) for row in peers if row["status"] == "timed"]
        head = [mine["op"], case.removeprefix(f"{mine['op']} ")]
        if timed and mine["status"] == "timed":
            (figure, times), best = min(timed, key=lambda pair: pair[0][1])
            package = package_of(best["implementation"], versions)
            rows.append(
                [
                    *(*head, FIGURES[figure].removesuffix(" us")),
                    *(number(mine[figure]), number(best[figure])),
                    *(best["implementation"], versions[package], f"{times:.2f}x", best["check"]),
                ]
            )
        elif peers:
            said = "; ".join(
                f"{row['implementation']} {row['status']}: {row['reason']}"
                for row in (mine, *peers)
                if row["status"] != "timed"
            )
            rows.append([*head, *[""] * 6, said])
    return Table("peers", HEADER, rows)


def package_of(implementation: str, versions: dict[str, str | None]) -> str | None:
    """The package whose name an implementation's name begins with; None for a baseline."""
    names = [name for name in versions if versions[name] and implementation.startswith(name)]
    return max(names, key=len, default=None)


def ratio(row: dict[str, Any], mine: dict[str, Any]) -> tuple[str, float]:
    """The figure that both have, and how many times as long another implementation takes."""
    figure = next(key for key in COMPARED if key in row and mine.get(key))
    return figure, row[figure] / mine[figure]
