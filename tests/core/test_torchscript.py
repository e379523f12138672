# SPDX-License-Identifier: Apache-2.0
"""Every op and module scripts, saves, differentiates, and loads beside the op library alone."""

import functools

import pytest
import torch
from fresh import fresh_process
from helpers import assert_same_bits
from samples import (
    MODULES,
    OPS,
    Call,
    OpInfo,
    backward,
    each_differentiable_op,
    each_module,
    each_op,
    gradients,
    is_tensor_list,
    leaves,
    run,
    with_gradients,
)
from torch import Tensor

from torchvox import _library

# TorchScript is deprecated as a whole; any other warning is a fault of ours.
pytestmark = [
    pytest.mark.filterwarnings("error"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning"),
]

LOAD_ALONE = """
import sys, torch
torch.ops.load_library(sys.argv[1])  # the package torchvox is not imported
assert "torchvox" not in sys.modules
module = torch.jit.load(sys.argv[2])
inputs = torch.load(sys.argv[3])
torch.save({name: getattr(module, name)(*tensors) for name, tensors in inputs.items()}, sys.argv[4])
"""


def literal(value) -> str:
    if isinstance(value, float):
        return f'float("{value}")'
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    return str(value) if isinstance(value, torch.dtype) else repr(value)


def source(op: OpInfo, call: Call) -> str:
    """A TorchScript function of the call's tensors that holds everything else as a constant."""
    tensors = [k for k, v in call.items() if isinstance(v, Tensor) or is_tensor_list(v)]
    kinds = [f"{k}: {'List[Tensor]' if is_tensor_list(call[k]) else 'Tensor'}" for k in tensors]
    arguments = [f"{k}={k if k in tensors else literal(v)}" for k, v in call.items()]
    count = len(op.overload._schema.returns)
    outs = [f"out{i}" for i in range(count)]
    copied = [f"    {k} = [t.clone() for t in {k}]\n" for k in op.mutates]
    written = [f"{k}[{i}]" for k in op.mutates for i in range(len(call[k]))]
    total = count + len(written)
    result = "Tensor" if total == 1 else f"Tuple[{', '.join(['Tensor'] * total)}]"
    return (
        f"def {op}(self, {', '.join(kinds)}) -> {result}:\n"
        f"{''.join(copied)}"
        f"    {', '.join(outs)} = torch.ops.torchvox.{op.name}({', '.join(arguments)})\n"
        f"    return {', '.join([*outs, *written])}\n"
    )


@functools.cache
def scripted() -> torch.jit.ScriptModule:
    """One method for each op."""
    module = torch.jit.ScriptModule()
    for op in OPS:
        module.define(source(op, op.call(50, 0)))
    return module


def tensors_of(call: Call) -> tuple[Tensor | list[Tensor], ...]:
    return tuple(v for v in call.values() if isinstance(v, Tensor) or is_tensor_list(v))


@each_op
def test_a_scripted_op_equals_the_eager_one(op):
    method = getattr(scripted(), str(op))
    for n in (50, 0, 77):
        call = op.call(n, n)
        out = method(*tensors_of(call))
        assert_same_bits(out if isinstance(out, tuple) else (out,), run(op, call), f"{op} of {n}")


@each_differentiable_op
def test_gradients_flow_through_scripted_ops(op):
    method = getattr(scripted(), str(op))
    for seed in range(4):  # the executor specializes after some calls
        call = op.call(50, seed)
        step = with_gradients(op, call)
        out = method(*tensors_of(step))
        outs = (out,) if isinstance(out, Tensor) else out
        assert [i for i, o in enumerate(outs) if o.requires_grad] == list(
            op.differentiable if op.gradients else ()
        )
        assert_same_bits(backward(outs, leaves(op, step)), gradients(op, call), f"{op}, {seed}")


def test_a_saved_script_of_every_op_runs_where_only_the_library_is_loaded(tmp_path):
    script, inputs, outputs = (str(tmp_path / name) for name in ("every.pt", "in.pt", "out.pt"))
    torch.jit.save(scripted(), script)
    torch.save({str(op): tensors_of(op.call(64, 5)) for op in OPS}, inputs)
    fresh_process(LOAD_ALONE, str(_library.binding(torch.__version__)), script, inputs, outputs)
    results = torch.load(outputs)
    for op in OPS:
        out = results[str(op)]
        outs = (out,) if isinstance(out, Tensor) else out
        assert_same_bits(outs, run(op, op.call(64, 5)), str(op))


@each_module
def test_a_scripted_module_survives_saving_and_equals_the_eager_one(name, tmp_path):
    make, arguments = MODULES[name]
    module = make()
    torch.jit.save(torch.jit.script(module), str(tmp_path / "module.pt"))
    loaded = torch.jit.load(str(tmp_path / "module.pt"))
    for n in (50, 0, 77):
        inputs = arguments(n)
        assert_same_bits(tuple(loaded(*inputs)), tuple(module(*inputs)), f"{name} of {n}")
