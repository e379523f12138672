# SPDX-License-Identifier: Apache-2.0
"""Sparse modules against torch's dense layers on grids that are masked to the rows' cells."""

import copy
import re

import pytest
import torch
from helpers import assert_same_bits
from op_infos.op_info import generator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from torchvox._util.errors import WrongUseError
from torchvox.models.fuse import fuse_batch_norms, is_fused
from torchvox.nn import (
    SparseBatchNorm,
    SparseConv2d,
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
from torchvox.train.norm import convert_batch_norm

SHAPE, BATCH = [5, 6, 7], 3


def scene(rows: int = 60, unused: int = 5, dtype=torch.float32, shape=SHAPE):
    """Features, indices and their number: cells of samples 0 and 2, then rows of NaN and wild
    indices."""
    g = generator(rows)
    cells = torch.cartesian_prod(torch.tensor([0, 2]), *(torch.arange(n) for n in shape))
    used = cells[torch.randperm(len(cells), generator=g)[:rows]]
    features = torch.randn(rows, 3, generator=g, dtype=dtype)
    features = torch.cat([features, torch.full((unused, 3), torch.nan, dtype=dtype)])
    wild = torch.randint(-(2**31), 2**31 - 1, (unused, 4), generator=g)
    wild[::2] = cells[: len(wild[::2])]
    return features, torch.cat([used, wild]).int(), torch.tensor([rows])


def wide_scene(name: str):
    return scene(dtype=torch.float64, **LAYERS[name][1])


def tensor_of(features, indices, num_valid, shape=SHAPE) -> SparseTensor:
    return sparse_tensor(features, indices, shape, BATCH, num_valid)


class Dense:
    """Sparse layers as dense ones: a grid, and which cells have a row."""

    def __init__(self, x: SparseTensor, rows: int) -> None:
        b, z, y, x_ = x.indices[:rows].long().unbind(1)
        shape = [x.batch_size, *x.spatial_shape]
        grid = x.features.new_zeros(*shape, x.features.size(1))
        self.grid = grid.index_put((b, z, y, x_), x.features[:rows]).permute(0, 4, 1, 2, 3)
        self.sites = grid.new_zeros(shape).index_put((b, z, y, x_), grid.new_ones(rows))[:, None]
        self.finer: dict[str, tuple[Tensor, nn.Module]] = {}

    def run(self, layer: nn.Module) -> None:
        if isinstance(layer, SparseResidualBlock):
            before = self.grid
            for one in (layer.conv1, layer.norm1, SparseReLU(), layer.conv2, layer.norm2):
                self.run(one)
            after, self.grid = self.grid, before
            for one in layer.shortcut:
                self.run(one)
            self.grid = (self.grid + after).relu()
        elif isinstance(layer, SparseReLU):
            self.grid = self.grid.relu()
        elif isinstance(layer, SparseBatchNorm):
            where = self.sites[:, 0] > 0
            normed = F.batch_norm(
                self.grid.permute(0, 2, 3, 4, 1)[where], layer.running_mean, layer.running_var,
                layer.weight, layer.bias, layer.training, layer.momentum, layer.eps,
            )  # fmt: skip
            rows = normed.new_zeros(*where.shape, normed.size(1))
            self.grid = rows.index_put((where,), normed).permute(0, 4, 1, 2, 3)
        elif isinstance(layer, SparseMaxPool3d):
            empty = self.grid.masked_fill(self.sites == 0, -torch.inf)
            pads = [p for p in reversed(layer.padding) for _ in range(2)]
            options = layer.kernel_size, layer.stride, 0, layer.dilation
            self.grid = F.max_pool3d(F.pad(empty, pads, value=-torch.inf), *options)
            self.to_outputs(layer)
            self.grid = self.grid.masked_fill(self.sites == 0, 0)
        else:
            self.convolve(layer)
            self.grid = self.grid * self.sites

    def to_outputs(self, layer: nn.Module) -> None:
        self.finer[layer.indice_key] = self.sites, layer
        ones = self.sites.new_ones(1, 1, *layer.kernel_size)
        reached = F.conv3d(self.sites, ones, None, layer.stride, layer.padding, layer.dilation)
        self.sites = (reached > 0.5).to(reached.dtype)

    def convolve(self, layer: nn.Module) -> None:
        weight = layer.weight if layer.weight.dim() == 5 else layer.weight[:, None]
        weight = weight.permute(0, 4, 1, 2, 3)
        if isinstance(layer, SparseInverseConv3d):
            self.sites, down = self.finer[layer.indice_key]
            sizes = zip(
                self.sites.shape[2:], down.kernel_size, down.stride, down.padding, down.dilation,
                strict=True,
            )  # fmt: skip
            rest = [(n + 2 * p - d * (k - 1) - 1) % s for n, k, s, p, d in sizes]
            self.grid = F.conv_transpose3d(
                self.grid, weight.transpose(0, 1), layer.bias, down.stride, down.padding, rest, 1,
                down.dilation,
            )  # fmt: skip
        elif isinstance(layer, SubMConv3d):
            padding = [d * (k // 2) for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
            self.grid = F.conv3d(self.grid, weight, layer.bias, 1, padding, layer.dilation)
        else:
            options = layer.stride, layer.padding, layer.dilation
            self.grid = F.conv3d(self.grid, weight, layer.bias, *options)
            self.to_outputs(layer)


FLAT = {"shape": [1, 6, 7], "rows": 40}
LAYERS = {
    "submanifold": ([lambda: SubMConv3d(3, 4)], {}),
    "submanifold, dilated": ([lambda: SubMConv3d(3, 4, (3, 1, 5), dilation=(2, 1, 1))], {}),
    "submanifold, one cell": ([lambda: SubMConv3d(3, 4, 1, bias=False)], {}),
    "submanifold, planar": ([lambda: SubMConv2d(3, 4, (3, 5))], FLAT),
    "stride 2": ([lambda: SparseConv3d(3, 4, 3, 2, 1)], {}),
    "stride 2, even": ([lambda: SparseConv3d(3, 4, 2, 2, bias=False)], {}),
    "strided, mixed": (
        [lambda: SparseConv3d(3, 4, (3, 2, 1), (2, 1, 3), (0, 1, 0), dilation=(1, 2, 1))],
        {},
    ),
    "strided, planar": ([lambda: SparseConv2d(3, 4, 3, (2, 1), 1)], FLAT),
    "inverse": (
        [
            lambda: SparseConv3d(3, 4, 3, 2, (0, 1, 1), indice_key="a"),
            lambda: SparseInverseConv3d(4, 2, 3, "a"),
        ],
        {},
    ),
    "inverse, planar": (
        [
            lambda: SparseConv2d(3, 4, 2, 3, indice_key="a"),
            lambda: SparseInverseConv2d(4, 2, 2, "a"),
        ],
        FLAT,
    ),
    "two levels of one kind": (
        [
            lambda: SparseConv3d(3, 4, 2),
            *[lambda: SubMConv3d(4, 4), lambda: SparseConv3d(4, 4, 2)] * 2,
        ],
        {},
    ),
    "pool": ([lambda: SparseMaxPool3d(3, 2, (1, 0, 2), dilation=(1, 2, 1))], {}),
    "norm": ([lambda: SparseBatchNorm(3)], {}),
    "chain": (
        [
            lambda: SubMConv3d(3, 4, bias=False),
            lambda: SparseBatchNorm(4, 1e-3, 0.01),
            SparseReLU,
            lambda: SparseConv3d(4, 5, 3, 2, 1, indice_key="a"),
            lambda: SparseResidualBlock(5, 5),
            lambda: SparseMaxPool3d(2, 1, 1, indice_key="b"),
            lambda: SubMConv3d(5, 4),
            lambda: SparseInverseConv3d(4, 5, 2, "b"),
            lambda: SparseInverseConv3d(5, 4, 3, "a"),
            lambda: SparseResidualBlock(4, 3, bias=True),
            lambda: SubMConv3d(3, 2),
        ],
        {},
    ),
}


def network(name: str, dtype=torch.float32) -> SparseSequential:
    """With random biases, scales and running statistics of norms."""
    net = SparseSequential(*(make() for make in LAYERS[name][0])).to(dtype)
    g = generator(1)
    for module in net.modules():
        if isinstance(module, SparseBatchNorm):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                tensor.data.copy_(torch.rand(tensor.shape, generator=g) + 0.3)
    return net


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_gradients_equal_dense_ones(name, training, device):
    features, indices, num_valid = (t.to(device) for t in wide_scene(name))
    rows, shape = int(num_valid), LAYERS[name][1].get("shape", SHAPE)
    net = network(name, torch.float64).train(training).to(device)
    plain = copy.deepcopy(net)
    ours, theirs = features.clone().requires_grad_(), features.clone().requires_grad_()
    out = net(tensor_of(ours, indices, num_valid, shape))
    dense = Dense(tensor_of(theirs, indices, num_valid, shape), rows)
    for layer in plain:
        dense.run(layer)
    grid = ToDense()(out)
    found = int(out.num_valid.flatten()[0])
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


def test_unused_rows_and_capacity_change_no_bit(device):
    made, results = network("chain").train().to(device), []
    for unused in (0, 70):
        net = copy.deepcopy(made)
        out = ToDense()(net(tensor_of(*(t.to(device) for t in scene(60, unused)))))
        out.square().sum().backward()
        results.append([out, *net.buffers(), *(p.grad for p in net.parameters())])
    assert_same_bits(*results)
    grid = results[0][0]
    assert grid.flatten(1, 2).is_contiguous(memory_format=torch.channels_last)


def test_a_submanifold_network_follows_the_order_of_its_rows(device):
    net = SparseSequential(SubMConv3d(3, 4), SparseBatchNorm(4), SparseReLU(), SubMConv3d(4, 5, 1))
    net = SparseSequential(net, SparseResidualBlock(5, 3)).eval().to(device)
    features, indices, num_valid = (t.to(device) for t in scene(60, 0))
    order = torch.randperm(60, generator=generator(3)).to(device)
    plain = net(tensor_of(features, indices, num_valid)).features
    permuted = net(tensor_of(features[order], indices[order], num_valid)).features
    assert_same_bits(permuted, plain[order])


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


WRONG = {
    "SubMConv3d: kernel_size must be odd, got (3, 2, 3)": lambda x: SubMConv3d(3, 3, (3, 2, 3)),
    "SubMConv2d: kernel_size must be an int or 2 of them, each >= 1, got (3, 3, 3)": (
        lambda x: SubMConv2d(3, 3, (3, 3, 3))
    ),
    "SparseConv3d: padding must be an int or 3 of them, each >= 0, got -1": (
        lambda x: SparseConv3d(3, 3, 3, 1, -1)
    ),
    "SparseMaxPool3d: max_rows must be >= -1, got -2": lambda x: SparseMaxPool3d(max_rows=-2),
    "SparseConv3d: growth must be finite, >= 0, and 0 beside max_rows, got 1.0": (
        lambda x: SparseConv3d(3, 3, max_rows=5, growth=1.0)
    ),
    "SparseBatchNorm: eps must be > 0, got 0": lambda x: SparseBatchNorm(3, 0),
    "SubMConv3d: features must have 4 channels, got 3": lambda x: SubMConv3d(4, 3)(x),
    "SparseConv3d: spatial_shape must leave cells in the output, got [5, 6, 7], which becomes "
    "[-1, 0, 1]": lambda x: SparseConv3d(3, 3, 7)(x),
    "SparseConv3d: indice_key must be new to the chain, got a, the key of an earlier layer": (
        lambda x: SparseConv3d(3, 3, indice_key="a")(SparseMaxPool3d(indice_key="a")(x))
    ),
    "SparseInverseConv3d: indice_key must be that of a strided layer before, got a": (
        lambda x: SparseInverseConv3d(3, 3, 3, "a")(SubMConv3d(3, 3)(x))
    ),
    "SparseInverseConv3d: kernel_size must be that of the map a, [3, 1, 1], got [1, 1, 3]": (
        lambda x: SparseInverseConv3d(3, 3, (1, 1, 3), "a")(
            SparseConv3d(3, 3, (3, 1, 1), indice_key="a")(x)
        )
    ),
    "SparseInverseConv3d: the rows must be those that the map a made": (
        lambda x: SparseInverseConv3d(3, 3, 3, "a")(
            SparseConv3d(3, 3, 1)(SparseConv3d(3, 3, indice_key="a")(x))
        )
    ),
    "sparse_tensor: indices must be [C, 4], got torch.Size([65, 3])": (
        lambda x: sparse_tensor(x.features, x.indices[:, 1:], SHAPE, 3)
    ),
    "sparse_tensor: features must be [C, channels] with a row for each of indices": (
        lambda x: sparse_tensor(x.features[1:], x.indices, SHAPE, 3)
    ),
    "sparse_tensor: spatial_shape must be (z, y, x), got [6, 7]": (
        lambda x: sparse_tensor(x.features, x.indices, [6, 7], 3)
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_uses_are_errors_of_one_sentence(message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        WRONG[message](tensor_of(*scene()))


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


@pytest.mark.parametrize("name", ["chain", "submanifold, planar"])
def test_a_fused_network_equals_evaluation(name):
    net = network(name, torch.float64)
    if name != "chain":
        net.extend([SparseBatchNorm(4), SparseReLU(), SubMConv2d(4, 2)]).double()
    net.train()
    fused = fuse_batch_norms(net)
    assert net.training and not is_fused(net) and is_fused(fused)
    left = [m for m in fused.modules() if isinstance(m, (SparseBatchNorm, SparseReLU))]
    assert not left and not any(p.requires_grad for p in fused.parameters())
    call = wide_scene(name)
    shape = LAYERS[name][1].get("shape", SHAPE)
    expected = net.eval()(tensor_of(*call, shape)).features
    torch.testing.assert_close(fused(tensor_of(*call, shape)).features, expected)
    half = fuse_batch_norms(net, torch.bfloat16)(tensor_of(*call, shape)).features
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), expected, rtol=0.05, atol=0.05)


def test_a_fused_block_is_a_map_and_two_launches():
    fused = fuse_batch_norms(SparseSequential(SparseResidualBlock(3, 3)))
    x = tensor_of(*scene())
    with Calls() as calls:
        fused(x)
    assert calls.names == ["sparse_subm_map", "new_empty", "sparse_conv", "sparse_conv"]


def test_repeated_modules_of_a_sequence_fuse_where_they_stand():
    conv, relu, norm = SubMConv3d(3, 3), SparseReLU(), SparseBatchNorm(3)
    norm.running_mean.fill_(0.3)
    net = SparseSequential(conv, relu, conv, norm, relu, conv, relu, norm).eval()
    fused = fuse_batch_norms(net)
    kinds = [type(m) for m in fused]
    assert kinds == [FusedSparseConv, FusedSparseConv, FusedSparseConv, SparseBatchNorm]
    expected = net(tensor_of(*scene())).features
    torch.testing.assert_close(fused(tensor_of(*scene())).features, expected)


def test_several_processes_refuse_a_sparse_batch_norm():
    with pytest.raises(WrongUseError, match="on one device alone"):
        convert_batch_norm(nn.ModuleList([SparseBatchNorm(3)]))
