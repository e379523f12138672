# SPDX-License-Identifier: Apache-2.0
"""group_mlp_max equals the ops it stands for: query_and_group, linear layers, ReLU, a maximum."""

import pytest
import torch
from helpers import assert_same_bits, cube, forced
from op_infos.query_and_group import layers
from torch.nn import functional as F

import torchvox

HALVES = [torch.bfloat16, torch.float16]
# Of the largest value. The expected values round nothing; the op rounds every layer to its dtype,
# and on tensor cores the features' part of the first before the coordinates' part is added: some
# steps of 2^-9 (bfloat16) or 2^-12 (float16).
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-5, torch.float64: 1e-12}


def scene(dtype, widths, n=300, m=40, k=20, channels=9, radius=0.3, origin=0.0, device="cpu"):
    near = torch.float64 if dtype == torch.float64 else torch.float32
    points, query = ((cube(c, batch=2, seed=c) + origin).to(near) for c in (n, m))
    g = torch.Generator().manual_seed(5)
    features = torch.randn(2, n, channels, generator=g).to(dtype) if channels else None
    weights, biases = layers([3 + channels, *widths])
    _, idx, count = torchvox.ball_query(points, query, radius, k)
    call = {"points": points, "query": query, "features": features, "idx": idx, "count": count}
    call = {name: None if t is None else t.to(device) for name, t in call.items()}
    call["weights"] = [w.to(dtype).to(device) for w in weights]
    call["biases"] = [b.to(dtype).to(device) for b in biases]
    return call


def unfused(call, normalize_radius=None, features_first=False, use_xyz=True):
    """In float64, from the inputs as they are."""
    rows, parts = call["idx"].long(), []
    batch = torch.arange(rows.size(0), device=rows.device)[:, None, None]
    if use_xyz:
        relative = call["points"][batch, rows] - call["query"][:, :, None]
        parts.append(relative.double() / (normalize_radius or 1.0))
    if call["features"] is not None:
        parts.append(call["features"][batch, rows].double())
    x = torch.cat(parts[::-1] if features_first else parts, -1)
    for weight, bias in zip(call["weights"], call["biases"], strict=True):
        x = F.relu(F.linear(x, weight.double(), bias.double()))
    return x.max(2)[0]


def assert_close(actual, expected, dtype):
    assert actual.dtype == dtype and actual.shape == expected.shape
    error = (actual.double() - expected).abs().max() / expected.abs().max()
    assert error <= TOLERANCE[dtype], f"{error:.2e} of the largest value"


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("widths", "channels"),
    [
        ((64, 64, 128), 0),
        ((128, 128, 256), 128),
        ((64, 96, 128), 320),
        ((32, 20, 33), 7),
        ((256, 256, 512), 256),
        ((8, 300, 8), 3),
    ],
    ids=str,
)
def test_it_equals_the_ops_it_stands_for(device, widths, channels, dtype):
    call = scene(dtype, widths, channels=channels, device=device)
    expected = unfused(call)
    for kernel in ("portable", "tensor cores") if device == "cuda" else ("portable",):
        with forced(group_mlp=kernel):
            assert_close(torchvox.group_mlp_max(**call), expected, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("options", [
    {"features_first": True}, {"normalize_radius": 0.3},
    {"features_first": True, "normalize_radius": 0.3}, {"use_xyz": False},
], ids=str)  # fmt: skip
def test_it_takes_the_layouts_of_query_and_group(device, dtype, options):
    call = scene(dtype, (32, 48), device=device)
    if "use_xyz" in options:
        call["weights"][0] = call["weights"][0][:, 3:]
    assert_close(torchvox.group_mlp_max(**call, **options), unfused(call, **options), dtype)
    far = scene(dtype, (32, 48), origin=1e4, device=device)  # its differences are exact
    assert_close(torchvox.group_mlp_max(**far), unfused(far), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_bias_may_cancel_what_the_features_overflow_to(device, dtype):
    """Of features far from 0, whose mean a fused batch norm takes away: 72,000 in float16."""
    call = scene(dtype, (32,), device=device)
    call["features"].fill_(1000)
    call["weights"][0][:, 3:] = 8
    call["biases"][0].fill_(-60000)
    assert_close(torchvox.group_mlp_max(**call), unfused(call), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("k", [1, 15, 16, 17, 32, 33, 100])
def test_only_hits_are_read_whatever_their_number(device, dtype, k):
    """Counts 0, 1 and k among others; slots behind the count hold points that would win."""
    call = scene(dtype, (32, 48), m=120, k=k, device=device)
    count = torch.arange(240, dtype=torch.int32).view(2, 120).remainder(k + 1).to(device)
    idx = torch.randint(0, 299, (2, 120, k), generator=torch.Generator().manual_seed(1)).int()
    slot = torch.arange(k, device=device)
    call |= {"count": count, "idx": idx.to(device)}
    call["features"][:, 299] = 100
    filled = torch.where(slot < count[..., None].clamp(min=1), call["idx"], call["idx"][..., :1])
    spoilt = torch.where(slot < count[..., None].clamp(min=1), call["idx"], 299)
    rows = torchvox.group_mlp_max(**{**call, "idx": spoilt})
    assert_close(rows, unfused({**call, "idx": filled}), dtype)
    full = torch.full_like(count, k)  # computing the fill as well changes no bit
    assert_same_bits(torchvox.group_mlp_max(**{**call, "idx": filled, "count": full}), rows)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_nan_among_the_features_of_a_ball_is_its_maximum(device, dtype):
    call = scene(dtype, (32, 33), device=device)
    call["features"][0, 7, 2] = float("nan")
    slot = torch.arange(call["idx"].size(-1), device=device)
    hit = ((call["idx"] == 7) & (slot < call["count"][..., None].clamp(min=1))).any(-1)[0]
    assert hit.any() and not hit.all()
    assert torch.equal(torchvox.group_mlp_max(**call)[0].isnan().all(-1), hit)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_indices_outside_of_the_cloud_are_rows_of_zeros(device, dtype):
    call = scene(dtype, (32, 48), device=device)
    for name in ("points", "features"):  # row 300: zeros, which `unfused` may read
        call[name] = F.pad(call[name], (0, 0, 0, 1))
    outside = torch.tensor([-1, 300, 2**31 - 1, 5], device=device).repeat(5)
    call["idx"][:, :20], call["count"][:, :20] = outside, 3
    cut = {name: call[name][:, :300] for name in ("points", "features")}
    zeros = torch.full_like(call["idx"][:, :20], 300)
    read = {**call, "idx": torch.cat([zeros, call["idx"][:, 20:]], 1)}
    assert_close(torchvox.group_mlp_max(**{**call, **cut}), unfused(read), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_portable_kernel_has_the_bits_of_the_cpu(dtype):
    for widths in ((64, 64, 128), (33,), (8, 2000, 8)):
        call = scene(dtype, widths, k=40)
        with forced(group_mlp=0):
            on_gpu = torchvox.group_mlp_max(**scene(dtype, widths, k=40, device="cuda"))
        assert_same_bits(on_gpu, torchvox.group_mlp_max(**call))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_tensor_cores_give_the_same_bits_each_run_and_in_a_graph(dtype):
    call = scene(dtype, (128, 128, 256), m=500, k=64, channels=128, device="cuda")
    first = torchvox.group_mlp_max(**call)
    for _ in range(50):
        assert_same_bits(torchvox.group_mlp_max(**call), first)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = torchvox.group_mlp_max(**call)
    call["features"].neg_()
    graph.replay()
    assert_same_bits(out, torchvox.group_mlp_max(**call))
