# SPDX-License-Identifier: Apache-2.0
import pytest

for module in ("lightning", "torchmetrics", "pydantic"):
    pytest.importorskip(module, reason="the extra train is not installed")
