# SPDX-License-Identifier: Apache-2.0
"""Gradients are the slopes of what the ops compute; what has none says so."""

import pytest
import torch
from helpers import assert_same_bits, forced
from samples import (
    DIFFERENTIABLE,
    OPS,
    each_differentiable_op,
    each_op,
    gradients,
    leaves,
    map_tensors,
    on,
    run,
    sample_inputs,
    some_gradient,
    with_gradients,
)

each_gradient_case = pytest.mark.parametrize(
    ("op", "make"),
    [
        pytest.param(op, make, id=f"{op}-{name}")
        for op in DIFFERENTIABLE
        for name, make in {**sample_inputs(op), **op.gradcheck_inputs}.items()
    ],
)
each_gradcheck_input = pytest.mark.parametrize(
    ("op", "make"),
    [
        pytest.param(op, make, id=f"{op}-{name}")
        for op in DIFFERENTIABLE
        for name, make in op.gradcheck_inputs.items()
    ],
)


@each_differentiable_op
def test_the_list_has_a_gradcheck_input(op):
    assert op.gradcheck_inputs


def differentiable_outputs(op, call):
    """The op as a function of its leaves alone, for gradcheck."""
    names = [k for k in op.gradients if call.get(k) is not None]

    def outputs(*values):
        outs = run(op, {**call, **dict(zip(names, values, strict=True))})
        return tuple(outs[i] for i in op.differentiable)

    return outputs


@each_gradcheck_input
def test_gradients_agree_with_numerical_ones(op, make, device):
    call = with_gradients(op, on(device, make()))
    assert all(leaf.dtype == torch.float64 for leaf in leaves(op, call))
    # A step that large is for outputs of float32.
    tolerance = {"rtol": 1e-6, "atol": 1e-7} if op.step < 1e-3 else {"atol": 1e-4}
    outputs = differentiable_outputs(op, call)
    assert torch.autograd.gradcheck(outputs, leaves(op, call), eps=op.step, **tolerance)


@each_gradcheck_input
def test_a_second_derivative_is_right_or_refused(op, make, device):
    call = with_gradients(op, on(device, make()))
    if op.supports_gradgrad:
        outputs = differentiable_outputs(op, call)
        assert torch.autograd.gradgradcheck(outputs, leaves(op, call), eps=op.step)
        return
    out = run(op, call)[op.differentiable[0]]
    seed = some_gradient(out).requires_grad_()
    with pytest.raises(NotImplementedError, match="has no second derivative"):
        torch.autograd.grad(out, leaves(op, call), seed, create_graph=True)


@each_op
def test_only_the_promised_outputs_require_a_gradient(op):
    call = op.call(40, 0)
    free = {k: v for k, v in call.items() if k not in (*op.non_differentiable, *op.mutates)}
    call |= map_tensors(free, lambda t: t.requires_grad_() if t.is_floating_point() else t)
    if op.name.endswith("_backward") and not op.gradients:
        with pytest.raises(NotImplementedError, match="has no second derivative"):
            run(op, call)
        return
    if op.inference:
        with pytest.raises(NotImplementedError, match="is for inference"):
            run(op, call)
        return
    outs = run(op, call)
    assert [i for i, out in enumerate(outs) if out.requires_grad] == list(
        op.differentiable if op.gradients else ()
    )


@pytest.mark.parametrize("op", [op for op in OPS if op.non_differentiable], ids=str)
def test_a_gradient_that_an_op_does_not_have_is_refused(op):
    for name in op.non_differentiable:
        call = op.call(40, 0)
        call[name].requires_grad_()
        with pytest.raises(NotImplementedError, match=f"{name} have no gradient"):
            run(op, call)


@each_differentiable_op
def test_an_input_without_requires_grad_gets_none(op):
    for wanted in op.gradients:
        call = op.call(40, 0)
        if wanted not in call:
            continue
        call[wanted].requires_grad_()
        run(op, call)[op.differentiable[0]].sum().backward()
        for name, value in call.items():
            if torch.is_tensor(value):
                assert (value.grad is not None) == (name == wanted), name


@each_differentiable_op
def test_no_gradient_is_recorded_under_no_grad(op):
    call = with_gradients(op, op.call(40, 0))
    with torch.no_grad():
        assert not any(out.requires_grad for out in run(op, call))
    with torch.inference_mode():
        assert not any(out.requires_grad for out in run(op, op.call(40, 0)))


@each_differentiable_op
def test_an_expanded_gradient_equals_a_dense_one(op, device):
    call = with_gradients(op, on(device, op.call(200, 0)))
    out = run(op, call)[op.differentiable[0]]
    leaf = call[op.gradients[0]]
    one = torch.ones((), dtype=out.dtype, device=out.device)
    dense = torch.autograd.grad(out, leaf, torch.ones_like(out), retain_graph=True)
    expanded = torch.autograd.grad(out, leaf, one.expand_as(out))
    assert_same_bits(expanded, dense)


@each_gradient_case
def test_the_forward_is_the_same_with_and_without_gradients(op, make, device):
    call = on(device, make())
    assert_same_bits(run(op, with_gradients(op, call)), run(op, call), str(op))


@pytest.mark.gpu
@each_gradient_case
def test_cpu_and_cuda_gradients_have_equal_bits(op, make):
    if not any(out.requires_grad for out in run(op, with_gradients(op, make()))):
        pytest.skip("no output of this case has a gradient")
    with forced(**op.exact):
        found = gradients(op, on("cuda", make()))
    assert_same_bits(found, gradients(op, make()), str(op))
