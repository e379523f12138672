# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint does not say of its network, and where it comes from instead."""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple, TypeVar

from torchvox.models.checkpoints import CheckpointError
from torchvox.ops.conventions import Options

SHAPES, ASSUMED, OVERRIDE = "inferred from shapes", "assumed", "override"
CONFIG = "declared by its configuration"
T = TypeVar("T")


@dataclass(frozen=True)
class Flag:
    """name: dotted, of the configuration. how: one of the four above."""

    name: str
    value: object
    how: str


@dataclass(frozen=True)
class Declared:
    """settings: by dotted names. notes: warnings about networks trained with it."""

    settings: Dict[str, Any] = field(default_factory=dict)
    notes: Tuple[str, ...] = ()


class Settings:
    """overrides: values of the configuration, nested or by dotted names; they win over what the
    configuration of the program declares, which wins over what a layout would assume. flags: what
    was chosen, in order."""

    def __init__(self, overrides: Mapping[str, Any], declared: Mapping[str, Any]) -> None:
        self._given = {name: (value, CONFIG) for name, value in flat(declared).items()}
        self._given |= {name: (value, OVERRIDE) for name, value in flat(overrides).items()}
        self._open = dict(self._given)
        self.flags: List[Flag] = []

    def choose(self, name: str, value: T, how: str = ASSUMED) -> T:
        """The override, else the declared value, else this one; adds a flag in any case."""
        if name in self._given:
            value, how = self._given[name]
            self._open.pop(name, None)
        self.flags.append(Flag(name, value, how))
        return value

    def choices(self, prefix: str, values: Mapping[str, Any]) -> Dict[str, Any]:
        """`choose` for each, by its name behind the prefix."""
        return {name: self.choose(f"{prefix}.{name}", value) for name, value in values.items()}

    def peek(self, name: str, value: object) -> Any:
        """What `choose` would give."""
        return self._given.get(name, (value, ""))[0]

    def need(self, name: str, why: str) -> Any:
        """The override, else the declared value. Raises CheckpointError when there is none."""
        if name not in self._given:
            raise CheckpointError(f"{why}: {name} must be given")
        return self.choose(name, None)

    def has(self, name: str) -> bool:
        return name in self._given

    def applied(self, config: Dict[str, Any]) -> Dict[str, Any]:
        """The configuration with every other override."""
        for name, (value, how) in self._open.items():
            self.flags.append(Flag(name, value, how))
            at = config
            *outer, last = name.split(".")
            for key in outer:
                at = at.setdefault(key, {})
                if not isinstance(at, dict):
                    raise CheckpointError(f"{name}: {key} holds no further keys")
            at[last] = value
        self._open = {}
        return config


def pick(content: Mapping[str, Any], places: Mapping[str, str]) -> Dict[str, Any]:
    """Settings by their names, each from a dotted place in a configuration; what is not there or
    None is left out."""
    settings: Dict[str, Any] = {}
    for name, place in places.items():
        at, (*outer, last) = content, place.split(".")
        for key in outer:
            at = at.get(key) or {}
        if at.get(last) is not None:
            settings[name] = at[last]
    return settings


def least(*caps: Optional[int]) -> Dict[str, int]:
    """The smallest of the caps before the suppression, if there is one."""
    numbers = [cap for cap in caps if cap is not None]
    return {"detections.pre": min(numbers)} if numbers else {}


def detections(settings: Settings, options: Options, **numbers: object) -> Dict[str, Any]:
    """The `detections` of a configuration: the options of a decode op under a convention, and
    numbers and words of the published one."""
    named = ("group", "shared_pre", "global_post", "best_class")
    rules = {name: options[name] for name in named if name in options}
    values = {**numbers, "strict": not options["closed"], **rules}
    return settings.choices("detections", values)


def flat(values: Mapping[str, Any], where: str = "") -> Dict[str, Any]:
    """Nested mappings by dotted names; lists are values."""
    names: Dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, Mapping)
        names |= flat(value, f"{where}{key}.") if nested else {f"{where}{key}": value}
    return names


def shown(flags: List[Flag]) -> List[Tuple[str, str]]:
    """Rows of a table: long lists by their length."""
    rows = []
    for flag in flags:
        value = flag.value
        if isinstance(value, (list, tuple)) and any(isinstance(v, (dict, list)) for v in value):
            value = f"{len(value)} entries"
        elif isinstance(value, (list, tuple)):
            value = ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in value) or "none"
        rows.append((f"flag {flag.name}", f"{value} ({flag.how})"))
    return rows
