# SPDX-License-Identifier: Apache-2.0
"""Sparse convolutions of 3x3x3 cells without bias, and those of spconv and spconv-triton.

Level 1 are the voxels of a sweep, level 2 the cells that a stride of 2 reaches from them. Peers
tune themselves in their first call, which is never timed.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

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


def first(clouds: Clouds, sweeps: int = 1) -> dict[str, Any]:
    """sweeps: of a sensor that turns and drives on."""
    points, source = clouds.sweep()
    step = torch.arange(sweeps, device=points.device)[:, None]
    turn, (x, y, *rest) = 0.013 * step, points.T
    x, y = x * turn.cos() - y * turn.sin() + 0.47 * step, x * turn.sin() + y * turn.cos()
    columns = [x, y + 0.11 * step, *(column.expand_as(x) for column in rest)]
    points = torch.stack([column.flatten() for column in columns], 1)
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
    """Of stride 1 (submanifold) or 2. map: made in every call, or else kept with its schedule, in
    `kept`; backward: the gradients of features and weight too."""

    profiled = True

    def made(self) -> Any:
        return table(self, self["stride"], self.arguments.get("max_rows", -1))

    def run(self) -> Outputs:
        made = self.made() if self["map"] else None
        options = {"submanifold": True} if self["stride"] == 1 else {}
        options |= {} if options else {"inverse": made.inverse, "num_valid": made.counts}
        leaves = (self["features"].detach(), self["weight"].detach())
        features, weight = (leaf.requires_grad_(self["backward"]) for leaf in leaves)
        neighbors, schedule = (made.neighbors, None) if self["map"] else self["kept"]
        out = torchvox.sparse_conv(features, weight, neighbors, schedule=schedule, **options)
        if self["backward"]:
            return out.detach(), *torch.autograd.grad(out, [features, weight], self["grad"])
        return [out] if self["stride"] == 1 else [out, made.out_indices]

    def same(self, outputs: Outputs, expected: Outputs) -> str:
        """Tensor cores do not have the bits of the CPU."""
        if outputs[0].dtype == torch.half:
            return suite.close(outputs, expected, self.tolerance)
        return super().same(outputs, expected)

    def compare(self, result: Outputs) -> str:
        """Strided rows by coordinate: spconv's order differs from run to run."""
        if self["stride"] == 1:
            return suite.close(result[: len(self.outputs)], self.outputs, self.tolerance)
        values, indices = result
        z, y, x = indices[:, 1:].long().unbind(1)
        order = ((z * 2**20 + y) * 2**20 + x).argsort()
        rows = int((self.outputs[1][:, 0] >= 0).sum())
        expect(torch.equal(indices[order], self.outputs[1][:rows]), "other output cells")
        return suite.close([values[order]], [self.outputs[0][:rows]], self.tolerance)

    @property
    def tolerance(self) -> float:
        return 1e-2 if self["features"].dtype == torch.half else 1e-5


class Map(Layer):
    def run(self) -> Outputs:
        return self.made()

    def compare(self, pairs: Tensor) -> str:
        """The pairs of each offset; of a submanifold map spconv holds those before the middle."""
        mine = (self.outputs.neighbors >= 0).sum(1)
        mine = mine if self["stride"] == 2 else mine[: len(mine) // 2]
        expect(torch.equal(mine, pairs[: len(mine)].to(mine)), "other pairs")
        return f"same {int(mine.sum())} pairs"


def checked_way(problem: Problem, library: Any, call: Callable[[], Any]) -> Way:
    """On the CPU spconv's sums differ from call to call with several threads: checked with one."""

    def check(result: Any) -> str:
        if problem.device.type == "cpu":
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            result = call()
            torch.set_num_threads(threads)
        return problem.compare(result)

    return Way(call, check=check, name=library.__name__.split(".")[0])


def layer_of(library: Any, conv: Any, key: str, relu: bool = False) -> nn.Module:
    """A convolution of torchvox.nn in a library with spconv's interface; key: of the map of a
    submanifold one. relu: in its launch, on the CPU behind it."""
    strided, cpu = isinstance(conv, torchvox.nn.SparseConv3d), conv.weight.device.type == "cpu"
    kind = library.SparseConv3d if strided else library.SubMConv3d
    more = {"stride": conv.stride, "padding": conv.padding} if strided else {"indice_key": key}
    algo = library.ConvAlgo.Native if cpu else None
    sizes = conv.in_channels, conv.out_channels, conv.kernel_size
    layer = kind(*sizes, bias=conv.bias is not None, algo=algo, **more).to(conv.weight)
    for name, parameter in conv.named_parameters():
        getattr(layer, name).data.copy_(parameter)
    if relu and cpu:
        return library.SparseSequential(layer, nn.ReLU())
    if relu:
        layer.act_type = type(layer.act_type).ReLU
    return layer


@peer("spconv.pytorch", "sparse convolution")
@peer("spconv_triton.pytorch", "sparse convolution", device="cuda")
def spconv(library: Any, problem: Layer) -> Way:
    cpu, ops = problem.device.type == "cpu", library.ops
    limit(not (cpu and problem["backward"]), "on the CPU it asks for a CUDA stream")
    algo = library.ConvAlgo.Native
    stride, indices, shape = problem["stride"], problem["indices"], problem["spatial_shape"]
    if isinstance(problem, Map):
        window = (KERNEL, [stride] * 3, [1] * 3, [1] * 3, [0] * 3)

        def pairs() -> Tensor:
            return ops.get_indice_pairs(indices, 1, shape, algo, *window, subm=stride == 1)[2]

        return Way(pairs, name=library.__name__.split(".")[0])
    outs, *_, ins = problem["weight"].shape
    args = (stride, 1) if stride == 2 else ()
    kind = torchvox.nn.SubMConv3d if stride == 1 else torchvox.nn.SparseConv3d
    conv = kind(ins, outs, 3, *args, bias=False).to(problem["weight"])
    conv.weight.data.copy_(problem["weight"])
    layer = layer_of(library, conv, "map").train(problem["backward"])
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

    return checked_way(problem, library, call)


def row(
    name: str, level: Level, channels: int, *targets: Target, stride: int = 1, map: bool = False,
    backward: bool = False, dtype: torch.dtype = torch.float32, kind: type[Layer] = Layer,
) -> Case:  # fmt: skip

    def inputs(clouds: Clouds) -> dict[str, Any]:
        call = level(clouds)
        if stride == 2:
            call["max_rows"] = int(table(call, 2).counts[0, 0])
        elif not map:
            kept = table(call, 1).neighbors
            call["kept"] = (kept, torchvox.sparse_schedule(kept, KERNEL))
        rows = (len(call["indices"]), channels)
        shapes = {"features": rows, "weight": (channels, *KERNEL, channels)}
        shapes |= {"grad": rows} if backward else {}
        for tensor, shape in shapes.items() if kind is Layer else ():
            call[tensor] = torch.randn(*shape, generator=seeded()).to(dtype)
        return call

    options = {"stride": stride, "map": map, "backward": backward}
    return Case(f"sparse {name}", "sparse convolution", inputs, options, targets, kind)


GOALS = {16: 9, 32: 18, 64: 28, 128: 55, 256: 160}  # us on one H200, the map cached


def cases(device: str) -> list[Case]:
    cuda = device == "cuda"
    of_map = [graph(40)] if cuda else [faster("best_us", "spconv")]
    dtype = torch.half if cuda else torch.float32

    def goals(us: float) -> list[Target]:
        return [graph(us), faster("kernel_us", "spconv")] if cuda else []

    mapped = {"map": True, "dtype": dtype}
    rows = [
        row("submanifold map, level 1", first, 0, *of_map, map=True, kind=Map),
        row("stride 2 map, level 1", first, 0, map=True, stride=2, kind=Map),
        row("128, stride 2 with its map", first, 128, *goals(80), stride=2, **mapped),
        row("128, submanifold with its map", second, 128, *goals(110), **mapped),
        row("64, 50k random cells", random, 64, dtype=dtype),
        row("128, 50k random cells with their map", random, 128, **mapped),
    ]
    for channels, us in GOALS.items():
        goal = [faster("best_us", "spconv", 3)] if channels == 64 and not cuda else goals(us)
        level = first if channels == 16 else second
        rows.append(row(f"{channels}, submanifold", level, channels, *goal, dtype=dtype))
    for channels, us in ((64, 125), (128, 180)):
        name = f"{channels}, submanifold, forward and backward"
        rows.append(row(name, second, channels, *goals(us), backward=True, dtype=dtype))
    exact = [graph(600)] if cuda else []
    other = torch.float32 if cuda else torch.float64
    name = f"128, submanifold, {suite.name_of(other)}"
    return [*rows, row(name, second, 128, *exact, dtype=other)]
