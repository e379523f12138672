# SPDX-License-Identifier: Apache-2.0
"""Sizes that a file names for a network, compared with what it holds before they take memory."""

from typing import Any, Callable, List, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

MOST_VALUES = 5000  # of a configuration
MOST_CALLS = 20_000  # of torch, to make a network without tensors; 16 more for each of them
REPEATS, SLACK = 4, 2**22
MOST_BYTES = 2**29  # of what a network computes from its configuration, such as anchors


class _Calls(TorchFunctionMode):
    """Ends the construction of a network that has more layers than a file has tensors for."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.left = most

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: object,
        args: Tuple[Any, ...] = (),
        kwargs: Optional[Mapping[str, Any]] = None,
    ) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ValueError("its configuration names more layers than there are tensors for")
        if function is Tensor.normal_:  # for whose shapes torch imports its compiler, seconds
            return args[0]
        return function(*args, **(kwargs or {}))


def check_values(config: object) -> None:
    """Raises ValueError for a configuration of more than MOST_VALUES values, all levels counted."""
    stack: List[object] = [config]
    count = 0
    while stack:
        value = stack.pop()
        if isinstance(value, (dict, list, tuple, set)):
            count += len(value)
            if count > MOST_VALUES:
                raise ValueError(f"its configuration must have at most {MOST_VALUES} values")
            stack.extend(value.values() if isinstance(value, dict) else value)


def check_tensors(tensors: Mapping[str, Any]) -> int:
    """The bytes of the tensors. Raises ValueError for those that are not dense, real and present,
    and for views that are more than REPEATS times as large as the memory behind them."""
    total, behind = 0, {}
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor):
            dense = tensor.layout == torch.strided and not tensor.is_quantized
            if not dense or tensor.is_complex() or tensor.is_meta:
                raise ValueError(f"tensors that are not dense, real and present: {name}")
            storage = tensor.untyped_storage()
            behind[storage.data_ptr()] = storage.nbytes()
            total += tensor.nbytes
    if total > REPEATS * sum(behind.values()):
        raise ValueError(f"its tensors of {total} bytes are views of {sum(behind.values())} bytes")
    return total


def check_network(build: Callable[[], nn.Module], tensors: Mapping[str, Any]) -> None:
    """Raises ValueError where `build` makes a network that is far larger than the tensors of its
    file, and what build raises. It is built on the meta device, which takes no memory."""
    total = check_tensors(tensors)
    with torch.device("meta"), _Calls(MOST_CALLS + 16 * len(tensors)):
        network = build()
    saved = network.state_dict()
    size = sum(tensor.nbytes for tensor in saved.values())
    if size > REPEATS * total + SLACK:
        raise ValueError(f"its configuration names {size} bytes, its tensors have {total}")
    computed = sum(b.nbytes for name, b in network.named_buffers() if name not in saved)
    if computed > MOST_BYTES:
        raise ValueError(f"its configuration names anchors of {computed} bytes, too many to load")
