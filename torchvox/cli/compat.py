# SPDX-License-Identifier: Apache-2.0
"""torchvox compat: code written for other libraries' ops, on torchvox without edits."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from torchvox.cli.work import console

compat = typer.Typer(
    name="compat", help="Code written for other libraries' ops, on torchvox.", no_args_is_help=True
)
NAME = "A peer (mmcv, pcdet, ..), or NAME@MODULE where a codebase has it under another name."
BOOT = Path(__file__).parent.parent / "compat" / "_boot.py"
STARTS = (
    "# torchvox compat: {names}\n"
    "import os; p = {boot!r}; os.path.exists(p) and "  # in one line, as .pth files run them
    "exec(compile(open(p).read(), p, 'exec'), {{'NAMES': {names!r}}})\n"
)


def _boot_names(names: list[str]) -> str:
    """What _boot.py reads. Raises WrongUseError for unknown names."""
    from torchvox.compat import table

    found = []
    for name in names:
        name, _, at = name.strip().partition("@")
        found += [f"{name}:{at}:{next(iter(table.select(name, at or None))).partition('.')[0]}"]
    return " ".join(found)


def _start_file() -> Path:
    return Path(sysconfig.get_paths()["purelib"]) / "torchvox_compat.pth"


def _enabled() -> list[str]:
    file = _start_file()
    words = file.read_text().splitlines()[0].split()[3:] if file.exists() else []
    return ["@".join(filter(None, word.split(":")[:2])) for word in words]


@compat.command("scan")
def scan_(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A codebase, or one file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the names of peers that a codebase uses, and what becomes of each.

    Exit code 0 when all are covered, 1 when some are not.
    """
    from torchvox.compat import scan

    findings = scan.scan(path)
    lines = scan.install_lines(findings)
    if as_json:
        print(json.dumps({"names": [f._asdict() for f in findings], "install": lines}, indent=1))
    else:
        table = Table("name", "files", "uses", "", show_edge=False)
        for one in findings:
            what = one.status + (f": {one.reason}" if one.reason else "")
            where = f" ({one.at})" if one.at else ""
            table.add_row(escape(one.name + where), str(one.files), str(one.uses), escape(what))
        out = console()
        out.print(table)
        for line in lines:
            out.print(line, markup=False, soft_wrap=True)
    if any(one.status != scan.COVERED for one in findings):
        raise typer.Exit(1)


@compat.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    command: Annotated[
        list[str], typer.Argument(metavar="SCRIPT ARGS...", help="As python takes them; -m too.")
    ],
    peers: Annotated[str, typer.Option(help=f"Commas between. {NAME}")],
) -> None:
    """Run a Python program, and the processes that it starts, with torchvox in place of peers."""
    paths = [str(BOOT.parent / "_site"), os.environ.get("PYTHONPATH", "")]
    os.environ["TORCHVOX_COMPAT"] = _boot_names(peers.split(","))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *command])


@compat.command()
def enable(names: Annotated[list[str], typer.Argument(metavar="NAME...", help=NAME)]) -> None:
    """Put torchvox in place of peers in every process of this environment."""
    boot = _boot_names([*_enabled(), *(name for name in names if name not in _enabled())])
    _start_file().write_text(STARTS.format(names=boot, boot=str(BOOT)))
    print(f"enabled: {', '.join(_enabled())} ({_start_file()})")


@compat.command()
def disable() -> None:
    """Take back `enable`. Leaves no file."""
    _start_file().unlink(missing_ok=True)
    print("disabled")


@compat.command()
def status() -> None:
    """Show the modules of every peer, and where their names come from in this environment."""
    from torchvox.compat import table
    from torchvox.compat._finder import FINDER

    enabled = {name: "enabled" for name in _enabled()}
    rows = Table("peer", "", "modules", "names", "others", show_edge=False)
    for peer, facts in table.PEERS.items():
        modules = table.rows_of(peer)
        known = [table.literals(row.shim) for row in modules.values()]
        there = FINDER.elsewhere(facts.root.partition(".")[0]) if facts.root else None
        names = {name for one in known for name in one.covered}
        if modules:
            what = enabled.pop(peer, "")
            other = "its own" if there else "not covered"
            rows.add_row(peer, what, str(len(modules)), f"{len(names)} of torchvox", other)
    for name in enabled:
        rows.add_row(name, "enabled", "", "", "")
    console().print(rows)
