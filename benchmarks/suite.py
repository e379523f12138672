# SPDX-License-Identifier: Apache-2.0
"""What is measured: a case is a row of a table, a problem is the case with its inputs on a device.

Every implementation gets the inputs of the same problem in the same process. Its result is checked
before it is timed: on a GPU the result of torchvox against the same call on the CPU, bit for bit;
every other implementation against torchvox, as far as its contract goes.
"""

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

import torchvox
from benchmarks.clouds import Cloud, Clouds

Facts = dict[str, Any]
Outputs = Sequence[torch.Tensor]
ANY = "every other implementation"


class WrongResult(Exception):
    """The result of an implementation is not that of torchvox."""


def expect(good: bool, otherwise: str) -> None:
    """Raises WrongResult, with what is wrong, unless a result is good."""
    if not good:
        raise WrongResult(otherwise)


class NotApplicable(Exception):
    """An implementation does not do this case. With a sentence: it could, is left out, and the
    results say so."""


@dataclass(frozen=True)
class Target:
    """What torchvox is to reach in a case, in one of the figures.

    at_most: upper limit in us, a plain number where the figure is times_floor.
    faster_than: names begin with it, or ANY; torchvox may take 1 / factor of the fastest of these
        and plus_us more.
    """

    figure: str
    at_most: float | None = None
    faster_than: str | None = None
    factor: float = 1.0
    plus_us: float = 0.0


def graph(us: float) -> Target:
    return Target("graph_us", us)


def faster(figure: str, name: str, factor: float = 1.0, plus_us: float = 0.0) -> Target:
    return Target(figure, faster_than=name, factor=factor, plus_us=plus_us)


class Implementation(NamedTuple):
    """One implementation of a case: a call that can be timed, and the check of its result."""

    name: str
    call: Callable[[], Any]
    check: Callable[[Any], str]  # says what was compared; raises WrongResult
    capturable: bool = False
    profiled: bool = False
    replays: bool = False  # a call is the replay of a graph


class Problem:
    """A call of torchvox with its arguments on one device. A subclass changes what the call is, or
    how results are compared."""

    capturable, percentiles = True, False  # percentiles: of single replays
    profiled = False  # the kernels of libraries that cannot be captured
    plain, plain_captures = "", True  # the name of in_torch(), for ops without a peer
    outputs: Outputs = ()  # of torchvox, once the runner has them
    tolerance = 1e-5  # of the largest value: sums of thousands in another order

    def __init__(self, op: str, arguments: Mapping[str, Any], source: str = "") -> None:
        self.op, self.arguments, self.source = op, dict(arguments), source

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @functools.cached_property
    def device(self) -> torch.device:
        return next(tensors_of(self.arguments)).device

    def on(self, device: str) -> "Problem":
        return type(self)(self.op, moved(self.arguments, device), self.source)

    def run(self) -> Outputs:
        return listed(getattr(torchvox, self.op)(**self.arguments))

    def facts(self) -> Facts:
        """Shapes of the tensors, values of the other arguments, and `counts`, which many ops
        return."""
        facts = {name: described(value) for name, value in self.arguments.items()}
        counts = getattr(self.outputs, "counts", None)
        return facts if counts is None else {**facts, "counts": counts.flatten().tolist()}

    def moved_bytes(self) -> tuple[int, int]:
        """Bytes that are read and written: every argument once, every output once."""
        return bytes_of(self.arguments), bytes_of(self.outputs)

    def check(self, outputs: Outputs) -> str:
        """Compares the result of torchvox with that of the CPU."""
        if self.device.type == "cpu":
            return "the others are compared with it"
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a GPU job may own fewer cores than it sees: threads would crawl
        expected = self.on("cpu").run()
        torch.set_num_threads(threads)
        return self.same(outputs, expected)

    def same(self, outputs: Outputs, expected: Outputs) -> str:
        for mine, host in zip(outputs, expected, strict=True):
            bits = (tensor.cpu().flatten().view(torch.uint8) for tensor in (mine, host))
            expect(mine.shape == host.shape and torch.equal(*bits), "not the bits of the CPU")
        return "all outputs have the bits of the CPU"

    def compare(self, result: Any) -> str:
        """Compares the result of another implementation with the outputs of torchvox."""
        return close(result, self.outputs, self.tolerance)

    def rows(self, result: Any, points: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        """Indices of points as another implementation gives them, in the place and shape of those
        of torchvox."""
        idx = torch.as_tensor(result).to(expected.device).reshape(expected.shape).long()
        inside = int(idx.min()) >= 0 and int(idx.max()) < points.size(1)
        expect(inside, "an index lies outside the cloud")
        return idx

    def in_torch(self) -> Any:
        """Does the same in plain torch."""
        raise NotImplementedError

    def others(self) -> Iterator[Implementation]:
        """Implementations without another library."""
        if self.plain:
            yield Implementation(self.plain, self.in_torch, self.compare, self.plain_captures)


Inputs = Callable[[Clouds], Mapping[str, Any] | Cloud]


@dataclass(frozen=True)
class Case:
    """A row of the table.

    inputs: makes the tensors of the call, by argument name, and `source`, where they come from; a
        cloud is `points`.
    options: the other arguments.
    alone: no other implementation is measured.
    on_demand: it runs only if a word of --only is in its name.
    """

    name: str
    op: str
    inputs: Inputs
    options: Mapping[str, Any] = field(default_factory=dict)
    targets: Sequence[Target] = ()
    kind: type[Problem] = Problem
    alone: bool = False
    on_demand: bool = False

    def build(self, clouds: Clouds) -> Problem:
        tensors = self.inputs(clouds)
        tensors = tensors._asdict() if isinstance(tensors, Cloud) else tensors
        arguments = {**tensors, **self.options}
        source = arguments.pop("source", "")
        return self.kind(self.op, moved(arguments, clouds.device), source)


class Way(NamedTuple):
    """How a library does a problem. convert: brings its result into the form that
    Problem.compare() takes; check: in place of both."""

    call: Callable[[], Any]
    convert: Callable[[Any], Any] | None = None
    check: Callable[[Any], str] | None = None
    name: str = ""


class Peer(NamedTuple):
    """An adapter of a library for an op, see peer()."""

    package: str
    module: str
    op: str
    prepare: Callable[[ModuleType, Any], Way]
    device: str | None
    capturable: bool


PEERS: list[Peer] = []


def peer(module: str, *ops: str, device: str | None = None, capturable: bool = False) -> Callable:
    """Registers prepare(module, problem) -> Way for ops of the library that has `module`.

    It raises NotApplicable for problems that the library does not do. device: where it runs, None
    for both.
    """

    def register(prepare: Callable[[ModuleType, Any], Way]) -> Callable:
        for op in ops:
            PEERS.append(Peer(module.split(".")[0], module, op, prepare, device, capturable))
        return prepare

    return register


def limit(applies: bool, reason: str = "") -> None:
    """For adapters: leaves the implementation out unless it applies."""
    if not applies:
        raise NotApplicable(reason)


def listed(result: Any) -> Outputs:
    return (result,) if torch.is_tensor(result) else result


def moved(value: Any, device: str) -> Any:
    """The value with every tensor on the device; modules are copied."""

    def move(leaf: Any) -> Any:
        leaf = copy.deepcopy(leaf) if isinstance(leaf, torch.nn.Module) else leaf
        return leaf.to(device) if isinstance(leaf, (torch.Tensor, torch.nn.Module)) else leaf

    return tree_map(move, value)


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Tensors, those in lists, tuples, dictionaries and modules too."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.nn.Module):
            yield from leaf.parameters()
        elif isinstance(leaf, torch.Tensor):
            yield leaf


def bytes_of(*values: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(values))


def described(value: Any) -> Any:
    """Of an argument, for the results: shapes and types of tensors, plain values as they are."""
    if isinstance(value, torch.Tensor):
        return f"{list(value.shape)} {name_of(value.dtype)}"
    if isinstance(value, (list, tuple)):
        return [described(each) for each in value]
    return value if isinstance(value, (int, float, str, bool)) or value is None else str(value)[:80]


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).split(".")[1]


@functools.cache
def constant(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Numbers that plain torch needs on the device, copied there once: a copy in every call would
    cost a synchronization, and its place in a graph."""
    return torch.tensor(values, device=device)


def close(result: Outputs, expected: Outputs, tolerance: float) -> str:
    """Compares outputs to a share of the largest value of each."""
    worst = 0.0
    for got, want in zip(result, expected, strict=True):
        got, want = got.to(want.device).double(), want.double()
        off = (got - want).abs().max() / want.abs().max().clamp(min=1e-30)
        worst = max(worst, float(off))
    expect(worst <= tolerance, f"{worst:.1e} of the largest value apart")
    return f"within {worst:.0e} of the largest value"
