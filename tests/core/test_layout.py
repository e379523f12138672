# SPDX-License-Identifier: Apache-2.0
"""Strides and storage offsets of the inputs never change a bit, and inputs are left alone."""

import pytest
import torch
from helpers import assert_same_bits
from layouts import LAYOUTS, expandable
from samples import (
    backward,
    each_differentiable_op,
    each_op,
    each_sample_input,
    gradients,
    laid_out,
    leaves,
    map_tensors,
    on,
    run,
    with_gradients,
)


@pytest.mark.one_of("layout")
@pytest.mark.parametrize("layout", LAYOUTS)
@each_sample_input
def test_any_layout_equals_the_contiguous_one(op, make, layout, device):
    call = on(device, make())
    assert_same_bits(run(op, laid_out(op, call, LAYOUTS[layout])), run(op, call), str(op))


@each_op
def test_expanded_inputs_equal_contiguous_ones(op, device):
    for name, value in on(device, op.call(40, 0)).items():
        if device == "cuda" and name in op.coupled_inputs:
            continue
        if torch.is_tensor(value):
            call = {**on(device, op.call(40, 0)), name: expandable(value)}
            dense = {**call, name: call[name].contiguous()}
            assert_same_bits(run(op, call), run(op, dense), f"{op}({name})")


@pytest.mark.one_of("layout")
@pytest.mark.parametrize("layout", LAYOUTS)
@each_differentiable_op
def test_gradients_do_not_depend_on_the_layout(op, layout, device):
    call = on(device, op.call(40, 0))
    expected = gradients(op, call)
    dense = with_gradients(op, call)
    views = {k: LAYOUTS[layout](v) if k in op.gradients else v for k, v in dense.items()}
    assert_same_bits(backward(run(op, views), leaves(op, dense)), expected, "a view of a leaf")
    strided = {
        k: LAYOUTS[layout](v).requires_grad_() if k in op.gradients else v for k, v in call.items()
    }
    assert_same_bits(backward(run(op, strided), leaves(op, strided)), expected, "a leaf")


@each_sample_input
def test_inputs_are_unchanged_and_outputs_alias_nothing(op, make, device):
    call = on(device, make())
    before = map_tensors(call, torch.clone)
    outs = run(op, call)
    storages = [t.untyped_storage().data_ptr() for t in outs if t.numel()]
    storages += [
        t.untyped_storage().data_ptr() for t in call.values() if torch.is_tensor(t) and t.numel()
    ]
    for name, value in call.items():
        if torch.is_tensor(value):
            assert_same_bits(value, before[name], name)
    assert len(set(storages)) == len(storages)


@each_sample_input
def test_outputs_are_dense_and_as_the_meta_kernel_says(op, make, device):
    outs = run(op, on(device, make()))
    for out, meta in zip(outs, run(op, on("meta", make())), strict=True):
        assert (out.shape, out.dtype, out.stride()) == (meta.shape, meta.dtype, meta.stride())
        canvas = out.dim() == 4 and out.is_contiguous(memory_format=torch.channels_last)
        assert out.is_contiguous() or canvas
