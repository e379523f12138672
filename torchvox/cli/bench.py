# SPDX-License-Identifier: Apache-2.0
"""torchvox bench: run the benchmark of the source tree, or show results as tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import torchvox
from torchvox._util.errors import TorchvoxError
from torchvox.cli.options import Device, DeviceChoice, check_outputs
from torchvox.cli.work import console, note, use_device

ROOT = Path(torchvox.__file__).resolve().parents[1]
SCHEMA = 3  # of benchmarks/results.py


def bench(
    results: Annotated[
        Path | None,
        typer.Argument(help="Results of an earlier run (.json); omit them to run the benchmark."),
    ] = None,
    only: Annotated[str, typer.Option(help="Comma-separated words; run matching cases only.")] = "",
    growth: Annotated[
        bool, typer.Option("--growth", help="Also measure how cost grows with size, with plots.")
    ] = False,
    alone: Annotated[
        bool, typer.Option("--alone", help="Measure torchvox only, no other implementations.")
    ] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="Output file of a run.")] = Path(
        "bench.json"
    ),
    device: Device = DeviceChoice.auto,
) -> None:
    """Measure every op on this machine and compare it with other implementations.

    A run needs the source tree and takes minutes: after 70 s on a GPU, 200 s on a CPU, it measures
    torchvox alone. --only shortens it. A results file can be shown anywhere.
    """
    if results is None:
        run(output, only, growth, alone, device)
    _show(read(results or output))


def run(output: Path, only: str, growth: bool, alone: bool, device: DeviceChoice) -> None:
    """Runs the benchmark in its own process, so that nothing in this one disturbs it."""
    if not (ROOT / "benchmarks" / "__main__.py").exists():
        raise TorchvoxError(
            "the benchmark is in the source tree, not in the installed package: run make bench "
            "there, or pass a results file to show"
        )
    check_outputs([], {"--output": output})
    where = use_device(device)
    command = [sys.executable, "-m", "benchmarks", "--device", where.type, "--only", only]
    command += ["--out", str(output.absolute())]
    command += ["--growth"] * growth + ["--alone"] * alone
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
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
