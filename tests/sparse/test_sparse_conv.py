# SPDX-License-Identifier: Apache-2.0
"""sparse_conv: torch's dense convolution where rows are, and the exact order of its sums."""

import math

import pytest
import torch
from helpers import assert_same_bits
from hypothesis import given
from hypothesis import strategies as st
from op_infos.op_info import SPECIAL_VALUES, generator
from op_infos.sparse import INT_MIN, block, rows
from torch import Tensor
from torch.nn import functional as F

from torchvox import reference

ops = torch.ops.torchvox
BATCH = 3  # one sample is empty


def scene(shape: list[int], channels: int, dtype=torch.float64) -> tuple[Tensor, Tensor]:
    """A third of the cells of samples 0 and 1, with features."""
    cells = block(*shape)
    cells = cells[: len(cells) // 3]
    return cells, torch.randn(len(cells), channels, generator=generator(5), dtype=dtype)


def dense(cells: Tensor, values: Tensor, shape: list[int]) -> Tensor:
    grid = values.new_zeros(BATCH, *shape, values.size(1))
    grid[tuple(cells.long().T)] = values
    return grid.permute(0, 4, 1, 2, 3)


def at(grid: Tensor, cells: Tensor) -> Tensor:
    return grid.permute(0, 2, 3, 4, 1)[tuple(cells.long().T)]


# kernel, stride, padding, dilation, shape
LAYERS = {
    "3": ([3, 3, 3], [1, 1, 1], [1, 1, 1], [1, 1, 1], [4, 5, 6]),
    "stride": ([3, 3, 3], [2, 2, 2], [1, 1, 1], [1, 1, 1], [5, 6, 7]),
    "even": ([2, 4, 2], [2, 3, 2], [0, 2, 1], [1, 1, 1], [4, 5, 6]),
    "dilation": ([3, 1, 2], [2, 1, 4], [2, 0, 3], [2, 1, 6], [6, 3, 9]),
    "along z": ([3, 1, 1], [2, 1, 1], [0, 0, 0], [1, 1, 1], [7, 4, 3]),
    "2D": ([1, 3, 3], [1, 2, 2], [0, 1, 1], [1, 1, 1], [1, 9, 8]),
    "wide padding": ([3, 3, 3], [2, 1, 3], [4, 2, 5], [1, 1, 1], [3, 3, 4]),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_is_the_dense_one_where_it_has_rows(layer, device):
    """The maps of the op carry the products of the reference, and of the op."""
    kernel, stride, padding, dilation, shape = LAYERS[layer]
    cells, features = scene(shape, 3)
    weight = torch.randn(4, *kernel, 3, generator=generator(6), dtype=torch.float64)
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    grid = F.conv3d(dense(cells, features, shape), weight.permute(0, 4, 1, 2, 3), None, **options)
    occupied = F.conv3d(
        dense(cells, torch.ones(len(cells), 1), shape), torch.ones(1, 1, *kernel), None, **options
    )
    out_cells, neighbors, inverse, counts = (
        t.cpu() for t in ops.sparse_conv_map(cells.to(device), shape, BATCH, kernel, **options)
    )
    found = int(counts[0, 0])
    assert out_cells[:found].tolist() == (occupied[:, 0] > 0.5).nonzero().tolist()
    out = reference.sparse_conv(features, weight, neighbors, num_valid=counts)
    torch.testing.assert_close(out[:found], at(grid, out_cells[:found]))
    call = (t.to(device) for t in (features, weight, neighbors))
    assert_same_bits(ops.sparse_conv(*call, num_valid=counts.to(device)), out)

    # The inverse layer is the transposed convolution, at the rows of the input.
    coarse = dense(out_cells[:found], out[:found], list(grid.shape[2:]))
    back = torch.randn(3, *kernel, 4, generator=generator(7), dtype=torch.float64)
    full = [n + 2 * p for n, p in zip(shape, padding, strict=True)]
    wide = F.conv_transpose3d(coarse, back.permute(4, 0, 1, 2, 3), None, stride, 0, 0, 1, dilation)
    wide = F.pad(wide, [m for n, w in zip(full[::-1], wide.shape[:1:-1], strict=True)
                        for m in (0, n - w)])  # fmt: skip
    p = torch.tensor([0, *padding])
    finer = reference.sparse_conv(out, back, inverse, inverse=neighbors)
    torch.testing.assert_close(finer, at(wide, cells + p))


def test_a_submanifold_layer_is_the_dense_one_at_its_rows(device):
    shape, kernel, dilation = [4, 5, 6], [3, 1, 5], [1, 1, 2]
    cells, features = scene(shape, 3)
    weight = torch.randn(4, *kernel, 3, generator=generator(6), dtype=torch.float64)
    grid = F.conv3d(
        dense(cells, features, shape), weight.permute(0, 4, 1, 2, 3), None, 1, [1, 0, 4], dilation
    )
    neighbors, _ = ops.sparse_subm_map(cells.to(device), shape, BATCH, kernel, dilation=dilation)
    out = ops.sparse_conv(features.to(device), weight.to(device), neighbors, submanifold=True)
    torch.testing.assert_close(out.cpu(), at(grid, cells))


# ---- any call

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def values(shape, dtype, special: bool, seed: int) -> Tensor:
    out = torch.randn(*shape, generator=generator(seed), dtype=torch.float64).to(dtype)
    if special and out.numel():
        at = torch.randint(out.numel(), (out.numel() // 9 + 1,), generator=generator(seed))
        some = torch.tensor(SPECIAL_VALUES)[torch.arange(len(at)) % len(SPECIAL_VALUES)]
        out.view(-1)[at] = some.to(dtype)
    return out


def tables(volume: int, rows: int, sources: int, seed: int) -> Tensor:
    """Any rows, half of them absent or hostile."""
    wild = torch.tensor([INT_MIN, -2, sources, sources + 1, 1 << 30, (1 << 31) - 1])
    part = (
        torch.randint(-sources, sources, (volume, rows), generator=generator(seed)).int()
        if (sources)
        else torch.full((volume, rows), -1).int()
    )
    part[:, ::3] = torch.where(part[:, ::3] < 0, wild[part[:, ::3] % 6].int(), part[:, ::3])
    return part


@given(
    sources=st.integers(0, 20),
    rows=st.integers(0, 150),
    kernel=st.sampled_from([(1, 1, 1), (3, 1, 1), (2, 2, 1), (1, 3, 3)]),
    channels=st.tuples(st.integers(0, 9), st.sampled_from([0, 1, 7, 8, 15, 16, 17, 33])),
    dtype=st.sampled_from(DTYPES),
    special=st.booleans(),
    options=st.sets(st.sampled_from(["bias", "residual", "relu"])),
    num_valid=st.sampled_from([None, -3, 0, 5, 127, 1 << 40]),
    seed=st.integers(0, 99),
)
def test_any_layer_and_its_gradients_are_those_of_the_reference(
    sources, rows, kernel, channels, dtype, special, options, num_valid, seed
):
    volume, (ins, outs) = math.prod(kernel), channels

    def some(*shape):
        return values(shape, dtype, special, seed + len(shape))

    call = {"features": some(sources, ins), "weight": some(outs, *kernel, ins)}
    call["neighbors"] = tables(volume, rows, sources, seed)
    call["num_valid"] = None if num_valid is None else torch.tensor(num_valid)
    forward = {"bias": some(outs), "residual": some(rows, outs), "relu": True}
    forward = call | {k: v for k, v in forward.items() if k in options}
    assert_same_bits(ops.sparse_conv(**forward), reference.sparse_conv(**forward), "forward")
    call |= {"inverse": tables(volume, sources, rows, seed + 1), "grad": some(rows, outs)}
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


# ---- what does not matter

SHAPE = [4, 5, 70]


def layers(cells: Tensor, features: Tensor, used: int, device: str) -> dict[str, list]:
    """Of each layer its values and gradients of features by cell, of sample 0."""
    found = {}
    count = torch.tensor([used], device=device)
    cells, features = cells.to(device), features.to(device)
    neighbors, _ = ops.sparse_subm_map(cells, SHAPE, BATCH, [3] * 3, num_valid=count)
    coarse, table, inverse, counts = ops.sparse_conv_map(
        cells, SHAPE, BATCH, [3] * 3, stride=[2] * 3, padding=[1] * 3, num_valid=count
    )
    g = generator(8)
    weight = torch.randn(8, 3, 3, 3, 16, generator=g).to(features)
    maps = {
        "submanifold": (cells, neighbors, {"submanifold": True, "num_valid": count}),
        "strided": (coarse, table, {"inverse": inverse, "num_valid": counts}),
    }
    for name, (out_cells, entries, options) in maps.items():
        leaf = features.detach().requires_grad_()
        out = ops.sparse_conv(leaf, weight, entries, **options)
        m = int(options["num_valid"].flatten()[0])
        grad = out_cells.double() @ torch.tensor([[0], [0.7], [1.1], [0.1]]).double().to(device)
        grad = (grad - 4 + torch.arange(8, device=device)).to(out)
        grad[m:] = torch.nan
        [back] = torch.autograd.grad(out, leaf, grad)
        for what, at, value in (("values", out_cells, out[:m]), ("gradients", cells, back[:used])):
            mine = (at[: len(value), 0] == 0).nonzero().flatten()
            place = at[mine].double() @ torch.tensor([0, 1e6, 1e3, 1.0]).double().to(device)
            found[f"{name}, {what}"] = value[mine[place.argsort()]].detach()
        assert not out[m:].any() and not back[used:].any()
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_order_capacity_and_batch_mates_change_no_bit_of_a_row(dtype, device):
    cells = torch.cat([block(2, 3, 5), block(4, 4, 70, step=3) + rows((0, 0, 1, 1))])
    cells = ops.unique_cells(cells)[0]
    cells = cells[cells[:, 0] >= 0]
    n = len(cells)
    features = torch.randn(n, 16, generator=generator(9)).to(dtype)
    expected = layers(cells, features, n, device)
    order = torch.randperm(n, generator=generator(10))
    wild = torch.randint(INT_MIN, -INT_MIN - 1, (n, 4), generator=generator(11)).int()
    wild[::2] = cells[::2]
    alone = cells[:, 0] == 0
    others = {
        "order": (cells[order], features[order], n),
        "capacity": (torch.cat([cells, wild]), torch.cat([features, features * NAN]), n),
        "batch mates": (cells[alone], features[alone], int(alone.sum())),
    }
    for name, (at, values, used) in others.items():
        found = layers(at, values, used, device)
        for what, value in expected.items():
            assert_same_bits(found[what], value, f"{name}: {what}")


# ---- what has no gradient


@pytest.mark.parametrize("wants", ["features", "weight", "bias"])
def test_gradients_that_no_op_has_are_refused(wants, device):
    call = {"features": torch.zeros(4, 2), "weight": torch.zeros(3, 1, 1, 1, 2)}
    call |= {"bias": torch.zeros(3), "neighbors": torch.zeros(1, 4).int()}
    call = {k: v.to(device).requires_grad_(k == wants) for k, v in call.items()}
    for fused in ({"relu": True}, {"residual": torch.zeros(4, 3, device=device)}):
        with pytest.raises(NotImplementedError, match="a call with residual or relu is for infer"):
            ops.sparse_conv(**call, **fused)
        with torch.no_grad():
            ops.sparse_conv(**call, **fused)
    if wants == "features":
        with pytest.raises(NotImplementedError, match="needs the table inverse, or submanifold"):
            ops.sparse_conv(**call)
    else:
        ops.sparse_conv(**call).sum().backward()
        assert call[wants].grad is not None
