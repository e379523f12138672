# SPDX-License-Identifier: Apache-2.0
"""sparse_conv: any call is that of the reference, and the exact order of its sums. What it is,
test_sparse_modules.py holds against torch's dense convolution."""

import math

import pytest
import torch
from helpers import assert_same_bits
from hypothesis import given
from hypothesis import strategies as st
from op_infos.op_info import SPECIAL_VALUES, generator
from op_infos.sparse import INT_MIN, conv_call

from torchvox import reference

ops = torch.ops.torchvox
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@given(
    sources=st.integers(0, 20),
    rows=st.integers(0, 150),
    kernel=st.sampled_from([(1, 1, 1), (3, 1, 1), (2, 2, 1), (1, 3, 3)]),
    channels=st.tuples(st.integers(0, 9), st.sampled_from([0, 1, 7, 8, 15, 16, 17, 33])),
    dtype=st.sampled_from(DTYPES),
    special=st.booleans(),
    options=st.sets(st.sampled_from(["bias", "residual", "relu", "schedule"])),
    num_valid=st.sampled_from([None, -3, 0, 5, 127, 1 << 40]),
    seed=st.integers(0, 99),
)
def test_any_layer_and_its_gradients_are_those_of_the_reference(
    sources, rows, kernel, channels, dtype, special, options, num_valid, seed
):
    (ins, outs), g, specials = channels, generator(seed), torch.tensor(SPECIAL_VALUES).double()

    def some(*shape):
        values = torch.randn(shape, generator=g, dtype=torch.float64)
        other = specials[torch.randint(len(specials), shape, generator=g)]
        return torch.where(torch.rand(shape, generator=g) < special / 9, other, values).to(dtype)

    def table(rows, sources):
        """Half of the entries absent, some beyond the rows that there are."""
        shape = (math.prod(kernel), rows)
        return torch.randint(-2 - sources, 2 + sources, shape, generator=g).int()

    call = {"features": some(sources, ins), "weight": some(outs, *kernel, ins)}
    call["neighbors"] = table(rows, sources)
    call["num_valid"] = None if num_valid is None else torch.tensor(num_valid)
    forward = {"bias": some(outs), "residual": some(rows, outs), "relu": True}
    forward["schedule"] = ops.sparse_schedule(call["neighbors"], kernel)
    forward = call | {k: v for k, v in forward.items() if k in options}
    assert_same_bits(ops.sparse_conv(**forward), reference.sparse_conv(**forward), "forward")
    call |= {"inverse": table(sources, rows), "grad": some(rows, outs)}
    if "schedule" in options:
        call["inverse_schedule"] = ops.sparse_schedule(call["inverse"], kernel)
    found = ops._sparse_conv_backward(**call)
    assert_same_bits(found, reference.sparse_conv_backward(**call), "gradients")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 2047, 2048, 2049, 4095, 4096, 4097])
def test_gradients_add_segments_of_2048_rows(rows, dtype, device):
    """Rows, not pairs: two thirds of them have the offset. Apart from the reference."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    grad = torch.randn(rows, 1, generator=generator(rows)).to(dtype)
    table = torch.where(torch.arange(rows) % 3 == 1, -1, 0)[None].int()
    one, weight = torch.ones(1, 1, dtype=dtype), torch.ones(1, 1, 1, 1, 1, dtype=dtype)
    expected = []
    for terms in (torch.where(table[0] < 0, 0, grad[:, 0]), grad[:, 0]):
        total = torch.zeros((), dtype=wide)
        for part in terms.to(wide).split(2048):
            total = total + part.numpy().cumsum()[-1]  # from the left, one after the other
        expected.append(total.to(dtype).reshape(-1))
    call = [t.to(device) for t in (grad, one, weight, table)]
    _, of_weight, of_bias = ops._sparse_conv_backward(*call, for_features=False)
    assert_same_bits((of_weight.reshape(-1).cpu(), of_bias.cpu()), tuple(expected))


NAN, INF, TINY = math.nan, math.inf, 1e-40
# Features of two rows, weights of three offsets, the row at each offset, the bias; the value.
VALUES = {
    "no pair": ([1, 1], [NAN, INF, NAN], [-1, -1, 5], None, 0.0),
    "a bias of -0 and no pair": ([1, 1], [NAN, INF, NAN], [-1, 2, INT_MIN], -0.0, -0.0),
    "a product of -0": ([-1, 1], [0, NAN, NAN], [0, -1, -1], None, 0.0),
    "-0 onto -0": ([-1, 1], [0, NAN, NAN], [0, -1, -1], -0.0, -0.0),
    "a pair of zeros": ([0, NAN], [NAN, 2, 3], [-1, 0, 0], -0.0, 0.0),
    "a NaN that is read": ([0, NAN], [2, 0, 3], [0, 1, 0], 1.0, NAN),
    "no sum of infinities": ([INF, NAN], [1, -1, 0], [0, -1, -1], 1.0, INF),
    "subnormals": ([TINY, 1], [1, 1, NAN], [0, 0, -1], None, 2 * torch.tensor(TINY).item()),
    # 1 + 2^-24 is 1, so that the order of offsets shows.
    "ascending offsets": ([2**-24, 1], [1, 1, 1], [1, 0, 0], None, 1.0),
    "ascending offsets from the tiny": ([2**-24, 1], [1, 1, 1], [0, 0, 1], None, 1 + 2**-23),
    "the bias first": ([2**-24, 1], [1, 1, NAN], [0, 0, -1], 1.0, 1.0),
    "fused products": ([1 + 2**-12, 1], [1 + 2**-12, NAN, NAN], [0, -1, -1], -1 - 2**-11, 2**-24),
}


@pytest.mark.parametrize("case", VALUES)
def test_each_rounding_of_a_value(case, device):
    features, weight, table, bias, value = VALUES[case]
    call = {
        "features": torch.tensor(features).float()[:, None],
        "weight": torch.tensor(weight).float().reshape(1, 1, 1, 3, 1),
        "neighbors": torch.tensor(table).int()[:, None],
        "bias": None if bias is None else torch.tensor([bias]),
    }
    out = ops.sparse_conv(**{k: v if v is None else v.to(device) for k, v in call.items()})
    assert_same_bits(out.cpu(), torch.tensor([[value]]))


def test_residual_relu_and_one_rounding_come_last(device):
    """65,520 rounds to inf in float16: the sum is float32 until the end."""
    features = torch.tensor([[60000.0, 60000.0]]).half()
    weight = torch.tensor([[1.0, 1.0], [-1.0, 0.0]]).half().reshape(2, 1, 1, 1, 2)
    residual = torch.tensor([[-65000.0, 1.0]]).half()
    call = [t.to(device) for t in (features, weight, torch.zeros(1, 1).int())]
    out = ops.sparse_conv(*call, residual=residual.to(device), relu=True)
    assert_same_bits(out.cpu(), torch.tensor([[55000.0, 0.0]]).half())


@pytest.mark.parametrize("wants", ["weight", "bias"])
def test_gradients_of_parameters_need_no_second_table(wants, device):
    call = {k: v.to(device) for k, v in conv_call(40).items()} | {"inverse": None}
    call[wants].requires_grad_()
    ops.sparse_conv(**call).sum().backward()
    assert call[wants].grad is not None
