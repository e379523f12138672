# SPDX-License-Identifier: Apache-2.0
"""What the acceptance tests know of an op, and what can be done with that."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Call = dict[str, Any]  # the op's arguments by name; every tensor on the CPU


class ErrorInput(NamedTuple):
    """A call that is refused: the plain one with one argument changed."""

    argument: str
    value: Any  # or a function of the valid value
    error: type
    words: str  # of the message


@dataclass(frozen=True)
class OpInfo:
    name: str
    # call(n, seed): n is the size of dimension `varying[argument]` of each argument named there.
    # Calls of one n differ in values only, with and without `seed`.
    call: Callable[[int, int], Call]
    varying: dict[str, int] = field(default_factory=lambda: {"points": 0})
    sample_inputs: dict[str, Callable[[], Call]] = field(default_factory=dict)
    gradients: tuple[str, ...] = ()  # arguments that get a gradient
    differentiable: tuple[int, ...] = (0,)  # outputs that carry one, of ops with gradients
    # Calls in float64 whose values lie away from every decision (cell faces, ties).
    gradcheck_inputs: dict[str, Callable[[], Call]] = field(default_factory=dict)
    step: float = 1e-6  # of the numerical derivative: outputs of float32 need a large one
    non_differentiable: tuple[str, ...] = ()  # arguments whose requiring a gradient is an error
    # What one call of another op gave: changed alone it no longer fits, and on CUDA the values then
    # depend on the order in which threads write.
    coupled_inputs: tuple[str, ...] = ()
    lowered: tuple[str, ...] = ()  # arguments of autocast's own type, except float64
    mutates: tuple[str, ...] = ()  # arguments that it writes, lists of tensors
    contiguous: tuple[str, ...] = ()  # arguments that must be contiguous
    inference: bool = False  # an input that requires a gradient is an error
    supports_gradgrad: bool = False  # has a second derivative; without, asking for one is an error
    error_inputs: tuple[tuple, ...] = ()  # the fields of an ErrorInput each
    # Arguments whose outputs no machine can hold (petabytes).
    huge: Call = field(default_factory=dict)
    kernels: int = 1  # GPU kernels and memsets of one call(1000, 0)
    backward_kernels: int = 1  # and of its backward, from a contiguous gradient
    plans: tuple[str, ...] = ()  # launch plans of its kernels, see helpers.PLANS
    exact: dict[str, int] = field(default_factory=dict)  # plans with which CUDA has the CPU's bits
    layout: str = ""  # of an op that has an OpInfo for each layout of its batch

    def __str__(self) -> str:
        return f"{self.name}_{self.layout}" if self.layout else self.name

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


def run(op: OpInfo, call: Call) -> tuple:
    """All outputs of the registered op, as a tuple; behind them what it wrote, in copies of the
    arguments."""
    call = fresh(op, call)
    out = op.overload(**call)
    outs = (out,) if isinstance(out, Tensor) else tuple(out)
    return (*outs, *(tensor for name in op.mutates for tensor in call[name]))


def fresh(op: OpInfo, call: Call) -> Call:
    """The call with contiguous copies of the arguments that the op writes."""
    return call | {k: [copy_of(t) for t in call[k]] for k in op.mutates if k in call}


def copy_of(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def is_tensor_list(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(v, Tensor) for v in value)


def map_tensors(call: Call, change: Callable[[Tensor], Tensor]) -> Call:
    """Changes the tensors of lists too."""

    def changed(value: Any) -> Any:
        if is_tensor_list(value):
            return [change(v) for v in value]
        return change(value) if isinstance(value, Tensor) else value

    return {k: changed(v) for k, v in call.items()}


# What processors treat in unlike ways: signs of NaN, subnormals, conversions to integers.
SPECIAL_VALUES = (*map(float, ("nan", "inf", "-inf")), 3e38, -3e38, 1e-40, -0.0, 2147483648.0)


def with_special_values(op: OpInfo, call: Call, every: int = 10) -> Call:
    """The call with one of SPECIAL_VALUES in one of `every` places of its float tensors."""

    def change(tensor: Tensor) -> Tensor:
        out, kinds = copy_of(tensor), every * len(SPECIAL_VALUES)
        if out.is_floating_point():
            kind = torch.randint(kinds, out.shape, generator=generator(out.numel()))
            kind[out.isnan()] = 0  # torch's conversions give NaNs of other bits
            for k, value in enumerate(SPECIAL_VALUES):
                out[kind == k] = value
        return out

    return map_tensors(call, change) | {k: call[k] for k in op.coupled_inputs if k in call}


def laid_out(op: OpInfo, call: Call, layout: Callable[[Tensor], Tensor]) -> Call:
    """The tensors of the call that need not be contiguous, in another layout."""
    return map_tensors({k: v for k, v in call.items() if k not in op.contiguous}, layout) | {
        k: call[k] for k in op.contiguous
    }


def on(device: str, call: Call) -> Call:
    """The call on a device; what is expanded stays so."""

    def move(tensor: Tensor) -> Tensor:
        one = [1 if step == 0 else n for n, step in zip(tensor.shape, tensor.stride(), strict=True)]
        return tensor.as_strided(one, tensor.stride()).to(device).expand(tensor.shape)

    return map_tensors(call, lambda t: move(t) if 0 in t.stride() else t.to(device))


def with_gradients(op: OpInfo, call: Call) -> Call:
    """The call with fresh leaves that require a gradient."""
    return {
        k: v.detach().clone().requires_grad_() if k in op.gradients and v is not None else v
        for k, v in call.items()
    }


def some_gradient(out: Tensor) -> Tensor:
    """A fixed gradient of an output, no two neighbors equal."""
    values = torch.arange(out.numel(), dtype=torch.float64, device=out.device) % 13 - 6.5
    return values.reshape(out.shape).to(out)


def leaves(op: OpInfo, call: Call) -> list[Tensor]:
    """The arguments that get a gradient, those that the call holds."""
    return [call[k] for k in op.gradients if call.get(k) is not None]


def gradients(op: OpInfo, call: Call) -> tuple:
    """Gradients of the leaves, from some_gradient of the outputs."""
    call = with_gradients(op, call)
    return backward(run(op, call), leaves(op, call))


def backward(outs, inputs) -> tuple:
    outs = [out for out in outs if out.requires_grad]
    return torch.autograd.grad(outs, inputs, [some_gradient(out) for out in outs])


class Recorder(TorchDispatchMode):
    """Keeps the arguments by name of the last call of an op, whoever calls it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.overload, self.call = getattr(torch.ops.torchvox, name).default, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is self.overload:
            names = [argument.name for argument in func._schema.arguments]
            self.call = dict(zip(names, args, strict=False)) | (kwargs or {})
        return func(*args, **(kwargs or {}))


def backward_call(name: str, forward: Call, *wanted: str) -> Call:
    """The call of `_name_backward` that autograd makes for the gradients of the arguments wanted,
    from some_gradient of the outputs."""
    leaves = {k: forward[k].detach().requires_grad_() for k in wanted}
    with torch.enable_grad(), Recorder(f"_{name}_backward") as recorder:
        outs = getattr(torch.ops.torchvox, name)(**{**forward, **leaves})
        backward((outs,) if isinstance(outs, Tensor) else outs, list(leaves.values()))
    return map_tensors(recorder.call, Tensor.detach)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cloud(n: int, columns: int = 4, seed: int = 0) -> Tensor:
    """[n, columns] float32 about the origin, quantized to 5 cm so that some points lie on faces and
    some coincide; some rows out of every range, some not finite, some negative zeros."""
    g = generator(seed)
    points = torch.randn(n, max(columns, 3), generator=g) * 2.5
    points[:, :3] = (points[:, :3] * 20).round() / 20
    points[1::13] = points[0::13][: points[1::13].size(0)]
    points[5::17, 0] = float("nan")
    points[7::29, 2] = float("inf")
    points[11::23, 1] = 1e30
    points[3::19, 0] = -0.0
    return points[:, :columns].contiguous()


def gradcheck_cloud(n: int, columns: int = 4) -> Tensor:
    """[n, columns] float64: distinct values in each column, 0.3 or more from whole meters."""
    g = generator(3)
    steps = torch.stack([torch.randperm(n, generator=g) for _ in range(columns)], 1).double()
    points = 0.5 + (steps / max(n - 1, 1) - 0.5) * 0.4
    points[:, :2] += torch.randint(-3, 3, (n, 2), generator=g)
    points[:, 2] += -1.0
    return points


# Of an op over packed points and queries.
PACKED_ERRORS = (
    ("batch_offsets", None, ValueError, "must be given together"),
    ("query_batch_offsets", None, ValueError, "must be given together"),
)


DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}


HALVES = {name: DTYPES[name] for name in ("float16", "bfloat16")}


def cast(call: Call, **dtypes: torch.dtype) -> Call:
    """The call with the arguments of these names in other dtypes."""
    changed = {k: map_tensors({k: call[k]}, lambda t, to=to: t.to(to)) for k, to in dtypes.items()}
    return {**call, **{k: value[k] for k, value in changed.items()}}


def in_dtypes(
    make: Callable[[], Call], *names: str, dtypes=DTYPES
) -> dict[str, Callable[[], Call]]:
    """Samples whose arguments of these names have other dtypes."""

    return {
        name: lambda dtype=dtype: cast(make(), **dict.fromkeys(names, dtype))
        for name, dtype in dtypes.items()
    }


def refused(argument: str, error: type, words: str, *values: Any) -> tuple:
    """Error inputs of one message."""
    return tuple((argument, value, error, words) for value in values)


INF, NAN = float("inf"), float("nan")
LAST_INF, FIRST_NAN = [0.0, 0.0, 0.0, 1.0, INF, 1.0], [NAN, 0.0, 0.0, 1.0, 1.0, 1.0]
# Empty, without an extent, not finite, not finite in float32, of an infinite extent, too small.
BAD_RANGES = (
    [], [0.0] * 3, [0.0, 0.0, 0.0, -1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0, 1.0, 0.0], [0.0] * 7,
    LAST_INF, FIRST_NAN, [0.0, 0.0, 0.0, 1e39, 1.0, 1.0], [-3e38, 0.0, 0.0, 3e38, 1.0, 1.0],
    [0.0, 0.0, -3e38, 1.0, 1.0, 3e38], [1.0, 0.0, 0.0, 1.0 + 1e-12, 1.0, 1.0],
)  # fmt: skip
# The error inputs of every op over packed points.
POINTS_ERRORS = (
    ("points", lambda t: t[:, :2], ValueError, r"points must be \[N, C\] with C >= 3"),
    ("batch_offsets", torch.zeros(2).short(), TypeError, "batch_offsets must be int32 or int64"),
    *refused("batch_offsets", ValueError, r"batch_offsets must be \[B \+ 1\]",
             *(torch.zeros(shape).int() for shape in ((0,), (1, 2)))),
    *refused("num_valid", ValueError, r"num_valid must be \[B\]",
             torch.zeros(3).int(),
             *({"batch_offsets": torch.tensor([0, 20, 40]), "num_valid": torch.zeros(shape).int()}
               for shape in ((), (1,)))),
    *refused("point_cloud_range", ValueError, "point_cloud_range must|an axis must", *BAD_RANGES),
)  # fmt: skip
