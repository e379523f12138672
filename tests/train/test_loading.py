# SPDX-License-Identifier: Apache-2.0
"""Which samples make a batch, and that the shares of processes add up to it."""

import pytest
import torch

from torchvox.data import Shapes
from torchvox.train.loading import InMemory, SharedBatches, make_loader


def flat(lists):
    return [i for items in lists for i in items]


def test_the_shares_of_processes_are_the_batches_of_one():
    one = list(SharedBatches(100, 12, seed=5))
    shares = [list(SharedBatches(100, 12, 5, rank, 3)) for rank in range(3)]
    assert len(one) == len(shares[0]) == 8
    for number, batch in enumerate(one):
        together = [i for share in shares for i in share[number]]
        assert sorted(together) == sorted(batch)
        assert {len(share[number]) for share in shares} == {4}


def test_an_epoch_takes_no_sample_twice_and_epochs_differ():
    sampler = SharedBatches(100, 12, seed=5)
    first = flat(sampler)
    assert len(set(first)) == len(first) == 96
    sampler.set_epoch(1)
    assert flat(sampler) != first
    sampler.set_epoch(0)
    assert flat(sampler) == first


def test_evaluation_sees_every_sample_in_equal_shares():
    shares = [flat(SharedBatches(10, 4, None, rank, 3)) for rank in range(3)]
    assert {len(share) for share in shares} == {4}
    assert set(flat(shares)) == set(range(10))


def test_a_data_set_smaller_than_a_batch_is_one_batch():
    assert [len(b) for b in SharedBatches(7, 16, seed=0, rank=1, world=2)] == [3]


def test_batches_are_the_same_from_memory_and_from_workers():
    data = Shapes(points=16, size=20)
    sampler = SharedBatches(20, 8, seed=1)
    stored = list(make_loader(InMemory(data, "cpu"), sampler))
    fetched = list(make_loader(data, sampler, workers=1))
    for a, b in zip(stored, fetched, strict=True):
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    assert stored[0]["points"].shape == (8, 16, 3)


@pytest.mark.gpu
def test_a_batch_from_memory_does_not_wait_for_the_device():
    data = InMemory(Shapes(points=16, size=8), "cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch = data.batch([5, 2])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert batch["id"].tolist() == [5, 2]
