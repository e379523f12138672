# SPDX-License-Identifier: Apache-2.0
"""One op as a module whose forward takes the op's tensors; everything else is a constant of it."""

import torch
from samples import Call, OpInfo, is_tensor_list
from torch import Tensor, nn


class Program(nn.Module):
    def __init__(self, op: OpInfo, call: Call) -> None:
        super().__init__()
        self.op = op.overload
        self.tensors = [k for k, v in call.items() if isinstance(v, Tensor) or is_tensor_list(v)]
        self.lists = {k: len(v) for k, v in call.items() if is_tensor_list(v)}
        self.constants = {k: v for k, v in call.items() if k not in self.tensors}

    def forward(self, *tensors: Tensor | list[Tensor]):
        out = self.op(**dict(zip(self.tensors, tensors, strict=True)), **self.constants)
        return (out,) if isinstance(out, Tensor) else tuple(out)

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
    """Several ops in one program, so that it is compiled once."""

    def __init__(self, programs: list[Program]) -> None:
        super().__init__()
        self.programs = nn.ModuleList(programs)

    def forward(self, *groups: tuple[Tensor, ...]):
        return [program(*tensors) for program, tensors in zip(self.programs, groups, strict=True)]
