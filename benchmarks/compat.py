# SPDX-License-Identifier: Apache-2.0
"""python -m benchmarks.compat: what the adapters cost over torchvox's own call, and the peers.

Small inputs, eager calls from Python, microseconds a call: the least of ROUNDS rounds, in turns, so
that a busy machine slows all of them. An adapter is to cost at most GOAL us more than the op where
it changes nothing but names, layout and dtype; where the peer's contract asks for more (edges are
counted, pads replaced, boxes of another layout), the table says how much that is.
"""

import argparse
import importlib
import sys
import time
from typing import Any, Callable, Iterator, NamedTuple

import torch
from torch import Tensor

import torchvox
from torchvox.compat import mmcv_ops, pointops, pytorch3d_ops, torch_cluster

ROUNDS, CALLS, GOAL = 9, 30, 10.0
N, M, K, C = 1024, 64, 16, 16
SIZE, BOUNDS = [0.1, 0.1, 1.0], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]


class Case(NamedTuple):
    """module: the peer's; op: torchvox's call; more: what the adapter adds to it, if not names."""

    module: str
    name: str
    arguments: tuple
    op: Callable[[], Any]
    more: str = ""


def cases(device: str) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator).to(device)

    p, q, f = random(1, N, 3), random(1, M, 3), random(1, C, N)
    fps = torchvox.furthest_point_sample
    ball = torchvox.ball_query
    idx = ball(p, q, 0.2, K).idx
    mmcv = "mmcv.ops"
    yield Case(mmcv, "furthest_point_sample", (p, M), lambda: fps(p, M, convention="mmcv"))
    one = idx[:, :, 0].contiguous()
    gather = torchvox.gather_points
    yield Case(mmcv, "gather_points", (f, one), lambda: gather(f, one, channels_first=True))
    query = lambda: ball(p, q, 0.2, K, convention="mmcv")  # noqa: E731
    yield Case(mmcv, "ball_query", (0, 0.2, K, p, q), query)
    group = torchvox.group_points
    yield Case(mmcv, "grouping_operation", (f, idx), lambda: group(f, idx, channels_first=True))
    nearest = lambda: torchvox.knn(p, q, K, convention="mmcv")  # noqa: E731
    yield Case(mmcv, "knn", (K, p, q), nearest, "pads, transposed")
    three = lambda: torchvox.three_nn(q, p, convention="mmcv")  # noqa: E731
    yield Case(mmcv, "three_nn", (q, p), three, "pads, roots")
    near, weight = torchvox.three_nn(q, p).idx, random(1, M, 3)
    mix = torchvox.three_interpolate
    yield Case(
        mmcv,
        "three_interpolate",
        (f, near, weight),
        lambda: mix(f, near, weight, channels_first=True),
    )
    points = random(N, 4)
    voxels = lambda: torchvox.voxelize(points, SIZE, BOUNDS, 8, 200, trim=True)  # noqa: E731
    yield Case(mmcv, "voxelization", (points, SIZE, BOUNDS, 8, 200), voxels, "z y x alone")
    boxes, scores = random(1, M, 7), random(M)
    boxes[..., 3:6] += 0.1
    mask = lambda: torchvox.points_in_boxes(p, boxes, mode="mask")  # noqa: E731
    yield Case(mmcv, "points_in_boxes_cpu", (p, boxes), mask, "bottoms, transposed")
    flat = boxes[0][:, [0, 1, 3, 4, 6]]
    iou = lambda: torchvox.rotated_iou(boxes[0], boxes[0])  # noqa: E731
    yield Case(mmcv, "box_iou_rotated", (flat, flat), iou, "columns of boxes")
    nms = lambda: torchvox.rotated_nms(boxes, scores[None], 0.3, M)  # noqa: E731
    yield Case(mmcv, "nms3d", (boxes[0], scores, 0.3), nms, "count read")
    yield Case(mmcv, "nms_rotated", (flat, scores, 0.3), nms, "columns, count read, scores")
    p3d = "pytorch3d.ops"
    loop = lambda: torchvox.knn(p, q, K, convention="pytorch3d")  # noqa: E731
    yield Case(p3d, "knn_points", (q, p, None, None, 2, K), loop, "pads, int64")
    hits = lambda: ball(p, q, 0.2, K, convention="pytorch3d")  # noqa: E731
    yield Case(p3d, "ball_query", (q, p, None, None, K, 0.2, False), hits, "int64")
    some = lambda: fps(p, M, convention="pytorch3d")  # noqa: E731
    yield Case(p3d, "sample_farthest_points", (p, None, M), some, "counts, gather, int64")
    cluster, x, y = "torch_cluster", p[0].contiguous(), q[0].contiguous()
    yield Case(cluster, "knn", (x, y, K), loop, "edges")
    yield Case(cluster, "radius", (x, y, 0.2, None, None, K), hits, "edges")
    yield Case(cluster, "fps", (x, None, M / N, False), some, "counts, packed, int64")
    yield Case(cluster, "nearest", (y, x), lambda: torchvox.knn(p, q, 1), "int64")
    grid = (x, torch.tensor(SIZE, device=device))
    yield Case(cluster, "grid_cluster", grid, lambda: torch_cluster.grid_cluster(*grid))
    ends = torch.tensor([N], device=device), torch.tensor([M], device=device)
    yield Case("pointops", "knn_query", (K, x, ends[0], y, ends[1]), nearest, "ends, roots")
    rows, features = idx[0], random(N, C)
    yield Case("pointops", "grouping2", (features, rows), lambda: group(features[None], idx))


SHIMS = {"mmcv.ops": mmcv_ops, "pytorch3d.ops": pytorch3d_ops, "pointops": pointops}
SHIMS["torch_cluster"] = torch_cluster


def peer_of(case: Case) -> Callable[[], Any] | None:
    try:
        function = getattr(importlib.import_module(case.module), case.name)
        function(*case.arguments)  # many run on a GPU alone
    except Exception:
        return None
    return lambda: function(*case.arguments)


def round_us(call: Callable[[], Any], device: str) -> float:
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - begin) / CALLS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device = parser.parse_args().device
    print("| function | torchvox | adapter | over | it adds | peer |\n|---|---|---|---|---|---|")
    late = []
    for case in cases(device):
        function = getattr(SHIMS[case.module], case.name)
        calls = [case.op, lambda f=function, c=case: f(*c.arguments), peer_of(case)]
        least = [float("inf")] * 3
        for _ in range(ROUNDS):
            for i, call in enumerate(calls):
                least[i] = min(least[i], round_us(call, device)) if call else least[i]
        op, adapter, peer = least
        over = adapter - op
        late += [case.name] if over > GOAL and not case.more else []
        theirs = f"{peer:.1f}" if calls[2] else "-"
        where = f"{case.module}.{case.name}"
        print(f"| {where} | {op:.1f} | {adapter:.1f} | {over:+.1f} | {case.more} | {theirs} |")
    for name in late:
        print(f"{name}: more than {GOAL:.0f} us over the op", file=sys.stderr)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
