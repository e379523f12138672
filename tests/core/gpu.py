# SPDX-License-Identifier: Apache-2.0
"""What the GPU tests share: captured calls whose inputs change in place, and busy streams."""

from collections.abc import Callable

import torch
from samples import Call, is_tensor_list
from torch import Tensor

WARM_UPS = 3


def copy_in_place(static: Call, fresh: Call) -> None:
    """Writes the values of `fresh` into the tensors of `static`, on the current stream."""
    for name, value in fresh.items():
        pairs = zip(static[name], value, strict=True) if is_tensor_list(value) else ()
        if isinstance(value, Tensor):
            pairs = ((static[name], value),)
        with torch.no_grad():
            for to, tensor in pairs:
                to.copy_(tensor)


def captured(work: Callable[[], tuple]) -> tuple[torch.cuda.CUDAGraph, tuple]:
    """A graph of work() and the outputs it writes, captured on a stream of its own."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = work()
    return graph, outs


def keep_busy(milliseconds: float = 50) -> None:
    """Occupies the current stream for about this long."""
    torch.cuda._sleep(int(milliseconds * 1.5e6))  # cycles at 1.5 GHz
