# SPDX-License-Identifier: Apache-2.0
"""The list in docs/switching.md, one fold per adapter, from what the adapters declare."""

import textwrap
from pathlib import Path
from typing import Dict, Iterable, List

from torchvox.compat import table

BEGIN, END = "<!-- python -m torchvox.compat.page -->", "<!-- end -->"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _fold(shim: str, rows: List[table.Row]) -> List[str]:
    """An adapter's modules in the summary line, its names and their remarks below."""
    facts, first = table.literals(shim), rows[0].module or rows[0].peer
    others = {1: "", 2: f" and {rows[-1].module}"}
    modules = first + others.get(len(rows), f" and {len(rows) - 1} modules below it")
    lines = [f"<details markdown><summary>{modules}: {len(facts.covered)} names</summary>", ""]
    lines.append(_wrapped(f"- `torchvox.compat.{shim}` has {_names(facts.covered)}.", "  "))
    if facts.not_covered:
        lines.append(_wrapped(f"- Not covered: {_names(facts.not_covered)}.", "  "))
    remarks: Dict[str, List[str]] = {}
    for name, value in facts.partly.items():
        remarks.setdefault(f"`{value}` is not covered.", []).append(name)
    for name, words in facts.differs.items():
        remarks.setdefault(words, []).append(name)
    for words, names in remarks.items():
        lines.append(_wrapped(f"- {_names(names)}: {words}", "  "))
    return [*lines, "</details>"]


def markdown() -> str:
    """The folds of all adapters."""
    shims: Dict[str, List[table.Row]] = {}
    for row in table.every():
        shims.setdefault(row.shim, []).append(row)
    folds = [_fold(shim, rows) for shim, rows in shims.items() if table.literals(shim).covered]
    return "\n" + "\n".join(line for fold in folds for line in fold)


def main(page: Path = table.FOLDER.parent.parent / "docs" / "switching.md") -> None:
    """`python -m torchvox.compat.page`: write them into the page."""
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{markdown()}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
