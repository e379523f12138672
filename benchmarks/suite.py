# SPDX-License-Identifier: Apache-2.0
"""A case, the implementations to do it, and the measurements of figures that come of it.

Every implementation gets the same input in the same process. Its result is checked before it is
timed: on a GPU the result of torchvox against the same call on the CPU, bit for bit; every other
implementation against torchvox, as far as its contract goes. An implementation that fails is
reported with the reason, never timed.
"""

import copy
import functools
import math
import time
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Iterator, Sequence

import torch

from benchmarks import machine, timing
from benchmarks.clouds import Clouds

Measurement = dict[str, Any]
Facts = dict[str, Any]
Outputs = Sequence[torch.Tensor]
# A call of another implementation that takes longer is not repeated: the checked call is its
# figure.
SLOW_S = {"cuda": 0.2, "cpu": 1.0}
FIGURES = ("graph_us", "best_us", "eager_us")  # a rate is of the first that there is
LONG_S = 0.02  # on a GPU: one that takes longer is made twice, eagerly, and gets no other figure


class WrongResult(Exception):
    """The result of an implementation is not that of torchvox."""


class NotApplicable(Exception):
    """An implementation does not do this case. With a sentence: it could, is left out, and a
    measurement says so."""


@dataclass(frozen=True)
class Target:
    """What torchvox is to reach in a case, in one of the figures.

    at_most_us: an upper limit (a number where the figure is times_floor); `writes` adds that many
        times the floor of writing the features.
    faster_than: an implementation, or "every other implementation", to be `factor` times faster
        than.
    """

    figure: str
    at_most_us: float | None = None
    writes: float = 0.0
    faster_than: str | None = None
    factor: float = 1.0


@dataclass(frozen=True)
class Implementation:
    """One implementation to do a case: a call that can be timed, and the check of its result."""

    name: str
    call: timing.Call
    check: Callable[[object], str]  # says what was compared; raises WrongResult
    capturable: bool = False
    percentiles: bool = False  # of single replays


class Case:
    """An input with its arguments: a frozen dataclass per op.

    A case whose result is not bit-equal between devices brings `check`, as that of an
    `Implementation`.
    """

    op: str
    source: str

    def facts(self) -> Facts:
        raise NotImplementedError

    def torchvox(self) -> Outputs:
        raise NotImplementedError

    def on(self, device: str) -> "Case":
        return replace(self, **moved(vars(self), device))

    def moved_bytes(self, outputs: Outputs) -> tuple[int, int]:
        """Read and written. Here: every tensor of the case, and every output."""
        return bytes_of(vars(self)), bytes_of(outputs)

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        return iter(())

    def only_on(self, device: str) -> None:
        """For an adapter."""
        if next(tensors_of(vars(self))).device.type != device:
            raise NotApplicable


def moved(value: Any, device: str) -> Any:
    """With every tensor in it on the device, and copies of modules: the case stays as it is."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).to(device)
    if isinstance(value, dict):
        return {key: moved(part, device) for key, part in value.items()}
    return type(value)(moved(v, device) for v in value) if type(value) in (list, tuple) else value


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Those in lists, tuples, dictionaries and modules too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(part)


def bytes_of(*values: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(values))


def graph_us(us: float, writes: float = 0.0) -> list[Target]:
    return [Target("graph_us", us, writes)]


def apart(found: Outputs, expected: Outputs, tolerance: float) -> str:
    """Compares outputs to a share of the largest value of each."""
    worst = 0.0
    for got, want in zip(found, expected, strict=True):
        got, want = got.to(want.device).double(), want.double()
        off = (got - want).abs().max() / want.abs().max().clamp(min=1e-30)
        worst = max(worst, float(off))
    if not worst <= tolerance:
        raise WrongResult(f"{worst:.1e} of the largest value apart")
    return f"within {worst:.0e} of the largest value"


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).split(".")[1]


@dataclass(frozen=True)
class UpstreamLibrary:
    """An adapter: `prepare` imports the package and gives an Implementation, or raises
    NotApplicable."""

    package: str
    op: str
    prepare: Callable[[Case, Outputs], Implementation]


@dataclass(frozen=True)
class CaseSpec:
    name: str
    build: Callable[[Clouds], Case]
    targets: tuple[Target, ...] = ()


@dataclass
class Settings:
    device: str
    budget_s: float = 0.15  # for one figure
    upstream: list[UpstreamLibrary] = field(default_factory=list)
    others: bool = True  # baselines and upstream libraries
    baselines: bool = True  # False: libraries alone, and the cases that one of them does
    skip: frozenset[str] = frozenset()  # implementations to leave out
    deadline: float = math.inf  # of time.perf_counter(); after it only torchvox is measured

    def libraries(self, op: str) -> Iterator[UpstreamLibrary]:
        """The adapters for an op whose packages are installed."""
        for library in self.upstream:
            if library.op == op and machine.version(library.package) is not None:
                yield library

    def refuse_late(self) -> None:
        if time.perf_counter() > self.deadline:
            raise NotApplicable("out of time")


def run_case(spec: CaseSpec, clouds: Clouds, settings: Settings) -> list[Measurement]:
    """The measurement of torchvox, then those of the baselines and of the upstream libraries."""
    case = spec.build(clouds)
    if not settings.baselines and not any(settings.libraries(case.op)):
        return []
    common = {"case": spec.name, "op": case.op, "device": settings.device}
    try:
        outputs = case.torchvox()
    except RuntimeError as error:  # the others have nothing to be compared with
        return [{**common, "implementation": "torchvox", **_failed(error)}]
    read, written = case.moved_bytes(outputs)
    size = {**case.facts(), "cloud": case.source, "read": read, "written": written}
    check = getattr(case, "check", functools.partial(_same_bits, case))
    mine = Implementation(
        "torchvox", case.torchvox, check, True, getattr(case, "percentiles", False)
    )
    others, absent = _others(case, outputs, settings)
    if not (settings.baselines or others or absent):
        return []
    implementations = {i.name: i for i in (mine, *others)}
    measurements = [
        {"implementation": name, **_checked(i, settings)} for name, i in implementations.items()
    ] + absent
    by_name = {m["implementation"]: m for m in measurements if m["status"] == "timed"}
    _time({name: implementations[name] for name in by_name}, by_name, settings)
    for measurement in measurements:
        measurement.pop("call_s", None)
        if measurement["status"] == "timed":
            _add_floor(measurement, settings.device, read + written)
            _add_rates(measurement, size)
    features = int(size.get("features_bytes", 0))
    _judge(spec.targets, measurements, machine.floor_us(settings.device, features, 0))
    return [{**common, **m, "size": size} for m in measurements]


def _others(
    case: Case, outputs: Outputs, settings: Settings
) -> tuple[list[Implementation], list[Measurement]]:
    """The baselines and the installed libraries, and the measurements of those that cannot take
    part."""
    if not settings.others:
        return [], []
    baselines = case.baselines(outputs) if settings.baselines else ()
    implementations = [i for i in baselines if i.name not in settings.skip]
    measurements: list[Measurement] = []
    for library in settings.libraries(case.op):
        try:
            settings.refuse_late()
            implementations.append(library.prepare(case, outputs))
        except NotApplicable as reason:
            if str(reason):
                said = {"status": "skipped", "reason": str(reason)}
                measurements.append({"implementation": library.package, **said})
        except Exception as error:  # a library may raise anything, and the others go on
            measurements.append({"implementation": library.package, **_failed(error)})
    return implementations, measurements


def _checked(implementation: Implementation, settings: Settings) -> Measurement:
    """Calls an implementation twice, because a first call may load or compile, and checks the
    second result."""
    try:
        if implementation.name != "torchvox":
            settings.refuse_late()
        implementation.call()
        call_s, result = _once(implementation.call)
        return {"status": "timed", "check": implementation.check(result), "call_s": call_s}
    except NotApplicable as reason:
        return {"status": "skipped", "reason": str(reason)}
    except WrongResult as error:
        return {"status": "wrong", "reason": str(error)}
    except Exception as error:  # as above
        return _failed(error)


def _once(call: timing.Call) -> tuple[float, object]:
    _synchronize()
    begin = time.perf_counter()
    result = call()
    _synchronize()
    return time.perf_counter() - begin, result


def _synchronize() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _time(
    implementations: dict[str, Implementation],
    measurements: dict[str, Measurement],
    settings: Settings,
) -> None:
    """Fills the figures in. torchvox is always measured in full."""
    slow = {
        name for name in implementations if measurements[name]["call_s"] > SLOW_S[settings.device]
    } - {"torchvox"}
    if settings.device == "cpu":
        calls = {name: i.call for name, i in implementations.items() if name not in slow}
        times = timing.interleaved_us(calls, settings.budget_s)
        for name in slow:
            times[name] = (1e6 * measurements[name]["call_s"],) * 2
        for name, (median, least) in times.items():
            measurements[name] |= {"wall_us": round(median, 2), "best_us": round(least, 2)}
        return
    for name, implementation in implementations.items():
        if name in slow:
            measurements[name]["eager_us"] = round(1e6 * measurements[name]["call_s"], 1)
            continue
        try:
            if name == "torchvox":
                measurements[name] |= _gpu_figures(implementation, settings.budget_s)
            elif measurements[name]["call_s"] < LONG_S:
                measurements[name] |= _figures_of_another(implementation, settings.budget_s)
            else:
                least = min(_once(implementation.call)[0] for _ in range(2))
                measurements[name]["eager_us"] = round(1e6 * least, 1)
        except RuntimeError as error:
            measurements[name] |= _failed(error)


def _figures_of_another(implementation: Implementation, budget_s: float) -> Facts:
    """Without a graph time where its calls turn out not to be capturable."""
    try:
        return _gpu_figures(implementation, budget_s)
    except RuntimeError:
        return _gpu_figures(replace(implementation, capturable=False), budget_s)


def _gpu_figures(implementation: Implementation, budget_s: float) -> Facts:
    figures: Facts = {}
    if implementation.capturable:
        graph = timing.graph_time(implementation.call, budget_s)
        figures |= {"graph_us": round(graph.us, 2), "launches": graph.launches}
    if implementation.percentiles:
        p50, p99 = timing.replay_percentiles(timing.capture(implementation.call))
        figures |= {"p50_us": round(p50, 2), "p99_us": round(p99, 2)}
    eager = timing.eager_us(implementation.call, budget_s)
    cpu = timing.cpu_us(implementation.call, budget_s / 3, eager)
    return {**figures, "eager_us": round(eager, 2), "cpu_us": round(cpu, 2)}


def _add_floor(measurement: Measurement, device: str, moved: int) -> None:
    """Where there is a figure to hold against it: a graph's, or that of a CPU call."""
    figure = measurement.get("graph_us", measurement.get("best_us"))
    if figure is not None:
        floor = machine.floor_us(device, moved, measurement.get("launches", 0))
        measurement |= {"floor_us": round(floor, 3), "times_floor": round(figure / floor, 2)}


def _add_rates(measurement: Measurement, size: Facts) -> None:
    """Millions a second, of a case about rays."""
    figure = next((measurement[f] for f in FIGURES if f in measurement), None)
    for what in ("rays", "visits"):
        if figure and what in size:
            measurement[f"m{what}_per_s"] = round(size[what] / figure, 2)


def _judge(targets: Sequence[Target], measurements: list[Measurement], write_us: float) -> None:
    """Writes the targets into the measurement of torchvox, each with its limit and whether it was
    met."""
    mine = next(m for m in measurements if m["implementation"] == "torchvox")
    mine["targets"] = []
    for target in targets:
        unit = "" if target.figure == "times_floor" else " us"
        limit = target.at_most_us
        text = f"<= {limit:g}{unit}" if limit else ""
        if target.writes:
            limit += target.writes * write_us
            text = f"<= {limit:.1f} us"
        if target.faster_than:
            times = _rivals(target, measurements)
            limit = min(times) / target.factor if times else None
            times_faster = f"{target.factor:g}x faster" if target.factor != 1 else "faster"
            text = f"{times_faster} than {target.faster_than}"
        measured = mine.get(target.figure)
        judged = None if limit is None or measured is None else measured <= limit
        mine["targets"].append(
            {"figure": target.figure, "text": text, "limit_us": limit, "met": judged}
        )


def _rivals(target: Target, measurements: list[Measurement]) -> list[float]:
    every = target.faster_than == "every other implementation"
    return [
        measurement[target.figure]
        for measurement in measurements
        if target.figure in measurement
        and measurement["implementation"] != "torchvox"
        and (every or str(measurement["implementation"]).startswith(str(target.faster_than)))
    ]


def _same_bits(case: Case, found: object) -> str:
    if found[0].device.type == "cpu":
        return "the others are compared with it"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a GPU job may own fewer cores than it sees, and then threads crawl
    expected = case.on("cpu").torchvox()
    torch.set_num_threads(threads)
    compare = getattr(case, "compare", None)  # of ops whose contract is not equal bits
    if compare is not None:
        return compare(found, expected)
    for mine, host in zip(found, expected, strict=True):
        if not torch.equal(mine.cpu(), host):
            raise WrongResult("not the bits of the CPU")
    return "all outputs have the bits of the CPU"


@functools.cache
def constant(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Numbers that a baseline needs on the device, copied there once: a copy in every call
    would cost it a synchronization, and its place in a graph."""
    return torch.tensor(values, device=device)


def _failed(error: BaseException) -> Facts:
    text = " ".join(str(error).split("\n\n")[0].split())[:200]
    name = type(error).__name__
    return {"status": "failed", "reason": f"{name}: {text}" if text else name}
