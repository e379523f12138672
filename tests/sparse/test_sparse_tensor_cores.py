# SPDX-License-Identifier: Apache-2.0
"""sparse_conv of halves on tensor cores: every plan has the same bits, whatever the order of rows,
the schedule and the capacity; they are within the contract's tolerance, and those of a record."""

import hashlib

import pytest
import torch
from helpers import PLANS, assert_same_bits, bits, forced
from op_infos.op_info import generator
from op_infos.sparse import conv_call

ops = torch.ops.torchvox
pytestmark = pytest.mark.gpu
ROWS, OFFSETS, SEGMENT = 2500, 27, 2048
UNIT = {torch.float16: 2**-11, torch.bfloat16: 2**-8}
CHANNELS = [(1, 1), (5, 7), (16, 16), (17, 35), (32, 32), (33, 64), (64, 64), (128, 128), (264, 72)]
each_dtype = pytest.mark.parametrize("dtype", UNIT, ids=str)
each_width = pytest.mark.parametrize("channels", CHANNELS, ids=str)


def layer(channels, dtype) -> dict:
    """A submanifold layer with everything that it may have, of numbers that any machine makes."""
    call = conv_call(ROWS, channels=channels, inverse=None, submanifold=True)
    call["residual"] = torch.zeros(ROWS, channels[1])
    for seed, name in enumerate(("features", "weight", "bias", "residual")):
        whole = torch.randint(-512, 513, call[name].shape, generator=generator(seed))
        call[name] = (whole / (256 if name != "weight" else 1024)).to(dtype)
    return {k: v.cuda() if torch.is_tensor(v) else v for k, v in call.items()}


def work(call: dict, **options) -> tuple:
    """The value, and the gradients of features, weight and bias of the layer without residual."""
    call = call | options
    value = ops.sparse_conv(**call, relu=True)
    trained = {k: v for k, v in call.items() if k != "residual"}
    for name in ("features", "weight", "bias"):
        trained[name] = trained[name].detach().requires_grad_()
    out = ops.sparse_conv(**trained)
    leaves = [trained[k] for k in ("features", "weight", "bias")]
    return value, *torch.autograd.grad(out, leaves, call["residual"][: len(out)])


@each_dtype
@each_width
def test_every_plan_has_the_same_bits(channels, dtype):
    call = layer(channels, dtype)
    expected = work(call)
    schedule = ops.sparse_schedule(call["neighbors"], [3, 3, 3])
    for plan in PLANS["sparse_tensor_cores"].values.keys() - {"exact"}:
        for order in PLANS["sparse_order"].values:
            with forced(sparse_tensor_cores=plan, sparse_order=order):
                assert_same_bits(work(call), expected, f"{plan}, {order}")
        with forced(sparse_tensor_cores=plan, sparse_wave=1):
            assert_same_bits(work(call, schedule=schedule), expected, f"{plan}, scheduled")


@pytest.mark.parametrize("channels", [(32, 32), (32, 64), (64, 64), (64, 128), (64, 256)], ids=str)
def test_every_plan_has_the_same_bits_over_many_rows(channels):
    """So many that tiles are cut otherwise. The table is any."""
    rows, (ins, outs) = 40_000, channels
    table = torch.randint(-rows, rows, (OFFSETS, rows), generator=generator(4)).int().cuda()
    features = torch.randn(rows, ins, generator=generator(5)).half().cuda()
    weight = torch.randn(outs, 3, 3, 3, ins, generator=generator(6)).half().cuda()
    with forced(sparse_tensor_cores="mma.sync"):
        expected = ops.sparse_conv(features, weight, table)
    assert_same_bits(ops.sparse_conv(features, weight, table), expected)


@each_dtype
@each_width
def test_a_row_depends_on_its_neighbors_and_the_weights_alone(channels, dtype):
    """Not on the order of rows, nor on rows that are not in use, of which the other half are."""
    call = layer(channels, dtype)
    rows = call["neighbors"].size(1)
    order = torch.randperm(rows, generator=generator(9)).cuda()
    place = torch.empty_like(order).scatter_(0, order, torch.arange(rows).cuda()).int()
    moved = call["neighbors"][:, order]
    moved = torch.where(moved >= 0, place[moved.clamp(min=0).long()], moved)
    wild = torch.randint(-9, 2 * rows, (OFFSETS, rows), generator=generator(1)).int().cuda()

    def doubled(name):
        return torch.cat([call[name][order], torch.full_like(call[name], float("nan"))])

    used = int(call["num_valid"])
    ends = torch.cat([order < used, torch.zeros(rows, device="cuda", dtype=torch.bool)])
    large = call | {k: doubled(k) for k in ("features", "residual")}
    large |= {"neighbors": torch.cat([moved, wild], 1), "num_valid": torch.tensor(rows).cuda()}
    for one, two in zip(work(call)[:2], work(large)[:2], strict=True):
        assert_same_bits(two[: len(ends)][ends], one[order][ends[:rows]])


@each_dtype
@each_width
def test_errors_stay_within_the_tolerance(channels, dtype):
    """Against float64: u |value| + n 2^-22 S, n the slices of the chain + 2, S the sum of the
    magnitudes that it adds; and half a step of the subnormals of float16."""
    call = layer(channels, dtype)
    exact = {
        k: v.double() if torch.is_tensor(v) and v.dtype == dtype else v for k, v in call.items()
    }
    sums = work({k: v.abs() if torch.is_tensor(v) and v.dtype == torch.double else v
                 for k, v in exact.items()})  # fmt: skip
    slices = [-(-c // 16) * OFFSETS + 2 for c in channels]
    segments = -(-ROWS // SEGMENT)
    terms = (slices[0], slices[1], SEGMENT // 16 + segments, SEGMENT + segments)
    for n, found, want, s in zip(terms, work(call), work(exact), sums, strict=True):
        error = (found.double() - want).abs()
        assert (error <= UNIT[dtype] * want.abs() + n * 2**-22 * s + 2**-25).all()


RECORD = {
    (90, torch.float16): "b02bfe0262d1d303",
    (90, torch.bfloat16): "efd64aa47f5038ad",
}


@each_dtype
def test_bits_are_those_of_the_record(dtype):
    """Of every GPU of an architecture."""
    digest = hashlib.sha256()
    for channels in CHANNELS:
        for value in work(layer(channels, dtype)):
            digest.update(bits(value).numpy().tobytes())
    major, minor = torch.cuda.get_device_capability()
    if (10 * major + minor, dtype) not in RECORD:
        pytest.skip(
            f"no record of {dtype} on sm_{major}{minor}; this one gives {digest.hexdigest()[:16]}"
        )
    assert digest.hexdigest()[:16] == RECORD[10 * major + minor, dtype]
