# SPDX-License-Identifier: Apache-2.0
"""`install`: a finder at the head of sys.meta_path that answers the names of the table.

Finder      which name is ours; what stood in sys.modules under it before
ShimModule  a module of the peer's name: ours first, then the peer's own, then stubs
Loader      makes one; for a patched module, sets our names in the one that is there
Empty       parents that are not installed
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from importlib import abc, machinery, util
from types import ModuleType
from typing import Any, Dict, List, NamedTuple, Optional

from torchvox._errors import WrongUseError
from torchvox.compat import table
from torchvox.compat._errors import CompatOrderError, stub

PREFERENCES = ("torchvox", "peer")


class Entry(NamedTuple):
    row: table.Row
    prefer: str


def _submodule(module: ModuleType, name: str) -> Optional[ModuleType]:
    """A module below this one that is ours, imported: the peers' packages import theirs at once."""
    full = f"{module.__name__}.{name}"
    known = any(f"{one}.".startswith(f"{full}.") for one in FINDER.entries)
    return importlib.import_module(full) if known else None


class ShimModule(ModuleType):
    """Names of the adapter are set when it is loaded; `__getattr__` has the others."""

    def __init__(self, name: str, entry: Entry, spec: Optional[machinery.ModuleSpec]) -> None:
        super().__init__(name)
        self.__dict__["_state"] = {"entry": entry, "spec": spec, "reason": ""}

    def _own(self) -> Optional[ModuleType]:
        """The peer's own module, run at its first use; None where there is none that imports."""
        state, name = self.__dict__["_state"], self.__name__
        if "own" not in state and name in FINDER.shadowed:
            state["own"] = FINDER.shadowed[name]
        if "own" not in state:
            state["own"], spec = None, state["spec"]
            if spec is not None and spec.loader is not None:
                state["own"] = module = util.module_from_spec(spec)  # it may ask for its own names
                try:
                    spec.loader.exec_module(module)
                except ImportError as error:
                    state["own"] = None
                    state["reason"] = f"{name} is installed but does not import ({error})"
        return state["own"]

    def _origin(self, name: str) -> str:
        """Where a name comes from: "torchvox", "peer", "not covered", or "" for nowhere."""
        entry: Entry = self.__dict__["_state"]["entry"]
        facts = table.literals(entry.row.shim)
        ours = name in facts.covered
        if ours and entry.prefer == "torchvox":
            return "torchvox"
        own = self._own()
        if own is not None and hasattr(own, name):
            return "peer"
        return "torchvox" if ours else "not covered" if name in facts.names else ""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__all__", "__version__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        entry: Entry = self.__dict__["_state"]["entry"]
        if name == "__all__":
            return [one for one in dir(self) if not one.startswith("_")]
        ours = name in table.literals(entry.row.shim).names
        below = None if ours else _submodule(self, name)
        if below is not None:
            return below
        where = self._origin(name)
        if where == "peer":
            return getattr(self._own(), name)
        if where == "torchvox":
            return getattr(importlib.import_module(f"torchvox.compat.{entry.row.shim}"), name)
        if where == "not covered":
            return stub(entry.row.module, name, self.__dict__["_state"]["reason"])
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        facts = table.literals(self.__dict__["_state"]["entry"].row.shim)
        if not (isinstance(value, ModuleType) and name in facts.names):
            super().__setattr__(name, value)  # else the submodule of a function's name, imported

    def __dir__(self) -> List[str]:
        facts = table.literals(self.__dict__["_state"]["entry"].row.shim)
        own = self._own()
        theirs = () if own is None else getattr(own, "__all__", None) or vars(own)
        return sorted({*vars(self), *facts.names, *theirs} - {"_state"})


class Loader(abc.Loader):
    def __init__(self, entry: Entry, spec: Optional[machinery.ModuleSpec]) -> None:
        self.entry, self.spec = entry, spec

    def create_module(self, spec: machinery.ModuleSpec) -> ModuleType:
        return ShimModule(spec.name, self.entry, self.spec)

    def exec_module(self, module: ModuleType) -> None:
        shim = importlib.import_module(f"torchvox.compat.{self.entry.row.shim}")
        module.__doc__ = shim.__doc__
        if self.entry.prefer == "torchvox":
            for name in table.literals(self.entry.row.shim).covered:
                setattr(module, name, getattr(shim, name))


class PatchLoader(abc.Loader):
    """Runs the module that is there, then sets our names in it: its own classes see them."""

    def __init__(self, entry: Entry, loader: Any) -> None:
        self.entry, self.loader = entry, loader

    def create_module(self, spec: machinery.ModuleSpec) -> Optional[ModuleType]:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        patch(module, self.entry)

    def __getattr__(self, name: str) -> Any:  # get_source and others
        return getattr(self.loader, name)


def patch(module: ModuleType, entry: Entry) -> None:
    shim = importlib.import_module(f"torchvox.compat.{entry.row.shim}")
    make = getattr(shim, "patch", None)
    names = make(module) if make else {name: getattr(shim, name) for name in shim.__all__}
    missing = object()
    old = {name: vars(module).get(name, missing) for name in names}
    if entry.prefer == "peer":
        names = {name: value for name, value in names.items() if old[name] is missing}
    vars(module).update(names)
    FINDER.patched[module.__name__] = {n: v for n, v in old.items() if n in names}, missing


class Empty(abc.Loader):
    """A package that is not installed, above one that is ours."""

    def create_module(self, spec: machinery.ModuleSpec) -> ModuleType:
        return EmptyPackage(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class EmptyPackage(ModuleType):
    def __getattr__(self, name: str) -> Any:
        below = None if name.startswith("__") else _submodule(self, name)
        if below is None:
            ours = [one for one in FINDER.entries if one.startswith(f"{self.__name__}.")]
            raise AttributeError(
                f"module {self.__name__!r} has no attribute {name!r}: it is not installed, and "
                f"torchvox.compat stands for {', '.join(ours[:5])} alone"
            )
        return below


class Finder(abc.MetaPathFinder):
    def __init__(self) -> None:
        self.entries: Dict[str, Entry] = {}
        self.shadowed: Dict[str, ModuleType] = {}  # imported before, and pushed aside by `force`
        self.patched: Dict[str, Any] = {}

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
        entry = self.entries.get(name)
        package = any(one.startswith(f"{name}.") for one in self.entries)
        if entry is None and not package:
            return None
        spec = self.elsewhere(name, path)
        if entry is None:
            return None if spec else machinery.ModuleSpec(name, Empty(), is_package=True)
        if entry.row.patched:
            if spec is not None:
                spec.loader = PatchLoader(entry, spec.loader)
            return spec
        origin = str(table.source(entry.row.shim))
        ours = machinery.ModuleSpec(name, Loader(entry, spec), origin=origin)
        places = spec.submodule_search_locations if spec else None
        if package or places is not None:
            ours.submodule_search_locations = list(places or ())
        return ours

    def put(self, name: str, entry: Entry) -> None:
        self.drop(name)
        self.entries[name] = entry
        module = sys.modules.get(name)
        if module is not None and entry.row.patched:
            patch(module, entry)
        elif module is not None:
            if not isinstance(module, EmptyPackage):
                self.shadowed[name] = module
            _place(name, None)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def drop(self, name: str) -> None:
        """Take back what stands under a name, and restore what stood there."""
        self.entries.pop(name, None)
        module = sys.modules.get(name)
        old, missing = self.patched.pop(name, ({}, None))
        for key, value in old.items():
            if value is missing:
                vars(module).pop(key, None)
            else:
                vars(module)[key] = value
        if isinstance(module, ShimModule) or name in self.shadowed:
            _place(name, self.shadowed.pop(name, None))
        for parent in _parents(name):
            empty = isinstance(sys.modules.get(parent), EmptyPackage)
            if empty and not any(one.startswith(f"{parent}.") for one in self.entries):
                _place(parent, None)
        if not self.entries and self in sys.meta_path:
            sys.meta_path.remove(self)


def _parents(name: str) -> List[str]:
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(len(parts) - 1, 0, -1)]


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
    old, inside = sys.modules[name], f"{name}."
    found = []
    for holder, module in list(sys.modules.items()):
        values = list(getattr(module, "__dict__", {}).values())
        theirs = (v for v in values if callable(v) or v is old)
        near = f"{holder}.".startswith(inside) or inside.startswith(f"{holder}.")
        if not near and any(
            v is old or f"{getattr(v, '__module__', '')}.".startswith(inside) for v in theirs
        ):
            found.append(holder)
    return found[:3]


FINDER = Finder()


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
        for full, row in table.select(name, at, python).items():
            wanted[full] = Entry(row, prefer)
    new = {full: entry for full, entry in wanted.items() if FINDER.entries.get(full) != entry}
    for full in new:
        module = sys.modules.get(full)
        late = module is not None and not isinstance(module, (ShimModule, EmptyPackage))
        if late and full not in FINDER.entries and not force:
            who = ", ".join(_holders(full))
            raise CompatOrderError(
                f"{full} is imported already{f', by {who}' if who else ''}: call "
                f"torchvox.compat.install({', '.join(map(repr, names))}) before, or with force=True"
            )
    for full, entry in new.items():
        FINDER.put(full, entry)


def uninstall(*names: str) -> None:
    """Take back what `install` put in place, of these peers or of all. Whoever imported them keeps
    what it took."""
    for full, entry in list(FINDER.entries.items()):
        if not names or entry.row.peer in names or entry.row.module in names or full in names:
            FINDER.drop(full)


@contextlib.contextmanager
def installed(*names: str, **options: Any) -> Iterator[None]:
    """`install` for a block; what was in place before comes back."""
    before = dict(FINDER.entries)
    install(*names, **options)
    try:
        yield
    finally:
        for full, entry in list(FINDER.entries.items()):
            if full not in before:
                FINDER.drop(full)
            elif before[full] != entry:
                FINDER.put(full, before[full])


def report() -> Dict[str, str]:
    """Where each name of the modules that are in place comes from: "torchvox", "peer" or "not
    covered"; of those not imported yet, "not imported" under the module's name."""
    found = {}
    for full, entry in FINDER.entries.items():
        module = sys.modules.get(full)
        if isinstance(module, ShimModule):
            for name in table.literals(entry.row.shim).names:
                found[f"{full}.{name}"] = module._origin(name)
        elif full in FINDER.patched:
            found.update({f"{full}.{name}": "torchvox" for name in FINDER.patched[full][0]})
        else:
            found[full] = "not imported"
    return found
