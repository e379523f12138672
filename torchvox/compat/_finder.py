# SPDX-License-Identifier: Apache-2.0
"""`install`: a finder at the head of sys.meta_path that answers the names of the table."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib import abc, machinery
from types import ModuleType
from typing import Any, Dict, List, Optional

from torchvox._errors import WrongUseError
from torchvox.compat import table
from torchvox.compat._errors import CompatOrderError
from torchvox.compat._modules import (
    ENTRIES,
    PATCHED,
    SHADOWED,
    Empty,
    EmptyLoader,
    Entry,
    PatchLoader,
    Shim,
    ShimLoader,
    patch,
    unpatch,
)

PREFERENCES = ("torchvox", "peer")


class Finder(abc.MetaPathFinder):
    def elsewhere(
        self, name: str, path: Optional[Sequence[str]] = None
    ) -> Optional[machinery.ModuleSpec]:
        """What the other finders have under a name."""
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path) if find and finder is not self else None
            if spec is not None:
                return spec
        return None

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[machinery.ModuleSpec]:
        entry = ENTRIES.get(name)
        package = any(one.startswith(f"{name}.") for one in ENTRIES)
        if entry is None and not package:
            return None
        spec = self.elsewhere(name, path)
        if entry is None:
            return None if spec else machinery.ModuleSpec(name, EmptyLoader(), is_package=True)
        if entry.row.patched:
            if spec is not None:
                spec.loader = PatchLoader(entry, spec.loader)
            return spec
        origin = str(table.source(entry.row.shim))
        ours = machinery.ModuleSpec(name, ShimLoader(entry, spec), origin=origin)
        places = spec.submodule_search_locations if spec else None
        if package or places is not None:
            ours.submodule_search_locations = list(places or ())
        return ours


FINDER = Finder()


def _put(name: str, entry: Entry) -> None:
    _drop(name)
    ENTRIES[name] = entry
    module = sys.modules.get(name)
    if module is not None and entry.row.patched:
        patch(module, entry)
    elif module is not None:
        if not isinstance(module, Empty):
            SHADOWED[name] = module
        _place(name, None)
    if FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)


def _drop(name: str) -> None:
    """Take back what stands under a name, and restore what stood there."""
    ENTRIES.pop(name, None)
    module = sys.modules.get(name)
    if name in PATCHED and module is not None:
        unpatch(module)
    if isinstance(module, Shim) or name in SHADOWED:
        _place(name, SHADOWED.pop(name, None))
    parts = name.split(".")
    for parent in (".".join(parts[:i]) for i in range(len(parts) - 1, 0, -1)):
        used = any(one.startswith(f"{parent}.") for one in ENTRIES)
        if isinstance(sys.modules.get(parent), Empty) and not used:
            _place(parent, None)
    if not ENTRIES and FINDER in sys.meta_path:
        sys.meta_path.remove(FINDER)


def _place(name: str, module: Optional[ModuleType]) -> None:
    """In sys.modules and in the parent; None takes it away."""
    gone = sys.modules.pop(name, None)
    parent, _, last = name.rpartition(".")
    above = vars(sys.modules[parent]) if parent in sys.modules else {}
    if gone is not None and above.get(last) is gone:
        above.pop(last)
    if module is not None:
        sys.modules[name] = module
        above.setdefault(last, module)


def _holders(name: str) -> List[str]:
    """Modules that took something from this one, as far as it can be told."""
    old, inside, found = sys.modules[name], f"{name}.", []
    for holder, module in list(sys.modules.items()):
        near = f"{holder}.".startswith(inside) or inside.startswith(f"{holder}.")
        for value in [] if near else list(getattr(module, "__dict__", {}).values()):
            made = getattr(value, "__module__", "") if callable(value) else ""
            if value is old or f"{made}.".startswith(inside):
                found.append(holder)
                break
    return found[:3]


def install(
    *names: str,
    at: Optional[str] = None,
    prefer: str = "torchvox",
    force: bool = False,
    python: bool = False,
) -> None:
    """Let imports of peers give torchvox's functions, in code that is not edited.

    names: peers ("mmcv", "pointnet2_ops", "pcdet", "pytorch3d", "torch_cluster", ..), or single
        modules of them ("pytorch3d._C"): then that one alone is ours.
    at: where a fork or a codebase has the same modules: "det3d.ops" for those of pcdet, or the name
        of a single module. One name then.
    prefer: "torchvox", or "peer": where the peer is installed, only what it lacks is filled in.
    force: even if a module is imported already. Whoever imported it keeps what it took.
    python: the peer's Python over its compiled modules, too ("pcdet").

    To be called before the peers are imported, and not while another thread imports.
    Raises WrongUseError (an unknown name) and CompatOrderError (too late).
    """
    if prefer not in PREFERENCES:
        raise WrongUseError(f"install: prefer must be one of {PREFERENCES}, got {prefer!r}")
    if at is not None and len(names) != 1:
        raise WrongUseError(f"install: at takes one name, got {names}")
    wanted: Dict[str, Entry] = {}
    for name in names:
        wanted.update({m: Entry(r, prefer) for m, r in table.select(name, at, python).items()})
    for name in wanted:
        module = sys.modules.get(name)
        late = module is not None and not isinstance(module, (Shim, Empty))
        if late and name not in ENTRIES and not force:
            who = ", ".join(_holders(name))
            raise CompatOrderError(
                f"{name} is imported already{f', by {who}' if who else ''}: call "
                f"torchvox.compat.install({', '.join(map(repr, names))}) before, or with force=True"
            )
    for name, entry in wanted.items():
        if ENTRIES.get(name) != entry:
            _put(name, entry)


def uninstall(*names: str) -> None:
    """Take back what `install` put in place, of these peers or of all. Whoever imported them keeps
    what it took."""
    for name, entry in list(ENTRIES.items()):
        if not names or {entry.row.peer, entry.row.module, name} & {*names}:
            _drop(name)


@contextlib.contextmanager
def installed(*names: str, **options: Any) -> Iterator[None]:
    """`install` for a block; what was in place before comes back."""
    before = dict(ENTRIES)
    install(*names, **options)
    try:
        yield
    finally:
        for name, entry in list(ENTRIES.items()):
            if name not in before:
                _drop(name)
            elif before[name] != entry:
                _put(name, before[name])


def report() -> Dict[str, str]:
    """Where each name of the modules that are in place comes from: "torchvox", "peer" or "not
    covered"; of those not imported yet, "not imported" under the module's name."""
    found = {}
    for full, entry in ENTRIES.items():
        module = sys.modules.get(full)
        if isinstance(module, Shim):
            found.update({f"{full}.{name}": module._origin(name) for name in entry.facts.names})
        elif full in PATCHED:
            found.update({f"{full}.{name}": "torchvox" for name in PATCHED[full]})
        else:
            found[full] = "not imported"
    return found
