# SPDX-License-Identifier: Apache-2.0
import shutil

import pytest
import torch

for module in ("lightning", "torchmetrics"):
    pytest.importorskip(module, reason="the extra train is not installed")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Threads cost more than they give for nets of this size."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def _trained(tmp_path_factory):
    """Runs of one epoch by task, each made when it is first needed."""
    from tiny import content

    from torchvox.train import fit
    from torchvox.train.config import make_config

    folder = tmp_path_factory.mktemp("trained")

    def run(task):
        if not (folder / task).exists():
            fit(make_config(content(task, epochs=1)), folder / task, quiet=True)
        return folder / task

    return run


@pytest.fixture
def trained(_trained):
    """Copies a run of one epoch to a folder."""
    return lambda folder, task="classify": shutil.copytree(_trained(task), folder)
