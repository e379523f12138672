# SPDX-License-Identifier: Apache-2.0
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


def gpu_missing() -> str | None:
    """Why GPU tests cannot run here, or None."""
    if not torch.cuda.is_available():
        return "no CUDA GPU"
    from torchvox import _C

    if not _C.build_info()["cuda"]:
        return "torchvox was built without CUDA"
    return None


def pytest_collection_modifyitems(items):
    missing = gpu_missing()
    for item in items:
        if missing and ("gpu" in item.keywords or "multigpu" in item.keywords):
            item.add_marker(pytest.mark.skip(reason=missing))
        elif "multigpu" in item.keywords and torch.cuda.device_count() < 2:
            item.add_marker(pytest.mark.skip(reason="needs two CUDA GPUs"))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> str:
    return request.param
