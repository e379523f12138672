# SPDX-License-Identifier: Apache-2.0
"""Ten sweeps of a moving sensor: from its packets to pillars in one CUDA graph, and each step."""

import math
from functools import partial
from typing import Any

import torch

import torchvox
from benchmarks.clouds import Clouds, seeded, thinned
from benchmarks.suite import Case, Outputs, Problem, graph

SWEEPS, POINTS, TURN = 10, 26_000, 0.1  # seconds
FIELDS = {"point_step": 22, "offsets": [0, 4, 8, 12, 16], "types": ["f4"] * 4 + ["u4"]}
RANGE = [-51.2, -51.2, -5.0, 51.2, 51.2, 3.0]
CAR = [-2.5, -1.5, -math.inf, 2.5, 1.5, math.inf]
GRID = {"voxel_size": [0.2, 0.2, 8.0], "point_cloud_range": RANGE, "max_points": 20}


def packets(clouds: Clouds) -> dict[str, Any]:
    """Bytes of a ring of scans: x, y, z, intensity, and microseconds in the turn; their poses."""
    sweeps, (points, source) = clouds.batch(SWEEPS), clouds.sweep()
    points = thinned(points.cpu(), clouds.size(POINTS))
    turn = torch.linspace(0, 1e6 * TURN, len(points)).int()[:, None]
    cells = torch.cat([points.view(torch.uint8), turn.view(torch.uint8)], 1)
    data = torch.nn.functional.pad(cells, (0, 2)).flatten().repeat(sweeps, 1)
    age = TURN * torch.arange(sweeps, dtype=torch.float64)
    knots = torch.linspace(0, TURN, 101, dtype=torch.float64).repeat(sweeps, 1)
    poses = torch.eye(3, 4, dtype=torch.float64).repeat(sweeps, 101, 1, 1)
    poses[..., 0, 3] = 10 * (knots - age[:, None])  # 10 m/s
    raw = {"data": data, **FIELDS, "scale": torch.tensor([1, 1, 1, 1, 1e-6]).double()}
    layer = {"weight": torch.randn(64, 12, generator=seeded()), "bias": torch.ones(64)}
    return {"raw": raw, "sensor": {"poses": poses, "knots": knots, "age": age}, **layer,
            "source": f"{sweeps} x {source}"}  # fmt: skip


def step(clouds: Clouds, op: str) -> dict[str, Any]:
    raw, sensor, *_, source = packets(clouds).values()
    points = torchvox.unpack_points(**raw)
    sensor["times"] = points[..., 4]
    cloud, count, _ = torchvox.merge_sweeps(points, **sensor)
    merge, crop = {"points": points, **sensor}, {"points": cloud, "lengths": count}
    inputs = {"unpack_points": raw, "merge_sweeps": merge, "crop_points": crop}
    return {**inputs[op], "source": source}


class Input(Problem):
    """All of it: unpack, merge with deskewing, crop, voxelize, encode."""

    def run(self) -> Outputs:
        points = torchvox.unpack_points(**self["raw"])
        sensor = {**self["sensor"], "times": points[..., 4], "drop_boxes": CAR}
        cloud, count, _ = torchvox.merge_sweeps(points, **sensor)
        cloud, count, _ = torchvox.crop_points(cloud, lengths=count, keep_range=RANGE)
        voxels = torchvox.voxel_map(cloud, **GRID, max_voxels=30_000, num_valid=count)
        rows = (voxels.indices, voxels.num_points, voxels.point_voxel, voxels.point_slot)
        layer = (self["weight"], self["bias"])
        return [torchvox.pillar_encode(cloud, *rows, *layer, **GRID, batch_size=1)]


def cases(device: str) -> list[Case]:
    us = (lambda limit: [graph(limit)]) if device == "cuda" else (lambda limit: [])
    whole = "ten raw sweeps to pillars"
    return [
        *(Case(f"{op} 260k, 10 sweeps", op, partial(step, op=op), options, us(limit))
          for op, limit, options in (
              ("unpack_points", 5, {}),
              ("merge_sweeps", 12, {"drop_boxes": CAR}),
              ("crop_points", 15, {"keep_range": RANGE}))),
        Case(whole, whole, packets, {}, us(150), Input),
    ]  # fmt: skip
