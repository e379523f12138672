# SPDX-License-Identifier: Apache-2.0
"""Which names of peers a codebase uses, and which are covered. Files are parsed, never run.

imported       the absolute names behind a file's names
used           those that it uses, and registered names in type="Voxelization"
Names.source   through modules of the codebase that pass on what they import
Names.place    which module of which peer such a name belongs to, also in forks and copies
scan           a Finding for each
install_lines  what to add to the program
"""

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

from torch import nn

from torchvox._util.errors import WrongUseError
from torchvox.compat import table
from torchvox.compat._finder import FINDER

COVERED, PARTLY, PEER, NOTHING = "covered", "partly", "from the peer", "not covered"
PLAIN = {"index_points", "query_ball_point"}  # a file that has both is a copy of yanx27's
COPIES = {"pointnet2_cuda": "pointnet2_batch_cuda", "pointnet2._ext": "_ext"}  # openpoints, votenet


class Finding(NamedTuple):
    """name: of the peer. at: what install() needs where the codebase has a copy of its module."""

    name: str
    peer: str
    at: str
    files: int
    uses: int
    status: str
    reason: str


class Parsed(NamedTuple):
    tree: ast.Module
    package: bool


def parse(path: Path) -> Dict[str, Parsed]:
    """The files by their module names. Raises WrongUseError for a wrong path."""
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    if not files:
        raise WrongUseError(f"{path} has no Python files")
    base = path if path.is_dir() else path.parent
    while (base / "__init__.py").exists():
        base = base.resolve().parent
    modules = {}
    for file in files:
        parts = file.resolve().relative_to(base.resolve()).with_suffix("").parts
        package = parts[-1] == "__init__"
        with warnings.catch_warnings():  # about escapes in other people's strings
            warnings.simplefilter("ignore")
            try:
                tree = ast.parse(file.read_bytes())
            except (SyntaxError, ValueError):  # not Python 3
                continue
        modules[".".join(parts[: len(parts) - package])] = Parsed(tree, package)
    return modules


def imported(module: str, parsed: Parsed) -> Dict[str, str]:
    """The absolute name behind each local one."""
    bound = {}
    for node in ast.walk(parsed.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                bound[alias.asname or whole] = whole
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")
            kept = above[: len(above) - node.level + parsed.package] if node.level else []
            source = table.join(*kept, node.module or "")
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{source}.{alias.name}"
    return bound


def used(node: ast.AST, bound: Dict[str, str], registered: Dict[str, str]) -> Iterator[str]:
    """The absolute names used below a node."""
    whole = dotted(node, bound)
    if whole:
        yield whole
        return
    pairs: List[Tuple[Optional[ast.expr], ast.expr]] = []
    if isinstance(node, ast.Dict):
        pairs = list(zip(node.keys, node.values, strict=True))
    elif isinstance(node, ast.keyword):
        pairs = [(ast.Constant(node.arg), node.value)]
    for key, value in pairs:
        if getattr(key, "value", None) == "type" and isinstance(value, ast.Constant):
            yield from filter(None, [registered.get(str(value.value))])
    for child in ast.iter_child_nodes(node):
        yield from used(child, bound, registered)


def dotted(node: ast.AST, bound: Dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return bound.get(node.id, "")
    left = dotted(node.value, bound) if isinstance(node, ast.Attribute) else ""
    return f"{left}.{node.attr}" if left and isinstance(node, ast.Attribute) else ""


Place = Tuple[str, str, str, str]  # peer, its module, name, the copy's module


class Names:
    """The names of the table and those of the codebase."""

    def __init__(self, parsed: Dict[str, Parsed]) -> None:
        self.own = parsed
        self.bound = {module: imported(module, file) for module, file in parsed.items()}
        self.rows = {row.module: row for row in table.every() if row.module}
        last = {name.rpartition(".")[2]: row for name, row in self.rows.items()}
        self.compiled = {name: row for name, row in last.items() if name.endswith("_cuda")}
        self.compiled.update({new: last[old] for new, old in COPIES.items() if old in last})
        self.roots = {name.partition(".")[0]: row.peer for name, row in self.rows.items()}
        for one in ("torch_geometric", *parsed):  # which is not ours, or scanned itself
            self.roots.pop(one.partition(".")[0], None)
        self.plain: Dict[str, Set[str]] = {}
        for module, file in parsed.items():
            defined = {n.name for n in file.tree.body if isinstance(n, ast.FunctionDef)}
            if defined >= PLAIN:
                self.plain[module] = defined & {*table.literals("pointnet2_plain").covered}

    def source(self, whole: str, hops: int = 9) -> str:
        """The name behind one that a module of the codebase imports itself. hops: imports may be
        circular."""
        parts = whole.split(".")
        for i in range(len(parts) - 1, 0, -1):
            behind = self.bound.get(".".join(parts[:i]), {}).get(parts[i], "")
            if behind and hops:
                return self.source(table.join(behind, *parts[i + 1 :]), hops - 1)
        return whole

    def place(self, whole: str) -> Optional[Place]:
        """The place of an absolute name, None if it is not of a peer."""
        parts = whole.split(".")
        for i in range(len(parts) - 1, 0, -1):
            module, name = ".".join(parts[:i]), parts[i]
            if module in self.plain:
                ours = name in self.plain[module]
                return ("pointnet2_plain", "", name, module) if ours else None
            row, copied = self.rows.get(module), ""
            for end in (parts[i - 1], ".".join(parts[i - 2 : i])):
                if row is None and end in self.compiled:
                    row, copied = self.compiled[end], module
            if module in self.own:
                return None
            if row is not None:
                module_itself = whole in self.rows and name not in table.literals(row.shim).names
                return None if module_itself else (row.peer, row.module, name, copied)
        above = any(f"{module}.".startswith(f"{whole}.") for module in self.rows)
        if above or parts[0] not in self.roots:
            return None
        i = next((i for i, part in enumerate(parts) if part[0].isupper()), len(parts) - 1)
        return self.roots[parts[0]], "", ".".join(parts[:i]), ""  # one finding per module


def scan(path: Path) -> List[Finding]:
    """One finding per name of a peer, by peer and name."""
    parsed = parse(path)
    names = Names(parsed)
    layers = [n for n in table.literals("mmcv_ops").names if n[0].isupper()]
    registered = {name: f"mmcv.ops.{name}" for name in layers if not hasattr(nn, name)}
    files: Dict[Place, Set[str]] = {}
    uses: Dict[Place, int] = {}
    for module, file in parsed.items():
        bound = {**names.bound[module]}
        row = names.rows.get(bound.pop("*", "")[:-2])  # the last star import, usually the only one
        bound.update({name: f"{module}.{name}" for name in names.plain.get(module, ())})
        counts = [(whole, 0) for whole in bound.values()]
        if row is not None:
            bound = {**{n: f"{row.module}.{n}" for n in table.literals(row.shim).names}, **bound}
        counts += [(whole, 1) for whole in used(file.tree, bound, registered)]
        for whole, count in counts:
            place = names.place(names.source(whole))
            if place is not None and not place[2].startswith("__"):
                files.setdefault(place, set()).add(module)
                uses[place] = uses.get(place, 0) + count
    return [finding(place, len(files[place]), uses[place]) for place in sorted(uses)]


def finding(place: Place, files: int, uses: int) -> Finding:
    peer, module, name, at = place
    rows = [row for row in table.every() if (row.peer, row.module) == (peer, module)]
    facts = table.literals(rows[0].shim) if rows else None
    status, reason = NOTHING, ""
    if facts is not None and name in facts.covered:
        status = PARTLY if name in facts.partly else COVERED
        reason = facts.partly.get(name, facts.differs.get(name, ""))
    elif FINDER.elsewhere(table.PEERS[peer].root.partition(".")[0]) is not None:
        status = PEER
    whole = table.join(module or (peer if at else ""), name)
    return Finding(whole, peer, at, files, uses, status, reason)


def install_lines(findings: List[Finding]) -> List[str]:
    """What to add at the start of the program."""
    whole, single, python = set(), set(), ""
    for one in findings:
        module, peer = one.name.rpartition(".")[0], table.PEERS[one.peer]
        below = module[len(peer.root) :]
        if one.status not in (COVERED, PARTLY):
            continue
        if not one.at:
            whole.add(one.peer)
            python = ", python=True" if below[1:] in peer.python else python
        elif peer.python and one.at.endswith(below):  # a fork's own Python stays
            single.add((one.peer, one.at[: -len(below)]))
        else:
            single.add((module, one.at))
    lines = [f"install({', '.join(map(repr, sorted(whole)))}{python})"] if whole else []
    lines += [f"install({name!r}, at={at!r})" for name, at in sorted(single)]
    return [f"torchvox.compat.{line}".replace("'", '"') for line in lines]
