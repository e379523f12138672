# SPDX-License-Identifier: Apache-2.0
"""`install`: a finder at the head of sys.meta_path that answers for the names of the table."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib import abc, machinery
from types import ModuleType
from typing import Any, Dict, List, Optional

from torchvox._util.errors import WrongUseError
from torchvox.compat import _modules, table
from torchvox.compat._errors import CompatOrderError
from torchvox.compat._modules import ENTRIES, PATCHED, SHADOWED, Empty, Entry, Shim

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
        entry, package = ENTRIES.get(name), bool(_modules.below(name))
        if entry is None and not package:
            return None
        spec = self.elsewhere(name, path)
        if entry is None:
            loader = _modules.EmptyLoader()
            return None if spec else machinery.ModuleSpec(name, loader, is_package=True)
        if entry.row.patched:
            if spec is not None and spec.loader is not None:
                spec.loader = _modules.PatchLoader(entry, spec.loader)
            return spec
        origin = str(table.source(entry.row.shim))
        ours = machinery.ModuleSpec(name, _modules.ShimLoader(entry, spec), origin=origin)
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
        _modules.patch(module, entry)
    elif module is not None:
        if not isinstance(module, Empty):
            SHADOWED[name] = module
        _place(name, None)
    if FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)


def _drop(name: str) -> None:
    """Remove what is in place under a name, and restore what was there before."""
    ENTRIES.pop(name, None)
    module = sys.modules.get(name)
    if name in PATCHED and module is not None:
        _modules.unpatch(module)
    if isinstance(module, Shim) or name in SHADOWED:
        _place(name, SHADOWED.pop(name, None))
    while "." in name:
        name = name.rpartition(".")[0]
        if isinstance(sys.modules.get(name), Empty) and not _modules.below(name):
            _place(name, None)
    if not ENTRIES and FINDER in sys.meta_path:
        sys.meta_path.remove(FINDER)


def _place(name: str, module: Optional[ModuleType]) -> None:
    """Set a module in sys.modules and in its parent; None removes it."""
    old = sys.modules.pop(name, None)
    parent, _, last = name.rpartition(".")
    above = vars(sys.modules[parent]) if parent in sys.modules else {}
    if old is not None and above.get(last) is old:
        above.pop(last)
    if module is not None:
        sys.modules[name] = module
        above.setdefault(last, module)


def _importers(name: str) -> List[str]:
    """Up to three modules that have this one, or a function or class of it."""
    names = []
    for importer, module in list(sys.modules.items()):
        related = f"{importer}.".startswith(f"{name}.") or f"{name}.".startswith(f"{importer}.")
        values = [] if related else list(getattr(module, "__dict__", {}).values())
        if any(
            value is sys.modules[name]
            or (callable(value) and f"{getattr(value, '__module__', '')}.".startswith(f"{name}."))
            for value in values
        ):
            names.append(importer)
    return names[:3]


def install(
    *names: str,
    at: Optional[str] = None,
    prefer: str = "torchvox",
    force: bool = False,
    python: bool = False,
) -> None:
    """Make imports of peers return torchvox's functions, in code that is not edited.

    names: peers ("mmcv", "pointnet2_ops", "pcdet", "pytorch3d", "torch_cluster", ..), or single
        modules of them ("pytorch3d._C"), of which then only that one is replaced.
    at: where a fork or a codebase has the same modules: "det3d.ops" for those of pcdet, or the name
        of a single module. It takes one name.
    prefer: "torchvox", or "peer": if the peer is installed, only add what it lacks.
    force: even if a module is imported already. Modules that imported from it keep what they have.
    python: replace the peer's Python over its compiled modules too ("pcdet").

    Call it before the peers are imported, and not while another thread imports.
    Raises WrongUseError (an unknown name) and CompatOrderError (too late).
    """
    if prefer not in PREFERENCES:
        raise WrongUseError(f"install: prefer must be one of {PREFERENCES}, got {prefer!r}")
    if at is not None and len(names) != 1:
        raise WrongUseError(f"install: at takes one name, got {names}")
    entries: Dict[str, Entry] = {}
    for name in names:
        entries.update({m: Entry(r, prefer) for m, r in table.select(name, at, python).items()})
    for name in entries:
        late = not isinstance(sys.modules.get(name), (type(None), Shim, Empty))
        if late and name not in ENTRIES and not force:
            importers = ", ".join(_importers(name))
            raise CompatOrderError(
                f"{name} is imported already{f', by {importers}' if importers else ''}: call "
                f"torchvox.compat.install({', '.join(map(repr, names))}) before, or with force=True"
            )
    for name, entry in entries.items():
        if ENTRIES.get(name) != entry:
            _put(name, entry)


def uninstall(*names: str) -> None:
    """Undo `install` for these peers or for all. Modules that imported them keep what they have."""
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
    """Where each name of the modules in place comes from: "torchvox", "peer" or "not covered"; for
    a module that is not imported yet, "not imported" under its own name."""
    origins = {}
    for full, entry in ENTRIES.items():
        module = sys.modules.get(full)
        if isinstance(module, Shim):
            origins.update({f"{full}.{name}": module._origin(name) for name in entry.facts.names})
        elif full in PATCHED:
            origins.update({f"{full}.{name}": "torchvox" for name in PATCHED[full]})
        else:
            origins[full] = "not imported"
    return origins
