# SPDX-License-Identifier: Apache-2.0
"""What an adapter of torchvox.compat costs over torchvox's own call, and the library that it stands
for, where it is installed. Small inputs, calls from Python. The cases run with `--only compat`.

An adapter is to cost at most GOAL us more than the op where it changes nothing but names, layout
and dtype; where the library's contract asks for more (edges are counted, pads replaced, boxes of
another layout), the name of the case says so.
"""

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import torchvox
from benchmarks.case import Case, Implementation, Outputs, Problem, faster, listed, tensors_of
from benchmarks.clouds import Clouds
from torchvox.compat import mmcv_ops, pointops, pytorch3d_ops, torch_cluster

GOAL = 10.0
OWN = "torchvox's own call"
N, M, K, C = 1024, 64, 16, 16
SIZE, BOUNDS = [0.1, 0.1, 1.0], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
ADAPTERS = {
    "mmcv.ops": mmcv_ops,
    "pytorch3d.ops": pytorch3d_ops,
    "torch_cluster": torch_cluster,
    "pointops": pointops,
}
# library, function, its arguments, torchvox's op, its arguments, what the adapter adds. A word is
# one of inputs(); anything else is the argument.
TABLE: list[tuple[str, str, tuple, str, dict[str, Any], str]] = [
    ("mmcv.ops", "furthest_point_sample", ("points", M), "furthest_point_sample",
     {"points": "points", "num_samples": M, "convention": "mmcv"}, ""),
    ("mmcv.ops", "gather_points", ("features", "one"), "gather_points",
     {"features": "features", "idx": "one", "channels_first": True}, ""),
    ("mmcv.ops", "ball_query", (0, 0.2, K, "points", "query"), "ball_query",
     {"points": "points", "query": "query", "radius": 0.2, "k": K, "convention": "mmcv"}, ""),
    ("mmcv.ops", "grouping_operation", ("features", "idx"), "group_points",
     {"features": "features", "idx": "idx", "channels_first": True}, ""),
    ("mmcv.ops", "knn", (K, "points", "query"), "knn",
     {"points": "points", "query": "query", "k": K, "convention": "mmcv"}, "pads, transposed"),
    ("mmcv.ops", "three_nn", ("query", "points"), "three_nn",
     {"query": "query", "points": "points", "convention": "mmcv"}, "pads, roots"),
    ("mmcv.ops", "three_interpolate", ("features", "near", "weight"), "three_interpolate",
     {"features": "features", "idx": "near", "weight": "weight", "channels_first": True}, ""),
    ("mmcv.ops", "voxelization", ("rows", SIZE, BOUNDS, 8, 200), "voxelize",
     {"points": "rows", "voxel_size": SIZE, "point_cloud_range": BOUNDS, "max_points": 8,
      "max_voxels": 200, "trim": True}, "z y x alone"),
    ("mmcv.ops", "points_in_boxes_cpu", ("points", "boxes"), "points_in_boxes",
     {"points": "points", "boxes": "boxes", "mode": "mask"}, "bottoms, transposed"),
    ("mmcv.ops", "box_iou_rotated", ("flat", "flat"), "rotated_iou",
     {"a": "solid", "b": "solid"}, "columns of boxes"),
    ("mmcv.ops", "nms3d", ("solid", "scores", 0.3), "rotated_nms",
     {"boxes": "boxes", "scores": "batch_scores", "threshold": 0.3, "max_out": M}, "count read"),
    ("mmcv.ops", "nms_rotated", ("flat", "scores", 0.3), "rotated_nms",
     {"boxes": "boxes", "scores": "batch_scores", "threshold": 0.3, "max_out": M},
     "columns, count read, scores"),
    ("pytorch3d.ops", "knn_points", ("query", "points", None, None, 2, K), "knn",
     {"points": "points", "query": "query", "k": K, "convention": "pytorch3d"}, "pads, int64"),
    ("pytorch3d.ops", "ball_query", ("query", "points", None, None, K, 0.2, False), "ball_query",
     {"points": "points", "query": "query", "radius": 0.2, "k": K, "convention": "pytorch3d"},
     "int64"),
    ("pytorch3d.ops", "sample_farthest_points", ("points", None, M), "furthest_point_sample",
     {"points": "points", "num_samples": M, "convention": "pytorch3d"}, "counts, gather, int64"),
    ("torch_cluster", "knn", ("x", "y", K), "knn",
     {"points": "points", "query": "query", "k": K, "convention": "pytorch3d"}, "edges"),
    ("torch_cluster", "radius", ("x", "y", 0.2, None, None, K), "ball_query",
     {"points": "points", "query": "query", "radius": 0.2, "k": K, "convention": "pytorch3d"},
     "edges"),
    ("torch_cluster", "fps", ("x", None, M / N, False), "furthest_point_sample",
     {"points": "points", "num_samples": M, "convention": "pytorch3d"}, "counts, packed, int64"),
    ("torch_cluster", "nearest", ("y", "x"), "knn",
     {"points": "points", "query": "query", "k": 1}, "int64"),
    ("torch_cluster", "grid_cluster", ("x", "cell"), "", {}, "no such op"),
    ("pointops", "knn_query", (K, "x", "ends", "y", "query_ends"), "knn",
     {"points": "points", "query": "query", "k": K, "convention": "mmcv"}, "ends, roots"),
    ("pointops", "grouping2", ("few_features", "few_rows"), "group_points",
     {"features": "batch_features", "idx": "idx"}, ""),
]  # fmt: skip


def inputs(clouds: Clouds) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator).to(clouds.device)

    points, query, features = random(1, N, 3), random(1, M, 3), random(1, C, N)
    boxes, scores, few_features = random(1, M, 7), random(M), random(N, C)
    boxes[..., 3:6] += 0.1
    idx = torchvox.ball_query(points, query, 0.2, K).idx
    made = {"points": points, "query": query, "features": features, "idx": idx}
    made |= {"one": idx[:, :, 0].contiguous(), "near": torchvox.three_nn(query, points).idx}
    made |= {"weight": random(1, M, 3), "rows": random(N, 4), "boxes": boxes, "solid": boxes[0]}
    made |= {"flat": boxes[0][:, [0, 1, 3, 4, 6]], "scores": scores, "batch_scores": scores[None]}
    made |= {"x": points[0].contiguous(), "y": query[0].contiguous(), "cell": torch.tensor(SIZE)}
    made |= {"ends": torch.tensor([N]), "query_ends": torch.tensor([M])}
    made |= {"few_features": few_features, "batch_features": few_features[None]}
    return {**made, "few_rows": idx[0], "source": "unit cube"}


class Adapter(Problem):
    """What is measured as torchvox is the adapter. tests/compat compares the results."""

    capturable = False

    def tensors(self, value: Any) -> Any:
        return self[value] if isinstance(value, str) and value in self.arguments else value

    def call_of(self, module: Any) -> Callable[[], Any]:
        arguments = [self.tensors(value) for value in self["of_function"]]
        return partial(getattr(module, self["function"]), *arguments)

    def run(self) -> Outputs:
        return list(tensors_of(list(listed(self.call_of(ADAPTERS[self["library"]])()))))

    def same(self, outputs: Outputs, expected: Outputs) -> str:
        """An adapter may order edges otherwise on a GPU: tests/compat says what is equal."""
        return "results are compared by tests/compat"

    def others(self) -> Iterator[Implementation]:
        if self["op"]:
            own = {name: self.tensors(value) for name, value in self["of_op"].items()}
            call = partial(getattr(torchvox, self["op"]), **own)
            yield Implementation(OWN, call, lambda result: "results are compared by tests/compat")
        try:
            module = importlib.import_module(self["library"])
        except ImportError:
            return
        name = f"{self['library'].split('.')[0]} itself"
        yield Implementation(name, self.call_of(module), lambda result: "not compared")


def cases(device: str) -> list[Case]:
    figure, rows = "eager_us" if device == "cuda" else "best_us", []
    for library, function, of_function, op, of_op, adds in TABLE:
        options = {"library": library, "function": function, "of_function": of_function}
        options |= {"op": op, "of_op": of_op}
        name = f"compat {library}.{function}" + f", adds: {adds}" * bool(adds)
        targets = [] if adds else [faster(figure, OWN, plus_us=GOAL)]
        rows.append(
            Case(name, f"compat {library}", inputs, options, targets, Adapter, on_demand=True)
        )
    return rows
