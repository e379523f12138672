# SPDX-License-Identifier: Apache-2.0
"""Which tests run.

Two tiers: `--slow none` leaves the slow one out, `--slow all` (and no option) runs both, and
`--slow 3/10` runs the fourth tenth of it. A test marked `one_in(n)` walks a product of which each
case runs fast in one of n combinations; the others are slow ones. Tests that need a GPU are left
out where none is.
"""

import zlib

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


def draw(item, parts: int) -> int:
    """A number below `parts` that depends on the name of the test alone."""
    return zlib.crc32(item.nodeid.encode()) % parts


def select_tier(config, items) -> None:
    for item in items:
        product = item.get_closest_marker("one_in")
        if product and draw(item, product.args[0]) and "slow" not in item.keywords:
            item.add_marker(pytest.mark.slow)
    wanted = config.getoption("--slow")
    if wanted == "all":
        return
    part, parts = (1, 1) if wanted == "none" else map(int, wanted.split("/"))
    keep = ["slow" not in item.keywords or draw(item, parts) == part for item in items]
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
