# SPDX-License-Identifier: Apache-2.0
"""Batches: which samples, in which order, on which process, and from where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from torchvox.data.counter_random import permutation
from torchvox.data.generated import Device, Generated

CHUNK = 256  # samples generated at a time


class InMemory:
    """All samples of a data set as tensors on one device."""

    def __init__(self, data: Generated, device: Device) -> None:
        chunks = [
            data.batch(range(first, min(first + CHUNK, len(data))), device)
            for first in range(0, len(data), CHUNK)
        ]
        self.tensors = {name: torch.cat([c[name] for c in chunks]) for name in chunks[0]}
        self.device = torch.device(device)

    def __len__(self) -> int:
        return len(self.tensors["id"])

    def batch(self, indices: Sequence[int], device: Device | None = None) -> dict[str, Tensor]:
        at = torch.tensor(list(indices)).to(self.device, non_blocking=True)
        return {name: value[at].to(device or self.device) for name, value in self.tensors.items()}


class Batches(Dataset):
    """A data set whose index is a list of samples and whose item is their batch."""

    def __init__(self, data: Generated | InMemory) -> None:
        self.data = data

    def __getitem__(self, indices: list[int]) -> dict[str, Tensor]:
        return self.data.batch(indices)


class SharedBatches(Sampler):
    """Lists of sample numbers: this process's share of each batch.

    size: samples. batch_size: of all processes together. With a seed the order is a function of
    (seed, epoch) and incomplete batches are left out; the processes' shares together are the very
    batches that one process would get. Without a seed the order is ascending, and the last batches
    repeat sample 0 so that all processes have equally many. order: of (seed, epoch), instead of all
    samples once in a random order.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        seed: int | None,
        rank: int = 0,
        world: int = 1,
        order: Callable[[int, int], Tensor] | None = None,
    ) -> None:
        self.order = order or partial(permutation, size, "order")
        if seed is not None:
            size = len(self.order(seed, 0))
        self.size, self.seed, self.rank, self.world = size, seed, rank, world
        self.batch_size = -(-batch_size // world) * world
        if seed is not None:
            self.batch_size = min(batch_size, size // world * world)
            if self.batch_size == 0:
                raise ValueError(f"{size} samples cannot be shared by {world} processes")
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        if self.seed is not None:
            return self.size // self.batch_size
        return -(-self.size // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        if self.seed is None:
            order = list(range(self.size))
            order += [0] * (-len(order) % self.world)
        else:
            order = self.order(self.seed, self.epoch).tolist()
        for number in range(len(self)):
            batch = order[number * self.batch_size : (number + 1) * self.batch_size]
            yield batch[self.rank :: self.world]


def make_loader(data: Generated | InMemory, sampler: SharedBatches, workers: int = 0) -> DataLoader:
    """A loader of batches as dicts of tensors."""
    return DataLoader(
        Batches(data),
        sampler=sampler,
        batch_size=None,
        num_workers=workers,
        persistent_workers=workers > 0,
        # Workers are started afresh: forked ones would inherit the threads of this process.
        multiprocessing_context="spawn" if workers else None,
    )
