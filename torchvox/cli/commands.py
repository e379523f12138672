# SPDX-License-Identifier: Apache-2.0
"""How commands read their words and print help, beyond what typer does, and where JSON goes."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from typer.core import TyperCommand, TyperGroup

from torchvox._util.errors import WrongUseError
from torchvox.cli.notes import note
from torchvox.io.writers import write_text

if TYPE_CHECKING:
    from typer.core import TyperCommand as Mixin
else:
    Mixin = object

STDOUT = Path("-")  # only --json takes it
# Former names of options, understood until 0.2; a command that has such a name itself keeps it.
RENAMED = {
    "--voxel-size": "--voxel", "--range": "--bounds", "--plot": "--pictures", "--report": "--json",
    "--count": "--samples", "--write": "--output", "--memory": "--memory-limit",
    "--layout": "--source",
}  # fmt: skip


class Muted(io.StringIO):
    """In the place of stdout, where only JSON is printed."""

    def __init__(self, stdout: TextIO) -> None:
        super().__init__()
        self.stdout = stdout


def write_json(where: Path | None, facts: object) -> None:
    """Write to the file of --json, or print for -."""
    text = json.dumps(facts, indent=1, allow_nan=False)
    if where == STDOUT:
        print(text, file=getattr(sys.stdout, "stdout", sys.stdout))
    elif where is not None:
        write_text(where, text + "\n")


class Help(Mixin):
    """Of commands and groups: examples of the docstring below the options, metavars alone."""

    def __init__(self, *args: Any, **words: Any) -> None:
        super().__init__(*args, **words)
        text, _, examples = (self.help or "").partition("\n\nExamples:\n")
        self.help: str | None = text
        self.examples: str = examples

    def get_help_option(self, context: Any) -> Any:
        option = super().get_help_option(context)
        if option is not None:
            option.metavar = ""
        return option

    def collect_usage_pieces(self, context: Any) -> list[str]:
        if not (places := [each for each in self.params if each.param_type_name == "argument"]):
            return super().collect_usage_pieces(context)
        names = (f"{each.metavar}" if each.required else f"[{each.metavar}]" for each in places)
        return ["[OPTIONS]", *names]

    def format_help(self, context: Any, formatter: Any) -> None:
        for each in self.params:  # typer would print the type beside
            if each.param_type_name == "argument":
                vars(each)["display_type_rich"] = lambda ctx: None
        super().format_help(context, formatter)
        if self.examples:
            print(f" Examples:\n{self.examples.rstrip()}")


class CommandGroup(Help, TyperGroup):
    """A group of commands."""


class Command(Help, TyperCommand):
    """A command that knows options by their old names, takes --json without a file and -m for a
    MODEL, and refuses `-` as a file, and whole numbers beyond 64 bits, in any option."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        own = {name for each in self.params for name in each.opts}
        for name in {"--model", "-m"}.intersection(args[:-1]) - own:
            if "MODEL" in [each.metavar for each in self.params]:  # given by its place
                at = args.index(name)
                args[:] = [args[at + 1], *args[:at], *args[at + 2 :]]
        end = args.index("--") if "--" in args else len(args)
        for at, word in reversed(list(enumerate(args[:end]))):
            name, equals, value = word.partition("=")
            if (new := RENAMED.get(name)) in own and name not in own:
                note(f"torchvox: {name} is called {new} now")
                name, args[at] = new, new + equals + value
            after = args[at + 1] if at + 1 < end else "--"
            if name == "--json" in own and not equals and after[:1] == "-" != after:
                args.insert(at + 1, "-")
        return super().parse_args(context, args)

    def invoke(self, context: Any) -> object:
        if context.params.get("json") == STDOUT:
            with contextlib.redirect_stdout(Muted(sys.stdout)):
                return self._invoke(context)
        return self._invoke(context)

    def _invoke(self, context: Any) -> object:
        for parameter in self.params:
            option, value = parameter.opts[0], context.params.get(parameter.name or "")
            if value == STDOUT and option != "--json":
                raise WrongUseError(f"{option} - is not stdin or stdout: name a file")
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise WrongUseError(f"{option} must fit into 64 bits, got {value}")
        return super().invoke(context)
