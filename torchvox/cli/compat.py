# SPDX-License-Identifier: Apache-2.0
"""torchvox compat: run code written for other libraries' ops on torchvox, unedited."""

from __future__ import annotations

import builtins
import os
import runpy
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from torchvox._util.errors import WrongUseError
from torchvox.cli import commands, options
from torchvox.cli.work import console, leave

if TYPE_CHECKING:
    from torchvox.compat.scan import Finding

compat = typer.Typer(
    name="compat",
    help="Run code written for other libraries' ops on torchvox.",
    cls=commands.CommandGroup,
    no_args_is_help=True,
)
PEERS = "Comma-separated: mmcv, pcdet, ..; or NAME@MODULE if the code has it under another name."
INTERRUPTED = 130  # exit code


@options.option_class
class ScanOptions:
    path: Path = options.argument(..., "A folder of Python code, or one file.", metavar="PATH")
    files: bool = options.option(
        False,
        "List path:line of each import and use of every name. Default: of names that are not "
        "wholly covered.",
    )
    json: options.Json = None


@compat.command("scan", cls=commands.Command)
@options.command
def scan_(args: ScanOptions) -> None:
    """List the names of other libraries that code uses, and whether torchvox covers each.

    Exit code 0: all are covered, or none is used.
    Exit code 1: some are not covered, a package has no adapter, or a file is not valid Python 3.
    Exit code 2: there are no Python files.

    Examples:
        torchvox compat scan my_project/
        torchvox compat scan train.py --json
    """
    from torchvox.compat import scan, table

    findings, others, unread = scan.scan(args.path)
    lines = scan.install_lines(findings)
    names = [one._asdict() for one in findings]
    report = {"names": names, "no_adapter": others, "unread": unread, "install": lines}
    options.check_outputs([args.path], {"--json": args.json})
    commands.write_json(args.json, report)
    text = [line for one in findings for line in scan_lines(one, args.files)]
    text = text or [f"no names of {', '.join(table.PEERS)} are used"]
    if others:
        text.append(f"also imported, no adapter: {', '.join(others)}")
        text += [f"{'':15}{place} {name}" for name in others for place in others[name]]
        if any(name.startswith("torch_geometric.") for name in others):
            text.append("torch_geometric.nn calls pyg_lib or torch_cluster, which have adapters")
    text += [f"not valid Python 3, not read: {place}" for place in unread]
    out = console()
    for line in [*text, *lines]:
        out.print(line, markup=False, soft_wrap=True)
    if others or unread or any(one.status != scan.COVERED for one in findings):
        raise typer.Exit(1)


def scan_lines(one: Finding, files: bool) -> list[str]:
    """A name, what becomes of it, and where it is: always unless it is covered."""
    uses = f"{one.uses} {'use' if one.uses == 1 else 'uses'} in" if one.uses else "imported in"
    count = f"{uses} {one.files} {'file' if one.files == 1 else 'files'}"
    where = f" ({one.at})" if one.at else ""
    more = [one.reason] if one.reason else []
    more += one.places if files or one.status != "covered" else []
    return [f"{one.status:<15}{one.name}{where}: {count}", *(f"{'':15}{text}" for text in more)]


@compat.command(
    cls=commands.Command,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def run(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT ARGS...", help="Script, -m MODULE or -c CODE, and arguments."
        ),
    ],
    peers: Annotated[str, typer.Option(metavar="NAMES", help=PEERS)],
) -> None:
    """Run a Python program in this process, with torchvox in place of other libraries.

    Processes that it forks use torchvox too, new interpreters do not: see docs/switching.md.

    Examples:
        torchvox compat run --peers mmcv,pcdet tools/test.py --cfg_file pointpillar.yaml
    """
    from torchvox.compat import install

    for peer in peers.split(","):
        name, _, at = peer.strip().partition("@")
        install(name, at=at or None)
    run_program(command)


def run_program(command: list[str]) -> NoReturn:
    """Run what `python COMMAND` runs, as `__main__`, and exit with its code."""
    first, as_module, as_code = command[0], command[0] == "-m", command[0] == "-c"
    if (as_module or as_code) and len(command) == 1:
        raise WrongUseError(f"compat run {first} needs {'a module' if as_module else 'code'}")
    if not (as_module or as_code or os.path.isfile(first)):
        raise WrongUseError(
            f"compat run takes SCRIPT, -m MODULE or -c CODE as python does: {first} is not a file"
        )
    if signal.getsignal(signal.SIGTERM) is leave:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.argv = ["-c", *command[2:]] if as_code else command[as_module:]
    if not getattr(sys.flags, "safe_path", False):
        folder = os.getcwd() if as_module else os.path.dirname(os.path.realpath(first))
        sys.path[0] = "" if as_code else folder
    main = sys.modules["__main__"] = ModuleType("__main__")  # stays, for threads and exit handlers
    vars(main).update(__builtins__=builtins)
    code: object = 0
    try:
        if as_module:
            runpy._run_module_as_main(command[1])  # type: ignore[attr-defined]
        elif as_code:
            exec(compile(command[1], "<string>", "exec", dont_inherit=True), vars(main))
        else:
            main.__file__ = os.path.abspath(first)
            source = Path(first).read_bytes()
            exec(compile(source, main.__file__, "exec", dont_inherit=True), vars(main))
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    raise SystemExit(code)  # here, without a context: the app looks for one
