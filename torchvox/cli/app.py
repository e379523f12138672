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
from typer.core import TyperGroup

from torchvox._util.errors import InterruptedWorkError, TorchvoxError, WrongUseError
from torchvox.cli import (
    bench,
    bev,
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
    mapping,
    predict,
    sample,
    train,
    view,
    voxelize,
)
from torchvox.cli.options import Command
from torchvox.cli.work import leave, note, sentence

# typer carries click inside or beside itself, depending on its version: take the class from it.
CommandLineError: type[Any] = typer.BadParameter.__mro__[2]
DONE, FAILED, WRONG_USE, INTERRUPTED, UNREAD = 0, 1, 2, 130, 141
OPAQUE = (LookupError, AttributeError, ArithmeticError)  # their messages alone say little
REPORTED = (TorchvoxError, OSError, RuntimeError, ValueError, TypeError, MemoryError, *OPAQUE)


class Group(TyperGroup):
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
_COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "info": info.info,
    "convert": convert.convert,
    "view": view.view,
    "downsample": downsample.downsample,
    "map": mapping.map_,
    "voxelize": voxelize.voxelize,
    "sample": sample.sample,
    "bev": bev.bev,
    "train": train.train,
    "eval": evaluate.evaluate,
    "predict": predict.predict,
    "detect": detect.detect,
    "import": importing.import_checkpoint,
    "export": exporting.export,
    "bench": bench.bench,
    "doctor": doctor.doctor,
}
for _name, _run in _COMMANDS.items():
    app.command(_name, cls=Command)(_run)
app.add_typer(datasets.data)
app.add_typer(compat.compat)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
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
