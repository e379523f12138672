# SPDX-License-Identifier: Apache-2.0
"""Which names of peers a codebase uses, and which are covered. Files are parsed, never run.

imported       the absolute names behind a file's names
used           those that it uses, and registered names in type="Voxelization"
Names.source   through modules of the codebase that pass on what they import
Names.place    which module of which peer such a name belongs to, also in forks and copies
scan           a Finding for each, and packages that have no adapter
install_lines  what to add to the program
"""

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from os.path import abspath
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

from torch import nn

from torchvox._util.errors import WrongUseError
from torchvox.compat import table
from torchvox.compat._finder import FINDER

COVERED, PARTLY, PEER, NOTHING = "covered", "partly", "from the peer", "not covered"
PLAIN = {"index_points", "query_ball_point"}  # a file that has both is a copy of yanx27's
UNSEEN = "imported by import_module, or passed on whole: its names that are used are not visible"
# Packages of point-cloud ops that have no adapter, and names of larger ones.
_OTHERS = """
MinkowskiEngine chamfer_distance chamferdist frnn fvdb kaolin.metrics.pointcloud kaolin.ops.spc
knn_cuda mmdet3d.ops open3d.ml.torch.ops simple_knn torch_points_kernels
torchsparse warpconvnet torch_geometric.nn.fps torch_geometric.nn.knn torch_geometric.nn.knn_graph
torch_geometric.nn.nearest torch_geometric.nn.radius torch_geometric.nn.radius_graph
torch_geometric.nn.voxel_grid
"""
FOREIGN = re.compile(r"(^|/)(\.[^/]+|site-packages)/")
COPIES = {"pointnet2_cuda": "pointnet2_batch_cuda", "pointnet2._ext": "_ext"}  # openpoints, votenet


class Finding(NamedTuple):
    """name: of the peer. at: what install() needs where the codebase has a copy of its module.
    places: path:line of each import and use."""

    name: str
    peer: str
    at: str
    files: int
    uses: int
    status: str
    reason: str
    places: List[str]


class Scan(NamedTuple):
    """findings: one per name of a peer, by peer and name. others: packages that are imported and
    have no adapter -> path:line of each import and use. unread: path:line of syntax errors."""

    findings: List[Finding]
    others: Dict[str, List[str]]
    unread: List[str]


class Parsed(NamedTuple):
    tree: ast.Module
    package: bool
    path: Path


class Bound(NamedTuple):
    """The absolute name behind a local one, and the line that binds it."""

    whole: str
    line: int


def parse(path: Path) -> Tuple[Dict[str, Parsed], List[str]]:
    """The files by their module names, and `Scan.unread`. Raises WrongUseError for a wrong path."""
    if not path.exists():
        raise WrongUseError(f"{path} does not exist")
    files = [path] if path.is_file() else sorted(filter(Path.is_file, path.rglob("*.py")))
    files = [file for file in files if not FOREIGN.search(file.relative_to(path).as_posix())]
    if not files or path.suffix == ".ipynb":
        raise WrongUseError(f"{path} has no Python files (of notebooks, convert them to .py first)")
    base = Path(abspath(path if path.is_dir() else path.parent))  # links to files stay as they are
    while (base / "__init__.py").exists():
        base = base.parent
    modules, unread = {}, []
    for file in files:
        names = Path(abspath(file)).relative_to(base).with_suffix("").parts
        package = names[-1] == "__init__"
        with warnings.catch_warnings():  # about escapes in other people's strings
            warnings.simplefilter("ignore")
            try:
                tree = ast.parse(file.read_bytes())
            except (SyntaxError, ValueError, MemoryError, RecursionError) as error:  # Python 2
                unread.append(f"{file}:{getattr(error, 'lineno', None) or 1}")
                continue
        modules[".".join(names[: len(names) - package])] = Parsed(tree, package, file)
    return modules, unread


def imported(module: str, parsed: Parsed) -> Dict[str, Bound]:
    """The absolute name behind each local one: of `try` and `except`, that of `try`."""
    bound, assigned = {}, []
    handlers = [node for node in ast.walk(parsed.tree) if isinstance(node, ast.ExceptHandler)]
    fallbacks = {node for handler in handlers for node in ast.walk(handler)}
    for node in sorted(ast.walk(parsed.tree), key=lambda node: node not in fallbacks):
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                bound[alias.asname or whole] = Bound(whole, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")
            kept = above[: len(above) - node.level + parsed.package] if node.level else []
            source = table.join(*kept, node.module or "")
            for alias in node.names:
                bound[alias.asname or alias.name] = Bound(f"{source}.{alias.name}", node.lineno)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            assigned += [(one.id, node.value) for one in node.targets if isinstance(one, ast.Name)]
    for name, call in assigned:
        if whole := dotted(call, bound):
            bound[name] = Bound(whole, call.lineno)
    return bound


def used(tree: ast.AST, bound: Dict[str, Bound], registered: Dict[str, str]) -> Iterator[Bound]:
    """The absolute names used below a node, and their lines."""
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        whole = dotted(node, bound)
        if whole:
            if not isinstance(getattr(node, "ctx", None), ast.Store):  # assigned, not used
                yield Bound(whole, getattr(node, "lineno", 0))
            continue
        pairs: List[Tuple[Optional[ast.expr], ast.expr]] = []
        if isinstance(node, ast.Dict):
            pairs = list(zip(node.keys, node.values, strict=True))
        elif isinstance(node, ast.keyword):
            pairs = [(ast.Constant(node.arg), node.value)]
        for key, value in pairs:
            if getattr(key, "value", None) == "type" and isinstance(value, ast.Constant):
                yield Bound(registered.get(str(value.value), ""), value.lineno)
        nodes += ast.iter_child_nodes(node)


def dotted(node: ast.AST, bound: Dict[str, Bound]) -> str:
    """The absolute name of an expression, also of import_module("literal"); "" without one."""
    if isinstance(node, ast.Name):
        return bound[node.id].whole if node.id in bound else ""
    if isinstance(node, ast.Call):
        first = node.args[0] if len(node.args) == 1 else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            own = isinstance(node.func, ast.Name) and node.func.id == "__import__"
            if own or dotted(node.func, bound) == "importlib.import_module":
                return first.value.partition(".")[0] if own else first.value
        return ""
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
        own = {one.partition(".")[0] for one in parsed}
        self.others = [one for one in _OTHERS.split() if one.partition(".")[0] not in own]
        self.plain: Dict[str, Dict[str, int]] = {}  # names -> lines
        for module, file in parsed.items():
            defined = {n.name: n.lineno for n in file.tree.body if isinstance(n, ast.FunctionDef)}
            if defined.keys() >= PLAIN:
                covered = {*table.literals("pointnet2_plain").covered}
                self.plain[module] = {n: line for n, line in defined.items() if n in covered}

    def source(self, whole: str, hops: int = 9) -> str:
        """The name behind one that a module of the codebase imports itself. hops: imports may be
        circular."""
        parts = whole.split(".")
        for i in range(len(parts) - 1, 0, -1):
            behind = self.bound.get(".".join(parts[:i]), {}).get(parts[i])
            if behind and hops:
                return self.source(table.join(behind.whole, *parts[i + 1 :]), hops - 1)
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
        i = next((i for i, part in enumerate(parts) if part[0].isupper()), len(parts))
        return self.roots[parts[0]], "", ".".join(parts[: i + 1]), ""  # a class, not its methods

    def other(self, whole: str) -> str:
        """The name in _OTHERS that an absolute name is or belongs to, "" if to none."""
        return next((one for one in self.others if f"{whole}.".startswith(f"{one}.")), "")


def scan(path: Path) -> Scan:
    """The names of peers in a folder of code or in a file. Raises WrongUseError for a path without
    Python files."""
    parsed, unread = parse(path)
    names = Names(parsed)
    layers = [n for n in table.literals("mmcv_ops").names if n[0].isupper()]
    registered = {name: f"mmcv.ops.{name}" for name in layers if not hasattr(nn, name)}
    seen: Dict[Place, List[Tuple[str, int, bool]]] = {}  # path, line, whether it is a use
    others: Dict[str, Set[Tuple[str, int]]] = {}
    for module, file in parsed.items():
        bound = {**names.bound[module]}
        row = names.rows.get(bound.pop("*", Bound("", 0)).whole[:-2])  # the last star, usually one
        plain = names.plain.get(module, {})
        bound.update({name: Bound(f"{module}.{name}", line) for name, line in plain.items()})
        lines = [(*one, False) for one in bound.values()]
        if row is not None:
            stars = {n: Bound(f"{row.module}.{n}", 0) for n in table.literals(row.shim).names}
            bound = {**stars, **bound}
        lines += [(*one, True) for one in used(file.tree, bound, registered)]
        for name, line, is_use in lines:
            whole = names.source(name)
            if other := names.other(whole):
                others.setdefault(other, set()).add((str(file.path), line))
            place = names.place(whole)
            if place is None and is_use and whole in names.rows:
                is_seen = any(one.startswith(f"{whole}.") for one, *_ in lines)
                place = None if is_seen else (names.rows[whole].peer, whole, "", "")
            if place is not None and not place[2].rpartition(".")[2].startswith("__"):
                seen.setdefault(place, []).append((str(file.path), line, is_use))
    findings = [finding(place, seen[place]) for place in sorted(seen)]
    # Modules that are imported for the sake of names that are listed themselves.
    parents = {f.name.rpartition(".")[0] for f in findings}
    findings = [f for f in findings if f.uses or f.status == COVERED or f.name not in parents]
    return Scan(findings, {name: written(others[name]) for name in sorted(others)}, unread)


def written(places: Iterable[Tuple[str, int]]) -> List[str]:
    return [f"{path}:{line}" for path, line in sorted(set(places))]


def finding(place: Place, seen: List[Tuple[str, int, bool]]) -> Finding:
    peer, module, name, at = place
    rows = [row for row in table.every() if (row.peer, row.module) == (peer, module)]
    facts = table.literals(rows[0].shim) if rows else None
    status, reason = NOTHING, ""
    if facts is not None and not name:
        status, reason = PARTLY, UNSEEN
    elif facts is not None and name in facts.covered:
        status = PARTLY if name in facts.partly else COVERED
        reason = facts.partly.get(name, facts.differs.get(name, ""))
    elif FINDER.elsewhere(table.PEERS[peer].root.partition(".")[0]) is not None:
        status = PEER
    whole = table.join(module or (peer if at else ""), name)
    files, uses = len({path for path, _, _ in seen}), sum(is_use for _, _, is_use in seen)
    return Finding(whole, peer, at, files, uses, status, reason, written(one[:2] for one in seen))


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
