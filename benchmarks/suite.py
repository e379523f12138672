# SPDX-License-Identifier: Apache-2.0
"""A case, the ways to do it, and the rows of figures that come of it.

Every way gets the same input in the same process. Its result is checked before it is timed: on a
GPU the result of torchvox against the same call on the CPU, bit for bit; every other way against
torchvox, as far as its contract goes. A way that fails is reported with the reason, never timed.
"""

import functools
import time
from dataclasses import dataclass, field
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterator,
    List,
    Optional,
    Protocol,
    Sequence,
    Tuple,
)

import torch

from benchmarks import machine, timing
from benchmarks.clouds import Clouds

Row = Dict[str, Any]
Outputs = Sequence[torch.Tensor]
# A call of another way that takes longer is not repeated: the checked call is its figure.
SLOW_S = {"cuda": 0.2, "cpu": 1.0}
LONG_S = 0.02  # on a GPU: one that takes longer is made twice, eagerly, and gets no other figure


class WrongResult(Exception):
    """The result of a way is not that of torchvox."""


class NotApplicable(Exception):
    """A way does not do this case. With a sentence: it could, is left out, and a row says so."""


@dataclass(frozen=True)
class Goal:
    """What torchvox is to reach in a case, in one of the figures.

    at_most_us: an upper limit; `writes` adds that many times the floor of writing the features.
    faster_than: a way, or "every other way", to be `factor` times faster than.
    """

    figure: str
    at_most_us: Optional[float] = None
    writes: float = 0.0
    faster_than: Optional[str] = None
    factor: float = 1.0


@dataclass(frozen=True)
class Way:
    """One way to do a case: a call that can be timed, and the check of its result."""

    name: str
    call: timing.Call
    check: Callable[[object], str]  # says what was compared; raises WrongResult
    capturable: bool = False
    percentiles: bool = False  # of single replays


class Problem(Protocol):
    """An input with its arguments. One class per op.

    A problem whose result is not bit-equal between devices brings `check`, as that of a `Way`.
    """

    op: str
    source: str

    def facts(self) -> Row: ...
    def torchvox(self) -> Outputs: ...
    def on(self, device: str) -> "Problem": ...
    def moved_bytes(self, outputs: Outputs) -> Tuple[int, int]: ...
    def textbook(self, outputs: Outputs) -> Iterator[Way]: ...


@dataclass(frozen=True)
class Peer:
    """An adapter: `prepare` imports the package and gives a Way, or raises NotApplicable."""

    package: str
    op: str
    prepare: Callable[[Problem, Outputs], Way]


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[Clouds], Problem]
    goals: Tuple[Goal, ...] = ()


@dataclass
class Settings:
    device: str
    budget_s: float = 0.15  # for one figure
    peers: List[Peer] = field(default_factory=list)
    others: bool = True  # textbook ways and peers
    skip: FrozenSet[str] = frozenset()  # ways to leave out
    deadline: float = float("inf")  # of time.perf_counter(); other ways are left out after it

    def refuse_late(self) -> None:
        if time.perf_counter() > self.deadline:
            raise NotApplicable("out of time")


def run_case(case: Case, clouds: Clouds, settings: Settings) -> List[Row]:
    """The row of torchvox, then those of the textbook ways and of the peers."""
    problem = case.build(clouds)
    common = {"case": case.name, "op": problem.op, "device": settings.device}
    try:
        outputs = problem.torchvox()
    except RuntimeError as error:  # the others have nothing to be compared with
        return [{**common, "way": "torchvox", "status": "failed", "reason": _sentence(error)}]
    read, written = problem.moved_bytes(outputs)
    size = {**problem.facts(), "cloud": problem.source, "read": read, "written": written}
    check = getattr(problem, "check", functools.partial(_same_bits, problem))
    mine = Way("torchvox", problem.torchvox, check, True, getattr(problem, "percentiles", False))
    others, absent = _others(problem, outputs, settings)
    ways = {way.name: way for way in (mine, *others)}
    rows = [{"way": name, **_checked(way, settings)} for name, way in ways.items()] + absent
    by_way = {row["way"]: row for row in rows if row["status"] == "timed"}
    _time({name: ways[name] for name in by_way}, by_way, settings)
    for row in rows:
        row.pop("call_s", None)
        if row["status"] == "timed":
            _add_floor(row, settings.device, read + written)
    _judge(case.goals, rows, write_us=machine.floor_us(settings.device, _written(size), 0))
    return [{**common, **row, "size": size} for row in rows]


def _others(problem: Problem, outputs: Outputs, settings: Settings) -> Tuple[List[Way], List[Row]]:
    """The textbook ways and the installed peers, and the rows of those that cannot take part."""
    if not settings.others:
        return [], []
    ways = [way for way in problem.textbook(outputs) if way.name not in settings.skip]
    rows: List[Row] = []
    for peer in settings.peers:
        if peer.op != problem.op or machine.version(peer.package) is None:
            continue
        try:
            settings.refuse_late()
            ways.append(peer.prepare(problem, outputs))
        except NotApplicable as reason:
            if str(reason):
                rows.append({"way": peer.package, "status": "skipped", "reason": str(reason)})
        except Exception as error:  # a peer may raise anything, and the others go on
            rows.append({"way": peer.package, "status": "failed", "reason": _sentence(error)})
    return ways, rows


def _checked(way: Way, settings: Settings) -> Row:
    """Calls a way twice, because a first call may load or compile, and checks the second result."""
    try:
        if way.name != "torchvox":
            settings.refuse_late()
        way.call()
        call_s, result = _once(way.call)
        return {"status": "timed", "check": way.check(result), "call_s": call_s}
    except NotApplicable as reason:
        return {"status": "skipped", "reason": str(reason)}
    except WrongResult as error:
        return {"status": "wrong", "reason": str(error)}
    except Exception as error:  # as above
        return {"status": "failed", "reason": _sentence(error)}


def _once(call: timing.Call) -> Tuple[float, object]:
    _synchronize()
    begin = time.perf_counter()
    result = call()
    _synchronize()
    return time.perf_counter() - begin, result


def _synchronize() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _time(ways: Dict[str, Way], rows: Dict[str, Row], settings: Settings) -> None:
    """Fills the figures in. torchvox is always measured in full."""
    slow = {name for name in ways if rows[name]["call_s"] > SLOW_S[settings.device]} - {"torchvox"}
    if settings.device == "cpu":
        calls = {name: way.call for name, way in ways.items() if name not in slow}
        times = timing.interleaved_us(calls, settings.budget_s)
        for name in slow:
            times[name] = (1e6 * rows[name]["call_s"],) * 2
        for name, (median, least) in times.items():
            rows[name] |= {"wall_us": round(median, 2), "best_us": round(least, 2)}
        return
    for name, way in ways.items():
        if name in slow:
            rows[name]["eager_us"] = round(1e6 * rows[name]["call_s"], 1)
            continue
        try:
            in_full = name == "torchvox" or rows[name]["call_s"] < LONG_S
            rows[name] |= _gpu_figures(way, settings.budget_s) if in_full else _twice(way)
        except RuntimeError as error:
            rows[name] |= {"status": "failed", "reason": _sentence(error)}


def _gpu_figures(way: Way, budget_s: float) -> Row:
    figures: Row = {}
    if way.capturable:
        graph = timing.graph_time(way.call, budget_s)
        figures |= {"graph_us": round(graph.us, 2), "launches": graph.launches}
    if way.percentiles:
        p50, p99 = timing.replay_percentiles(timing.capture(way.call))
        figures |= {"p50_us": round(p50, 2), "p99_us": round(p99, 2)}
    eager = timing.eager_us(way.call, budget_s)
    cpu = timing.cpu_us(way.call, budget_s / 3, eager)
    return {**figures, "eager_us": round(eager, 2), "cpu_us": round(cpu, 2)}


def _twice(way: Way) -> Row:
    return {"eager_us": round(1e6 * min(_once(way.call)[0] for _ in range(2)), 1)}


def _add_floor(row: Row, device: str, moved: int) -> None:
    """Where there is a figure to hold against it: a graph's, or that of a CPU call."""
    figure = row.get("graph_us", row.get("best_us"))
    if figure is not None:
        floor = machine.floor_us(device, moved, row.get("launches", 0))
        row |= {"floor_us": round(floor, 3), "times_floor": round(figure / floor, 2)}


def _judge(goals: Sequence[Goal], rows: List[Row], write_us: float) -> None:
    """Writes the goals into the row of torchvox, each with its limit and whether it was met."""
    mine = next(row for row in rows if row["way"] == "torchvox")
    mine["goals"] = []
    for goal in goals:
        limit, text = goal.at_most_us, f"<= {goal.at_most_us:g} us" if goal.at_most_us else ""
        if goal.writes:
            limit += goal.writes * write_us
            text = f"<= {limit:.1f} us"
        if goal.faster_than:
            times = _rivals(goal, rows)
            limit = min(times) / goal.factor if times else None
            times_faster = f"{goal.factor:g}x faster" if goal.factor != 1 else "faster"
            text = f"{times_faster} than {goal.faster_than}"
        measured = mine.get(goal.figure)
        judged = None if limit is None or measured is None else measured <= limit
        mine["goals"].append(
            {"figure": goal.figure, "text": text, "limit_us": limit, "met": judged}
        )


def _written(size: Row) -> int:
    return int(size.get("features_bytes", 0))


def _rivals(goal: Goal, rows: List[Row]) -> List[float]:
    every = goal.faster_than == "every other way"
    return [
        row[goal.figure]
        for row in rows
        if goal.figure in row
        and row["way"] != "torchvox"
        and (every or str(row["way"]).startswith(str(goal.faster_than)))
    ]


def _same_bits(problem: Problem, found: object) -> str:
    if found[0].device.type == "cpu":
        return "the others are compared with it"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a GPU job may own fewer cores than it sees, and then threads crawl
    expected = problem.on("cpu").torchvox()
    torch.set_num_threads(threads)
    compare = getattr(problem, "compare", None)  # of ops whose contract is not equal bits
    if compare is not None:
        return compare(found, expected)
    for mine, host in zip(found, expected, strict=True):
        if not torch.equal(mine.cpu(), host):
            raise WrongResult("not the bits of the CPU")
    return "all outputs have the bits of the CPU"


@functools.cache
def constant(values: Tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Numbers that a textbook way needs on the device, copied there once: a copy in every call
    would cost it a synchronization, and its place in a graph."""
    return torch.tensor(values, device=device)


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split("\n\n")[0].split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
