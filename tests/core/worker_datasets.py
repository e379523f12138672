# SPDX-License-Identifier: Apache-2.0
"""Data sets whose items come out of ops: importable, so that spawned workers find them."""

import torch
from samples import OPS, run
from torch.utils.data import Dataset


class EveryOp(Dataset):
    """Item i: the outputs of every op on its i-th cloud."""

    def __init__(self, length: int = 4, points: int = 300) -> None:
        self.length, self.points = length, points

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> dict[str, tuple[torch.Tensor, ...]]:
        if i >= self.length:
            raise IndexError(i)
        return {str(op): run(op, op.call(self.points, i)) for op in OPS}
