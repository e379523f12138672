# SPDX-License-Identifier: Apache-2.0
"""The one list of ops that the acceptance tests in tests/core walk.

An op is one entry of OPS: how to call it with n points, what else its contract allows, what has a
gradient. Everything else (empty, strided, on the GPU, compiled, captured ...) is derived from that.
test_surface.py fails for a registered op without an entry and for an entry without an op.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import torchvox

Call = dict[str, Any]  # the op's arguments by name; every tensor on the CPU


@dataclass(frozen=True)
class Op:
    name: str
    # call(n, seed): n is the size of dimension `varying[argument]` of each argument named there.
    # Calls of one n differ in values only, with and without `seed`.
    call: Callable[[int, int], Call]
    varying: dict[str, int]
    cases: dict[str, Callable[[], Call]] = field(default_factory=dict)
    gradients: tuple[str, ...] = ()  # arguments that get a gradient
    differentiable: tuple[int, ...] = ()  # outputs that carry one
    # A call in float64 whose values lie away from every decision (cell faces, ties).
    smooth: Callable[[], Call] | None = None
    step: float = 1e-6  # of the numerical derivative: outputs of float32 need a large one
    # The differentiable outputs rebuilt by torch operations from the arguments and all outputs.
    formula: Callable[[Call, tuple], tuple] | None = None
    # argument -> (value or function of the valid value, exception, words of the message)
    refusals: tuple[tuple[str, Any, type, str], ...] = ()
    kernels: int = 0  # GPU kernels and memsets of one call(1000, 0)
    backward_kernels: int = 0  # and of its backward, from a contiguous gradient

    def __str__(self) -> str:
        return self.name

    @property
    def overload(self):
        return getattr(torch.ops.torchvox, self.name).default

    @property
    def composite(self) -> bool:
        """Made of other ops alone: it has no kernels of its own."""
        return torch._C._dispatch_has_kernel_for_dispatch_key(
            self.overload.name(), "CompositeImplicitAutograd"
        )

    @property
    def public(self) -> bool:
        return not self.name.startswith("_")


def run(op: Op, call: Call) -> tuple:
    """All outputs of the registered op, as a tuple."""
    out = op.overload(**call)
    return (out,) if isinstance(out, Tensor) else tuple(out)


def map_tensors(call: Call, change: Callable[[Tensor], Tensor]) -> Call:
    return {k: change(v) if isinstance(v, Tensor) else v for k, v in call.items()}


def on(device: str, call: Call) -> Call:
    return map_tensors(call, lambda t: t.to(device))


def with_gradients(op: Op, call: Call) -> Call:
    """The call with fresh leaves that require a gradient."""
    return {
        k: v.detach().clone().requires_grad_() if k in op.gradients else v
        for k, v in call.items()
    }


def some_gradient(out: Tensor) -> Tensor:
    """A fixed gradient of an output, no two neighbours equal."""
    values = torch.arange(out.numel(), dtype=torch.float64) % 13 - 6.5
    return values.reshape(out.shape).to(out)


def leaves(op: Op, call: Call) -> list[Tensor]:
    """The arguments that get a gradient, those that the call holds."""
    return [call[k] for k in op.gradients if k in call]


def gradients(op: Op, call: Call) -> tuple:
    """Gradients of the leaves, from some_gradient of the outputs."""
    call = with_gradients(op, call)
    return backward(run(op, call), leaves(op, call))


def backward(outs, inputs) -> tuple:
    outs = [out for out in outs if out.requires_grad]
    return torch.autograd.grad(outs, inputs, [some_gradient(out) for out in outs])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cloud(n: int, columns: int = 4, seed: int = 0) -> Tensor:
    """[n, columns] float32 about the origin, quantised to 5 cm so that some points lie on faces and
    some coincide; some rows out of every range, some not finite, some negative zeros."""
    g = generator(seed)
    points = torch.randn(n, columns, generator=g) * 2.5
    points[:, :3] = (points[:, :3] * 20).round() / 20
    points[1::13] = points[0::13][: points[1::13].size(0)]
    points[5::17, 0] = float("nan")
    points[7::29, 2] = float("inf")
    points[11::23, 1] = 1e30
    points[3::19, 0] = -0.0
    return points


def smooth_cloud(n: int, columns: int = 4) -> Tensor:
    """[n, columns] float64: distinct values in each column, 0.3 or more from whole metres."""
    g = generator(3)
    steps = torch.stack([torch.randperm(n, generator=g) for _ in range(columns)], 1).double()
    points = 0.5 + (steps / max(n - 1, 1) - 0.5) * 0.4
    points[:, :2] += torch.randint(-3, 3, (n, 2), generator=g)
    points[:, 2] += -1.0
    return points


def rank(argument: str, error: type = ValueError) -> tuple:
    return (argument, lambda t: t[None], error, argument)


# ------------------------------------------------------------------------------------------- bev

BEV_RANGE = [-4.0, -3.0, -2.0, 4.0, 3.0, 2.0]
BEV = {"point_cloud_range": BEV_RANGE, "size": [8, 6]}


def bev_call(n: int, seed: int = 0, columns: int = 4) -> Call:
    return {"points": cloud(n, columns, seed), **BEV, "num_valid": torch.tensor([n - n // 10])}


def bev_batch(n: int = 60, seed: int = 0) -> Call:
    return {
        "points": cloud(n, 5, seed),
        **BEV,
        "batch_offsets": torch.tensor([0, 0, n // 3, n - 2], dtype=torch.int32),
        "num_valid": torch.tensor([4, n, n // 2], dtype=torch.int32),
        "orientation": "image",
    }


BEV_CASES = {
    "batch": bev_batch,
    "float16": lambda: {"points": cloud(40).half(), **BEV},
    "bfloat16": lambda: {"points": cloud(40).bfloat16(), **BEV},
    "float64": lambda: {"points": cloud(40).double(), **BEV, "orientation": "north_up"},
    "nan fill": lambda: {"points": cloud(40, 3), **BEV, "fill": float("nan")},
    "uint8": lambda: {"points": cloud(40), **BEV, "out_dtype": torch.uint8, "lowest_code": 3},
    "uint16": lambda: {"points": cloud(40), **BEV, "out_dtype": torch.uint16},
}
POINTS_REFUSALS = (
    ("points", lambda t: t.int(), TypeError, "points must be float"),
    ("points", lambda t: t[:, :2], ValueError, r"points must be \[N, C\] with C >= 3"),
    ("points", lambda t: t[None], ValueError, r"points must be \[N, C\]"),
    ("batch_offsets", torch.zeros(2), TypeError, "batch_offsets must be int32 or int64"),
    ("batch_offsets", torch.zeros(0, dtype=torch.int32), ValueError, r"batch_offsets must be \[B \+ 1\]"),
    ("num_valid", torch.zeros(3, dtype=torch.int32), ValueError, r"num_valid must be \[B\]"),
    ("point_cloud_range", [0.0, 0.0, 0.0], ValueError, "point_cloud_range must be"),
    ("point_cloud_range", [0.0, 0.0, 0.0, -1.0, 1.0, 1.0], ValueError, "point_cloud_range must be"),
)
BEV_REFUSALS = (
    *POINTS_REFUSALS,
    ("size", [0, 4], ValueError, "size must be"),
    ("orientation", "sideways", ValueError, "orientation must be 'grid', 'image' or 'north_up'"),
)


def bev_smooth() -> Call:
    return {"points": smooth_cloud(30), **BEV}


def bev_formula(call: Call, outs: tuple) -> tuple:
    top = torchvox.bev_max_height_with_index(**call).top_index.long()
    z = torch.cat([call["points"][:, 2].float(), torch.zeros(1)])  # row -1: an empty cell
    return (z[top],)


def bev_backward_call(n: int, seed: int = 0) -> Call:
    forward = bev_call(n, seed)
    height, top_index, _ = torchvox.bev_max_height_with_index(**forward)
    return {"grad_height": some_gradient(height), "top_index": top_index, **forward}


def bev_backward_batch() -> Call:
    forward = bev_batch()
    height, top_index, _ = torchvox.bev_max_height_with_index(**forward)
    return {"grad_height": some_gradient(height), "top_index": top_index, **forward}


BEV_OPS = [
    Op(
        "bev_max_height",
        bev_call,
        varying={"points": 0},
        cases=BEV_CASES,
        gradients=("points",),
        differentiable=(0,),
        smooth=bev_smooth,
        step=1 / 128,
        formula=bev_formula,
        refusals=(
            *BEV_REFUSALS,
            ("out_dtype", torch.int64, TypeError, "out_dtype must be float32, uint8 or uint16"),
            ("lowest_code", 255, ValueError, "lowest_code must be in"),
        ),
        kernels=3,
        backward_kernels=1,
    ),
    Op(
        "bev_max_height_with_index",
        bev_call,
        varying={"points": 0},
        cases=BEV_CASES,
        gradients=("points",),
        differentiable=(0,),
        smooth=bev_smooth,
        step=1 / 128,
        formula=bev_formula,
        refusals=BEV_REFUSALS,
        kernels=3,
        backward_kernels=1,
    ),
    Op(
        "_bev_max_height_backward",
        bev_backward_call,
        varying={"points": 0},
        cases={"batch": bev_backward_batch},
        refusals=(
            *BEV_REFUSALS,
            ("grad_height", lambda t: t.double(), TypeError, "grad_height must be float32"),
            ("top_index", lambda t: t.long(), TypeError, "top_index must be int32"),
            ("top_index", lambda t: t[:, 1:], ValueError, "top_index must have the shape"),
        ),
        kernels=1,
    ),
]

RASTER = {
    **BEV,
    "channels": [
        "height_max", "height_min", "height_mean", "height_range", "height_norm", "intensity_top",
        "intensity_mean", "intensity_max", "count", "density", "occupancy:5", "slices:3",
    ],
}  # fmt: skip


def raster_call(n: int, seed: int = 0) -> Call:
    return {
        "points": cloud(n, 3, seed),
        **RASTER,
        "features": torch.randn(n, generator=generator(seed)),
        "num_valid": torch.tensor([n - n // 10]),
    }


def raster_batch() -> Call:
    return {**bev_batch(), "channels": RASTER["channels"], "fill": -1.0, "density_base": 16}


RASTER_CASES = {
    "batch": raster_batch,
    "float16": lambda: {"points": cloud(40).half(), **RASTER, "orientation": "north_up"},
    "bfloat16": lambda: {"points": cloud(40).bfloat16(), **RASTER},
    "float64": lambda: {"points": cloud(40).double(), **RASTER},
    "no intensity": lambda: {"points": cloud(40, 3), **BEV, "channels": ["height_max", "slices:40"]},
    "column of features": lambda: {"points": cloud(40), **RASTER, "features": cloud(40)[:, 3:]},
}
RASTER_REFUSALS = (
    *POINTS_REFUSALS,
    ("channels", ["colour"], ValueError, "channels must be of height_max"),
    ("channels", [], ValueError, "channels must name at least one plane"),
    ("features", lambda t: t[1:], ValueError, r"features must be \[N\] or \[N, 1\]"),
    ("features", lambda t: t.int(), TypeError, "features must be float"),
)


def raster_smooth() -> Call:
    names = ["height_max", "height_mean", "height_norm", "intensity_top", "intensity_mean"]
    points = smooth_cloud(30, 4)
    return {"points": points[:, :3].clone(), **BEV, "channels": names, "features": points[:, 3].clone()}


def raster_formula(call: Call, outs: tuple) -> tuple:
    points, intensity = call["points"], call["features"].float()
    x0, y0, z0, _, _, z1 = BEV_RANGE
    cell = 8 * (points[:, 1] - y0).floor().long() + (points[:, 0] - x0).floor().long()  # 1 m cells
    top = torchvox.bev_max_height_with_index(points, **BEV).top_index.flatten().long()
    z, empty = points[:, 2].float(), top < 0
    count = torch.bincount(cell, minlength=48).clamp(min=1)

    def mean(values: Tensor) -> Tensor:
        return torch.zeros(48).index_add(0, cell, values) / count

    planes = [z[top], mean(z), (z[top] - z0) / (z1 - z0), intensity[top], mean(intensity)]
    return (torch.stack([torch.where(empty, 0.0, plane) for plane in planes]).view(1, 5, 6, 8),)


def raster_backward_call(n: int, seed: int = 0) -> Call:
    forward = raster_call(n, seed)
    grad = some_gradient(torchvox.bev_rasterize(**forward)[0])
    return {"grad_image": grad, **forward}


def raster_backward_batch() -> Call:
    forward = raster_batch()
    image, _ = torchvox.bev_rasterize(**forward)
    del forward["fill"], forward["density_base"]
    return {"grad_image": some_gradient(image), **forward}


BEV_OPS += [
    Op(
        "bev_rasterize",
        raster_call,
        varying={"points": 0, "features": 0},
        cases=RASTER_CASES,
        gradients=("points", "features"),
        differentiable=(0,),
        smooth=raster_smooth,
        step=1 / 128,
        formula=raster_formula,
        refusals=(*RASTER_REFUSALS, ("density_base", 1, ValueError, "density_base must be in")),
        kernels=0,
        backward_kernels=3,
    ),
    Op(
        "_bev_rasterize_backward",
        raster_backward_call,
        varying={"points": 0, "features": 0},
        cases={"batch": raster_backward_batch},
        refusals=(
            *RASTER_REFUSALS,
            ("grad_image", lambda t: t.double(), TypeError, "grad_image must be float32"),
            ("grad_image", lambda t: t[:, 1:], ValueError, "grad_image must have the shape"),
        ),
        kernels=3,
    ),
]

# ------------------------------------------------------------------------------------ all of them

OPS: list[Op] = [*BEV_OPS]

# Modules of torchvox.nn: a maker, and its forward's arguments for n points.
MODULES: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[int], tuple]]] = {
    "BEVMaxHeight": (
        lambda: torchvox.nn.BEVMaxHeight(BEV_RANGE, [8, 6], orientation="image", fill=-1.0),
        lambda n: (cloud(n),),
    ),
}


def cases(op: Op) -> dict[str, Callable[[], Call]]:
    """Every call of an op: the plain one, one point, none, and those of its entry."""
    return {
        "plain": lambda: op.call(40, 0),
        "one point": lambda: op.call(1, 0),
        "empty": lambda: op.call(0, 0),
        **op.cases,
    }


DIFFERENTIABLE = [op for op in OPS if op.gradients]

each_op = pytest.mark.parametrize("op", OPS, ids=str)
each_public_op = pytest.mark.parametrize("op", [op for op in OPS if op.public], ids=str)
each_differentiable_op = pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
each_case = pytest.mark.parametrize(
    ("op", "make"),
    [pytest.param(op, make, id=f"{op}-{name}") for op in OPS for name, make in cases(op).items()],
)
each_module = pytest.mark.parametrize("name", MODULES)
