# SPDX-License-Identifier: Apache-2.0
"""PillarFeatureNet against the net that published code writes: padded rows, batch norm, maximum."""

import copy

import pytest
import torch
from helpers import assert_same_bits
from op_infos.op_info import cloud, generator
from op_infos.pillars import GRID, MAP, SIZE, decorate
from torch import Tensor, nn
from torch.nn import functional as F

import torchvox


class PlainNet(nn.Module):
    """Over [V, P, F] padded points; with the parameters of a PillarFeatureNet."""

    def __init__(self, net: torchvox.nn.PillarFeatureNet) -> None:
        super().__init__()
        self.net = net
        self.linears, self.norms = nn.ModuleList(), nn.ModuleList()
        for layer in net.pfn_layers:
            weight = layer.linear.weight
            linear = nn.Linear(weight.size(1), weight.size(0), bias=False)
            linear.weight.data.copy_(weight.data)
            norm = nn.BatchNorm1d(weight.size(0), eps=layer.norm.eps, momentum=layer.norm.momentum)
            norm.load_state_dict(layer.norm.state_dict())
            self.linears.append(linear)
            self.norms.append(norm)
        self.to(net.pfn_layers[0].linear.weight.dtype)

    def forward(self, padded: Tensor, indices: Tensor, num_points: Tensor, batch: int) -> Tensor:
        """Of the rows in use alone."""
        filled = torch.arange(padded.size(1))[None] < num_points[:, None]
        options = {name: getattr(self.net, name) for name in ("center_axes", "legacy")}
        call = {"indices": indices, **options}
        call |= {k: getattr(self.net, k) for k in ("voxel_size", "point_cloud_range")}
        rows = decorate(padded, filled, call)
        counts = filled if self.net.pad_semantics == "none" else torch.ones_like(filled)
        for i, (linear, norm) in enumerate(zip(self.linears, self.norms, strict=True)):
            y = linear(rows)
            normed = torch.zeros_like(y)
            normed[counts] = F.relu(norm(y[counts]))  # relu >= 0: the zeros never win
            best = normed.max(1)[0] if len(y) else y.new_zeros(0, y.size(2))
            if i < len(self.linears) - 1:
                rows = torch.cat([normed, best[:, None].expand_as(normed)], -1)
        nx, ny = self.net.size
        b, _, y, x = indices.long().unbind(1)
        canvas = best.new_zeros(batch, ny, nx, best.size(1)).index_put((b, y, x), best)
        return canvas.permute(0, 3, 1, 2)

    def gradients(self) -> list[Tensor]:
        pairs = zip(self.linears, self.norms, strict=True)
        return [p.grad for linear, norm in pairs for p in (linear.weight, norm.weight, norm.bias)]


def fused_gradients(net: torchvox.nn.PillarFeatureNet) -> list[Tensor]:
    layers = net.pfn_layers
    return [p.grad for la in layers for p in (la.linear.weight, la.norm.weight, la.norm.bias)]


def running(norms) -> list[Tensor]:
    return [getattr(n, name) for n in norms for name in ("running_mean", "running_var")]


TOLERANCE = {torch.float32: (1e-5, 1e-4), torch.float64: (1e-10, 1e-10)}


def scene(n: int = 300, rows: int = 40, max_points: int = 4, dtype=torch.float32):
    """The arguments of the net, and the padded form of the same map cut to the rows in use."""
    points = cloud(n).to(dtype)
    offsets = torch.tensor([0, n // 3, n])
    grid = {**GRID, "max_points": max_points, "max_voxels": rows, "batch_offsets": offsets}
    found = torchvox.voxel_map(points, **grid)
    voxels = torchvox.voxelize(points, **grid, trim=True)
    inputs = (points, *(getattr(found, name) for name in MAP), 2)
    return inputs, (voxels.features, voxels.indices, voxels.num_points, 2)


def net_of(channels=(16,), dtype=torch.float32, **options) -> torchvox.nn.PillarFeatureNet:
    """With scales of the norm that are negative, zero and positive."""
    options = {"max_points": 4, **options}
    net = torchvox.nn.PillarFeatureNet(4, channels, **GRID, **options).to(dtype)
    g = generator(1)
    for layer in net.pfn_layers:
        weight, norm = layer.linear.weight, layer.norm
        weight.data.copy_(torch.randn(weight.shape, generator=g))
        norm.weight.data.copy_(torch.randn(norm.weight.shape, generator=g))
        norm.weight.data[::5] = 0
        norm.bias.data.copy_(torch.randn(norm.bias.shape, generator=g) * 0.5)
        norm.running_mean.copy_(torch.randn(norm.bias.shape, generator=g))
        norm.running_var.copy_(torch.rand(norm.bias.shape, generator=g) + 0.5)
    return net


def close(actual, expected, tolerance: float, what: str) -> None:
    """Within `tolerance` of the largest value."""
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        largest = max(float(e.detach().abs().max()), 1e-3) if e.numel() else 1.0
        assert a.shape == e.shape
        assert not ((a - e.to(a.dtype)).abs() > tolerance * largest).any(), f"{what} {i}"
        assert a.isfinite().all()


each_depth = pytest.mark.parametrize("channels", [(16,), (16, 12)], ids=["one", "two"])


@pytest.mark.one_of("dtype", "center_axes", "legacy")
@pytest.mark.parametrize("pad_semantics", ["reference", "none"])
@pytest.mark.parametrize("legacy", [False, True], ids=["plain", "legacy"])
@pytest.mark.parametrize("center_axes", [2, 3])
@each_depth
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_it_equals_the_plain_net(pad_semantics, legacy, center_axes, channels, dtype):
    options = {"pad_semantics": pad_semantics, "legacy": legacy, "center_axes": center_axes}
    net = net_of(channels, dtype, **options)
    plain = PlainNet(net)
    inputs, padded = scene(dtype=dtype)
    close([net.eval()(*inputs)], [plain.eval()(*padded)], 2e-5, "evaluation")
    net.train(), plain.train()
    if dtype == torch.float32:  # the plain net rounds too much to compare with
        plain, padded = plain.double(), (padded[0].double(), *padded[1:])
    out, want = net(*inputs), plain(*padded)
    forward, backward = TOLERANCE[dtype]
    close([out], [want], 5 * forward, "canvas")
    close(running([la.norm for la in net.pfn_layers]), running(plain.norms), forward, "running")
    assert [la.norm.num_batches_tracked.item() for la in net.pfn_layers] == [1] * len(channels)
    seed = torch.randn(out.shape, generator=generator(7), dtype=torch.float64)
    out.backward(seed.to(dtype))
    want.backward(seed.to(want.dtype))
    close(fused_gradients(net), plain.gradients(), backward, "gradient")


@each_depth
def test_no_points_change_nothing(channels):
    net = net_of(channels).train()
    before = copy.deepcopy(net.state_dict())
    out = net(*scene(n=0)[0])
    assert (out == 0).all() and out.shape == (2, net.out_channels, SIZE[1], SIZE[0])
    for name, value in net.state_dict().items():
        assert_same_bits(value, before[name], name)
    out.sum().backward()
    assert all(torch.isfinite(g).all() for g in fused_gradients(net))


@each_depth
def test_fused_equals_evaluation_and_may_be_half(channels):
    net = net_of(channels).eval()
    inputs, _ = scene()
    want = net(*inputs)
    fused = net.fuse_batch_norm()
    assert_same_bits(fused(*inputs), want)
    half = fused.half()(*inputs)
    assert half.dtype == torch.half and half.is_contiguous(memory_format=torch.channels_last)
    close([half.float()], [want], 4e-3, "half")
    assert not any(p.requires_grad for p in fused.parameters())


@each_depth
def test_autocast_rounds_the_canvas_and_nothing_else(channels, device):
    net = net_of(channels).train().to(device)
    inputs = [v.to(device) if torch.is_tensor(v) else v for v in scene()[0]]
    plain = net(*inputs)
    with torch.autocast(device, torch.bfloat16):
        rounded = net(*inputs)
    assert_same_bits(rounded, plain.to(torch.bfloat16))
    seed = torch.randn(plain.shape, generator=generator(4)).bfloat16().to(device)
    weights = list(net.parameters())
    grads = [torch.autograd.grad(o, weights, seed.to(o.dtype)) for o in (plain, rounded)]
    if len(channels) == 1:
        assert_same_bits(*grads)
    close(*grads, 1e-5, "gradient")  # torch's sums over rows have no order on GPUs


@pytest.mark.parametrize("pad_semantics", ["reference", "none"])
def test_shards_with_added_moments_have_the_gradients_of_one_process(pad_semantics):
    """What sync does over processes: moments are summed, gradients too."""
    inputs, _ = scene(dtype=torch.float64)
    options = {"pad_semantics": pad_semantics, "sync": True}
    whole = net_of(dtype=torch.float64, **options).train()
    points, indices, num_points, point_voxel, point_slot, _ = inputs
    seed = torch.randn(2, 16, SIZE[1], SIZE[0], generator=generator(3), dtype=torch.float64)
    whole(*inputs).backward(seed)

    def shard(sample: int) -> tuple:
        rows = torch.where(indices[:, :1] == sample, indices, -1)
        mine = (point_voxel >= 0) & (indices[point_voxel.clamp(min=0).long(), 0] == sample)
        slots = torch.where(mine, point_slot, -1)
        voxels = torch.where(mine, point_voxel, -1)
        return points, rows, torch.where(rows[:, 0] >= 0, num_points, 0), voxels, slots

    nets = [net_of(dtype=torch.float64, **options).train() for _ in range(2)]
    grid, how = (whole.voxel_size, whole.point_cloud_range), {"pad_semantics": pad_semantics}
    moments = torch.ops.torchvox.pillar_moments
    total = sum(moments(*shard(i), *grid, whole.max_points, **how) for i in range(2))
    for i, net in enumerate(nets):
        net._all_reduced = lambda moments: total.clone()
        net(*shard(i), 2).backward(seed)
    summed = [a + b for a, b in zip(*map(fused_gradients, nets), strict=True)]
    close(summed, fused_gradients(whole), 1e-10, "gradient")
    for net in nets:
        close(running([net.pfn_layers[0].norm]), running([whole.pfn_layers[0].norm]), 1e-12, "run")


def test_names_and_counts_of_the_state_dict():
    """Also after a converter to synchronized batch norm."""
    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net_of((16, 12)))
    names = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    assert set(net.state_dict()) == {
        f"pfn_layers.{i}.{name}"
        for i in range(2)
        for name in ("linear.weight", *(f"norm.{n}" for n in names))
    }
    assert net.pfn_layers[0].linear.weight.shape == (8, 10)
    assert type(net.pfn_layers[0].norm).__name__ == "PillarNorm"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feat_channels": ()}, "at least one layer"),
        ({"feat_channels": (7, 8)}, "must be even"),
        ({"pad_semantics": "zeros"}, "pad_semantics"),
        ({"center_axes": 1}, "center_axes"),
        ({"feat_channels": (8, 8), "sync": True}, "sync takes one layer"),
        ({"eps": 0.0}, "eps must be > 0"),
        ({"feat_channels": (8, 8), "voxel_size": [1.0, 1.0, 2.0]}, "one cell along z, got 2"),
        ({"max_points": -2}, r"max_points must be -1 \(no limit\) or more, got -2"),
        ({"momentum": None}, "momentum must be a number, got None"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(TypeError if "momentum" in options else ValueError, match=message):
        torchvox.nn.PillarFeatureNet(4, **{**GRID, **options})
