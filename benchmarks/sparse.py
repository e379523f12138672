# SPDX-License-Identifier: Apache-2.0
"""Sparse convolutions of 3x3x3 cells without bias, and spconv's.

Level 1 are the voxels of a sweep, level 2 the cells that a stride of 2 reaches from them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import torchvox
from benchmarks import suite
from benchmarks.clouds import Clouds, seeded
from benchmarks.suite import Case, Outputs, Problem, Target, Way, expect, faster, graph, limit, peer
from benchmarks.voxelize import GRIDS

KERNEL = [3, 3, 3]
Level = Callable[[Clouds], dict[str, Any]]  # indices [M, 4], spatial_shape, source


def table(level: Mapping[str, Any] | Problem, stride: int, max_rows: int = -1) -> Any:
    """The map of a stride of 1 (submanifold) or 2."""
    grid = (level["indices"], level["spatial_shape"], 1, KERNEL)
    if stride == 1:
        return torchvox.sparse_subm_map(*grid)
    return torchvox.sparse_conv_map(*grid, stride=[2] * 3, padding=[1] * 3, max_rows=max_rows)


def first(clouds: Clouds) -> dict[str, Any]:
    points, source = clouds.sweep()
    size, bounds = GRIDS["0.075 m"]
    voxels = torchvox.voxelize(points, size, bounds, 10, reduce="mean")
    nx, ny, nz = torchvox.grid_size(size, bounds)
    indices = voxels.indices[: int(voxels.counts[0, 0])].contiguous()
    return {"indices": indices, "spatial_shape": [nz + 1, ny, nx], "source": source}


def second(clouds: Clouds) -> dict[str, Any]:
    level = first(clouds)
    made = table(level, 2)
    indices = made.out_indices[: int(made.counts[0, 0])].contiguous()
    level["spatial_shape"] = [(n + 1) // 2 for n in level["spatial_shape"]]
    return {**level, "indices": indices}


def random(clouds: Clouds) -> dict[str, Any]:
    """Cells of 128^3, almost without neighbors."""
    cells = torch.randperm(128**3, generator=seeded())[: clouds.size(50_000)]
    indices = torch.stack([cells // 128**axis % 128 for axis in (3, 2, 1, 0)], 1).int()
    return {"indices": indices, "spatial_shape": [128] * 3, "source": "random cells"}


class Layer(suite.Problem):
    """Of stride 1 (submanifold) or 2. map: made in every call, or else kept, in `kept`; backward:
    the gradients of features and weight too."""

    def made(self) -> Any:
        return table(self, self["stride"], self.arguments.get("max_rows", -1))

    def run(self) -> Outputs:
        made = self.made() if self["map"] else None
        options = {"submanifold": True} if self["stride"] == 1 else {}
        options |= {} if options else {"inverse": made.inverse, "num_valid": made.counts}
        leaves = (self["features"].detach(), self["weight"].detach())
        features, weight = (leaf.requires_grad_(self["backward"]) for leaf in leaves)
        neighbors = made.neighbors if self["map"] else self["kept"]
        out = torchvox.sparse_conv(features, weight, neighbors, **options)
        if self["backward"]:
            return out.detach(), *torch.autograd.grad(out, [features, weight], self["grad"])
        return [out] if self["stride"] == 1 else [out, made.out_indices]

    def compare(self, result: Outputs) -> str:
        """Strided rows by coordinate: spconv's order differs from run to run."""
        if self["stride"] == 1:
            return suite.close(result[: len(self.outputs)], self.outputs, self.tolerance)
        values, indices = result
        z, y, x = indices[:, 1:].long().unbind(1)
        order = ((z * 2**20 + y) * 2**20 + x).argsort()
        expect(torch.equal(indices[order], self.outputs[1]), "other output cells")
        return suite.close([values[order]], self.outputs[:1], self.tolerance)

    @property
    def tolerance(self) -> float:
        return 1e-2 if self["weight"].dtype == torch.half else 1e-5


class Map(Layer):
    def run(self) -> Outputs:
        return self.made()

    def compare(self, pairs: Tensor) -> str:
        """The pairs of each offset; of a submanifold map spconv holds those before the middle."""
        mine = (self.outputs.neighbors >= 0).sum(1)
        mine = mine if self["stride"] == 2 else mine[: len(mine) // 2]
        expect(torch.equal(mine, pairs[: len(mine)].to(mine)), "other pairs")
        return f"same {int(mine.sum())} pairs"


@peer("spconv.pytorch", "sparse convolution")
def spconv(library: Any, problem: Layer) -> Way:
    """On the CPU its sums differ from call to call with several threads: checked with one."""
    from spconv.core import ConvAlgo

    cpu, ops = problem.device.type == "cpu", library.ops
    limit(not (cpu and problem["backward"]), "on the CPU it asks for a CUDA stream")
    algo = ConvAlgo.Native if cpu or isinstance(problem, Map) else None
    stride, indices, shape = problem["stride"], problem["indices"], problem["spatial_shape"]
    if isinstance(problem, Map):
        window = (KERNEL, [stride] * 3, [1] * 3, [1] * 3, [0] * 3)

        def pairs() -> Tensor:
            return ops.get_indice_pairs(indices, 1, shape, algo, *window, subm=stride == 1)[2]

        return Way(pairs)
    outs, *_, ins = problem["weight"].shape
    kind = library.SubMConv3d if stride == 1 else library.SparseConv3d
    layer = kind(ins, outs, 3, stride, 1, bias=False, indice_key="map", algo=algo)
    layer = layer.to(problem["weight"])
    layer.weight.data.copy_(problem["weight"])
    kept = {}
    if not problem["map"]:
        kept = layer(library.SparseConvTensor(problem["features"], indices, shape, 1)).indice_dict

    def call() -> Any:
        features = problem["features"].detach().requires_grad_(problem["backward"])
        x = library.SparseConvTensor(features, indices, shape, 1)
        x.indice_dict = dict(kept)
        with torch.set_grad_enabled(problem["backward"]):
            y = layer(x)
        if not problem["backward"]:
            return y.features, y.indices
        inputs = [features, layer.weight]
        return y.features.detach(), *torch.autograd.grad(y.features, inputs, problem["grad"])

    def check(_: Any) -> str:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        result = call()
        torch.set_num_threads(threads)
        return problem.compare(result)

    return Way(call, check=check)


def row(
    name: str, level: Level, channels: int, *targets: Target, stride: int = 1, map: bool = False,
    backward: bool = False, dtype: torch.dtype = torch.float32, kind: type[Layer] = Layer,
) -> Case:  # fmt: skip

    def inputs(clouds: Clouds) -> dict[str, Any]:
        call = level(clouds)
        if stride == 2:
            call["max_rows"] = int(table(call, 2).counts[0, 0])
        elif not map:
            call["kept"] = table(call, 1).neighbors
        rows = (len(call["indices"]), channels)
        shapes = {"features": rows, "weight": (channels, *KERNEL, channels)}
        shapes |= {"grad": rows} if backward else {}
        for tensor, shape in shapes.items() if kind is Layer else ():
            call[tensor] = torch.randn(*shape, generator=seeded()).to(dtype)
        return call

    options = {"stride": stride, "map": map, "backward": backward}
    return Case(f"sparse {name}", "sparse convolution", inputs, options, targets, kind)


def cases(device: str) -> list[Case]:
    cuda = device == "cuda"
    of_map = [graph(40)] if cuda else [faster("best_us", "spconv")]
    dtype = torch.half if cuda else torch.float32
    rows = [
        row("submanifold map, level 1", first, 0, *of_map, map=True, kind=Map),
        row("stride 2 map, level 1", first, 0, map=True, stride=2, kind=Map),
        row("128, stride 2 with its map", first, 128, map=True, stride=2, dtype=dtype),
        row("128, submanifold with its map", second, 128, map=True, dtype=dtype),
        row("64, 50k random cells", random, 64, dtype=dtype),
    ]
    for channels in (16, 32, 64, 128, 256):
        goal = [faster("best_us", "spconv", 3)] if channels == 64 and not cuda else []
        rows.append(row(f"{channels}, submanifold", second, channels, *goal, dtype=dtype))
    for channels in (64, 128):
        name = f"{channels}, submanifold, forward and backward"
        rows.append(row(name, second, channels, backward=True, dtype=dtype))
    exact = [graph(600)] if cuda else []
    other = torch.float32 if cuda else torch.float64
    name = f"128, submanifold, {suite.name_of(other)}"
    return [*rows, row(name, second, 128, *exact, dtype=other)]
