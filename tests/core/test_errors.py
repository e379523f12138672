# SPDX-License-Identifier: Apache-2.0
"""Each error of the contract has one type and one message: eager, on meta tensors, compiled."""

import itertools
import re

import pytest
import torch
from changes import changes, refusal
from helpers import assert_same_bits
from programs import Program
from samples import OPS, ErrorInput, each_op, is_tensor_list, map_tensors, on, run

import torchvox

each_error_input = pytest.mark.parametrize(
    ("op", "wrong"),
    [
        pytest.param(op, ErrorInput(*error_input), id=f"{op}-{error_input[0]}-{i}")
        for op in OPS
        for i, error_input in enumerate(op.error_inputs)
    ],
)


def wrong_call(op, wrong):
    call = op.call(40, 0)
    if isinstance(wrong.value, dict):
        return {**call, **wrong.value}
    value = wrong.value(call[wrong.argument]) if callable(wrong.value) else wrong.value
    return {**call, wrong.argument: value}


def spoken_of(op) -> str:
    """The name that users called: the training form of an op speaks as the op."""
    return op.name[1:].removesuffix("_train") if op.name.endswith("_train") else op.name


@each_error_input
def test_a_wrong_argument_is_refused_by_name(op, wrong, device):
    for place in (device, "meta"):
        with pytest.raises(wrong.error, match=wrong.words) as raised:
            run(op, on(place, wrong_call(op, wrong)))
        assert re.match(rf"{spoken_of(op)}: .*, got ", str(raised.value))
    assert run(op, on(device, op.call(40, 0)))  # neither the op nor the CUDA context is harmed


def check_compiled(op, call, words: str) -> None:
    torch._dynamo.reset()
    program = Program(op, call)
    compiled = torch.compile(program, fullgraph=True, dynamic=True, backend="eager")
    with pytest.raises(Exception, match=words):  # Dynamo wraps the type; the words stay
        compiled(*program.arguments(call))


@pytest.mark.slow
@each_error_input
def test_compiled_code_refuses_alike(op, wrong):
    check_compiled(op, wrong_call(op, wrong), wrong.words)


@each_op
def test_compiled_code_refuses_a_changed_argument_alike(op):
    call = op.call(40, 0)
    refused = ((change, refusal(op, change, "meta")) for change in changes(op, call))
    change, words = next(pair for pair in refused if pair[1])
    check_compiled(op, {**call, change.argument: change.value}, re.escape(words))


@each_op
def test_tensors_of_two_devices_are_refused_and_the_context_survives(op, device):
    call, other = on(device, op.call(40, 0)), {"cpu": "meta", "cuda": "cpu"}[device]
    tensors = [k for k, v in call.items() if torch.is_tensor(v)]
    for name in tensors if len(tensors) > 1 else []:
        with pytest.raises(RuntimeError, match=f"{spoken_of(op)}: .* must be on the device of"):
            run(op, {**call, name: call[name].to(other)})
    if device == "cuda":
        torch.cuda.synchronize()
        assert_same_bits(run(op, call), run(op, op.call(40, 0)), str(op))


@each_op
def test_a_missing_or_unknown_argument_is_a_type_error(op):
    call = op.call(40, 0)
    with pytest.raises((TypeError, RuntimeError), match=op.name):
        run(op, {**call, "no_such_argument": 1})
    first = next(iter(call))
    with pytest.raises((TypeError, RuntimeError), match=op.name):
        run(op, {k: v for k, v in call.items() if k != first})


@each_op
def test_a_change_of_an_argument_is_taken_or_refused_by_name(op, device):
    """surface.txt says which are taken."""
    call = op.call(40, 0)
    for change in changes(op, call):
        said = refusal(op, change, "meta")
        if said is not None:
            # Of what must agree the other one may be named.
            alone = isinstance(change.value, (int, float, str, torch.dtype))
            names = [change.argument] if alone else [a.name for a in op.overload._schema.arguments]
            words = rf"{spoken_of(op)}: .*\b({'|'.join(names)})\b.* must .*, got "
            words = rf"{op.name}: .*, got " if op.name.endswith("_backward") else words
            assert re.match(words, said), f"{change}: {said}"
            assert refusal(op, change, device) == said
    assert run(op, on(device, call))  # neither the op nor the CUDA context is harmed


# What may stand in place of an argument by mistake.
MISTAKES = {"None": None, "str": "x", "int": 11, "empty list": []}  # 11 as a dtype: bool
NOT_DENSE = {
    "sparse": lambda t: t.to_sparse(),
    "sparse csr": lambda t: t.reshape(max(len(t), 1), -1).to_sparse_csr(),
    "mkldnn": lambda t: t.float().to_mkldnn(),
    "quantized": lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    "nested": lambda t: torch.nested.nested_tensor([t, t]),
}


def mistakes(op, call):
    """Of each argument of the call, what stands for it: its name, the kind, the value."""
    for schema in op.overload._schema.arguments:
        name, valid = schema.name, call.get(schema.name)
        for kind, value in MISTAKES.items():
            optional = kind == "None" and "Optional" in str(schema.type)
            fits = isinstance(valid, (int, float) if kind == "int" else type(value))
            if valid is not None and not optional and not fits:
                yield name, kind, value
        of_tensors = {**NOT_DENSE, "complex": lambda t: t.to(torch.complex64)}
        for kind, change in of_tensors.items():
            if torch.is_tensor(valid) or is_tensor_list(valid):
                yield name, kind, map_tensors({name: valid}, change)[name]


@pytest.mark.filterwarnings("ignore")  # of torch, about prototypes
@each_op
def test_whatever_stands_for_an_argument_is_refused_by_name(op):
    call = op.call(40, 0)
    callees = [op.overload] + ([getattr(torchvox, op.name)] if op.public else [])
    for (name, kind, value), callee in itertools.product(mistakes(op, call), callees):
        with pytest.raises((TypeError, ValueError, RuntimeError)) as raised:
            callee(**{**call, name: value})
        said = str(raised.value)
        assert spoken_of(op) in said and re.search(rf"\b{name}\b", said), f"{name} {kind}: {said}"
        if kind in NOT_DENSE:
            assert f"{name} must be a dense (strided) tensor, got " in said, f"{kind}: {said}"


@pytest.mark.parametrize(
    "op", [op for op in OPS if op.gradients and op.public], ids=lambda op: op.name
)
def test_none_beside_a_tensor_that_wants_a_gradient_is_refused_by_name(op):
    call = op.call(40, 0)
    wants = op.gradients[0]
    call[wants] = call[wants].detach().requires_grad_()
    for name, kind, value in mistakes(op, call):
        if kind == "None" and name != wants:
            with pytest.raises((TypeError, ValueError, RuntimeError)) as raised:
                op.overload(**{**call, name: value})
            said = str(raised.value)
            assert spoken_of(op) in said and re.search(rf"\b{name}\b", said), f"{name}: {said}"


def test_functorch_and_forward_mode_raise_rather_than_give_wrong_numbers():
    for op in OPS:
        if not op.gradients:
            continue
        call = op.call(20, 0)
        name = op.gradients[0]

        def value(x, op=op, call=call, name=name):
            return run(op, {**call, name: x})[0]

        with pytest.raises(RuntimeError):
            torch.func.jvp(value, (call[name],), (torch.ones_like(call[name]),))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_calls_an_op_once_a_sample():
    clouds = torch.rand(3, 20, 3)

    def sampled(cloud):
        return torchvox.furthest_point_sample(cloud[None], 4).idx[0]

    found = torch.func.vmap(sampled)(clouds)
    assert_same_bits(found, torchvox.furthest_point_sample(clouds, 4).idx)
