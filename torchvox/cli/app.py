# SPDX-License-Identifier: Apache-2.0
"""The app: its commands, and the only place where errors become sentences and exit codes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from torchvox._util.errors import InterruptedWorkError, TorchvoxError, WrongUseError
from torchvox.cli import (
    bench,
    bev,
    clean,
    compat,
    convert,
    datasets,
    demo,
    detect,
    doctor,
    downsample,
    evaluate,
    exporting,
    importing,
    info,
    labels,
    mapping,
    parity,
    predict,
    sample,
    train,
    view,
    voxelize,
)
from torchvox.cli.commands import Command, CommandGroup
from torchvox.cli.work import leave, note, sentence

# typer carries click inside or beside itself, depending on its version: take the class from it.
CommandLineError: type[Any] = typer.BadParameter.__mro__[2]
DONE, FAILED, WRONG_USE, INTERRUPTED, UNREAD = 0, 1, 2, 130, 141
OPAQUE = (LookupError, AttributeError, ArithmeticError)  # their messages alone say little
REPORTED = (TorchvoxError, OSError, RuntimeError, ValueError, TypeError, MemoryError, *OPAQUE)


class Group(CommandGroup):
    """A command group that reports every error in one sentence on stderr."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        code = self._guarded(*args, **{**kwargs, "standalone_mode": False})
        if kwargs.get("standalone_mode", True):
            sys.exit(code)
        return code

    def _guarded(self, *args: Any, **kwargs: Any) -> int:
        try:
            code = super().main(*args, **kwargs)
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a full disk is still an error like others
        except (typer.Abort, KeyboardInterrupt):
            code = INTERRUPTED
        except InterruptedWorkError as error:
            return _fail(error, INTERRUPTED)
        except CommandLineError as error:
            # typer passes on pydantic's words
            return _fail(error.format_message().replace("Value error, ", ""), WRONG_USE)
        except WrongUseError as error:
            return _fail(error, WRONG_USE)
        except (BrokenPipeError, SystemExit) as error:
            # A reader of our output went away, as head does; rich and typer exit then.
            if not any(isinstance(one, BrokenPipeError) for one in (error, error.__context__)):
                raise
            _close_stdout()
            return UNREAD
        except REPORTED as error:
            if os.environ.get("TORCHVOX_DEBUG"):
                raise
            return _fail(error, FAILED)
        if code == INTERRUPTED:  # typer ends an interrupt silently
            return _fail("interrupted", INTERRUPTED)
        return code if isinstance(code, int) else DONE


def _close_stdout() -> None:
    """What is still to be written must not raise again at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: object, code: int) -> int:
    note(f"torchvox: {sentence(error)}")
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # a full disk
        _close_stdout()
    return code


app = typer.Typer(
    cls=Group,
    name="torchvox",
    help="Voxelize, sample and rasterize point clouds on the CPU or the GPU.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    add_completion=False,
)
_COMMANDS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Look": {"demo": demo.demo, "info": info.info, "view": view.view},
    "Convert": {
        "convert": convert.convert,
        "downsample": downsample.downsample,
        "voxelize": voxelize.voxelize,
        "sample": sample.sample,
        "bev": bev.bev,
    },
    "Map": {"map": mapping.map_, "clean": clean.clean, "labels": labels.labels},
    "Learn": {
        "data": datasets.data,
        "train": train.train,
        "eval": evaluate.evaluate,
        "predict": predict.predict,
        "detect": detect.detect,
    },
    "Deploy": {
        "export": exporting.export,
        "parity": parity.parity,
        "bench": bench.bench,
        "doctor": doctor.doctor,
    },
    "Port": {"import": importing.import_checkpoint, "compat": compat.compat},
}
for _panel, _members in _COMMANDS.items():
    for _name, _run in _members.items():
        if isinstance(_run, typer.Typer):
            app.add_typer(_run, rich_help_panel=_panel)
        else:
            app.command(_name, cls=Command, rich_help_panel=_panel)(_run)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", metavar="", help="Print the version and exit."
    ),
) -> None:
    if version:
        import torchvox

        print(f"torchvox {getattr(torchvox, '__version__', 'unknown')}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(WRONG_USE)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the app on sys.argv[1:] or the given arguments, and return the exit code."""
    command = typer.main.get_command(app)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        with contextlib.suppress(ValueError):  # outside of the main thread
            signal.signal(signal.SIGTERM, leave)
    return command.main(
        None if arguments is None else list(arguments), prog_name="torchvox", standalone_mode=False
    )
