# SPDX-License-Identifier: Apache-2.0
"""The modules that replace a peer's, and the loaders that create them.

Shim          a module with the peer's name: our names first, then the peer's own, then stubs
ShimLoader    creates one
PatchLoader   runs the peer's module, then sets our names in it
Empty         a package that is not installed, above a module that is ours
"""

import importlib
from importlib import abc, machinery, util
from types import ModuleType
from typing import Any, Dict, List, NamedTuple, Optional

from torchvox.compat import table
from torchvox.compat._errors import stub


class Entry(NamedTuple):
    row: table.Row
    prefer: str

    @property
    def facts(self) -> table.Literals:
        return table.literals(self.row.shim)

    def shim(self) -> ModuleType:
        return importlib.import_module(f"torchvox.compat.{self.row.shim}")


MISSING = object()
ENTRIES: Dict[str, Entry] = {}  # what is in place, by the names of the modules
SHADOWED: Dict[str, ModuleType] = {}  # imported before, and replaced by `force`
PATCHED: Dict[str, Dict[str, Any]] = {}  # what our names replaced in the peers' modules


def below(package: str) -> List[str]:
    """The modules in place below a package."""
    return [name for name in ENTRIES if name.startswith(f"{package}.")]


def submodule(module: ModuleType, name: str) -> Optional[ModuleType]:
    """A module of ours below this one, imported: the peers' packages import theirs at once."""
    full = f"{module.__name__}.{name}"
    return importlib.import_module(full) if full in ENTRIES or below(full) else None


class Shim(ModuleType):
    """The loader sets our names; `__getattr__` has the others."""

    def __init__(self, name: str, entry: Entry, spec: Optional[machinery.ModuleSpec]) -> None:
        super().__init__(name)
        self.__dict__.update(_entry=entry, _spec=spec, _broken="")

    def _own(self) -> Optional[ModuleType]:
        """The peer's own module, run at its first use; None if there is none that imports."""
        state, name = self.__dict__, self.__name__
        if "_module" not in state:
            spec = state["_spec"]
            state["_module"] = SHADOWED.get(name)
            if state["_module"] is None and spec is not None and spec.loader is not None:
                state["_module"] = util.module_from_spec(spec)  # set already while it runs
                try:
                    spec.loader.exec_module(state["_module"])
                except Exception as error:
                    state["_module"] = None
                    state["_broken"] = f"{name} is installed but does not import ({error})"
        return state["_module"]

    def _origin(self, name: str) -> str:
        """Where a name comes from: "torchvox", "peer", "not covered", or "" for nowhere."""
        entry: Entry = self.__dict__["_entry"]
        ours = name in entry.facts.covered
        if ours and entry.prefer == "torchvox":
            return "torchvox"
        own = self._own()
        if own is not None and hasattr(own, name):
            return "peer"
        return "torchvox" if ours else "not covered" if name in entry.facts.names else ""

    def __getattr__(self, name: str) -> Any:
        entry: Entry = self.__dict__["_entry"]
        if name == "__all__":
            return [one for one in dir(self) if not one.startswith("_")]
        if not name.startswith("__") or name == "__version__":
            module = None if name in entry.facts.names else submodule(self, name)
            if module is not None:
                return module
            origin = self._origin(name)
            if origin == "not covered":
                return stub(entry.row.module, name, self.__dict__["_broken"])
            if origin:
                return getattr(self._own() if origin == "peer" else entry.shim(), name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        names = self.__dict__["_entry"].facts.names
        if not (isinstance(value, ModuleType) and name in names):  # a submodule of that name
            super().__setattr__(name, value)

    def __dir__(self) -> List[str]:
        own = self._own()
        theirs = () if own is None else getattr(own, "__all__", None) or vars(own)
        names = {*vars(self), *self.__dict__["_entry"].facts.names, *theirs}
        return sorted(names - {"_entry", "_spec", "_broken", "_module"})


class ShimLoader(abc.Loader):
    def __init__(self, entry: Entry, spec: Optional[machinery.ModuleSpec]) -> None:
        self.entry, self.spec = entry, spec

    def create_module(self, spec: machinery.ModuleSpec) -> ModuleType:
        return Shim(spec.name, self.entry, self.spec)

    def exec_module(self, module: ModuleType) -> None:
        shim = self.entry.shim()
        module.__doc__ = shim.__doc__
        if self.entry.prefer == "torchvox":
            for name in self.entry.facts.covered:
                setattr(module, name, getattr(shim, name))
            getattr(shim, "on_install", bool)()  # registries outside


class PatchLoader(abc.Loader):
    """The module's own classes use our names too."""

    def __init__(self, entry: Entry, loader: abc.Loader) -> None:
        self.entry, self.loader = entry, loader

    def create_module(self, spec: machinery.ModuleSpec) -> Optional[ModuleType]:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        patch(module, self.entry)

    def __getattr__(self, name: str) -> Any:  # get_source and others
        return getattr(self.loader, name)


def patch(module: ModuleType, entry: Entry) -> None:
    shim = entry.shim()
    make = getattr(shim, "patch", None)
    names = make(module) if make else {name: getattr(shim, name) for name in entry.facts.covered}
    if entry.prefer == "peer":
        names = {name: value for name, value in names.items() if name not in vars(module)}
    PATCHED[module.__name__] = {name: vars(module).get(name, MISSING) for name in names}
    vars(module).update(names)


def unpatch(module: ModuleType) -> None:
    for name, value in PATCHED.pop(module.__name__, {}).items():
        vars(module)[name] = value
        if value is MISSING:
            del vars(module)[name]


class Empty(ModuleType):
    def __getattr__(self, name: str) -> Any:
        module = None if name.startswith("__") else submodule(self, name)
        if module is not None:
            return module
        raise AttributeError(
            f"module {self.__name__!r} has no attribute {name!r}: it is not installed, and "
            f"torchvox.compat only replaces {', '.join(below(self.__name__)[:5])}"
        )


class EmptyLoader(abc.Loader):
    def create_module(self, spec: machinery.ModuleSpec) -> ModuleType:
        return Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass
