# SPDX-License-Identifier: Apache-2.0
"""Runs the calls of the op_infos and their gradients under a sanitizer: as they are, with special
values, and with integers of any value. `make sanitize` preloads instrumented kernels for it,
`make sanitize-gpu` runs it under compute-sanitizer.

python tests/sanitize.py cpu|cuda [OP ..]
"""

import sys
from pathlib import Path

import torch
from samples import (
    OPS,
    Call,
    OpInfo,
    generator,
    leaves,
    map_tensors,
    on,
    run,
    sample_inputs,
    some_gradient,
    with_gradients,
    with_special_values,
)


def with_any_integers(call: Call) -> Call:
    """The call with every third integer of its tensors changed: kernels trust none of them."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype not in (torch.int32, torch.int64):
            return tensor
        g, limit = generator(tensor.numel()), torch.iinfo(tensor.dtype).max
        options = {"generator": g, "dtype": tensor.dtype}
        anything = torch.randint(-limit, limit, tensor.shape, **options)
        near = torch.randint(-2, 60, tensor.shape, **options)
        kind = torch.randint(6, tensor.shape, generator=g)
        return torch.where(kind == 0, anything, torch.where(kind == 1, near, tensor))

    return map_tensors(call, change)


def run_with_gradients(op: OpInfo, call: Call) -> None:
    call = with_gradients(op, call)
    outs = [out for out in run(op, call) if out.requires_grad]
    if outs:
        grads = [some_gradient(out) for out in outs]
        torch.autograd.grad(outs, leaves(op, call), grads, allow_unused=True)


def main() -> None:
    device, *names = sys.argv[1:]
    # A library that cannot be preloaded is a warning only.
    if device == "cpu" and "_sanitized.so" not in Path("/proc/self/maps").read_text():
        sys.exit("sanitize: the instrumented kernels are not loaded; run `make sanitize`")
    ops = [op for op in OPS if not names or op.name in names]
    for op in ops:
        print(f"sanitize: {op}", flush=True)  # the last line before a report
        for make in (*sample_inputs(op).values(), lambda op=op: op.call(3000, 1)):
            for call in (make(), with_special_values(op, make()), with_any_integers(make())):
                run_with_gradients(op, on(device, call))
    print(f"sanitize: {len(ops)} ops ran on {device}")


if __name__ == "__main__":
    main()
