# SPDX-License-Identifier: Apache-2.0
"""Base class of data sets whose samples are made on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.utils.data import Dataset

Device: TypeAlias = torch.device | str
Batch: TypeAlias = dict[str, Tensor]


class Generated(Dataset):
    """A data set of `size` samples that a subclass generates or reads in batches.

    A sample is the same in any worker, batch and order. A batch for a DataLoader is generated in
    one call (__getitems__).
    """

    # The samples of an epoch of training by (seed, epoch); None: all of them, in a random order.
    order: Callable[[int, int], Tensor] | None = None

    def __init__(self, size: int) -> None:
        self.size = size

    def generate(self, indices: Sequence[int], device: Device) -> Batch:
        """The samples with these numbers, every tensor [B, ..]."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.size

    def batch(self, indices: Sequence[int], device: Device = "cpu") -> Batch:
        """The samples as one batch on a device. Raises IndexError."""
        wrong = [i for i in indices if not 0 <= i < self.size]
        if wrong:
            raise IndexError(f"{type(self).__name__}: sample {wrong[0]} of {self.size}")
        return self.generate(indices, device)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.batch([index]).items()}

    def __getitems__(self, indices: list[int]) -> list[dict[str, Tensor]]:
        batch = self.batch(indices)
        return [{name: value[i] for name, value in batch.items()} for i in range(len(indices))]


class Split(Generated):
    """A split of samples that a function makes: make(indices, split=, device=, **options) gives the
    batch, and says what is wrong with the options.

    size: of the split; the default is sizes[split].
    """

    make: Callable[..., Batch]
    sizes: Mapping[str, int]

    def __init__(self, split: str = "train", *, size: int | None = None, **options: object) -> None:
        if size is None and split not in self.sizes:
            rule = f"one of {', '.join(self.sizes)} unless size is given"
            raise ValueError(f"{type(self).__name__}: split must be {rule}, got {split!r}")
        super().__init__(self.sizes[split] if size is None else size)
        self.options = {"split": split, **options}
        self.generate([], "cpu")  # checks the options

    def generate(self, indices: Sequence[int], device: Device) -> Batch:
        return self.make(indices, device=device, **self.options)
