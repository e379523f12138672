# SPDX-License-Identifier: Apache-2.0
"""Slow definitions of what the peers compute, and how their signatures are compared."""

import importlib
import inspect

import numpy as np
import pytest
import torch


def installed(name: str):
    """The peer itself; skips the test where it is not installed, or cannot be imported."""
    return pytest.importorskip(name, reason=f"{name} is not installed", exc_type=ImportError)


def signature(function) -> str:
    """Names and defaults, without types."""
    if inspect.isclass(function):
        function = function.__init__
    parameters = inspect.signature(function).parameters.values()
    named = [p for p in parameters if p.name != "self"]
    return ", ".join(
        p.name if p.default is p.empty else f"{p.name}={p.default!r}".replace("'", '"')
        for p in named
    )


def check_signatures(shim: str, table: str) -> None:
    """table: a line a name, `name(a, b=1)`; every name that the shim covers is in it."""
    module = importlib.import_module(f"torchvox.compat.{shim}")
    wanted = dict(line[:-1].split("(", 1) for line in map(str.strip, table.splitlines()) if line)
    functions = [name for name in module.__all__ if callable(getattr(module, name))]
    assert {name: signature(getattr(module, name)) for name in functions} == wanted


def numpy(tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


def distances(points, query) -> np.ndarray:
    """[M, N] squared."""
    return ((numpy(query)[:, None] - numpy(points)[None]) ** 2).sum(-1)


def in_ball(points, query, radius, least=0.0) -> list[list[int]]:
    """The points of each ball by index: nearer than the radius, and not nearer than `least` unless
    at the center."""
    rows = distances(points, query)
    return [
        [i for i, d in enumerate(row) if d < radius**2 and (d == 0 or d >= least**2)]
        for row in rows
    ]


def nearest(points, query, k) -> list[list[tuple[float, int]]]:
    """(squared distance, index), nearest first, then by index."""
    return [sorted(zip(row, range(len(row)), strict=True))[:k] for row in distances(points, query)]


def padded(rows, k, fill=-1) -> torch.Tensor:
    """[M, k]; fill: a number, or "first" for the first entry of the row, 0 without one."""
    out = []
    for row in rows:
        pad = fill if fill != "first" else row[0] if row else 0
        out.append((list(row) + [pad] * k)[:k])
    return torch.tensor(out).reshape(len(rows), k)


def furthest(points, count, start=0) -> list[int]:
    """Furthest point sampling, the lowest index among equals."""
    points = numpy(points)
    far, chosen = np.full(len(points), np.inf), [start]
    while len(chosen) < count:
        far = np.minimum(far, ((points - points[chosen[-1]]) ** 2).sum(-1))
        chosen.append(int(far.argmax()))
    return chosen[:count]


def voxels(points, size, bounds, most_points, most):
    """(rows of points of each voxel, cells z y x, the voxel of each point, the cell of each)."""
    points, size, bounds = (np.asarray(one, dtype=np.float32) for one in (points, size, bounds))
    shape = np.round((bounds[3:] - bounds[:3]) / size).astype(int)
    rows, cells, of_point, cell_of_point = [], [], [], []
    for i, point in enumerate(points):
        cell = np.floor((point[:3] - bounds[:3]) / size).astype(int)
        inside = bool(((cell >= 0) & (cell < shape)).all())
        zyx = cell[::-1].tolist() if inside else [-1, -1, -1]
        cell_of_point.append(zyx)
        if inside and zyx not in cells and len(cells) < most:
            cells.append(zyx)
            rows.append([])
        voxel = cells.index(zyx) if zyx in cells else -1
        of_point.append(voxel)
        if voxel >= 0 and len(rows[voxel]) < most_points:
            rows[voxel].append(i)
    return rows, cells, of_point, cell_of_point
