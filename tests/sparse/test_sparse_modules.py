# SPDX-License-Identifier: Apache-2.0
"""Sparse modules, and with them the ops and their reference, against torch's dense layers on grids
that are masked to the rows' cells."""

import copy
import re

import pytest
import torch
from helpers import assert_same_bits
from op_infos.op_info import generator
from samples import layers_of
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import torchvox.nn
from torchvox.models.fuse import fuse_batch_norms, is_fused
from torchvox.nn import (
    SparseBatchNorm,
    SparseConv3d,
    SparseInverseConv2d,
    SparseInverseConv3d,
    SparseMaxPool3d,
    SparseReLU,
    SparseSequential,
    SparseTensor,
    SubMConv2d,
    SubMConv3d,
    ToDense,
    sparse_tensor,
)
from torchvox.nn.sparse_blocks import FusedSparseConv, SparseResidualBlock

SHAPE, FLAT, BATCH = [5, 6, 7], [1, 6, 7], 3
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def scene(rows: int = 60, unused: int = 5, dtype=torch.float32, shape=SHAPE):
    """Features, indices and their number: cells of samples 0 and 2, then rows of NaN and wild
    indices."""
    g = generator(rows)
    cells = torch.cartesian_prod(torch.tensor([0, 2]), *(torch.arange(n) for n in shape))
    used = cells[torch.randperm(len(cells), generator=g)[:rows]]
    features = torch.randn(len(used), 3, generator=g, dtype=dtype)
    features = torch.cat([features, torch.full((unused, 3), torch.nan, dtype=dtype)])
    wild = torch.randint(-(2**31), 2**31 - 1, (unused, 4), generator=g)
    wild[::2] = cells[: len(wild[::2])]
    return features, torch.cat([used, wild]).int(), torch.tensor([len(used)])


def tensor_of(features, indices, num_valid, shape=SHAPE) -> SparseTensor:
    return sparse_tensor(features, indices, shape, BATCH, num_valid)


def window_of(layer: nn.Module) -> tuple[list[int], ...]:
    return layer.stride, layer.padding, layer.dilation


class Dense:
    """Sparse layers as dense ones: a grid, and 1 in the cells that have a row."""

    def __init__(self, x: SparseTensor, rows: int) -> None:
        cells, shape = x.indices[:rows].long().unbind(1), (x.batch_size, *x.spatial_shape)
        grid = x.features.new_zeros(*shape, x.features.size(1))
        self.grid = grid.index_put(cells, x.features[:rows]).movedim(-1, 1)
        self.sites = grid.new_zeros(shape).index_put(cells, grid.new_ones(rows))[:, None]
        self.finer: dict[str, tuple[Tensor, nn.Module]] = {}

    def run(self, *layers: nn.Module) -> "Dense":
        for layer in layers:
            if isinstance(layer, SparseResidualBlock):
                shortcut = copy.copy(self).run(*layer.shortcut)
                self.run(layer.conv1, layer.norm1, SparseReLU(), layer.conv2, layer.norm2)
                self.grid = (self.grid + shortcut.grid).relu()
            elif isinstance(layer, SparseReLU):
                self.grid = self.grid.relu()
            elif isinstance(layer, SparseBatchNorm):
                where, rows = self.sites[:, 0] > 0, self.grid.movedim(1, -1)
                normed = F.batch_norm(
                    rows[where], layer.running_mean, layer.running_var, layer.weight, layer.bias,
                    layer.training, layer.momentum, layer.eps,
                )  # fmt: skip
                self.grid = torch.zeros_like(rows).index_put((where,), normed).movedim(-1, 1)
            else:
                grid = self.window(layer)
                self.grid = torch.where(self.sites > 0, grid, 0)
        return self

    def window(self, layer: nn.Module) -> Tensor:
        """What a layer with a kernel gives everywhere; `sites` become those of its outputs."""
        size, before = layer.kernel_size, self.sites
        if not isinstance(layer, SparseMaxPool3d):
            shape = (layer.out_channels, *size, layer.in_channels)
            weight, bias = layer.weight.view(shape).movedim(-1, 1), layer.bias
        if isinstance(layer, SparseInverseConv3d):  # the gradient of a convolution
            self.sites, down = self.finer[layer.indice_key]
            sizes = (len(self.grid), layer.out_channels, *self.sites.shape[2:])
            turned = weight.transpose(0, 1)
            grid = nn.grad.conv3d_input(sizes, turned, self.grid, *window_of(down))
            return grid + bias.view(-1, 1, 1, 1)
        if isinstance(layer, SubMConv3d):
            padding = [d * (k // 2) for k, d in zip(size, layer.dilation, strict=True)]
            return F.conv3d(self.grid, weight, bias, 1, padding, layer.dilation)
        options, self.finer[layer.indice_key] = window_of(layer), (before, layer)
        self.sites = (F.conv3d(before, before.new_ones(1, 1, *size), None, *options) > 0.5).double()
        if not isinstance(layer, SparseMaxPool3d):
            return F.conv3d(self.grid, weight, bias, *options)
        pads = [p for p in reversed(layer.padding) for _ in range(2)]
        empty = F.pad(self.grid.masked_fill(before == 0, -torch.inf), pads, value=-torch.inf)
        return F.max_pool3d(empty, size, layer.stride, 0, layer.dilation)


CHAIN = """
SubMConv3d(3, 4, bias=False), SparseBatchNorm(4, 1e-3, 0.01), SparseReLU(),
SparseConv3d(4, 5, 3, 2, 1, indice_key="a"), SparseResidualBlock(5, 5),
SparseMaxPool3d(2, 1, 1, indice_key="b"), SubMConv3d(5, 4), SparseInverseConv3d(4, 5, 2, "b"),
SparseInverseConv3d(5, 4, 3, "a"), SparseResidualBlock(4, 3, bias=True), SubMConv3d(3, 2)
"""
PAIR = (
    "SparseConv{0}d(3, 4, {1}, {2}, {3}, dilation={4}, indice_key='a'),"
    "SparseInverseConv{0}d(4, 2, {1}, 'a')"
)
# Axes, kernel, stride, padding, dilation.
WINDOWS = [
    (3, 3, 2, 1, 1),
    (3, 2, 2, 0, 1),
    (3, (3, 1, 1), (2, 1, 1), 0, 1),
    (3, (3, 2, 1), (2, 1, 3), (0, 1, 0), (1, 2, 1)),
    (3, (2, 4, 2), (2, 3, 2), (0, 2, 1), 1),
    (3, (3, 1, 2), (2, 1, 4), (2, 0, 3), (2, 1, 6)),
    (3, 3, (2, 1, 3), (4, 2, 5), 1),
    (2, 3, (2, 1), 1, 1),
    (2, 2, 3, 0, 1),
]
LAYERS = [
    CHAIN,
    *(PAIR.format(*window) for window in WINDOWS),
    "SubMConv3d(3, 4)",
    "SubMConv3d(3, 4, (3, 1, 5), dilation=(2, 1, 1))",
    "SubMConv3d(3, 4, 1, bias=False)",
    "SubMConv2d(3, 4, (3, 5))",
    "SparseConv3d(3, 4, 2), SubMConv3d(4, 4), SparseConv3d(4, 4, 2), SubMConv3d(4, 4)",
    "SparseMaxPool3d(3, 2, (1, 0, 2), dilation=(1, 2, 1))",
    "SparseBatchNorm(3)",
]


def network(code: str, dtype=torch.float32) -> SparseSequential:
    """With random biases, scales and running statistics of norms, which stay float32 in halves."""
    net, g = SparseSequential(*layers_of(code)).to(dtype), generator(1)
    for module in net.modules():
        if isinstance(module, SparseBatchNorm):
            module.to(torch.promote_types(dtype, torch.float32))
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                tensor.data.copy_(torch.rand(tensor.shape, generator=g) + 0.3)
    return net


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("code", LAYERS)
def test_layers_and_gradients_equal_dense_ones(code, training, device):
    shape = FLAT if "2d" in code else SHAPE
    features, indices, num_valid = (t.to(device) for t in scene(60, 5, torch.float64, shape))
    net = network(code, torch.float64).train(training).to(device)
    plain, rows = copy.deepcopy(net), int(num_valid)
    ours, theirs = features.clone().requires_grad_(), features.clone().requires_grad_()
    out = net(tensor_of(ours, indices, num_valid, shape))
    dense = Dense(tensor_of(theirs, indices, num_valid, shape), rows).run(*plain)
    grid, found = ToDense()(out), int(out.num_valid.flatten()[0])
    assert found == dense.sites.sum() and (out.features[found:] == 0).all()
    torch.testing.assert_close(grid, dense.grid, rtol=1e-10, atol=1e-10)
    for mine, other in zip(net.buffers(), plain.buffers(), strict=True):
        if mine.dtype.is_floating_point:  # F.batch_norm counts no batches
            torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)
    g = torch.randn(grid.shape, generator=generator(2), dtype=grid.dtype).to(device)
    grads = torch.autograd.grad((grid * g).sum(), [ours, *net.parameters()])
    expected = torch.autograd.grad((dense.grid * g).sum(), [theirs, *plain.parameters()])
    torch.testing.assert_close(grads, expected, rtol=1e-9, atol=1e-9)
    assert (grads[0][rows:] == 0).all()


def test_unused_rows_and_capacity_change_no_bit_of_a_step(device):
    made, results = network(CHAIN).train().to(device), []
    for unused in (0, 70):
        net = copy.deepcopy(made)
        out = ToDense()(net(tensor_of(*(t.to(device) for t in scene(60, unused)))))
        out.square().sum().backward()
        results.append([out, *net.buffers(), *(p.grad for p in net.parameters())])
    assert_same_bits(*results)
    grid = results[0][0]
    assert grid.flatten(1, 2).is_contiguous(memory_format=torch.channels_last)


ROWS = """
SubMConv3d(3, 16), SparseBatchNorm(16), SparseConv3d(16, 16, 3, 2, 1, indice_key="a"),
SparseResidualBlock(16, 8), SparseInverseConv3d(8, 4, 3, "a")
"""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_order_capacity_and_batch_mates_change_no_bit_of_a_row(dtype, device):
    """Of values and of gradients of features."""
    net, noise = network(ROWS, dtype).eval().to(device), torch.rand(BATCH, *SHAPE, 4)

    def values(features: Tensor, indices: Tensor, used: int) -> tuple[Tensor, Tensor]:
        leaf = features.to(device, dtype).requires_grad_()
        out = net(tensor_of(leaf, indices.to(device), torch.tensor([used], device=device))).features
        grad = torch.full_like(out, torch.nan)
        grad[:used] = noise[tuple(indices[:used].long().T)].to(out)
        [back] = torch.autograd.grad(out, leaf, grad)
        assert not out[used:].any() and not back[used:].any()
        return out[:used], back[:used]

    features, indices, _ = scene(300, 0)
    expected, order = values(features, indices, 300), torch.randperm(300, generator=generator(3))
    for rows in (order, (indices[:, 0] == 0).nonzero()[:, 0]):
        found = values(features[rows], indices[rows], len(rows))
        assert_same_bits(found, tuple(each[rows.to(device)] for each in expected))
    wide = scene(300, 300)
    assert_same_bits(values(*wide[:2], 300), expected)


def test_rows_outside_enter_no_plane_of_a_dense_grid(device):
    cells = [(1, 4, 2, 3), (1, -1, 0, 0), (0, 5, 1, 1), (1, 4, 2, 3)]
    wraps = [(858993460, 0, 2, 2), (-858993459, 0, 3, 3)]  # 5 planes of them are 4 and 1 in 2^32
    indices = torch.tensor([*cells, *wraps, (0, 0, 0, 0)], dtype=torch.int32, device=device)
    features = torch.arange(1.0, 8.0, device=device)[:, None]
    grid = ToDense()(tensor_of(features, indices, torch.tensor([6], device=device)))
    assert grid.nonzero().tolist() == [[1, 0, 4, 2, 3]] and grid.sum() == 1


class Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_maps_are_shared_by_level_and_never_between_chains():
    down = SparseConv3d(3, 3, 3, 2, 1, indice_key="a")
    other = SparseConv3d(3, 3, 3, 2, 1, max_rows=9)
    near, far = SubMConv3d(3, 3), SubMConv3d(3, 3, dilation=2)
    first, second = tensor_of(*scene()), tensor_of(*scene())
    with torch.no_grad(), Calls() as calls:
        coarse = near(near(down(far(near(near(first))))))
        back = near(SparseInverseConv3d(3, 3, 3, "a")(coarse))
        branch = near(other(first))
    assert calls.names.count("sparse_subm_map") == 4  # near, far, and near on two coarser levels
    assert back.level == "" and back.num_valid is first.num_valid
    assert len({"", coarse.level, branch.level}) == 3 and branch.features.shape == (9, 3)
    assert coarse.maps is back.maps is branch.maps is first.maps and not second.maps
    assert down(second).level == coarse.level


def test_capacity_is_max_rows_or_grows_with_that_of_the_input():
    for options, rows in (({"growth": 0.41}, 28), ({"max_rows": 5}, 5), ({}, 108)):
        layer = SparseConv3d(3, 2, 3, 2, 1, **options)  # {}: all 3 * 36 cells
        for run in (layer, torch.jit.script(layer)):
            out = run(tensor_of(*scene(60, 7)))
            assert len(out.indices) == rows
            assert int(out.num_valid[0, 0]) == min(int(out.num_valid[0, 1]), rows)


# What is wrong with a tensor x, and the message from its start.
WRONG = [
    ("SubMConv3d(3, 3, (3, 2, 3))", "SubMConv3d: kernel_size must be odd, got (3, 2, 3)"),
    ("SubMConv2d(3, 3, (3, 3, 3))",
     "SubMConv2d: kernel_size must be an int or 2 of them, each >= 1, got (3, 3, 3)"),
    ("SparseConv3d(3, 3, 3, 1, -1)",
     "SparseConv3d: padding must be an int or 3 of them, each >= 0, got -1"),
    ("SparseMaxPool3d(max_rows=-2)", "SparseMaxPool3d: max_rows must be >= -1, got -2"),
    ("SparseConv3d(3, 3, max_rows=5, growth=1.0)",
     "SparseConv3d: growth must be finite, >= 0, and 0 beside max_rows, got 1.0"),
    ("SparseBatchNorm(3, 0)", "SparseBatchNorm: eps must be > 0, got 0"),
    ("SubMConv3d(4, 3)(x)", "SubMConv3d: features must have 4 channels, got 3"),
    ("SparseConv3d(3, 3, 7)(x)", "SparseConv3d: spatial_shape must leave cells in the output, got "
     "[5, 6, 7], which becomes [-1, 0, 1]"),
    ("SparseConv3d(3, 3, indice_key='a')(SparseMaxPool3d(indice_key='a')(x))",
     "SparseConv3d: indice_key must be new to the chain, got a, the key of an earlier layer"),
    ("SparseInverseConv3d(3, 3, 3, 'a')(SubMConv3d(3, 3)(x))",
     "SparseInverseConv3d: indice_key must be that of a strided layer before, got a"),
    ("SparseInverseConv3d(3, 3, (1, 1, 3), 'a')(down(x))",
     "SparseInverseConv3d: kernel_size must be that of the map a, [3, 1, 1], got [1, 1, 3]"),
    ("SparseInverseConv3d(3, 3, (3, 1, 1), 'a')(SparseConv3d(3, 3, 1)(down(x)))",
     "SparseInverseConv3d: the rows must be those that the map a made"),
    ("sparse_tensor(x.features, x.indices[:, 1:], SHAPE, 3)",
     "sparse_tensor: indices must be [C, 4], got torch.Size([65, 3])"),
    ("sparse_tensor(x.features[1:], x.indices, SHAPE, 3)",
     "sparse_tensor: features must be [C, channels] with a row for each of indices"),
    ("sparse_tensor(x.features, x.indices, [6, 7], 3)",
     "sparse_tensor: spatial_shape must be (z, y, x), got [6, 7]"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "message"), WRONG, ids=[code for code, _ in WRONG])
def test_wrong_uses_are_errors_of_one_sentence(code, message):
    down = SparseConv3d(3, 3, (3, 1, 1), indice_key="a")
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        eval(code, vars(torchvox.nn) | globals(), {"x": tensor_of(*scene()), "down": down})


@pytest.mark.parametrize("how", [copy.copy, torch.jit.script], ids=["eager", "scripted"])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_statistics_are_those_of_batch_norm(momentum, how, device):
    ours = how(SparseBatchNorm(3, momentum=momentum).double().to(device))
    theirs = nn.BatchNorm1d(3, momentum=momentum).double().to(device)
    assert {k: v.shape for k, v in ours.state_dict().items()} == {
        k: v.shape for k, v in theirs.state_dict().items()
    }
    for rows in (9, 0, 40, 2):
        x = tensor_of(*(t.to(device) for t in scene(rows, dtype=torch.float64)))
        out = ours(x).features
        if rows > 0:
            torch.testing.assert_close(out[:rows], theirs(x.features[:rows]))
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    before = ours.running_var.clone()
    out = ours(tensor_of(*(t.to(device) for t in scene(1, dtype=torch.float64)))).features
    assert_same_bits(out[0], ours.bias.detach())
    share = 1 / 4 if momentum is None else momentum
    torch.testing.assert_close(ours.running_var, before * (1 - share))
    assert ours.num_batches_tracked == 4


def test_parameters_have_the_names_layout_and_range_of_spconv():
    layers = (SparseConv3d(8, 32, (3, 2, 1)), SubMConv2d(8, 32), SparseInverseConv2d(8, 9, 2, "a"))
    shapes = [[32, 3, 2, 1, 8], [32, 3, 3, 8], [9, 2, 2, 8]]
    for layer, shape in zip(layers, shapes, strict=True):
        found = {k: list(v.shape) for k, v in layer.state_dict().items()}
        assert found == {"weight": shape, "bias": shape[:1]}
        bound = layer.weight[0].numel() ** -0.5
        assert 0.9 * bound < layer.weight.abs().max() <= bound >= layer.bias.abs().max()
    assert list(SubMConv3d(1, 1, bias=False).state_dict()) == ["weight"]


FLAT_CHAIN = "SubMConv2d(3, 4, (3, 5)), SparseBatchNorm(4), SparseReLU(), SubMConv2d(4, 2)"


@pytest.mark.parametrize("code", [CHAIN, FLAT_CHAIN])
def test_a_fused_network_equals_evaluation(code):
    net = network(code, torch.float64).train()
    fused = fuse_batch_norms(net)
    assert net.training and not is_fused(net) and is_fused(fused)
    left = [m for m in fused.modules() if isinstance(m, (SparseBatchNorm, SparseReLU))]
    assert not left and not any(p.requires_grad for p in fused.parameters())
    shape = FLAT if "2d" in code else SHAPE
    expected, same, half = (
        one(tensor_of(*scene(60, 5, torch.float64, shape), shape)).features
        for one in (net.eval(), fused, fuse_batch_norms(net, torch.bfloat16))
    )
    torch.testing.assert_close(same, expected)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), expected, rtol=0.05, atol=0.05)


def test_a_fused_block_is_a_map_and_two_launches():
    fused = fuse_batch_norms(SparseSequential(SparseResidualBlock(3, 3)))
    x = tensor_of(*scene())
    with Calls() as calls:
        fused(x)
    launches = [name for name in calls.names if name != "new_empty"]
    assert launches == ["sparse_subm_map", "sparse_conv", "sparse_conv"]


def test_repeated_modules_of_a_sequence_fuse_where_they_stand():
    conv, relu, norm = SubMConv3d(3, 3), SparseReLU(), SparseBatchNorm(3)
    norm.running_mean.fill_(0.3)
    net = SparseSequential(conv, relu, conv, norm, relu, conv, relu, norm).eval()
    fused = fuse_batch_norms(net)
    kinds = [type(m) for m in fused]
    assert kinds == [FusedSparseConv, FusedSparseConv, FusedSparseConv, SparseBatchNorm]
    expected = net(tensor_of(*scene())).features
    torch.testing.assert_close(fused(tensor_of(*scene())).features, expected)
