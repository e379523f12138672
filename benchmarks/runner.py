# SPDX-License-Identifier: Apache-2.0
"""Runs a case: builds its inputs, checks every result, times it, holds it against floor and
targets. An implementation that fails is reported with the reason, never timed."""

import importlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import machine, suite, timing
from benchmarks.clouds import Clouds
from benchmarks.results import COMPARED, Measurement
from benchmarks.suite import ANY, Case, Facts, Implementation, NotApplicable, Peer, Problem, Target

# A call of another implementation that takes longer is not repeated: the checked call counts.
SLOW_S = {"cuda": 0.2, "cpu": 1.0}
LONG_S = 0.02  # on a GPU: a call that takes longer is made twice, eagerly, for that figure alone


@dataclass
class Settings:
    device: str
    budget_s: float = 0.15  # for one figure
    peers: Sequence[Peer] = field(default_factory=list)
    others: bool = True  # libraries and plain torch
    plain: bool = True  # False: libraries alone, and the cases that one of them does
    skip: frozenset[str] = frozenset()  # implementations to leave out
    deadline: float = math.inf  # of time.perf_counter(); after it only torchvox is measured

    def libraries(self, op: str) -> Iterator[Peer]:
        """The adapters of an op whose packages are installed."""
        for peer in self.peers:
            fits = peer.op == op and peer.device in (None, self.device)
            if fits and machine.version(peer.package) is not None:
                yield peer

    def refuse_late(self) -> None:
        if time.perf_counter() > self.deadline:
            raise NotApplicable("out of time")


def run_case(case: Case, clouds: Clouds, settings: Settings) -> list[Measurement]:
    """Measures torchvox, plain torch and the installed libraries, in this order."""
    if not settings.plain and (case.alone or not any(settings.libraries(case.op))):
        return []
    common = {"case": case.name, "op": case.op, "device": settings.device}
    try:
        problem = case.build(clouds)
        problem.outputs = problem.run()
    except (NotApplicable, RuntimeError) as error:  # nothing to compare the others with
        return [{**common, "implementation": "torchvox", **_failed(error)}]
    read, written = problem.moved_bytes()
    size = {**problem.facts(), "cloud": problem.source, "read": read, "written": written}
    mine = Implementation(
        "torchvox", problem.run, problem.check, problem.capturable, problem.profiled
    )
    alone = case.alone or not settings.others
    others, absent = ([], []) if alone else _others(problem, settings)
    if not (settings.plain or others or absent):
        return []
    implementations = {i.name: i for i in (mine, *others)}
    checked = {name: _checked(i, settings) for name, i in implementations.items()}
    measurements = [{"implementation": name, **m} for name, m in checked.items()]
    _time(implementations, {m["implementation"]: m for m in measurements}, settings)
    if problem.percentiles and settings.device == "cuda" and measurements[0]["status"] == "timed":
        p50, p99 = timing.replay_percentiles(timing.capture(problem.run))
        measurements[0] |= {"p50_us": round(p50, 2), "p99_us": round(p99, 2)}
    measurements += absent
    for measurement in measurements:
        measurement.pop("call_s", None)
        if measurement["status"] == "timed":
            _add_floor(measurement, settings.device, size)
    measurements[0]["targets"] = [_judged(target, measurements) for target in case.targets]
    return [{**common, **m, "size": size} for m in measurements]


def _others(problem: Problem, settings: Settings) -> tuple[list[Implementation], list[Measurement]]:
    """Plain torch and the libraries, and the measurements of libraries that cannot be measured."""
    plain = problem.others() if settings.plain else ()
    implementations = [i for i in plain if i.name not in settings.skip]
    absent: list[Measurement] = []
    for peer in settings.libraries(problem.op):
        try:
            settings.refuse_late()
            implementations.append(_adapted(peer, problem))
        except Exception as error:  # a library may raise anything, and the others go on
            if str(error) or not isinstance(error, NotApplicable):
                absent.append({"implementation": peer.package, **_failed(error)})
    return implementations, absent


def _adapted(peer: Peer, problem: Problem) -> Implementation:
    way = peer.prepare(importlib.import_module(peer.module), problem)

    def check(result: Any) -> str:
        return problem.compare(way.convert(result) if way.convert else result)

    name = way.name or peer.package
    check = way.check or check
    return Implementation(name, way.call, check, peer.capturable, problem.profiled)


def _checked(implementation: Implementation, settings: Settings) -> Measurement:
    """Calls an implementation twice, because a first call may load or compile, and checks the
    second result."""
    try:
        if implementation.name != "torchvox":
            settings.refuse_late()
        implementation.call()
        call_s, result = timing.once(implementation.call)
        return {"status": "timed", "check": implementation.check(result), "call_s": call_s}
    except Exception as error:  # as above
        return _failed(error)


def _time(
    implementations: dict[str, Implementation], measurements: dict[str, Measurement],
    settings: Settings,
) -> None:  # fmt: skip
    """Adds the figures of those that passed their check. torchvox is always measured in full."""
    measurements = {name: m for name, m in measurements.items() if m["status"] == "timed"}
    others = {name: m["call_s"] for name, m in measurements.items() if name != "torchvox"}
    slow = {name: 1e6 * s for name, s in others.items() if s > SLOW_S[settings.device]}
    if settings.device == "cpu":
        calls = {name: implementations[name].call for name in measurements if name not in slow}
        times = timing.interleaved_us(calls, settings.budget_s)
        times |= {name: (us, us) for name, us in slow.items()}
        for name, (median, least) in times.items():
            measurements[name] |= {"wall_us": round(median, 2), "best_us": round(least, 2)}
        return
    for name, measurement in measurements.items():
        implementation = implementations[name]
        try:
            if name in slow:
                measurement["eager_us"] = round(slow[name], 1)
            elif name == "torchvox" or measurement["call_s"] < LONG_S:
                measurement |= _gpu_figures(implementation, settings.budget_s)
            else:
                least = min(timing.once(implementation.call)[0] for _ in range(2))
                measurement["eager_us"] = round(1e6 * least, 1)
        except RuntimeError as error:
            measurement |= _failed(error)


def _gpu_figures(implementation: Implementation, budget_s: float) -> Facts:
    """Another implementation that turns out not to be capturable has no graph time."""
    figures: Facts = {}
    try:
        if implementation.replays:
            figures["graph_us"] = round(timing.replay_us(implementation.call, budget_s), 2)
        elif implementation.capturable:
            us, launches = timing.graph_time(implementation.call, budget_s)
            figures |= {"graph_us": round(us, 2), "launches": launches}
    except RuntimeError:
        if implementation.name == "torchvox":
            raise
    if implementation.profiled and not figures:
        us, launches = timing.kernel_time(implementation.call)
        figures |= {"kernel_us": round(us, 2), "launches": launches}
    elif implementation.profiled:
        figures["kernel_us"] = figures["graph_us"]
    eager = timing.eager_us(implementation.call, budget_s)
    cpu = timing.cpu_us(implementation.call, budget_s / 3, eager)
    return {**figures, "eager_us": round(eager, 2), "cpu_us": round(cpu, 2)}


def _add_floor(measurement: Measurement, device: str, size: Facts) -> None:
    """Adds the floor and, for cases that count them, rays and visits in millions per second. Eager
    calls are not held against the floor."""
    figure = measurement.get("graph_us", measurement.get("best_us"))
    if figure is not None:
        moved_bytes = size["read"] + size["written"]
        floor = machine.floor_us(device, moved_bytes, measurement.get("launches", 0))
        measurement |= {"floor_us": round(floor, 3), "times_floor": round(figure / floor, 2)}
    figure = next((measurement[f] for f in COMPARED if f in measurement), None)
    for what in ("rays", "visits"):
        if figure and what in size:
            measurement[f"m{what}_per_s"] = round(size[what] / figure, 2)


def _judged(target: Target, measurements: list[Measurement]) -> Facts:
    """The target with its limit and whether torchvox met it; None where it cannot be judged."""
    limit = target.at_most
    if limit is not None:
        text = f"<= {limit:g}" + " us" * (target.figure != "times_floor")
    else:
        start = "" if target.faster_than == ANY else target.faster_than
        others = [m for m in measurements[1:] if m["implementation"].startswith(start)]
        rivals = [m[target.figure] for m in others if target.figure in m]
        limit = min(rivals) / target.factor + target.plus_us if rivals else None
        text = f"{target.factor:g}x faster" if target.factor != 1 else "faster"
        if target.plus_us:
            text = f"<= {target.plus_us:g} us more"
        text += f" than {target.faster_than}"
    measured = measurements[0].get(target.figure)
    met = None if limit is None or measured is None else measured <= limit
    return {"figure": target.figure, "text": text, "limit_us": limit, "met": met}


def _failed(error: Exception) -> Facts:
    """Why there are no figures."""
    statuses = {NotApplicable: "skipped", suite.WrongResult: "wrong"}
    if type(error) in statuses:
        return {"status": statuses[type(error)], "reason": str(error)}
    text = " ".join(str(error).split("\n\n")[0].split())[:200]
    return {"status": "failed", "reason": f"{type(error).__name__}: {text}".removesuffix(": ")}
