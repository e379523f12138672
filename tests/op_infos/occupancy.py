# SPDX-License-Identifier: Apache-2.0
"""Occupancy maps: rays update them, points and rays ask them, regions come and go."""

import functools

import torch
from torch import Tensor

import torchvox
import torchvox.reference as reference

from .op_info import INF, NAN, Call, OpInfo, cloud, generator, in_dtypes, refused
from .rays import CLIP, MAP, MAP_ERRORS, RANGE_ERRORS, ray_arguments, sensor

SENSOR = [2.2, -0.2, -2.0, 3.5]


LAYERS = {
    "plain": ("logodds",),
    "all": ("logodds", "hit_miss", "touch", "traversal"),
    "means": ("logodds", "sample_mean"),
    "ndt": ("logodds", "hit_miss", "touch", "traversal", "sample_mean", "sample_cov", "intensity",
            "passes"),
}  # fmt: skip
NDT = [0.05, 0.6, 2.0, -0.5, 4.0]


@functools.cache
def some_map(capacity: int, layers: str) -> list[Tensor]:
    """Rays of two calls in a map; reference alone, so that no kernel tests itself."""
    state = torchvox.occupancy_state(capacity, layers=LAYERS[layers], sample_rows=capacity // 2)
    for seed in (11, 12):
        call = {**ray_arguments(50, seed), **MAP, "max_range": 5.0, "timestamps": times(50, seed)}
        if layers == "ndt":
            call |= sampled(50, seed)
        reference.occupancy_integrate_(state, **call, sensor=SENSOR, stamp=torch.tensor([seed]))
    return state


def state_of(capacity: int = 60, layers: str = "plain") -> list[Tensor]:
    return [tensor.clone() for tensor in some_map(capacity, layers)]


def sampled(n: int, seed: int = 0) -> Call:
    """Rays most of which end near a few places, of some intensity."""
    places = (torch.rand(5, 3, generator=generator(8)) * 4 - 2)[torch.arange(n) % 5]
    near = torch.cat([places, torch.zeros(n, 1)], 1) + cloud(n, 4, seed + 3) / 16
    points = torch.where(torch.arange(n)[:, None] % 7 > 0, near, cloud(n, 4, seed))
    bright = torch.randn(n, generator=generator(seed))
    bright[::13] = torch.tensor([NAN, INF, -INF])[torch.arange(len(bright[::13])) % 3]
    return {"points": points, "ndt": NDT, "intensity": bright, "intensity_range": [-1.0, 2.5]}


def times(n: int, seed: int = 0) -> Tensor:
    """Seconds, some before the others' base, some not finite or far away."""
    seconds = torch.rand(n, generator=generator(seed), dtype=torch.float64) * 3 + 99
    seconds[::9] = torch.tensor([1e300, 98.0, -1e9])[torch.arange(n)[::9] % 3].double()
    return seconds


def integrate_call(n: int, seed: int = 0, capacity: int = 200, **options) -> Call:
    rays = {**ray_arguments(n, seed), **MAP}
    return {"state": state_of(capacity), **rays, "sensor": SENSOR, "max_range": 6.0, **options}


def flagged(*flags: str, **options) -> Call:
    return integrate_call(60, flags=list(flags), threshold=0.1, **options)


def stamp(value: int) -> Tensor:
    return torch.tensor([value], dtype=torch.int32)


def full() -> list[Tensor]:
    state = state_of()
    state[3][3] = 1  # an earlier call was refused
    return state


def other(index: int, change) -> callable:
    """The state with one tensor changed."""
    return lambda state: [change(t) if i == index else t for i, t in enumerate(state)]


STATE_ERRORS = (
    *refused("state", ValueError, "state must be", lambda s: s[:-1], lambda s: [*s, s[0]]),
    ("state", other(0, Tensor.long), TypeError, "table of the state must be int32"),
    ("state", other(4, Tensor.int), TypeError, "logodds of the state must be int16"),
    *refused("state", ValueError, "table of the state must be", other(0, lambda t: t[:-1]),
             other(0, lambda t: t[:2]), other(0, lambda t: t[None])),
    ("state", other(2, lambda t: t[1:]), ValueError, "region_stamp of the state must be"),
    ("state", other(3, lambda t: t[:7]), ValueError, "status of the state must be"),
    *refused("state", ValueError, "logodds of the state must be", other(4, lambda t: t[1:]),
             other(4, lambda t: t[:, :511])),
    *refused("state", ValueError, "hit_miss of the state must be",
             other(5, lambda t: t.new_zeros(3, 512, 2))),
)  # fmt: skip
SENSOR_ERRORS = refused(
    "sensor", ValueError, "sensor must", [0.8, -0.4, -2.0], [-0.1, -0.4, -2.0, 3.5],
    [0.8, 0.1, -2.0, 3.5], [0.8, -0.4, 1.0, 1.0], [0.8, -0.4, -32.0, 3.5],
)  # fmt: skip

FRAME_ERRORS = tuple(row for row in MAP_ERRORS if row[0] in ("voxel_size", "map_origin"))
FLAGS = (
    *("end_as_free", "stop_at_occupied", "exclude_origin", "exclude_sample", "exclude_ray"),
    *("exclude_unobserved", "exclude_free", "exclude_occupied", "lock_min", "lock_max"),
)


def query_call(n: int, seed: int = 0, **options) -> Call:
    valid = torch.tensor([n - n // 10])
    return {"state": state_of(), "points": cloud(n, 4, seed), **MAP, "num_valid": valid, **options}


def crop_call(n: int, seed: int = 0, **options) -> Call:
    poses = torch.eye(4, dtype=torch.float64)[:3].repeat(n, 1, 1)
    poses[:, :, 3] = torch.randn(n, 3, generator=generator(seed))
    poses[1::3] = poses[1::3][:, [1, 0, 2]]
    grid = {"cell_size": [0.5, 0.4, 1.0], "point_cloud_range": [-2.0, -2.0, -1.0, 2.0, 2.0, 1.0]}
    return {"state": state_of(), **MAP, **grid, "poses": poses, **options}


def raycast_call(n: int, seed: int = 0, **options) -> Call:
    rays = ray_arguments(n, seed)
    del rays["ray_flags"]
    return {"state": state_of(), **rays, **MAP, **options}


def ndt_call(n: int = 60, *flags: str, kind: str = "ndt", **options) -> Call:
    options = {"state": state_of(200, kind), "timestamps": times(n), **options}
    return integrate_call(n, flags=list(flags), **{**sampled(n), **options})


def cramped() -> list[Tensor]:
    """Rows for the samples of one more region."""
    state = state_of(200, "ndt")
    return [t[: state[3][2] + 1] if i > 8 else t for i, t in enumerate(state)]


def insert_call(n: int, seed: int = 0, kind: str = "ndt", **options) -> Call:
    """Rows of which some keys are in the map, some new, some refused."""
    state, g = state_of(260, kind), generator(seed)
    resident = state[1][: int(state[3][1])]
    keys = torch.cat([resident, torch.randint(0, 2**62, (n,), generator=g)])[::2][:n]
    keys = torch.cat([keys, torch.randint(0, 2**62, (n - len(keys),), generator=g)]).sort().values
    keys[3::7] = keys[2::7][: len(keys[3::7])]
    if n:
        keys[0] = -5
    logodds = torch.randint(-3000, 3600, (n, 512), generator=g, dtype=torch.int16)
    logodds[:, ::3] = -32768
    rows = n if kind == "ndt" else 0

    def whole(low: int, high: int, *shape: int, dtype=torch.int32) -> Tensor:
        return torch.randint(low, high, (rows, *shape), generator=g, dtype=dtype)

    counts, touch = whole(0, 9, 512, 2), whole(-1, 4000, 512)
    traversal = whole(0, 2**40, 512, dtype=torch.int64)
    spread = torch.rand(rows, 512, 6, generator=g) / 8
    spread[..., [0, 2, 5]] += 0.1
    bright = torch.rand(rows, 512, 2, generator=g) + 1
    samples = [whole(-2, rows + 2), whole(-1, 4, 512), torch.rand(rows, 512, 3, generator=g) - 0.5]
    samples += [spread, bright, whole(0, 2**31 - 1, 512, 2)]
    given = [torch.arange(n, dtype=torch.int32), logodds, counts, touch, traversal, *samples]
    return {"state": state, "keys": keys, "layers": given, "sensor": SENSOR, **options}


def mask_of(n: int, seed: int) -> Tensor:
    return torch.rand(n, generator=generator(seed)) < 0.4


StateOp = functools.partial(OpInfo, contiguous=("state",))
OPS = [
    StateOp(
        "occupancy_integrate_",
        integrate_call,
        varying={"points": 0, "origin_index": 0, "ray_flags": 0},
        mutates=("state",),
        sample_inputs={
            "scan": lambda: flagged("exclude_sample", rule="scan"),
            "stopped": lambda: flagged("end_as_free", "stop_at_occupied", "exclude_unobserved"),
            "locked": lambda: flagged("lock_min", "lock_max", "exclude_origin"),
            "all layers": lambda: integrate_call(
                60, state=state_of(200, "all"), timestamps=times(60), time_base=100.0, **CLIP),
            "all layers, stopped": lambda: flagged(
                "stop_at_occupied", "lock_max", "exclude_origin", state=state_of(200, "all"),
                timestamps=times(60)),
            "all layers, scan": lambda: flagged(
                "end_as_free", "exclude_free", rule="scan", state=state_of(200, "all")),
            "ndt": lambda: ndt_call(),
            "ndt, stopped": lambda: ndt_call(60, "stop_at_occupied", "exclude_free", **CLIP),
            "ndt, along": lambda: ndt_call(60, "end_as_free", "lock_min", intensity=None,
                                           intensity_range=None),
            "ndt, skip missing": lambda: ndt_call(missing="skip", max_touched=200),
            "too many samples": lambda: ndt_call(state=cramped()),
            "ndt, clipped": lambda: ndt_call(ndt=[0.5, 1.0, 1.0, -0.5, 4.0], **CLIP),
            "ndt, no regions": lambda: ndt_call(
                state=torchvox.occupancy_state(0, layers=LAYERS["ndt"], sample_rows=2)),
            "means": lambda: ndt_call(kind="means", rule="scan", ndt=None, intensity=None,
                                      intensity_range=None),
            "stamped": lambda: integrate_call(60, stamp=stamp(12), max_touched=300),
            "skip missing": lambda: integrate_call(60, missing="skip", max_touched=200),
            "too many touched": lambda: integrate_call(60, max_touched=20),
            "far too many touched": lambda: integrate_call(60, max_touched=2),
            "too many regions": lambda: integrate_call(60, state=state_of(60), max_range=9.0),
            "skip too many": lambda: integrate_call(60, missing="skip", max_touched=3),
            "refused before": lambda: integrate_call(60, state=full()),
            "no room": lambda: integrate_call(40, state=torchvox.occupancy_state(0)),
            "clipped": lambda: integrate_call(60, **CLIP),
            **in_dtypes(lambda: integrate_call(60), "points"),
        },
        kernels=10,
        error_inputs=(
            *STATE_ERRORS,
            *MAP_ERRORS,
            *RANGE_ERRORS,
            *SENSOR_ERRORS,
            ("max_touched", 1 << 30, ValueError, "max_touched must be"),
            ("missing", {"missing": "skip", "flags": ["stop_at_occupied"]}, ValueError, "missing"),
            ("stamp", torch.zeros(1), TypeError, "stamp must be int32"),
            ("stamp", torch.zeros(2).int(), ValueError, "stamp must be"),
            ("timestamps", torch.zeros(9), TypeError, "timestamps must be float64"),
            ("timestamps", torch.zeros(9).double(), ValueError, "timestamps must be"),
            ("ndt", NDT, ValueError, "ndt must be given"),
            ("intensity_range", [0.0, 1.0], ValueError, "intensity and intensity_range"),
            ("intensity", torch.zeros(9).double(), TypeError, "intensity must be float32"),
            *refused("intensity", ValueError, "intensity must be", torch.zeros(9),
                     {"intensity": torch.zeros(60), "intensity_range": [0.0, 1.0]}),
        ),
    ),
    StateOp(
        "occupancy_query",
        query_call,
        sample_inputs={
            "filled": lambda: query_call(40, fill=-1.5, threshold=1.0),
            **in_dtypes(lambda: query_call(60), "points"),
        },
        error_inputs=(*STATE_ERRORS, *FRAME_ERRORS,
                      *(row for row in MAP_ERRORS if row[0] in ("points", "num_valid"))),
    ),
    StateOp(
        "occupancy_crop",
        crop_call,
        varying={"poses": 0},
        sample_inputs={
            "in the map's frame": lambda: crop_call(1, poses=None, fill=0.0),
            "poses in float32": lambda: crop_call(3, poses=torch.eye(4)[None, :3]),
        },
        error_inputs=(
            *STATE_ERRORS, *FRAME_ERRORS,
            ("cell_size", [0.0, 1.0, 1.0], ValueError, "voxel_size must be"),
        ),
    ),
    StateOp(
        "occupancy_raycast",
        raycast_call,
        varying={"points": 0, "origin_index": 0},
        sample_inputs={
            "stopped by the unknown": lambda: raycast_call(60, stop_unknown=True, threshold=1.0),
            "of a solid angle": lambda: raycast_call(60, solid_angle=0.01),
            "one origin": lambda: raycast_call(40, origins=sensor(), origin_index=None),
            **in_dtypes(lambda: raycast_call(60), "points"),
        },
        error_inputs=(
            *STATE_ERRORS,
            *(row for row in MAP_ERRORS if row[0] != "ray_flags"),
            *refused("solid_angle", ValueError, "solid_angle must be", -0.1, INF),
        ),
    ),
    StateOp(
        "occupancy_extract",
        lambda n, seed: {"state": state_of(), "max_out": 300},
        varying={},
        sample_inputs={
            "free": lambda: {"state": state_of(), "max_out": 2000, "select": "free"},
            "observed": lambda: {"state": state_of(), "max_out": 9000, "select": "observed"},
            "threshold": lambda: {"state": state_of(), "max_out": 900, "threshold": 2.0},
            "samples": lambda: {"state": state_of(60, "ndt"), "max_out": 300},
        },
        kernels=6,
        error_inputs=(
            *STATE_ERRORS,
        ),
    ),
    StateOp(
        "occupancy_decay_",
        lambda n, seed: {"state": state_of(), "factor": 50_000, "step": 3, "forget": 120,
                         "mask": mask_of(60, seed)},
        varying={},
        mutates=("state",),
        sample_inputs={
            "all": lambda: {"state": state_of(90, "ndt"), "factor": 60_000, "step": 0, "forget": 0},
            "to nothing": lambda: {"state": state_of(), "factor": 0, "step": 0, "forget": -1},
            "forget": lambda: {"state": state_of(90, "ndt"), "factor": 0, "step": 0, "forget": 0},
        },
        kernels=2,
        error_inputs=(
            *STATE_ERRORS,
            ("factor", 65537, ValueError, "factor must be"),
        ),
    ),
    StateOp(
        "occupancy_remove_",
        lambda n, seed: {"state": state_of(), "mask": mask_of(60, seed)},
        varying={},
        mutates=("state",),
        sample_inputs={
            "all": lambda: {"state": state_of(90, "ndt"), "mask": torch.ones(90).bool()},
            "some": lambda: {"state": state_of(90, "ndt"), "mask": mask_of(90, 3)},
            "none": lambda: {"state": state_of(90, "ndt"), "mask": torch.zeros(90).bool()},
        },
        kernels=6,
        error_inputs=(
            *STATE_ERRORS,
        ),
    ),
    StateOp(
        "occupancy_insert_",
        insert_call,
        varying={"keys": 0, "layers": 0},
        mutates=("state",),
        sample_inputs={
            **{merge: lambda merge=merge: insert_call(30, merge=merge)
               for merge in ("add", "replace", "keep")},
            "keys alone": lambda: insert_call(30, layers=[]),
            "some rows": lambda: insert_call(30, num_valid=torch.tensor([11])),
            "without counts": lambda: insert_call(30, kind="plain"),
            "no room": lambda: insert_call(90, state=state_of(60, "ndt")),
            "no regions": lambda: insert_call(
                30, state=torchvox.occupancy_state(0, layers=LAYERS["ndt"], sample_rows=2)),
            "no room for samples": lambda: insert_call(90, state=cramped()),
        },
        kernels=8,
        error_inputs=(
            *STATE_ERRORS, *SENSOR_ERRORS,
            ("layers", lambda t: t[:2], ValueError, "layers must be"),
            ("layers", other(1, Tensor.int), TypeError, "logodds of layers must be"),
            *refused("layers", ValueError, "of layers must be", other(1, lambda t: t[1:]),
                     other(2, lambda t: t[1:]), other(3, lambda t: t[1:]),
                     other(4, lambda t: t[:, 1:]), other(5, lambda t: t[1:]),
                     other(7, lambda t: t[1:]), other(8, lambda t: t[..., :3])),
            ("num_valid", torch.zeros(2).int(), ValueError, "num_valid must be"),
        ),
    ),
]  # fmt: skip
