# SPDX-License-Identifier: Apache-2.0
import gc

import pytest
import torch


@pytest.fixture
def memory_of_one_case():
    if torch.cuda.mem_get_info()[0] < 110 << 30:
        pytest.skip("needs 110 GiB of free GPU memory")
    yield
    gc.collect()
    torch.cuda.empty_cache()
