# SPDX-License-Identifier: Apache-2.0
"""Plain values as frozen dataclasses, and back: the one check of what configurations hold.

The types of the fields say what is allowed: numbers with `Limits`, words (`Literal`), lists
(tuples), mappings, further dataclasses. Of several dataclasses the field `kind` of the values
chooses, else the keys that they have.
"""

import contextlib
import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union

from torchvox._util.config_files import unknown_key
from torchvox._util.errors import short
from torchvox._util.yaml import shown

T = TypeVar("T")
MOST_ERRORS = 20  # of one dataclass in a message
KINDS = {bool: "true or false", str: "a word", int: "a whole number", float: "a number"}
SCHEMA = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}


@dataclasses.dataclass(frozen=True)
class Limits:
    """Of a number, or of every number of a list, all of which must be finite. extra: a further
    number that is allowed."""

    gt: float = -math.inf
    ge: float = -math.inf
    lt: float = math.inf
    le: float = math.inf
    extra: float | None = None

    def check(self, value: object, name: str) -> None:
        """Raises ValueError for a value outside the limits."""
        numbers = value if isinstance(value, tuple) else (value,)
        for one in numbers:
            if one is None or one == self.extra:
                continue
            if not (self.gt < one < self.lt and self.ge <= one <= self.le):
                got = list(numbers) if isinstance(value, tuple) else value
                raise ValueError(f"{name} must be {self}, got {shown(got)}")

    def __str__(self) -> str:
        limits = self._finite()
        if limits.keys() == {"ge", "le"}:
            return f"from {self.ge} to {self.le}"
        words = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
        text = " and ".join(f"{words[key]} {limit}" for key, limit in limits.items()) or "finite"
        return text if self.extra is None else f"{text}, or {self.extra}"

    def _finite(self) -> dict[str, float]:
        limits = {key: getattr(self, key) for key in SCHEMA}
        return {key: limit for key, limit in limits.items() if math.isfinite(limit)}

    def __get_pydantic_json_schema__(
        self, core: object, handler: Callable[[object], dict[str, Any]]
    ) -> dict[str, Any]:
        return {**handler(core), **{SCHEMA[k]: limit for k, limit in self._finite().items()}}


Number = Annotated[float, Limits()]
Positive = Annotated[int, Limits(gt=0)]
Count = Annotated[int, Limits(ge=0)]  # 0 too
Share = Annotated[float, Limits(ge=0, le=1)]
AboveZero = Annotated[float, Limits(gt=0)]
NotNegative = Annotated[float, Limits(ge=0)]


def plain(value: object) -> Any:
    """Dataclasses and tuples as dicts and lists, at every level."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, (tuple, list)) else value


def from_plain(kind: type[T], values: T | Mapping[str, Any], where: str = "") -> T:
    """The dataclass of plain values; one that is made already as it is. What the values of a field
    leave out is that of its default. where: its place, with a dot behind.

    Raises ValueError that names the place of every unknown key, with the nearest known one, of
    every missing one, and of every value of another type or outside its limits.
    """
    if isinstance(values, kind):
        return values
    if not isinstance(values, Mapping):
        name = short(where[:-1]) or "it"
        raise ValueError(f"{name} must hold keys and values, got {shown(values)}")
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    problems = [unknown_key(str(key), list(fields), where) for key in values if key not in fields]
    missing = [name for name in required(kind) if name not in values]
    problems += [f"{where}{name} is missing" for name in missing]
    hints, arguments = typing.get_type_hints(kind, include_extras=True), {}
    for name in [name for name in fields if name in values]:
        value, default = values[name], fields[name].default
        whole = dataclasses.is_dataclass(default) and type(default) is hints[name]
        if whole and isinstance(value, Mapping):
            value = {**vars(default), **value}
        try:
            arguments[name] = convert(hints[name], value, where + name)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("; ".join(problems[:MOST_ERRORS]))
    try:
        return kind(**arguments)
    except ValueError as error:
        raise ValueError(f"{where[:-1]}: {error}") from None


def required(kind: type) -> list[str]:
    """The fields of a dataclass without a default."""
    absent = dataclasses.MISSING
    return [
        one.name
        for one in dataclasses.fields(kind)
        if one.default is absent and one.default_factory is absent
    ]


def convert(kind: Any, value: Any, name: str) -> Any:
    """A value as the type of a field. Raises ValueError."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        value = convert(inner[0], value, name)
        for limits in inner[1:]:
            limits.check(value, name)
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(inner, value, name)
    if dataclasses.is_dataclass(kind):
        return from_plain(kind, value, f"{name}.")  # type: ignore[arg-type]
    if origin is Literal:
        if value not in inner:
            words = ", ".join(map(str, inner))
            one_of = f"one of {words}" if len(inner) > 1 else words
            raise ValueError(f"{name} must be {one_of}, got {shown(value)}")
        return inner[inner.index(value)]  # of its type: 7 for 7.0
    if origin is tuple:
        if isinstance(value, (str, Mapping)) or not hasattr(value, "__iter__"):
            raise ValueError(f"{name} must be a list, got {shown(value)}")
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        if len(value) != len(kinds):
            raise ValueError(f"{name} must have {len(kinds)} values, got {shown(list(value))}")
        pairs = enumerate(zip(kinds, value, strict=True))
        return tuple(convert(one, item, f"{name}.{i}") for i, (one, item) in pairs)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} must hold keys and values, got {shown(value)}")
        return {str(k): convert(inner[1], one, f"{name}.{short(k)}") for k, one in value.items()}
    return value if kind is Any else _convert_scalar(kind, value, name)


def _convert_union(kinds: Sequence[Any], value: object, name: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    kinds = [one for one in kinds if one is not type(None)]
    if not isinstance(value, Mapping) or len(kinds) == 1:
        right = (one for one in kinds if isinstance(one, type) and isinstance(value, one))
        return convert(next(right, kinds[0]), value, name)
    hints = [typing.get_type_hints(kind) for kind in kinds]
    if all("kind" in one for one in hints):
        words = {word: k for k, one in zip(kinds, hints, strict=True)
                 for word in typing.get_args(one["kind"])}  # fmt: skip
        chosen = words.get(convert(Literal[tuple(words)], value.get("kind"), f"{name}.kind"))
        return convert(chosen, value, name)
    # The one that needs the most keys of those whose keys are all there.
    fits = [kind for kind in kinds if set(required(kind)) <= set(value)]
    return convert(max(fits or kinds[:1], key=lambda k: len(required(k))), value, name)


def _convert_scalar(kind: type, value: Any, name: str) -> Any:
    """A bool, str, int or float; a number from a word too, as YAML takes 1e-3 for a word."""
    scalar = value
    if kind in (int, float) and not isinstance(value, bool):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            number = kind(value)
            scalar = number if isinstance(value, str) or number == value else value
    if not isinstance(scalar, kind) or (kind is not bool and isinstance(scalar, bool)):
        raise ValueError(f"{name} must be {KINDS[kind]}, got {shown(value)}")
    return scalar
