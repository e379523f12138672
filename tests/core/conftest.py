# SPDX-License-Identifier: Apache-2.0
import gc

import pytest
import torch


@pytest.fixture
def memory_of_one_case():
    """Tensors are made on the GPU."""
    if torch.cuda.mem_get_info()[0] < 110 << 30:
        pytest.skip("needs 110 GiB of free GPU memory")
    with torch.device("cuda"):
        yield
    gc.collect()
    torch.cuda.empty_cache()
