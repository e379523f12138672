# SPDX-License-Identifier: Apache-2.0
"""CPU ops run in DataLoader workers, forked or spawned; importing torchvox starts no CUDA."""

import pytest
import torch
from fresh import fresh_process
from helpers import assert_same_bits
from samples import OPS, EveryOp, on, run
from torch.utils.data import DataLoader


def first(batch):
    return batch[0]


def loaded(method: str) -> list[dict]:
    loader = DataLoader(
        EveryOp(), num_workers=2, multiprocessing_context=method, collate_fn=first, timeout=120
    )
    return list(loader)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_give_the_bits_of_this_process(method):
    dataset = EveryOp()
    for item in dataset:  # also: ops have run here, with threads, before the workers are forked
        assert item
    for i, item in enumerate(loaded(method)):
        for name, outs in dataset[i].items():
            assert_same_bits(item[name], outs, f"{name}, item {i}, {method}")


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_cuda_ops_work_while_workers_run(method):
    torch.cuda.synchronize()  # the context exists before the workers do
    items = iter(
        DataLoader(EveryOp(), num_workers=2, multiprocessing_context=method, collate_fn=first)
    )
    for i, item in enumerate(items):
        for op in OPS:
            outs = run(op, on("cuda", op.call(300, i)))
            assert_same_bits(outs, item[str(op)], f"{op}, item {i}")


IMPORT_AND_RUN = """
import torch, torchvox
assert not torch.cuda.is_initialized(), "import torchvox initializes CUDA"
from samples import OPS, run
for op in OPS:
    run(op, op.call(40, 0))
    assert not torch.cuda.is_initialized(), f"{op} on the CPU initializes CUDA"
print("no CUDA")
"""


def test_neither_the_import_nor_a_cpu_op_starts_cuda():
    assert fresh_process(IMPORT_AND_RUN) == "no CUDA"


FORK_AND_RUN = """
import os, torch, torchvox
torch.set_num_threads(4)
points = torch.rand(100_000, 4)
voxelize = lambda: torch.ops.torchvox.voxelize(points, [.1] * 3, [0., 0, 0, 1, 1, 1], 5, -1)
{before}
child = os.fork()
if child == 0:
    voxelize()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("before", ["voxelize()", "points.add(1)"])
def test_a_forked_child_does_not_wait_for_threads_it_lacks(before):
    assert fresh_process(FORK_AND_RUN.format(before=before), timeout=60) == "7"
