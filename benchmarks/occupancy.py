# SPDX-License-Identifier: Apache-2.0
"""Maps of occupancy and what sweeps see: their cases, beside pyoctomap on the CPU."""

import math
from collections.abc import Sequence
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import torchvox
from benchmarks import suite
from benchmarks.clouds import Clouds, seeded
from benchmarks.suite import Case, Facts, Outputs, Problem, Target, Way, expect, faster, graph
from benchmarks.timing import graph_time
from torchvox.data import generate_drive
from torchvox.mapping.counts import IntegrateCounts

SIZE, ORIGIN, CENTER = 0.1, (0.03, -0.02, 0.01), [0.0] * 3  # the origin is inside a voxel
SENSOR = [2.1972, -0.2007, -2.0, 3.511]
NDT = [0.05, 0.2, 3.0, -1.386, 100.0]
OCTOMAP = [0.8473, -0.4055, -2.0, 3.511]
WARM_SCANS = 12
CHECKED = 1024  # rays whose map on a GPU is compared with that of the CPU
# Of the labels: updates one after another let other thin voxels survive.
SAME = {"every_ray": 0.95, "scan": 0.999}


def counts_of(counts: Tensor) -> IntegrateCounts:
    return IntegrateCounts._make(counts[0, : len(IntegrateCounts._fields)].tolist())


def clear(state: list[Tensor]) -> None:
    layers = ("logodds", "sample_mean", "sample_cov") if len(state[8]) else ("logodds",)
    layout = torchvox.occupancy_layout(len(state[1]), layers=layers)
    for tensor, empty in zip(state, layout, strict=True):
        tensor.fill_(empty.fill)
    state[3][:1].fill_(1)


class Integrate(Problem):
    """A scan into a map of `capacity` regions: an empty one, whose clearing is part of the time, or
    a warm one, which has seen it WARM_SCANS times. rule: "every_ray", "scan" or "ndt", every ray
    with distributions."""

    @cached_property
    def origins(self) -> Tensor:
        return self["points"].new_tensor([ORIGIN])

    @cached_property
    def state(self) -> list[Tensor]:
        state = self.empty(self["capacity"], self.device)
        for _ in range(WARM_SCANS if self["warm"] else 0):
            self.integrate(state, self["points"])
        return state

    def empty(self, capacity: int, device: torch.device) -> list[Tensor]:
        room: dict[str, Any] = {}
        if self["rule"] == "ndt":
            layers = ("logodds", "sample_mean", "sample_cov")
            room = {"layers": layers, "sample_rows": capacity // 3}
        return torchvox.occupancy_state(capacity, device=device, **room)

    def integrate(self, state: list[Tensor], points: Tensor) -> Tensor:
        rule, sensor = self["rule"], OCTOMAP if self["rule"] == "scan" else SENSOR
        options: dict[str, Any] = {"ndt": NDT} if rule == "ndt" else {"rule": rule}
        call = (state, points, self.origins.to(points.device), SIZE, CENTER, sensor)
        return torchvox.occupancy_integrate_(*call, **options)

    def run(self) -> Outputs:
        if not self["warm"]:
            clear(self.state)
        return [self.integrate(self.state, self["points"])]

    def facts(self) -> Facts:
        counts = counts_of(self.outputs[0])
        facts = {"rays": counts.rays, "visits": counts.visits, "overflow": counts.overflow}
        facts |= {"regions": counts.regions_touched, "voxel_size": SIZE}
        if not self["warm"] and self.device.type == "cuda":  # so much of the time is not the scan's
            facts["clear_us"] = round(graph_time(partial(clear, self.state), 0.05)[0], 1)
        return facts

    def moved_bytes(self) -> tuple[int, int]:
        """The log-odds of touched regions."""
        touched = 1024 * counts_of(self.outputs[0]).regions_touched
        return 12 * len(self["points"]) + self["warm"] * touched, touched

    def check(self, outputs: Outputs) -> str:
        points, counts = self["points"], counts_of(outputs[0])
        good = counts.rays == len(points) and not counts.overflow
        expect(good, f"{counts.rays} rays integrated, overflow {counts.overflow}")
        if self.device.type == "cpu":
            return "the others are compared with it"
        few = points[:: len(points) // CHECKED | 1].contiguous()  # of every beam
        regions = 1 << (15 if self["rule"] == "ndt" else 18)
        here, host = (self.empty(regions, d) for d in (few.device, torch.device("cpu")))
        for _ in range(2):
            self.integrate(here, few)
            counts = counts_of(self.integrate(host, few.cpu()))
        same = all(torch.equal(a.cpu(), b) for a, b in zip(here, host, strict=True))
        expect(same and counts.rays == len(few), "not the state of the CPU")
        return f"the state of the CPU after two scans of {len(few)} of the rays, bit for bit"


def share_of_labels(mine: Tensor, theirs: Tensor, least: float) -> str:
    """Of voxels: how many have the same label, -1, 0 or 1, in two maps."""
    maps = (mine == theirs, mine == 1, theirs == 1)
    same, ours, its = (100 * float(each.double().mean()) for each in maps)
    said = f"{same:.3f} % of {mine.numel()} labels are the same"
    expect(same >= 100 * least, f"only {said}")
    return f"{said}; occupied {ours:.2f} %, it {its:.2f} %"


@suite.peer("pyoctomap", "occupancy_integrate_", device="cpu")
def pyoctomap(package: Any, problem: Integrate) -> Way:
    """OctoMap, one insertPointCloud per scan, from double, as it wants them. Inner nodes are
    updated once, after the scan."""
    tree = package.OcTree(SIZE)
    points, origin = (t.double().numpy() for t in (problem["points"], problem.origins[0]))

    def insert() -> None:
        tree.insertPointCloud(points, origin, lazy_eval=True)
        tree.updateInnerOccupancy()

    def call() -> None:
        if not problem["warm"]:
            tree.clear()
        insert()

    def check(result: object) -> str:
        state = problem.state
        most = 512 * int(state[3][1])
        rows = torchvox.occupancy_extract(state, most, select="observed")
        every = rows.indices[: int(rows.counts[0, 0])]
        few = every[:: 1 + len(every) // 500_000, 1:]
        centers = (few.flip(1).double() + 0.5) * SIZE
        mine = torchvox.occupancy_query(state, centers, SIZE, CENTER).label
        theirs = torch.from_numpy(tree.getLabels(centers.numpy()).astype(np.int8))
        return share_of_labels(mine, theirs, SAME[problem["rule"]])

    for _ in range(WARM_SCANS if problem["warm"] else 0):
        insert()
    return Way(call, check=check)


class Visibility(Problem):
    """Sweeps from origins [O, 3] into a grid of cubes."""

    def facts(self) -> Facts:
        size, bounds = self["voxel_size"][0], self["point_cloud_range"]
        rays = (self["points"], self["origins"], size, bounds[:3], 0)
        options = {"origin_index": self["origin_index"], "point_cloud_range": bounds}
        walk = torchvox.ray_voxels(*rays, **options)
        rays = int(self.outputs[2][0, 0])
        return {"rays": rays, "visits": int(walk.counts[0, 1]), "voxel_size": size}


class MapCall(Problem):
    """A call about a map, which leaves it as it is."""

    def facts(self) -> Facts:
        return {"regions": int(self["state"][3][1])}

    def moved_bytes(self) -> tuple[int, int]:
        """Without the map, of which a call may need little."""
        return suite.bytes_of({**self.arguments, "state": None}), suite.bytes_of(self.outputs)


def beams(rays: int, near: float, far: float, lower: Sequence[float], upper: Sequence[float]):
    """A turn of 64 beams from -25 to 15 degrees, to some distance but not out of a box."""
    at = torch.arange(rays, dtype=torch.float64)
    turn, tilt = 2 * math.pi * at / rays, torch.deg2rad(40 * (at % 64) / 63 - 25)
    way = torch.stack([tilt.cos() * turn.cos(), tilt.cos() * turn.sin(), tilt.sin()], 1)
    length = near + (far - near) * torch.rand(rays, generator=seeded())
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
    sweeps = generate_drive(0, scans, azimuths=azimuths)
    poses = torch.stack([scan.pose for scan in sweeps])
    index = torch.arange(scans).repeat_interleave(torch.tensor([len(s.points) for s in sweeps]))
    points = torch.cat([scan.points for scan in sweeps])
    shift = poses[-1, :, 3] * torch.tensor([1.0, 1.0, 0.0])
    points = torchvox.transform_points(points, poses, pose_index=index) - shift
    return points.float(), (poses[:, :, 3] - shift).float(), index.int()


def integrate(scene: str, warm: bool, *targets: Target, rule: str = "every_ray") -> Case:
    regions, *rays = SCENES[scene]

    def inputs(clouds: Clouds) -> dict[str, Any]:
        return {"points": beams(clouds.size(rays[0]), *rays[1:]), "source": scene}

    name = f"occupancy_integrate_ {scene}, {rule}, {'warm' if warm else 'cold'}"
    options = {"capacity": regions, "warm": warm, "rule": rule}
    return Case(name, "occupancy_integrate_", inputs, options, targets, Integrate)


def both(scene: str, cold: float, warm: float, **rule: str) -> list[Case]:
    return [integrate(scene, i > 0, graph(us), **rule) for i, us in enumerate((cold, warm))]


def visibility(name: str, scans: int, turns: int, *targets: Target) -> Case:
    """Scans of a drive in 200 x 200 x 16 cells of 0.4 m; if none, the sweep in 540 x 540 x 40."""
    size = 0.4 if scans else 0.2
    bounds = [-40.0, -40, -1, 40, 40, 5.4] if scans else [-54.0, -54, -5, 54, 54, 3]

    def inputs(clouds: Clouds) -> dict[str, Any]:
        if not scans:
            points, source = clouds.sweep()
            origins = points.new_tensor([ORIGIN])
            return {"points": points, "origins": origins, "origin_index": None, "source": source}
        points, origins, index = drive(clouds.batch(scans), clouds.size(turns))
        rays = {"points": points, "origins": origins, "origin_index": index}
        return {**rays, "source": f"drive, {scans} scans"}

    options = {"voxel_size": [size] * 3, "point_cloud_range": bounds}
    name = f"ray_visibility {name}"
    return Case(name, "ray_visibility", inputs, options, targets, Visibility)


GRID = {"voxel_size": SIZE, "map_origin": CENTER}


def about_map(words: str, us: float, rays: int = 0, **options: Any) -> Case:
    """Of the map of one scan of the room; the words begin with the rest of the op's name. rays: of
    a raycast, or with a point somewhere on each of a query."""

    def inputs(clouds: Clouds) -> dict[str, Any]:
        scan = integrate("room 262k", False).build(clouds)
        scan.run()
        call = {"points": beams(clouds.size(rays), *ROOM)} if rays else {}
        if words.startswith("query"):
            call["points"] *= torch.rand(len(call["points"]), 1, generator=seeded())
        elif rays:
            call["origins"] = torch.tensor([ORIGIN])
        return {"state": scan.state, **call, "source": scan.source}

    name, targets = f"occupancy_{words}", [graph(us)] if us else []
    return Case(name, name.split()[0], inputs, options, targets, MapCall)


def map_cases(on_gpu: bool) -> list[Case]:
    crop = {**GRID, "point_cloud_range": [-20.0, -20.0, -1.6, 20.0, 20.0, 1.6], "fill": 0.0}
    coarse, fine = [0.2] * 3, [40 / 512, 40 / 512, 0.08]
    decay = {"factor": 65536, "step": 0, "forget": 0}
    return [
        about_map("query 1M points", 50 * on_gpu, 1_000_000, **GRID, fill=0.0),
        about_map("crop 200x200x16", 15 * on_gpu, **crop, cell_size=coarse),
        about_map("crop 512x512x40", 150 * on_gpu, **crop, cell_size=fine),
        about_map("raycast 131k rays", 500 * on_gpu, 131_072, **GRID),
        about_map("extract occupied", 0, max_out=1 << 20),
        about_map("decay_ 16k regions", 0, **decay),
    ]


def cases(device: str) -> list[Case]:
    if device == "cpu":
        speed = 50 * (1.7 if torch.get_num_threads() > 1 else 1)  # visits in a microsecond

        indoor, far = (Target("best_us", round(visits / speed)) for visits in (7.2e6, 5.4e6))
        four, three = (faster("best_us", "pyoctomap", factor) for factor in (4.0, 3.0))
        return [
            *(integrate("indoor 88k", warm, indoor, four, rule="scan") for warm in (False, True)),
            *(integrate("indoor 88k", warm, indoor, three) for warm in (False, True)),
            integrate("75 m 5k", False, far, four, rule="scan"),
            visibility("26k, 1 sweep", 1, 426, Target("best_us", 60_000)),
            visibility("111k", 0, 0),
            *map_cases(False),
        ]
    return [
        *both("room 262k", 600, 300),
        *both("ground 262k", 3000, 1500),
        *both("100 m 262k", 9000, 5000),
        *both("room 4k", 120, 60),
        *both("room 262k", 1500, 1000, rule="ndt"),
        visibility("111k", 0, 0, graph(150)),
        visibility("260k, 10 sweeps", 10, 426, graph(80)),
        visibility("1.4M, 40 sweeps", 40, 573),
        *map_cases(True),
    ]
