# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/switching.md, from what the adapters declare."""

from pathlib import Path
from typing import Dict, List

from torchvox.compat import table

BEGIN, END = "<!-- python -m torchvox.compat.page -->", "<!-- end -->"


def markdown() -> str:
    """The tables of docs/switching.md."""
    shims: Dict[str, List[table.Row]] = {}
    for row in table.every():
        shims.setdefault(row.shim, []).append(row)
    covered = ["| module | here | names | not covered |", "|---|---|---|---|"]
    remarks = ["| name | not covered, or another result |", "|---|---|"]
    for shim, rows in shims.items():
        facts, first = table.literals(shim), rows[0].module or rows[0].peer
        more = f" and {len(rows) - 1} modules below it" if len(rows) > 2 else ""
        names = [f"`{row.module or row.peer}`" for row in rows[: 1 if more else 2]]
        lists = (", ".join(f"`{name}`" for name in found) for found in (facts[0], facts[1]))
        cells = [", ".join(names) + more, f"`torchvox.compat.{shim}`", *lists]
        covered += [f"| {' | '.join(cells)} |"] if facts.covered or facts.not_covered else []
        for name in sorted({*facts.partly, *facts.differs}):
            value = f"`{facts.partly[name]}` is not covered. " if name in facts.partly else ""
            said = f"{value}{facts.differs.get(name, '')}".strip()
            remarks.append(f"| `{first}.{name}` | {said} |")
    return "\n".join([*covered, "", *remarks, ""])


def main(page: Path = table.FOLDER.parent.parent / "docs" / "switching.md") -> None:
    """`python -m torchvox.compat.page`: write them into the page."""
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{markdown()}{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
