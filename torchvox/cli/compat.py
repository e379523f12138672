# SPDX-License-Identifier: Apache-2.0
"""torchvox compat: code written for other libraries' ops, on torchvox without edits."""

from __future__ import annotations

import builtins
import json
import os
import pkgutil
import runpy
import signal
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NoReturn

import typer
from rich.markup import escape
from rich.table import Table

from torchvox._errors import WrongUseError
from torchvox.cli.work import console, leave

compat = typer.Typer(
    name="compat", help="Code written for other libraries' ops, on torchvox.", no_args_is_help=True
)
NAME = "A peer (mmcv, pcdet, ..), or NAME@MODULE where a codebase has it under another name."
INTERRUPTED = 130  # exit code of a shell for it


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
        list[str],
        typer.Argument(metavar="SCRIPT ARGS...", help="Or -m MODULE ARGS..., or -c CODE ARGS..."),
    ],
    peers: Annotated[str, typer.Option(help=f"Commas between. {NAME}")],
) -> None:
    """Run a Python program in this process, with torchvox in place of peers.

    Processes that it forks have them too, new interpreters do not: see docs/switching.md.
    """
    from torchvox.compat import install

    for peer in peers.split(","):
        name, _, at = peer.strip().partition("@")
        install(name, at=at or None)
    run_program(command)


def run_program(command: list[str]) -> NoReturn:
    """Run what `python COMMAND` runs, and leave with its exit code. An error is printed as python
    prints it, from the first frame of the program on."""
    first, *rest = command
    plain = first not in ("-c", "-m")
    if not (os.access(first, os.R_OK) if plain else rest):
        what = f"{first} is no readable file" if plain else f"nothing follows {first}"
        raise WrongUseError(f"compat run takes SCRIPT, -m MODULE or -c CODE as python does: {what}")
    if signal.getsignal(signal.SIGTERM) is leave:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main).update(__builtins__=builtins)
    code: Any = 0
    try:
        _execute(main, first, rest)
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals is not vars(main):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    raise SystemExit(code)  # here, without a context: the app looks for one


def _execute(main: ModuleType, first: str, rest: list[str]) -> None:
    """With sys.argv, sys.path[0] and attributes of __main__ as python sets them."""
    path, named = os.path.abspath(first), {"-c": "", "-m": os.getcwd()}
    archive = first not in named and pkgutil.get_importer(path) is not None  # or a folder
    start = path if archive else named.get(first, os.path.dirname(os.path.realpath(path)))
    sys.argv = [first, *(rest[1:] if first in named else rest)]
    safe = getattr(sys.flags, "safe_path", False)  # where python has put no folder first
    if archive or not safe:
        sys.path[: 1 - safe] = [start]
    if archive or first == "-m":
        module = "__main__" if archive else rest[0]
        runpy._run_module_as_main(module, not archive)  # type: ignore[attr-defined]
    elif first == "-c":
        exec(compile(rest[0], "<string>", "exec", dont_inherit=True), vars(main))
    else:
        loader = SourceFileLoader("__main__", path)
        vars(main).update(__file__=path, __loader__=loader, __cached__=None)
        exec(loader.source_to_code(loader.get_data(path), path), vars(main))
