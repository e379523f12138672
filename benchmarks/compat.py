# SPDX-License-Identifier: Apache-2.0
"""What an adapter of torchvox.compat costs over torchvox's own call, and the library that it stands
for, where it is installed. Small inputs, calls from Python. The cases run with `--only compat`.

An adapter is to cost at most GOAL us more than the op where it changes nothing but names, layout
and dtype; where the library's contract asks for more (edges are counted, pads replaced, boxes of
another layout), the name of the case says so.
"""

import importlib
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

import torchvox
from benchmarks.clouds import Clouds, seeded
from benchmarks.suite import Case, Implementation, Problem, faster
from torchvox.compat import mmcv_ops, pytorch3d_ops, torch_cluster

GOAL = 10.0
OWN = "torchvox's own call"
N, M, K, C = 1024, 64, 16, 16
SIZE, BOUNDS = [0.1, 0.1, 1.0], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
ADAPTERS = {"mmcv.ops": mmcv_ops, "pytorch3d.ops": pytorch3d_ops, "torch_cluster": torch_cluster}


def knn(convention: str, k: int = K) -> dict[str, Any]:
    return {"op": "knn", "points": "points", "query": "query", "k": k, "convention": convention}


def ball(convention: str) -> dict[str, Any]:
    return {**knn(convention), "op": "ball_query", "radius": 0.2}


FPS = {"op": "furthest_point_sample", "points": "points", "num_samples": M}
GATHER = {"op": "gather_points", "features": "features", "idx": "one", "channels_first": True}
GROUP = {**GATHER, "op": "group_points", "idx": "idx"}
MIX = {**GATHER, "op": "three_interpolate", "idx": "near", "weight": "weight"}
VOXELS = {"op": "voxelize", "points": "rows", "voxel_size": SIZE, "point_cloud_range": BOUNDS,
          "max_points": 8, "max_voxels": 200, "trim": True}  # fmt: skip
NMS = {"op": "rotated_nms", "boxes": "boxes", "scores": "batch_scores", "threshold": 0.3,
       "max_out": M}  # fmt: skip
# A function, its arguments, torchvox's own call, what the adapter adds. A word among the arguments
# is one of inputs().
TABLE: list[tuple[str, tuple, dict[str, Any], str]] = [
    ("mmcv.ops.furthest_point_sample", ("points", M), {**FPS, "convention": "mmcv"}, ""),
    ("mmcv.ops.gather_points", ("features", "one"), GATHER, ""),
    ("mmcv.ops.ball_query", (0, 0.2, K, "points", "query"), ball("mmcv"), ""),
    ("mmcv.ops.grouping_operation", ("features", "idx"), GROUP, ""),
    ("mmcv.ops.three_interpolate", ("features", "near", "weight"), MIX, ""),
    ("mmcv.ops.knn", (K, "points", "query"), knn("mmcv"), "pads, transposed"),
    ("mmcv.ops.voxelization", ("rows", SIZE, BOUNDS, 8, 200), VOXELS, "z y x alone"),
    ("mmcv.ops.nms_rotated", ("flat", "scores", 0.3), NMS, "columns, count read, scores"),
    ("pytorch3d.ops.knn_points", ("query", "points", None, None, 2, K), knn("pytorch3d"),
     "pads, int64"),
    ("torch_cluster.fps", ("x", None, M / N, False), {**FPS, "convention": "pytorch3d"},
     "counts, packed, int64"),
    ("torch_cluster.knn", ("x", "y", K), knn("pytorch3d"), "edges, their number read"),
    ("torch_cluster.radius", ("x", "y", 0.2, None, None, K), ball("pytorch3d"),
     "edges, their number read"),
    ("torch_cluster.nearest", ("y", "x"), knn("torchvox", k=1), "int64"),
    ("torch_cluster.grid_cluster", ("x", "cell"), {}, "no such op"),
]  # fmt: skip


def inputs(clouds: Clouds) -> dict[str, Any]:
    generator = seeded()

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator).to(clouds.device)

    points, query, boxes, scores = random(1, N, 3), random(1, M, 3), random(1, M, 7), random(M)
    boxes[..., 3:6] += 0.1
    idx = torchvox.ball_query(points, query, 0.2, K).idx
    call = {"points": points, "query": query, "features": random(1, C, N), "idx": idx}
    call |= {"one": idx[:, :, 0].contiguous(), "near": torchvox.three_nn(query, points).idx}
    call |= {"weight": random(1, M, 3), "rows": random(N, 4), "boxes": boxes, "scores": scores}
    call |= {"flat": boxes[0][:, [0, 1, 3, 4, 6]], "batch_scores": scores[None]}
    x, y = points[0].contiguous(), query[0].contiguous()
    return {**call, "x": x, "y": y, "cell": torch.tensor(SIZE), "source": "unit cube"}


class Adapter(Problem):
    """What is measured as torchvox is the adapter. tests/compat compares the results."""

    capturable = False

    def tensors(self, value: Any) -> Any:
        return self[value] if isinstance(value, str) and value in self.arguments else value

    def call_of(self, module: Any) -> Callable[[], Any]:
        arguments = [self.tensors(value) for value in self["of_function"]]
        return partial(getattr(module, self["function"]), *arguments)

    @cached_property
    def run(self) -> Callable[[], Any]:
        return self.call_of(ADAPTERS[self["library"]])

    def check(self, outputs: Any) -> str:
        return "results are compared by tests/compat"

    def others(self) -> Iterator[Implementation]:
        if self["own"]:
            named = {name: self.tensors(value) for name, value in self["own"].items()}
            call = partial(getattr(torchvox, named.pop("op")), **named)
            yield Implementation(OWN, call, self.check)
        try:
            module = importlib.import_module(self["library"])
        except ImportError:
            return
        name = f"{self['library'].split('.')[0]} itself"
        yield Implementation(name, self.call_of(module), self.check)


def cases(device: str) -> list[Case]:
    rows, figure = [], "eager_us" if device == "cuda" else "best_us"
    for path, of_function, call, adds in TABLE:
        library, _, function = path.rpartition(".")
        options = {"library": library, "function": function, "own": call}
        options["of_function"] = of_function
        targets = [] if adds else [faster(figure, OWN, plus_us=GOAL)]
        name, op = f"compat {path}" + f", adds: {adds}" * bool(adds), f"compat {library}"
        rows.append(Case(name, op, inputs, options, targets, Adapter, on_demand=True))
    return rows
