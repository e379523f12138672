# SPDX-License-Identifier: Apache-2.0
"""Configuration files: YAML, named or at a path, over a base, with overrides. Their readers check
the values."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchvox._util.errors import WrongUseError, short
from torchvox._util.yaml import read_yaml

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

PURPOSE = "to read configurations"


def names(kind: str = "models") -> list[str]:
    """Names of the YAML files that are shipped, sorted."""
    return sorted(f.name[:-5] for f in folder(kind).iterdir() if f.name.endswith(".yaml"))


def read(
    name: str, overrides: Sequence[str] = (), offered: Callable[[], list[str]] = names
) -> dict[str, Any]:
    """The content of a named configuration or of a .yaml file, merged over its base, with overrides
    such as "train.epochs=4". offered: the names to choose from, for the sentence about another.

    Raises WrongUseError for an unknown name, an unreadable file or a wrong override.
    """
    return overridden(_read(name, None, (), offered), overrides)


def shipped(matches: Callable[[Mapping[str, Any]], bool]) -> list[str]:
    """Names of the configurations in configs/models whose content matches, sorted."""
    return [name for name in names() if matches(read(name))]


def unknown_key(key: str, names: Sequence[str], where: str = "") -> str:
    """The sentence about an unknown key, with the nearest one of the names."""
    near = difflib.get_close_matches(key, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"choose {', '.join(names)}"
    return f"unknown key {short(where + key)}: {hint}"


def _read(
    name: str,
    beside: Path | None,
    seen: tuple[str, ...],
    offered: Callable[[], list[str]] = names,
) -> dict[str, Any]:
    """The content of a named configuration or a file, merged over its base."""
    if name in seen:
        raise WrongUseError(f"{name} is its own base: {' -> '.join((*seen, name))}")
    if name.endswith((".yaml", ".yml")):
        source = Path(name) if beside is None else beside / name
        if not os.path.isfile(source):  # of a name that is too long Path.is_file raises
            raise WrongUseError(f"configuration {short(source)} does not exist")
        below = source.parent
    else:
        if name not in names():
            near = difflib.get_close_matches(name, offered(), 1)
            hint = f"did you mean {near[0]}?" if near else f"choose {', '.join(offered())}"
            raise WrongUseError(f"configuration {short(repr(name))} is unknown: {hint}")
        source, below = folder() / f"{name}.yaml", None
    content = read_file(source)
    base = content.pop("base", None)
    if base is None:
        return content
    return merged(_read(str(base), below, (*seen, name)), content)


def read_file(source: Path | Traversable) -> dict[str, Any]:
    """The keys and values of one file, without its base. Raises WrongUseError."""
    try:
        with source.open("rb") as file:
            content = read_yaml(file, PURPOSE)
    except OSError as error:
        raise WrongUseError(f"{source}: {error.strerror or error}") from None
    except ValueError as error:
        raise WrongUseError(f"{source} is not readable YAML: {error}") from None
    if not isinstance(content, dict):
        raise WrongUseError(f"{source} must hold keys and values")
    return content


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` wins; mappings merge key by key, unless they are of another kind; lists replace."""
    both = dict(base)
    for key, value in over.items():
        match both.get(key), value:
            case dict() as old, Mapping() if value.get("kind", old.get("kind")) == old.get("kind"):
                value = merged(old, value)
        both[key] = value
    return both


def overridden(content: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The content, changed in place. Raises WrongUseError."""
    for override in overrides:
        _apply(content, override)
    return content


def _apply(content: dict[str, Any], override: str) -> None:
    """Applies an override such as "train.epochs=4". Raises WrongUseError."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise WrongUseError(f"{override!r} must be key=value, such as train.epochs=4")
    try:
        value = read_yaml(text, PURPOSE)
    except ValueError:
        raise WrongUseError(f"{override!r}: the value is not readable YAML") from None
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)  # YAML 1.1 takes 1e-3 for a word
    *path, last = key.split(".")
    for part in path:
        below = content.setdefault(part, {})
        if not isinstance(below, dict):
            raise WrongUseError(f"{override!r}: {part} holds no keys")
        content = below
    content[last] = value


def folder(kind: str = "models") -> Any:
    """configs/<kind> of the installed package, else of the source tree beside it."""
    installed = resources.files("torchvox") / "configs" / kind
    tree = Path(__file__).resolve().parents[2]
    return installed if installed.is_dir() else tree / "configs" / kind
