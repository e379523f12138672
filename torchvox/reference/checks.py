# SPDX-License-Identifier: Apache-2.0
"""One form of error message: op, argument, what was expected, what came."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor


def fail(error: type[Exception], op: str, expected: str, got: object) -> NoReturn:
    raise error(f"{op}: {expected}, got {got}")


def check_index_tensor(op: str, name: str, tensor: Tensor) -> None:
    if tensor.dtype not in (torch.int32, torch.int64):
        fail(TypeError, op, f"{name} must be int32 or int64", tensor.dtype)
