# SPDX-License-Identifier: Apache-2.0
"""torchvox bench: run the benchmark of the source tree, or show results as tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.table import Table

import torchvox
from torchvox._util.errors import TorchvoxError
from torchvox.cli.options import Device, argument, check_outputs, command, option, option_class
from torchvox.cli.work import console, note, use_device

ROOT = Path(torchvox.__file__).resolve().parents[1]
SCHEMA = 3  # of benchmarks/results.py


@option_class
class BenchOptions:
    results: Path | None = argument(
        None, "Results of an earlier run (.json); omit them to run the benchmark.", metavar="FILE"
    )
    only: str = option("", "Comma-separated words; run matching cases only.")
    growth: bool = option(False, "Also measure how cost grows with size, with plots.")
    alone: bool = option(False, "Measure torchvox only, no other implementations.")
    output: Path = option(Path("bench.json"), "Output file of a run.", "--output", "-o")
    device: Device = "auto"


@command
def bench(args: BenchOptions) -> None:
    """Measure every op on this machine and compare it with other implementations.

    A run needs the source tree and takes minutes: after 70 s on a GPU, 200 s on a CPU, it measures
    torchvox alone. --only shortens it. A results file can be shown anywhere.

    Examples:
        torchvox bench
        torchvox bench --only voxelize,knn --alone
        torchvox bench bench.json
    """
    if args.results is None:
        _run(args)
    _show(read(args.results or args.output))


def _run(args: BenchOptions) -> None:
    """Runs the benchmark in its own process, so that nothing in this one disturbs it."""
    if not (ROOT / "benchmarks" / "__main__.py").exists():
        raise TorchvoxError(
            "the benchmark is in the source tree, not in the installed package: run make bench "
            "there, or pass a results file to show"
        )
    check_outputs([], {"--output": args.output})
    words = ["-m", "benchmarks", "--device", use_device(args.device).type, "--only", args.only]
    words += ["--out", str(args.output.absolute())]
    words += ["--growth"] * args.growth + ["--alone"] * args.alone
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path}
    call = [sys.executable, *words]
    with subprocess.Popen(call, env=env, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            note(line.rstrip())
    if process.returncode != 0:
        raise TorchvoxError(f"the benchmark failed with exit code {process.returncode}")


def read(path: Path) -> dict[str, Any]:
    """Returns the results in a file, or raises an error that says what is wrong with it."""
    try:
        results = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise TorchvoxError(f"{path} cannot be read as benchmark results: {error}") from None
    if not isinstance(results, dict) or results.get("schema") != SCHEMA:
        raise TorchvoxError(f"{path} is not a result of this version of the benchmark")
    return results


def _show(results: dict[str, Any]) -> None:
    """Prints the tables that the file holds."""
    out = console()
    for table in results["tables"]:
        view = Table(title=table["title"], title_justify="left", title_style="bold")
        for number, name in enumerate(table["header"]):
            is_text = name in ("case", "implementation", "target") or number == 0
            view.add_column(name, justify="left" if is_text else "right", overflow="fold")
        for row in table["rows"]:
            view.add_row(*(_colored(cell) for cell in row))
        out.print(view)
    out.print(results["machine_line"], soft_wrap=True, markup=False)


def _colored(cell: str) -> str:
    text = cell.replace("[", r"\[")
    if "MISSED" in cell or cell.startswith(("wrong", "failed")):
        return f"[red]{text}[/red]"
    return f"[green]{text}[/green]" if cell.endswith(": met") else text
