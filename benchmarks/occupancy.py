# SPDX-License-Identifier: Apache-2.0
"""Maps of occupancy and what sweeps see: their cases, and the baselines: the compare-and-swap
kernel of baseline_occupancy.cu, and for ray_visibility a map."""

import math
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, Callable, Iterator, Sequence

import torch
from torch import Tensor

import torchvox
from benchmarks.baseline_occupancy import Mapper
from benchmarks.clouds import Clouds
from benchmarks.suite import (
    Case,
    CaseSpec,
    Facts,
    Implementation,
    Outputs,
    Target,
    WrongResult,
    bytes_of,
    graph_us,
    moved,
)
from benchmarks.timing import graph_time
from torchvox.data import generate_drive

SIZE, ORIGIN, CENTER = 0.1, (0.03, -0.02, 0.01), [0.0] * 3  # the origin is inside a voxel
SENSOR = [2.1972, -0.2007, -2.0, 3.511]
NDT = [0.05, 0.2, 3.0, -1.386, 100.0]
OCTOMAP = [0.8473, -0.4055, -2.0, 3.511]
WARM_SCANS = 12
CHECKED = 1024  # rays whose map on a GPU is compared with that of the CPU
SAME = 0.95  # of the labels: updates one after another let other thin voxels survive
SWAP = "compare and swap"


def clear(state: list[Tensor]) -> None:
    known = ("logodds", "sample_mean", "sample_cov") if len(state[8]) else ("logodds",)
    layout = torchvox.occupancy_layout(len(state[1]), layers=known)
    for tensor, empty in zip(state, layout, strict=True):
        tensor.fill_(empty.fill)
    state[3][:1].fill_(1)


@dataclass(frozen=True)
class IntegrateCase(Case):
    """A scan into a map: an empty one, whose clearing is part of the time, or a warm one, which has
    seen it WARM_SCANS times."""

    points: Tensor
    source: str
    capacity: int
    warm: bool
    rule: str = "every_ray"  # or "ndt", every ray with distributions
    op: str = "occupancy_integrate_"

    @cached_property
    def origins(self) -> Tensor:
        return self.points.new_tensor([ORIGIN])

    @property
    def sensor(self) -> list[float]:
        return OCTOMAP if self.rule == "scan" else SENSOR

    @cached_property
    def state(self) -> list[Tensor]:
        state = self.empty(self.capacity, self.points.device)
        for _ in range(WARM_SCANS if self.warm else 0):
            self.integrate(state, self.points)
        return state

    def empty(self, capacity: int, device: torch.device) -> list[Tensor]:
        room: dict[str, Any] = {}
        if self.rule == "ndt":
            room = {
                "layers": ("logodds", "sample_mean", "sample_cov"),
                "sample_rows": capacity // 3,
            }
        return torchvox.occupancy_state(capacity, device=device, **room)

    def integrate(self, state: list[Tensor], points: Tensor) -> Tensor:
        origins, given = self.origins.to(points.device), (SIZE, CENTER, self.sensor)
        options: dict[str, Any] = {"rule": self.rule} if self.rule != "ndt" else {"ndt": NDT}
        return torchvox.occupancy_integrate_(state, points, origins, *given, **options)

    def torchvox(self) -> Outputs:
        if not self.warm:
            clear(self.state)
        return [self.integrate(self.state, self.points)]

    def facts(self) -> Facts:
        counts = self.torchvox()[0][0].tolist()
        names = {"rays": 0, "visits": 6, "regions": 8, "overflow": 11}
        facts = {name: counts[column] for name, column in names.items()}
        facts["clear_us"] = self.clearing_us(partial(clear, self.state))
        return {**facts, "voxel_size": SIZE}

    def clearing_us(self, clear: Callable[[], None]) -> float | None:
        """How much of a cold time on a GPU is not the scan's."""
        alone = not self.warm and self.points.device.type == "cuda"
        return round(graph_time(clear, 0.05).us, 1) if alone else None

    def moved_bytes(self, outputs: Outputs) -> tuple[int, int]:
        """The log-odds of touched regions."""
        touched = 1024 * int(outputs[0][0, 8])
        return 12 * len(self.points) + self.warm * touched, touched

    def check(self, found: Outputs) -> str:
        counts = found[0][0].tolist()
        if counts[0] != len(self.points) or counts[11]:
            raise WrongResult(f"{counts[0]} rays integrated, overflow {counts[11]}")
        if self.points.device.type == "cpu":
            return "the others are compared with it"
        some = self.points[:: len(self.points) // CHECKED | 1].contiguous()  # of every beam
        regions = 1 << (15 if self.rule == "ndt" else 18)
        here, host = (self.empty(regions, d) for d in (some.device, torch.device("cpu")))
        for _ in range(2):
            self.integrate(here, some)
            counts = self.integrate(host, some.cpu())[0]
        same = all(torch.equal(a.cpu(), b) for a, b in zip(here, host, strict=True))
        if not same or counts[0] != len(some):
            raise WrongResult("not the state of the CPU")
        return f"the state of the CPU after two scans of {len(some)} of the rays, bit for bit"

    @cached_property
    def mapper(self) -> Mapper:
        mapper = Mapper(self.capacity)
        for _ in range(WARM_SCANS if self.warm else 0):
            mapper.integrate(self.points, self.origins, SIZE, SENSOR, False)
        return mapper

    def swap(self, reverse: bool) -> None:
        if not self.warm:
            self.mapper.clear()
        self.mapper.integrate(self.points, self.origins, SIZE, SENSOR, reverse)

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        if self.points.device.type == "cuda" and self.rule != "ndt":
            for name, reverse in (("forward", False), ("reverse", True)):
                call = partial(self.swap, reverse)
                yield Implementation(f"{SWAP}, {name}", call, self._check_swapped, True)

    def _check_swapped(self, found: object) -> str:
        mapper = self.mapper
        slots = (mapper.keys >= 0).nonzero()[:, 0]
        keys, order = mapper.keys[slots].sort()
        mine = self.state[1][: int(self.state[3][1])]
        row = torch.searchsorted(keys, mine).clamp(max=len(keys) - 1)
        both = keys[row] == mine
        logodds = self.state[4][: len(mine)][both]
        swapped = mapper.voxels[slots[order[row[both]]]]
        labels = (logodds >= 0).to(torch.int8).masked_fill_(logodds == -32768, -1)
        others = (swapped >= 0).to(torch.int8).masked_fill_(swapped.isinf(), -1)
        observed = (labels >= 0) | (others >= 0)
        said = share_of_labels(labels[observed], others[observed], SAME)
        regions = f"{len(mine)} regions, it has {len(keys)}, {int(both.sum())} of them in both"
        return f"{said}; {regions}; its clear_us: {self.clearing_us(mapper.clear)}"


def share_of_labels(mine: Tensor, theirs: Tensor, least: float) -> str:
    """Of voxels: how many have the same label, -1, 0 or 1, in two maps."""
    same, ours, its = (
        100 * float(each.double().mean()) for each in (mine == theirs, mine == 1, theirs == 1)
    )
    if same < 100 * least:
        raise WrongResult(f"only {same:.2f} % of {mine.numel()} labels are the same")
    return (
        f"{same:.3f} % of {mine.numel()} labels are the same; occupied {ours:.2f} %, it {its:.2f} %"
    )


@dataclass(frozen=True)
class VisibilityCase(Case):
    """Sweeps from origins [O, 3] into a grid of cubes."""

    points: Tensor
    source: str
    origins: Tensor
    index: Tensor | None
    size: float
    range: list[float]
    op: str = "ray_visibility"

    def torchvox(self) -> Outputs:
        return torchvox.ray_visibility(
            self.points, self.origins, [self.size] * 3, self.range, origin_index=self.index
        )

    def facts(self) -> Facts:
        visits = torchvox.ray_voxels(
            *(self.points, self.origins, self.size, self.range[:3], 0),
            origin_index=self.index,
            point_cloud_range=self.range,
        ).counts[0, 1]
        rays = int(self.torchvox()[2][0, 0])
        return {"rays": rays, "visits": int(visits), "voxel_size": self.size}

    def baselines(self, outputs: Outputs) -> Iterator[Implementation]:
        """A map of the grid, emptied, filled and read."""
        shape = outputs[0].shape[1:]
        state = torchvox.occupancy_state(
            math.prod(n // 8 + 1 for n in shape), device=self.points.device
        )
        grid, box = (self.size, self.range[:3]), self.range

        def call() -> Tensor:
            clear(state)
            torchvox.occupancy_integrate_(
                *(state, self.points, self.origins, *grid, SENSOR),
                origin_index=self.index,
                point_cloud_range=box,
            )
            return torchvox.occupancy_crop(state, *grid, [self.size] * 3, box).label

        def check(label: Tensor) -> str:
            return share_of_labels(outputs[0].to(torch.int8) - 1, label, 0.999)

        yield Implementation("occupancy map", call, check, True)


@dataclass(frozen=True)
class MapCase(Case):
    """A call about a map, which leaves it as it is; arguments: from the second on."""

    points: Tensor
    source: str
    op: str
    state: list[Tensor]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def facts(self) -> Facts:
        return {"regions": int(self.state[3][1])}

    def moved_bytes(self, outputs: Outputs) -> tuple[int, int]:
        """Without the map, of which a call may need little."""
        return bytes_of(self.arguments), bytes_of(outputs)

    def torchvox(self) -> Outputs:
        return getattr(torchvox, self.op)(self.state, *self.arguments, **self.options)


def beams(rays: int, near: float, far: float, lower: Sequence[float], upper: Sequence[float]):
    """A turn of 64 beams from -25 to 15 degrees, to some distance but not out of a box."""
    at = torch.arange(rays, dtype=torch.float64)
    turn, tilt = 2 * math.pi * at / rays, torch.deg2rad(40 * (at % 64) / 63 - 25)
    way = torch.stack([tilt.cos() * turn.cos(), tilt.cos() * turn.sin(), tilt.sin()], 1)
    length = near + (far - near) * torch.rand(rays, generator=torch.Generator().manual_seed(0))
    wall = torch.where(way < 0, torch.tensor(lower), torch.tensor(upper)) / way
    return (way * wall.amin(1).minimum(length)[:, None]).float()


def hall(x: float, y: float, z: float) -> tuple[Any, ...]:
    return 99.0, 99.0, (-x, -y, -z), (x, y, z)


INF, ROOM = math.inf, hall(18.03, 18.03, 3.03)
OPEN = (-INF, -INF, -INF), (INF, INF, INF)
SCENES: dict[str, tuple[Any, ...]] = {  # regions of the map; rays, as in beams()
    "room 262k": (30_000, 262_144, *ROOM),
    "ground 262k": (1_300_000, 262_144, 20.0, 100.0, (-INF, -INF, -2.3), OPEN[1]),
    "100 m 262k": (3_700_000, 262_144, 100.0, 100.0, *OPEN),
    "room 4k": (30_000, 4096, *ROOM),
    "indoor 88k": (4000, 88_000, *hall(5.53, 4.53, 2.03)),
    "75 m 5k": (400_000, 5000, 75.0, 75.0, *OPEN),
}


@cache
def drive(scans: int, azimuths: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points, origins, and the origin of each point, in meters from the last place."""
    found = generate_drive(0, scans, azimuths=azimuths)
    poses = torch.stack([scan.pose for scan in found])
    index = torch.arange(scans).repeat_interleave(torch.tensor([len(s.points) for s in found]))
    points = torch.cat([scan.points for scan in found])
    shift = poses[-1, :, 3] * torch.tensor([1.0, 1.0, 0.0])
    points = torchvox.transform_points(points, poses, pose_index=index) - shift
    return points.float(), (poses[:, :, 3] - shift).float(), index.int()


def integrate(scene: str, warm: bool, targets: Sequence[Target] = (), rule: str = "every_ray"):
    def build(clouds: Clouds) -> IntegrateCase:
        regions, *rays = SCENES[scene]
        return IntegrateCase(beams(*rays).to(clouds.device), scene, regions, warm, rule)

    state = "warm" if warm else "cold"
    return CaseSpec(f"occupancy_integrate_ {scene}, {rule}, {state}", build, tuple(targets))


def visibility(name: str, scans: int, turns: int, targets: Sequence[Target] = ()) -> CaseSpec:
    """Scans of a drive in 200 x 200 x 16 cells of 0.4 m; if none, the sweep in 540 x 540 x 40."""

    def build(clouds: Clouds) -> VisibilityCase:
        if not scans:
            points, source = clouds.sweep()
            box = [-54.0, -54.0, -5.0, 54.0, 54.0, 3.0]
            return VisibilityCase(points, source, points.new_tensor([ORIGIN]), None, 0.2, box)
        points, origins, index = (each.to(clouds.device) for each in drive(scans, turns))
        box = [-40.0, -40.0, -1.0, 40.0, 40.0, 5.4]
        return VisibilityCase(points, f"drive, {scans} scans", origins, index, 0.4, box)

    return CaseSpec(f"ray_visibility {name}", build, tuple(targets))


def about_map(name: str, us: float, arguments: Callable[[], Sequence[Any]], **options: Any):
    """Of the map of one scan of the room; the name begins with the op's."""

    def build(clouds: Clouds) -> MapCase:
        scan = integrate("room 262k", False).build(clouds)
        scan.torchvox()
        given, op = moved(tuple(arguments()), clouds.device), name.split()[0]
        return MapCase(scan.points, scan.source, op, scan.state, given, options)

    return CaseSpec(name, build, tuple(graph_us(us)) if us else ())


def map_cases(on_gpu: bool) -> list[CaseSpec]:
    grid, box = (SIZE, CENTER), [-20.0, -20.0, -1.6, 20.0, 20.0, 1.6]

    def points() -> Sequence[Any]:  # somewhere on rays
        share = torch.rand(1_000_000, 1, generator=torch.Generator().manual_seed(0))
        return share * beams(1_000_000, *ROOM), *grid

    def rays() -> Sequence[Any]:
        return beams(131_072, *ROOM), torch.tensor([ORIGIN]), *grid

    cases = [
        ("query 1M points", 50, points, {"fill": 0.0}),
        ("crop 200x200x16", 15, lambda: (*grid, [0.2] * 3, box), {"fill": 0.0}),
        ("crop 512x512x40", 150, lambda: (*grid, [40 / 512] * 2 + [0.08], box), {"fill": 0.0}),
        ("raycast 131k rays", 500, rays, {}),
        ("extract occupied", 0, lambda: (1 << 20,), {}),
        ("decay_ 16k regions", 0, lambda: (65536, 0, 0), {}),
    ]
    return [about_map(f"occupancy_{n}", us * on_gpu, args, **more) for n, us, args, more in cases]


def gpu_cases() -> list[CaseSpec]:
    goals = {  # us and times faster than compare and swap, cold and warm
        "room 262k": ((600, 2.3), (300, 4.5)),
        "ground 262k": ((3000, 1.6), (1500, 3.0)),
        "100 m 262k": ((9000, 1.3), (5000, 2.3)),
        "room 4k": ((120, 4.0), (60, 7.0)),
    }
    beside = Target("graph_us", faster_than="occupancy map", factor=5.0)
    return [
        *(
            integrate(scene, warm, [*graph_us(us), Target("graph_us", faster_than=SWAP, factor=x)])
            for scene, goal in goals.items()
            for warm, (us, x) in zip((False, True), goal, strict=True)
        ),
        integrate("room 262k", False, graph_us(1500), "ndt"),
        integrate("room 262k", True, graph_us(1000), "ndt"),
        visibility("111k", 0, 0, [*graph_us(150), beside]),
        visibility("260k, 10 sweeps", 10, 426, [*graph_us(80), beside]),
        visibility("1.4M, 40 sweeps", 40, 573, [beside]),
        *map_cases(True),
    ]


def cpu_cases() -> list[CaseSpec]:
    speed = 50 * (1.7 if torch.get_num_threads() > 1 else 1)  # visits in a microsecond

    def spec(scene: str, visits: int, warm: bool, rule: str, factor: float) -> CaseSpec:
        beside = Target("best_us", faster_than="pyoctomap", factor=factor)
        return integrate(scene, warm, [Target("best_us", round(visits / speed)), beside], rule)

    return [
        spec("indoor 88k", 7_200_000, False, "scan", 4.0),
        spec("indoor 88k", 7_200_000, True, "scan", 4.0),
        spec("indoor 88k", 7_200_000, False, "every_ray", 3.0),
        spec("indoor 88k", 7_200_000, True, "every_ray", 3.0),
        spec("75 m 5k", 5_400_000, False, "scan", 4.0),
        visibility("26k, 1 sweep", 1, 426, [Target("best_us", 60_000)]),
        visibility("111k", 0, 0),
        *map_cases(False),
    ]
