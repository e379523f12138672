# SPDX-License-Identifier: Apache-2.0
"""Sizes that a file names for a network, compared with what it holds before they take memory."""

import warnings
from typing import Any, Callable, Mapping, Optional

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

MOST_VALUES = 5000  # of a configuration
MOST_CALLS = 20_000  # of torch, to make a network without tensors; 16 more for each of them
MOST_BYTES = 2**29  # of what a network computes from its configuration, such as anchors
SLACK, REPEATS = 2**20, 4


class _Calls(TorchFunctionMode):
    """Ends the construction of a network that has more layers than a file has tensors for."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.left = most

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ValueError("its configuration names more layers than there are tensors for")
        if function is Tensor.normal_:  # for whose shapes torch imports its compiler, seconds
            return args[0]
        return function(*args, **(kwargs or {}))


def check_values(config: Any) -> None:
    """Raises ValueError for a configuration of more than MOST_VALUES values, all levels counted."""
    stack, count = [config], 0
    while stack:
        value = stack.pop()
        if isinstance(value, (dict, list, tuple, set)):
            count += len(value)
            if count > MOST_VALUES:
                raise ValueError(f"its configuration must have at most {MOST_VALUES} values")
            stack.extend(value.values() if isinstance(value, dict) else value)


def check_tensors(tensors: Mapping[str, Any]) -> None:
    """Raises ValueError for tensors that are not dense, real and present, and for views that are
    more than REPEATS times as large as the memory behind them."""
    total, behind = 0, {}
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor):
            dense = tensor.layout == torch.strided and not tensor.is_quantized
            if not dense or tensor.is_complex() or tensor.is_meta:
                raise ValueError(f"tensors that are not dense, real and present: {name}")
            storage = tensor.untyped_storage()
            behind[storage.data_ptr()] = storage.nbytes()
            total += tensor.numel() * tensor.element_size()
    if total > REPEATS * sum(behind.values()):
        raise ValueError(f"its tensors of {total} bytes are views of {sum(behind.values())} bytes")


def fitted(
    build: Callable[[], nn.Module],
    tensors: Mapping[str, Any],
    load: Callable[[nn.Module], Any],
    finish: Optional[Callable[[nn.Module], nn.Module]] = None,
) -> nn.Module:
    """The network of `build`, and `finish` where it changes it, after `load` has put the tensors
    in. Both are tried on the meta device before, which takes no memory; not what `finish` makes,
    for which the sizes alone are compared.

    Raises ValueError where the network is larger than the tensors, and what build and load raise.
    """
    check_tensors(tensors)
    calls = MOST_CALLS + 16 * len(tensors)
    with torch.device("meta"), _Calls(calls), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that tensors on this device have no values
        outline = build()
        if finish is None:
            load(outline)
    saved = outline.state_dict()
    numbers = sum(value.numel() for value in tensors.values() if isinstance(value, Tensor))
    own = sum(value.numel() for value in saved.values())
    if own > REPEATS * numbers + SLACK:
        raise ValueError(f"its configuration names {own} numbers, its tensors are {numbers}")
    computed = sum(b.nbytes for name, b in outline.named_buffers() if name not in saved)
    if computed > MOST_BYTES:
        raise ValueError(f"its configuration names anchors of {computed} bytes, too many to load")
    model = build() if finish is None else finish(build())
    load(model)
    return model
