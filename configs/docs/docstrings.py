# SPDX-License-Identifier: Apache-2.0
"""Docstrings of torchvox as Markdown: what describes an argument becomes an item of a list."""

import re
from typing import Any

import griffe

ITEM = re.compile(r"(\w+)(?:, \w+)*(?=: )")  # "x, y: " at the start of what is said of arguments
INNER = re.compile(r"(?<=[.;]) (?=\w+(?:, \w+)*: )")


class Docstrings(griffe.Extension):
    """For mkdocstrings."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        reshape(func, {parameter.name for parameter in func.parameters})

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        init = cls.members.get("__init__")
        parameters = init.parameters if isinstance(init, griffe.Function) else ()
        reshape(cls, {p.name for p in parameters} | set(cls.members))
        if not cls.docstring and any(str(base) == "NamedTuple" for base in cls.bases):
            fields = ", ".join(f"`{name}`" for name in cls.members if not name.startswith("_"))
            cls.docstring = griffe.Docstring(f"Fields, in this order: {fields}.", parent=cls)

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if attr.name.isupper() and attr.parent.is_module and not attr.docstring:
            attr.docstring = griffe.Docstring("A constant.", parent=attr)  # or it does not show


def reshape(thing: griffe.Object, arguments: set[str]) -> None:
    if thing.docstring:
        text, _, example = thing.docstring.value.partition("\n\n>>> ")
        code = f"\n\n```pycon\n>>> {example}\n```" if example else ""
        thing.docstring.value = markdown(text, arguments) + code


def markdown(text: str, arguments: set[str]) -> str:
    """Items are lines, and sentences in them, that begin with an argument and a colon, and lines
    indented once below a paragraph that ends in a colon. What is indented below an item, or ends
    its sentence, belongs to it."""
    lines: list[str] = []
    kind, last = "", ""  # of the lines before: "item", "list" below a colon, "text", or a blank
    for line in text.splitlines():
        indent, words, before = len(line) - len(line.lstrip()), line.strip(), kind
        is_item = not indent and names(words, arguments)
        if not words:
            kind = ""
        elif is_item or before == "item":
            ended = last.endswith((".", ":", ";")) and not indent
            kind = "item" if is_item or not ended else "text"
        elif not indent:
            kind = "text"
        elif before == "list" or (before == "text" and last.endswith(":")):
            kind, line = "list", f"- {words}" if indent == 4 else f"    {words}"
        if kind != before and before and kind:
            lines.append("")
        if kind == "item":
            for part in INNER.split(words):
                name = names(part, arguments)
                lines.append(f"- `{name}`{part[len(name) :]}" if name else f"    {part}")
        else:
            lines.append(line)
        last = words
    return "\n".join(lines)


def names(words: str, arguments: set[str]) -> str:
    """The arguments that a sentence begins with, if it does."""
    found = ITEM.match(words)
    return found[0] if found and found[1] in arguments else ""
