# SPDX-License-Identifier: Apache-2.0
"""torchvox doctor: what is installed, how it was built, what is missing and how to fix it."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tempfile
from importlib import metadata, util

import torch
import typer
from rich.table import Table

import torchvox
from torchvox._build import BUILD_INFO
from torchvox._library import BINDINGS, own_runtime
from torchvox._util.extras import EXTRAS
from torchvox.cli.work import console

GOOD, BAD, ABSENT = "[green]ok[/green]", "[red]broken[/red]", "[yellow]absent[/yellow]"


def doctor() -> None:
    """Show versions, build and GPUs, try the ops, and print how to install what is missing.

    Exit code 1 if an op that should work does not.
    """
    out = console()
    advice: list[str] = []
    out.print(_table("versions", _versions()))
    out.print(_table("build", _build()))
    out.print(_table("GPUs", _gpus(advice)))
    extras, absent = _extras()
    out.print(_table("extras", extras))
    if absent:
        advice.append(f"to install what is absent: pip install {' '.join(absent)}")
    checks, healthy = _try_ops()
    if problem := _import_elsewhere():
        healthy = False
        advice.append(f"python in another folder cannot import torchvox ({problem}): install it")
    apart = [path for path in sorted(BINDINGS.rglob("lib*.so")) if own_runtime(path)]
    if apart:
        healthy = False
        advice.append(
            f"{', '.join(path.name for path in apart)} must share libstdc++.so with torch, or the "
            "first error ends the process: rebuild without -static-libstdc++"
        )
    out.print(_table("ops", checks))
    for line in advice:
        out.print(f"[yellow]->[/yellow] {line.replace('[', chr(92) + '[')}", soft_wrap=True)
    if not advice and healthy:
        out.print("Nothing is missing.")
    if not healthy:
        raise typer.Exit(1)


def _table(title: str, rows: list[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _versions() -> list[tuple[str, str]]:
    cuda = torch.version.cuda
    return [
        ("torchvox", str(getattr(torchvox, "__version__", "unknown"))),
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("torch", f"{torch.__version__} ({f'CUDA {cuda}' if cuda else 'without CUDA'})"),
        ("numpy", metadata.version("numpy")),
        ("system", platform.platform()),
    ]


def _build() -> list[tuple[str, str]]:
    facts = BUILD_INFO
    return [
        ("torch", f"{facts['torch']} (supported: {facts['supported_torch']})"),
        ("CUDA", facts["cuda"] or f"none, CPU only ({facts['cpu_only_reason']})"),
        ("GPU archs", facts["archs"] or "none"),
        *((name, facts[name]) for name in ("compiler", "commit")),
    ]


def _gpus(advice: list[str]) -> list[tuple[str, str]]:
    if torch.version.cuda is None:
        return [("none", "this torch is built without CUDA; the ops run on the CPU")]
    if not torch.cuda.is_available():
        return [("none", "torch finds no GPU (nvidia-smi shows why); the ops run on the CPU")]
    if not BUILD_INFO["cuda"]:
        advice.append(
            "torchvox is built without CUDA: install the CUDA toolkit that matches torch "
            f"({torch.version.cuda}), then TORCHVOX_CUDA=1 pip install --no-build-isolation ."
        )
    rows = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        architecture, memory = f"sm_{facts.major}{facts.minor}", facts.total_memory / 2**30
        rows.append((f"cuda:{index}", f"{facts.name}, {architecture}, {memory:.0f} GiB"))
        if BUILD_INFO["cuda"] and not runs_on(10 * facts.major + facts.minor, BUILD_INFO["archs"]):
            advice.append(
                f"torchvox is built for {BUILD_INFO['archs']}, not for {architecture}: rebuild "
                f"with TORCH_CUDA_ARCH_LIST={facts.major}.{facts.minor}"
            )
    return rows


def runs_on(capability: int, archs: str) -> bool:
    """Whether a build for these architectures, e.g. 80-real;90-virtual, runs on a GPU of compute
    capability 90: machine code of its generation that is not newer, or PTX."""
    builds = [(int(number), kind) for number, kind in re.findall(r"(\d+)-(real|virtual)", archs)]
    return any(
        number <= capability and (kind == "virtual" or number // 10 == capability // 10)
        for number, kind in builds
    )


def _extras() -> tuple[list[tuple[str, str]], list[str]]:
    """Rows of the table, and the packages that are absent."""
    rows, absent = [], []
    for module, (package, extra) in EXTRAS.items():
        if util.find_spec(module) is None:
            rows.append((package, f"{ABSENT} (extra {extra})"))
            absent.append(package)
        else:
            rows.append((package, f"{metadata.version(package)} (extra {extra})"))
    return rows, absent


def _import_elsewhere() -> str:
    """Why a new interpreter, started in another folder, cannot import torchvox; "" if it can."""
    command = [sys.executable, "-c", "import torchvox"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def _try_ops() -> tuple[list[tuple[str, str]], bool]:
    """Run three ops on a few points, on every kind of device that should work."""
    devices = ["cpu"]
    if torch.cuda.is_available() and BUILD_INFO["cuda"]:
        devices.append("cuda")
    point_cloud_range = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    tries = {
        "voxelize": lambda p: torchvox.voxelize(p, [0.5] * 3, point_cloud_range, 4, 8),
        "furthest_point_sample": lambda p: torchvox.furthest_point_sample(p[None], 4),
        "bev_max_height": lambda p: torchvox.bev_max_height(p, point_cloud_range, [4, 4]),
    }
    rows, healthy = [], True
    for device in devices:
        for name, work in tries.items():
            try:
                work(torch.linspace(0.0, 0.95, 24, device=device).reshape(8, 3))
                verdict = GOOD
            except (RuntimeError, ValueError, TypeError, AttributeError, ImportError) as error:
                reason = " ".join(str(error).split())[:200].replace("[", r"\[")
                verdict, healthy = f"{BAD}: {reason}", False
            rows.append((f"{name} on {device}", verdict))
    return rows, healthy
