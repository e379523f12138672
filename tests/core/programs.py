# SPDX-License-Identifier: Apache-2.0
"""One op as a module whose forward takes the op's tensors; everything else is a constant of it."""

import torch
from helpers import assert_same_bits
from samples import Call, OpInfo, copy_of, is_tensor_list, on, run
from torch import Tensor, nn


class Program(nn.Module):
    def __init__(self, op: OpInfo, call: Call) -> None:
        super().__init__()
        self.op = op.overload
        self.mutates = op.mutates
        self.tensors = [k for k, v in call.items() if isinstance(v, Tensor) or is_tensor_list(v)]
        self.lists = {k: len(v) for k, v in call.items() if is_tensor_list(v)}
        self.constants = {k: v for k, v in call.items() if k not in self.tensors}

    def forward(self, *tensors: Tensor | list[Tensor]):
        call = dict(zip(self.tensors, tensors, strict=True))
        written = {name: [copy_of(tensor) for tensor in call[name]] for name in self.mutates}
        out = self.op(**{**call, **written}, **self.constants)
        outs = (out,) if isinstance(out, Tensor) else tuple(out)
        return (*outs, *(tensor for name in self.mutates for tensor in written[name]))

    def arguments(self, call: Call) -> tuple[Tensor | list[Tensor], ...]:
        return tuple(call[k] for k in self.tensors)

    def dynamic_shapes(self, op: OpInfo) -> tuple:
        """For torch.export: every size named in op.varying is free."""
        free = {k: {d: torch.export.Dim.DYNAMIC} for k, d in op.varying.items()}
        sizes = tuple(
            [free.get(k, {})] * self.lists[k] if k in self.lists else free.get(k, {})
            for k in self.tensors
        )
        return (sizes,)  # of the one variadic argument


class Every(nn.Module):
    """Several ops in one program, so that it is compiled once. Calls are those of n points."""

    def __init__(self, ops: list[OpInfo], n: int) -> None:
        super().__init__()
        self.ops = ops
        self.programs = nn.ModuleList([Program(op, op.call(n, 0)) for op in ops])

    def forward(self, *groups: tuple[Tensor, ...]):
        return [program(*tensors) for program, tensors in zip(self.programs, groups, strict=True)]

    def arguments(self, calls: list[Call]) -> tuple:
        return tuple(p.arguments(call) for p, call in zip(self.programs, calls, strict=True))

    def exported(self, n: int, device: str, **options) -> torch.export.ExportedProgram:
        """With a free number of points."""
        shapes = [p.dynamic_shapes(op)[0] for p, op in zip(self.programs, self.ops, strict=True)]
        example = self.arguments([on(device, op.call(n, 0)) for op in self.ops])
        return torch.export.export(self, example, dynamic_shapes=(tuple(shapes),), **options)

    def check(self, program, n: int, device: str = "cpu") -> None:
        """The program gives the bits of the ops."""
        calls = [on(device, op.call(n, n)) for op in self.ops]
        found = program(*self.arguments(calls))
        for op, call, outs in zip(self.ops, calls, found, strict=True):
            assert_same_bits(tuple(outs), run(op, call), f"{op} of {n}")
