# SPDX-License-Identifier: Apache-2.0
"""Autocast changes nothing where the types agree: coordinates are never cast and features keep
their dtype. Where a layer left one of several arguments that must agree in half precision, all are
widened. Only convolutions compute in autocast's own type, as those of torch do."""

import pytest
import torch
from helpers import assert_same_bits
from samples import (
    OPS,
    each_differentiable_op,
    each_sample_input,
    gradients,
    is_tensor_list,
    leaves,
    map_tensors,
    on,
    run,
    sample_inputs,
)

each_dtype = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def lowered(op, call, dtype):
    """The call as autocast leaves it, of an op whose arguments agree."""
    names = [k for k in op.lowered if call.get(k) is not None and call[k].dtype != torch.float64]
    return {**call, **map_tensors({k: call[k] for k in names}, lambda t: t.to(dtype))}


@pytest.mark.one_of("dtype")
@each_dtype
@each_sample_input
def test_autocast_keeps_every_bit_and_dtype(op, make, dtype, device):
    call = on(device, make())
    expected = run(op, lowered(op, call, dtype))
    with torch.autocast(device, dtype=dtype):
        assert_same_bits(run(op, call), expected, str(op))


@pytest.mark.one_of("dtype")
@each_dtype
@each_differentiable_op
def test_autocast_keeps_gradients(op, dtype, device):
    call = on(device, op.call(40, 0))
    expected = gradients(op, lowered(op, call, dtype))
    expected = [g.to(t.dtype) for g, t in zip(expected, leaves(op, call), strict=True)]
    with torch.autocast(device, dtype=dtype):
        assert_same_bits(gradients(op, call), expected, str(op))


def floating(value) -> bool:
    tensor = value[0] if is_tensor_list(value) else value
    return isinstance(tensor, torch.Tensor) and tensor.is_floating_point()


FLOATING = [
    pytest.param(op, name, id=f"{op}-{name}")
    for op in OPS
    if op.public
    for name, value in op.call(40, 0).items()
    if floating(value)
]


@pytest.mark.one_of("dtype")
@each_dtype
@pytest.mark.parametrize(("op", "name"), FLOATING)
def test_an_argument_in_half_precision_is_widened_to_the_others(op, name, dtype, device):
    """What the op takes as it is keeps its type; what it would refuse gets its own type again."""
    call = on(device, op.call(40, 0))
    halved = {**call, **map_tensors({name: call[name]}, lambda t: t.to(dtype))}
    try:
        expected = run(op, lowered(op, halved, dtype))
    except TypeError:
        own = call[name][0] if is_tensor_list(call[name]) else call[name]
        widened = map_tensors({name: halved[name]}, lambda t: t.to(own.dtype))
        expected = run(op, {**halved, **widened})
    with torch.autocast(device, dtype=dtype):
        assert_same_bits(run(op, halved), expected, str(op))


def test_only_the_halves_of_a_list_are_widened(device):
    """What an op refuses beside them it refuses under autocast too."""
    op = next(op for op in OPS if op.name == "anchor_decode_nms")
    call = on(device, sample_inputs(op)["heads"]())
    whole = call["anchors"]
    call["anchors"] = [whole[0].half(), *whole[1:]]
    with torch.autocast(device, dtype=torch.float16):
        run(op, call)
        call["anchors"] = [whole[0].half(), *(t.double() for t in whole[1:])]
        with pytest.raises(TypeError, match="anchors must be float32"):
            run(op, call)
        boxes, scores = torch.zeros(1, 4, 7), torch.zeros(1, 4, dtype=torch.float64)
        with pytest.raises(TypeError, match="scores must be float32"):
            torch.ops.torchvox.rotated_nms(boxes.to(device), scores.to(device), 0.1, 4)
