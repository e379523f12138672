# SPDX-License-Identifier: Apache-2.0
"""Which tests run.

Two tiers: `--slow none` leaves the slow one out, `--slow all` (and no option) runs both, and
`--slow 3/10` runs the fourth tenth of it. A test marked `one_of("layout")` walks a product: each of
its cases is fast with one layout, drawn by its name, and slow with the others; plain cases are fast
with all. Tests that need a GPU are left out where none is.
"""

import os
import zlib

# Threads that wait would take the cores from other workers' tests; OpenMP reads this once.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "torchvox",
    derandomize=True,
    deadline=None,
    max_examples=50,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("torchvox")

torch.set_num_threads(min(2, torch.get_num_threads()))

LEFT_OUT = pytest.StashKey[int]()


def gpu_missing() -> str | None:
    """Why GPU tests cannot run here, or None."""
    if not torch.cuda.is_available():
        return "no CUDA GPU"
    from torchvox import _C

    if not _C.build_info()["cuda"]:
        return "torchvox was built without CUDA"
    return None


def pytest_addoption(parser):
    parser.addoption("--slow", default="all", help="none, all, or K/N: part K of N, from 0")


def draw(name: str, parts: int) -> int:
    """A number below `parts` that depends on the name alone."""
    return zlib.crc32(name.encode()) % parts


def thin_out(items) -> None:
    """Marks the combinations that `one_of` leaves to the slow tier."""
    numbers, groups = {}, {}
    for item in items:
        product = item.get_closest_marker("one_of")
        if product and "-plain" not in item.name:
            test = f"{item.path.name}::{item.originalname}"
            case = []
            for name, value in item.callspec.params.items():
                seen = numbers.setdefault((test, name), {})
                number = seen.setdefault(id(value), len(seen))
                case += [] if name in product.args else [f"{name}={number}"]
            groups.setdefault(f"{test} {case}", []).append(item)
    for case, combinations in groups.items():
        fast = combinations[draw(case, len(combinations))]
        for item in combinations:
            if item is not fast:
                item.add_marker(pytest.mark.slow)


def select_tier(config, items) -> None:
    thin_out(items)
    wanted = config.getoption("--slow")
    if wanted == "all":
        return
    part, parts = (1, 1) if wanted == "none" else map(int, wanted.split("/"))
    keep = ["slow" not in item.keywords or draw(item.nodeid, parts) == part for item in items]
    config.hook.pytest_deselected(items=[i for i, k in zip(items, keep, strict=True) if not k])
    items[:] = [i for i, k in zip(items, keep, strict=True) if k]


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(config, items):
    """What needs GPUs that are not here is deselected: one line at the end says how many."""
    select_tier(config, items)
    here = torch.cuda.device_count() if gpu_missing() is None else 0
    needed = [2 if "multigpu" in i.keywords else "gpu" in i.keywords for i in items]
    left_out = [item for item, need in zip(items, needed, strict=True) if need > here]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item, need in zip(items, needed, strict=True) if need <= here]
    config.stash[LEFT_OUT] = len(left_out)
    if hasattr(config, "workeroutput"):  # a worker of pytest-xdist
        config.workeroutput["left_out"] = len(left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter, config):
    count = config.stash.get(LEFT_OUT, 0)
    if count:
        why = gpu_missing() or "needs two CUDA GPUs"
        terminalreporter.write_line(f"{count} tests of GPUs are left out: {why}")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> str:
    return request.param
