# SPDX-License-Identifier: Apache-2.0
"""What furthest_point_sample refuses, and in which words: op, argument, expected, got."""

import pytest
import torch
from fps_cases import to
from helpers import cube

ops = torch.ops.torchvox
BATCHED, RAGGED = "furthest_point_sample", "furthest_point_sample_ragged"


def batched(device, points=None, s=4, **options):
    points = cube(20, batch=2) if points is None else points
    options = {k: to(device, v) for k, v in options.items()}
    return ops.furthest_point_sample(points.to(device), s, **options)


def ragged(
    device, points=None, batch_offsets=(0, 5, 20), out_offsets=(0, 2, 4), total=4, **options
):
    points = cube(20)[0] if points is None else points
    batch_offsets, out_offsets = (
        t if torch.is_tensor(t) else torch.tensor(t) for t in (batch_offsets, out_offsets)
    )
    options = {k: to(device, v) for k, v in options.items()}
    return ops.furthest_point_sample_ragged(
        points.to(device), batch_offsets.to(device), out_offsets.to(device), total, **options
    )


def refused(error, op, argument, got):
    return pytest.raises(error, match=rf"^{op}: {argument}\b.*, got {got}")


@pytest.mark.parametrize("shape", [(20,), (20, 3), (2, 20, 3, 1), (2, 20, 0)])
def test_points_must_be_batched_clouds(device, shape):
    got = "\\[" + ", ".join(map(str, shape)) + "\\]"
    with refused(ValueError, BATCHED, "points", got):
        batched(device, torch.ones(shape))


@pytest.mark.parametrize("shape", [(20,), (1, 20, 3), (20, 0)])
def test_ragged_points_must_be_packed_rows(device, shape):
    got = "\\[" + ", ".join(map(str, shape)) + "\\]"
    with refused(ValueError, RAGGED, "points", got):
        ragged(device, torch.ones(shape))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool])
def test_points_must_be_floating_point(device, dtype):
    with refused(TypeError, BATCHED, "points", ""):
        batched(device, torch.ones(2, 20, 3, dtype=dtype))
    with refused(TypeError, RAGGED, "points", ""):
        ragged(device, torch.ones(20, 3, dtype=dtype))


def test_negative_sizes(device):
    with refused(ValueError, BATCHED, "num_samples", "-1"):
        batched(device, s=-1)
    with refused(ValueError, RAGGED, "max_total", "-5"):
        ragged(device, total=-5)


@pytest.mark.parametrize("op", [batched, ragged])
@pytest.mark.parametrize("option", ["tie", "dist_order", "exhausted", "nonfinite"])
def test_unknown_option_strings(device, op, option):
    name = BATCHED if op is batched else RAGGED
    for value in ("", "Lowest", "random"):
        with refused(ValueError, name, option, f".?{value}"):
            op(device, **{option: value})


@pytest.mark.parametrize("op", [batched, ragged])
@pytest.mark.parametrize("tie_block", [0, -1, -1024, 3, 100, 1023, 2048])
def test_tie_block_is_a_power_of_two_up_to_1024(device, op, tie_block):
    name = BATCHED if op is batched else RAGGED
    with refused(ValueError, name, "tie_block", str(tie_block)):
        op(device, tie="mmcv", tie_block=tie_block)


@pytest.mark.parametrize("op", [batched, ragged])
def test_start_is_not_negative(device, op):
    with refused(ValueError, BATCHED if op is batched else RAGGED, "start", "-1"):
        op(device, start=-1)


@pytest.mark.parametrize("op", [batched, ragged])
def test_last_and_repeat_contradict_each_other(device, op):
    name = BATCHED if op is batched else RAGGED
    with pytest.raises(ValueError, match=rf"^{name}: (exhausted|nonfinite)\b.*, got"):
        op(device, nonfinite="last", exhausted="repeat")


@pytest.mark.parametrize("d", [1, 2, 4])
def test_skip_origin_needs_three_dimensions(device, d):
    with pytest.raises(ValueError, match=rf"^{BATCHED}: (skip_origin|points)\b.*, got.*{d}"):
        batched(device, cube(20, d=d), skip_origin=True)
    with pytest.raises(ValueError, match=rf"^{RAGGED}: (skip_origin|points)\b.*, got.*{d}"):
        ragged(device, cube(20, d=d)[0], skip_origin=True)


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_init_dist2_is_not_negative(device, value):
    with refused(ValueError, BATCHED, "init_dist2", ""):
        batched(device, init_dist2=value)


@pytest.mark.parametrize("argument", ["lengths", "counts", "start_idx"])
def test_integer_arguments_of_another_type(device, argument):
    for dtype in (torch.float32, torch.int16, torch.bool):
        with refused(TypeError, BATCHED, argument, ""):
            batched(device, **{argument: torch.ones(2, dtype=dtype)})


@pytest.mark.parametrize("argument", ["lengths", "counts", "start_idx"])
def test_integer_arguments_of_another_length(device, argument):
    for shape in ((3,), (1,), ()) if argument == "start_idx" else ((3,), (2, 1), ()):
        with refused(ValueError, BATCHED, argument, r"\["):
            batched(device, **{argument: torch.ones(shape, dtype=torch.int32)})


def test_start_sets_of_another_shape(device):
    for shape in ((3, 2), (2, 1, 1)):
        with refused(ValueError, BATCHED, "start_idx", r"\["):
            batched(device, start_idx=torch.ones(shape, dtype=torch.int64))
        with refused(ValueError, RAGGED, "start_idx", r"\["):
            ragged(device, start_idx=torch.ones(shape, dtype=torch.int64))


@pytest.mark.parametrize("argument", ["batch_offsets", "out_offsets"])
def test_offsets_are_integer_vectors(device, argument):
    with refused(TypeError, RAGGED, argument, ""):
        ragged(device, **{argument: torch.tensor([0.0, 2.0, 4.0])})
    for bad in (torch.zeros(3, 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)):
        with refused(ValueError, RAGGED, argument, r"\["):
            ragged(device, **{argument: bad})


def test_offsets_of_different_lengths(device):
    with pytest.raises(ValueError, match=rf"^{RAGGED}: (batch_offsets|out_offsets)\b.*, got"):
        ragged(device, out_offsets=(0, 2, 4, 4))


@pytest.mark.gpu
@pytest.mark.parametrize("argument", ["lengths", "counts", "start_idx"])
def test_all_tensors_share_one_device(argument):
    with pytest.raises(RuntimeError, match=rf"^{BATCHED}: {argument}\b.*, got cpu"):
        ops.furthest_point_sample(
            cube(20).cuda(), 4, **{argument: torch.zeros(1, dtype=torch.int64)}
        )


@pytest.mark.gpu
def test_a_refusal_leaves_the_device_usable():
    with pytest.raises(ValueError, match=BATCHED):
        batched("cuda", s=-1)
    idx, _ = batched("cuda")
    torch.cuda.synchronize()
    assert idx.shape == (2, 4)
