# SPDX-License-Identifier: Apache-2.0
"""GPU memory that ends at any allocation of an op: torch's typed error, nothing kept, and the next
call gives the same bits."""

import json
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch
from fresh import fresh_process

FAIL_EVERYWHERE = """
import ctypes, gc, json, sys
import torch
lib = ctypes.CDLL(sys.argv[1])
for name in ("blocks_in_use", "blocks_asked_for"):
    getattr(lib, name).restype = ctypes.c_int64
lib.refuse.argtypes = [ctypes.c_int64]
allocator = torch.cuda.memory.CUDAPluggableAllocator(sys.argv[1], "allocate", "release")
torch.cuda.memory.change_current_allocator(allocator)
from helpers import assert_same_bits
from samples import OPS, gradients, on, run

def tried(work, n):
    # The n-th block is refused; whether that was torch's error. No frame outlives this one.
    lib.refuse(n)
    try:
        work()
    except torch.OutOfMemoryError:
        return True
    finally:
        lib.refuse(0)
    return False

found, allocations = [], {}
for op in OPS:
    call = on("cuda", op.call(300, 0))
    works = {str(op): lambda: run(op, call)}
    if op.gradients:
        works[f"gradients of {op}"] = lambda: gradients(op, call)
    for name, work in works.items():
        expected = work()
        asked = lib.blocks_asked_for()
        work()
        count = allocations[name] = lib.blocks_asked_for() - asked
        torch.cuda.synchronize()
        gc.collect()
        before = lib.blocks_in_use()
        for n in range(1, count + 1):
            if not tried(work, n):
                found.append(f"{name}: block {n} of {count} was refused, and no error came")
            gc.collect()
            kept = lib.blocks_in_use() - before
            if kept > 0:
                found.append(f"{name}: {kept} blocks kept after {n}")
            before += min(kept, 0)  # autograd's thread may end later than its call
        assert_same_bits(work(), expected, name)
print(json.dumps([found, allocations]))
"""

# Kernels are loaded at their first launch, which takes memory of the GPU too.
FULL_FROM_THE_START = """
import json
import torch
from helpers import assert_same_bits
from samples import OPS, on, run

calls = [(op, on("cuda", op.call(300, 0))) for op in OPS]
held, size = [], torch.cuda.mem_get_info()[0]
while size >= 1 << 9:
    try:
        held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        size //= 2
refused, kept = [], {}
for op, call in calls:
    try:
        kept[str(op)] = run(op, call)
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        refused.append(str(op))
held.clear()
torch.cuda.empty_cache()
for op, call in calls:
    found = run(op, call)
    torch.cuda.synchronize()
    if str(op) in kept:
        assert_same_bits(found, kept[str(op)], str(op))
print(json.dumps(refused))
"""


@pytest.fixture(scope="module")
def allocator(tmp_path_factory) -> Path:
    """The library of failing_allocator.cpp."""
    from torch.utils.cpp_extension import CUDA_HOME, include_paths, library_paths

    if CUDA_HOME is None:
        pytest.skip("no CUDA toolkit to build the allocator with")
    library = tmp_path_factory.mktemp("allocator") / "failing_allocator.so"
    folders = [*include_paths(), f"{CUDA_HOME}/include", sysconfig.get_path("include")]
    source = Path(__file__).with_name("failing_allocator.cpp")
    command = ["g++", "-std=c++20", "-shared", "-fPIC", str(source), "-o", str(library)]
    command += [f"-I{folder}" for folder in folders]
    command += [f"-L{folder}" for folder in (*library_paths(), f"{CUDA_HOME}/lib64")]
    subprocess.run([*command, "-lc10", "-lcudart"], check=True)
    return library


@pytest.mark.gpu
def test_memory_that_ends_at_any_allocation_is_torchs_error_and_nothing_is_kept(allocator):
    found, allocations = json.loads(fresh_process(FAIL_EVERYWHERE, allocator, timeout=600))
    assert not found, "\n".join(found)
    assert sum(count > 0 for count in allocations.values()) > 0.9 * len(allocations)


@pytest.mark.gpu
@pytest.mark.slow  # alone: others could not allocate beside it
def test_a_gpu_that_is_full_before_the_first_call_refuses_and_then_works():
    free = torch.cuda.mem_get_info()[0]
    if free < 0.9 * torch.cuda.mem_get_info()[1]:
        pytest.skip("another process uses this GPU")
    json.loads(fresh_process(FULL_FROM_THE_START, timeout=600))
