# SPDX-License-Identifier: Apache-2.0
"""The sparse layers of spconv.pytorch and mmcv.ops: those of torchvox.nn, the peers' rules."""

import importlib
from collections import OrderedDict
from copy import deepcopy
from math import prod

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

import torchvox
import torchvox.compat as compat
from tests.compat.inputs import CHANNELS, SHAPE, sparse_rows
from torchvox.compat import NotCoveredError, mmcv_ops, spconv_core, spconv_pytorch
from torchvox.compat._sparse import cells_of, lift

KEY = {"indice_key": "a"}


def tensor(m, axes=3, **options):
    features, indices = sparse_rows(axes, **options)
    return m.SparseConvTensor(features.requires_grad_(), indices, SHAPE[-axes:], 2)


def own_weight(m, layer):
    """In the layout of torchvox.nn."""
    if m is mmcv_ops:
        return layer.weight.movedim(-1, 0)
    if layer.conv1x1:
        return layer.weight.view(CHANNELS, -1).t().reshape(-1, *layer.kernel_size, CHANNELS)
    return layer.weight


# Layer, kernel, stride, padding, dilation.
LAYERS = [
    ("SubMConv3d", 3, 1, 1, 1),
    ("SubMConv3d", (3, 1, 5), 2, 0, (2, 1, 1)),
    ("SubMConv3d", 1, 1, 1, 1),
    ("SubMConv2d", 3, 1, 0, 2),
    ("SparseConv3d", 3, 2, 1, 1),
    ("SparseConv3d", 3, 1, 1, 1),  # more rows than the first guess
    ("SparseConv3d", 2, 2, 0, 1),
    ("SparseConv3d", (3, 1, 1), (2, 1, 1), 0, 1),
    ("SparseConv3d", (1, 2, 3), (1, 3, 2), (0, 1, 1), (1, 1, 2)),
    ("SparseConv3d", 1, 1, 0, 1),
    ("SparseConv2d", 3, 2, (0, 1), 1),
]


@pytest.mark.parametrize("m", [spconv_pytorch, mmcv_ops], ids=["spconv", "mmcv"])
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_a_layer_and_its_inverse_are_those_of_torchvox(m, case):
    name, kernel, stride, padding, dilation = case
    axes, subm = int(name[-2]), name.startswith("SubM")
    x, options = tensor(m, axes), {} if subm else {"stride": stride, "padding": padding, **KEY}
    layer = getattr(m, name)(CHANNELS, 6, kernel, stride, padding, dilation, **KEY)
    own = getattr(torchvox.nn, name)(CHANNELS, 6, kernel, dilation=dilation, **options)
    y = torchvox.nn.sparse_tensor(x.features, cells_of(x.indices), lift(x.spatial_shape, 1), 2)
    sources = [x.features]

    def advance(layer, own, x, y):
        weights = {"weight": own_weight(m, layer), "bias": layer.bias}
        x, y = layer(x), functional_call(own, weights, (y,))
        assert lift(x.spatial_shape, 1) == y.spatial_shape
        sources.extend([layer.weight, layer.bias])
        grids = x.dense(), torchvox.nn.ToDense()(y).view_as(x.dense())
        noise = torch.rand(grids[0].shape)
        grads = (torch.autograd.grad((g * noise).sum(), sources, retain_graph=True) for g in grids)
        torch.testing.assert_close(*grids, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
        return x, y

    out, expected = advance(layer, own, x, y)
    if subm or layer.conv1x1:
        assert torch.equal(out.indices, x.indices)
        return
    assert torch.equal(cells_of(out.indices), expected.indices[: int(expected.num_valid[0, 0])])
    name = name.replace("Conv", "InverseConv")
    inverse, own = (getattr(one, name)(6, CHANNELS, kernel, "a") for one in (m, torchvox.nn))
    back, _ = advance(inverse, own, out, expected)
    assert back.indices is x.indices


@pytest.mark.parametrize("axes", [2, 3])
def test_pools_take_the_largest_and_their_map_serves_an_inverse(axes):
    m = spconv_pytorch
    pool = getattr(m, f"SparseMaxPool{axes}d")(2, **KEY)
    x = tensor(m, axes)
    x = x.replace_feature(x.features.abs())
    out = pool(x)
    expected = (F.max_pool2d, F.max_pool3d)[axes - 2](x.dense(), 2)
    assert pool.stride == pool.kernel_size == [2] * axes and torch.equal(out.dense(), expected)
    back = getattr(m, f"SparseInverseConv{axes}d")(CHANNELS, 3, 2, "a")(out)
    assert back.features.shape == (len(x.indices), 3)
    dense = getattr(mmcv_ops, f"SparseMaxPool{axes}d")(3)(tensor(mmcv_ops, axes)).spatial_shape
    assert dense == [n - 2 for n in SHAPE[-axes:]]  # whose stride is 1


# Expressions with the module m, a tensor x and a layer of the key "a", and what they raise.
ERRORS = [
    ("setattr(x, 'features', x.features)", ValueError, "replace_feature"),
    ("m.SparseConvTensor(x.features, x.indices.long(), SHAPE, 2)", AssertionError, "int32"),
    ("m.SparseConvTensor(x.features, x.indices, SHAPE[1:], 2)", AssertionError, "ndim"),
    ("m.SubMConv3d(4, 4, 3, groups=2)", NotCoveredError, "SubMConv3d: groups=2"),
    ("m.SparseConv3d(4, 4, 6)", NotCoveredError, "over 125 cells"),
    ("m.SparseConvolution(3, 4, 4, transposed=True)", NotCoveredError, "transposed=True"),
    ("m.SparseConvolution(3, 4, 4, act_type=m.ConvAlgo.Native)", NotCoveredError, "act_type"),
    ("m.SparseMaxPool(3, subm=True)", NotCoveredError, "subm=True"),
    ("m.SparseConvTranspose3d(4, 4, 3)", NotCoveredError, "SparseConvTranspose3d"),
    ("m.SparseConv3d(4, 4, 1, 1, 1)", AssertionError, "padding must be zero"),
    ("m.SubMConv3d(5, 4, 3)(x)", AssertionError, "channel size mismatch"),
    ("m.SparseInverseConv3d(4, 4, 3, 'b')(x)", AssertionError, "no map has indice_key='b'"),
    ("m.SparseInverseConv3d(4, 4, 3, 'a')(subm(x))", AssertionError, "the map of a strided"),
    ("m.SparseInverseConv3d(4, 4, 2, 'a')(conv(x))", ValueError, "kernel size"),
    ("m.SparseInverseConv3d(4, 4, 3, 'a')(conv(x).select_by_index([0]))", AssertionError, "no map"),
    ("conv(conv(x))", AssertionError, "'a' exists"),
    ("conv(subm(x))", AssertionError, "'a' exists"),
    ("subm(conv(x))", AssertionError, "only submanifold"),
    ("m.SubMConv3d(4, 4, 1, indice_key='a')(subm(x)) and m.SubMConv3d(4, 4, 5, **KEY)(subm(x))",
     ValueError, r"kernel size \[3, 3, 3\], got \[5, 5, 5\]"),
    ("m.SubMConv3d(4, 4, 3, dilation=2, **KEY)(subm(x))", ValueError, "dilation"),
    ("subm(cut(subm(x)))", ValueError, r"number of rows \[260\], got \[9\]"),
    ("subm(grown(subm(x)))", ValueError, "spatial shape"),
]  # fmt: skip


@pytest.mark.parametrize("code, error, words", ERRORS, ids=[code for code, *_ in ERRORS])
def test_wrong_uses_are_the_peers_errors(code, error, words):
    m = spconv_pytorch

    def cut(x):
        return x.derive(x.features[:9], x.indices[:9], x.spatial_shape, x.indice_dict)

    def grown(x):
        return x.derive(x.features, x.indices, [9, 9, 9], x.indice_dict)

    layers = {
        "conv": m.SparseConv3d(4, 4, 3, 2, 1, **KEY),
        "subm": m.SubMConv3d(4, 4, 3, padding=1, **KEY),
    }
    with pytest.raises(error, match=words):
        eval(code, {**globals(), **layers, "m": m, "x": tensor(m), "cut": cut, "grown": grown})


def test_tensors_have_the_peers_methods():
    m = spconv_pytorch
    x = m.SubMConv3d(4, 4, 3, **KEY)(tensor(m))
    assert x.find_indice_pair("a").is_subm and x.find_indice_pair(None) is None
    assert x.spatial_size == prod(SHAPE)
    last = x.dense(channels_first=False)
    assert torch.equal(last.movedim(-1, 1), x.dense()) and x.dense().is_contiguous()
    back = m.SparseConvTensor.from_dense(last)
    assert torch.equal(back.indices, torch.unique(x.indices, dim=0)) and torch.equal(
        back.dense(), x.dense()
    )
    part = x.select_by_index(torch.arange(7))
    assert len(part.features) == len(part.indices) == 7 and part.indice_dict == {}
    assert x.replace_feature(x.features).indice_dict is x.indice_dict and x.indice_dict
    for total in (x + x, x + x.features, x.features + x.minus().minus(), sum([x], x)):
        assert torch.equal(getattr(total, "features", total), 2 * x.features)
    both = deepcopy(x.replace_feature(x.features.detach()))
    both += x
    assert torch.equal(both.features, 2 * x.features)
    assert m.JoinTable()([x, x]).features.shape[1] == 8
    assert torch.equal(m.AddTable()([x, x]).features, 2 * x.features)
    split = m.ConcatTable().add(m.SparseIdentity()).add(m.ToDense())(x)
    assert torch.equal(split[1], x.dense()) and m.RemoveGrid()(x).grid is None
    twice = m.SparseConvTensor(torch.eye(2), x.indices[:1].expand(2, 4), SHAPE, 2)
    assert twice.dense().sum((0, 2, 3, 4)).tolist() == [1, 0]  # the lowest row


@pytest.mark.parametrize("m", [spconv_pytorch, mmcv_ops], ids=["spconv", "mmcv"])
def test_sequential_forms(m):
    parts = [m.SubMConv3d(4, 4, 3, **KEY), nn.BatchNorm1d(4), nn.ReLU()]
    named = OrderedDict(conv=parts[0], bn=parts[1], act=parts[2])
    nets = [m.SparseSequential(*parts), m.SparseSequential(named), m.SparseSequential(**named)]
    grown = m.SparseSequential()
    grown.add(parts[0]), grown.add(parts[1], "bn"), grown.add(parts[2])
    nets.append(m.SparseSequential(grown))
    for net in nets[:3]:
        assert len(net) == 3 and net[-1] is parts[2] and net[0] is parts[0]
    values = [net.eval()(tensor(m)).features for net in nets]
    assert all(torch.equal(values[0], one) for one in values) and values[0].min() == 0
    with pytest.raises(IndexError):
        nets[0][3]
    with pytest.raises(ValueError, match="name exists"):
        m.SparseSequential(parts[0], **{"0": parts[1]})
    del grown._modules["0"]
    with pytest.raises(KeyError, match="name exists"):
        grown.add(parts[0])
    features, indices = sparse_rows()
    none = m.SparseConvTensor(features[:0], indices[:0], SHAPE, 2)
    assert nets[0].train()(none).features.shape == (0, 4)  # batch norm gets no empty batch
    strided = m.SparseConv3d(4, 5, 3, 2, 1)(none)
    assert strided.features.shape == (0, 5) and strided.dense().shape == (2, 5, 3, 4, 5)


@pytest.mark.parametrize("m", [spconv_pytorch, mmcv_ops], ids=["spconv", "mmcv"])
def test_autocast_computes_in_its_dtype(m):
    x, layer = tensor(m), m.SubMConv3d(4, 5, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    out.features.sum().backward()
    assert out.features.dtype == torch.bfloat16 and layer.weight.grad.dtype == torch.float32
    torch.testing.assert_close(out.features.float(), layer(x).features, rtol=0.05, atol=0.05)


def test_names_that_loaders_and_networks_ask_for(fresh):
    compat.install("spconv", force=True)
    spconv = importlib.import_module("spconv")
    assert float(spconv.__version__[2:]) >= 2.2
    spconv.constants.SPCONV_USE_DIRECT_TABLE = False
    assert spconv_core.SPCONV_USE_DIRECT_TABLE and not spconv.constants.SPCONV_USE_DIRECT_TABLE
    m = importlib.import_module("spconv.pytorch")
    assert m.ops.ConvAlgo is m.ConvAlgo is spconv.ConvAlgo and m.core.expand_nd(2, 3) == [3, 3]
    net = m.SparseSequential(m.SubMConv3d(4, 4, 3, algo=m.ConvAlgo.Native), m.SparseReLU())
    convs = [one for one in net.modules() if isinstance(one, m.conv.SparseConvolution)]
    assert len(convs) == 1 and m.modules.is_sparse_conv(net[0])
    assert [m.modules.is_spconv_module(one) for one in (net[0], net[1], nn.ReLU())] == [1, 1, 0]
    m.assign_name_for_sparse_modules(net)
    assert net[0]._sparse_unique_name == "0"
    plain = m.SparseBatchNorm(4)(torch.randn(9, 4))
    assert plain.shape == (9, 4) and m.SparseBatchNorm(4)(tensor(m)).features.shape == (260, 4)
    assert compat.report()["spconv.pytorch.conv.SparseConvolution"] == "torchvox"


def test_the_largest_number_of_rows_is_recorded_and_loaded():
    m, name = spconv_pytorch, "max_num_voxels_during_training"
    for layer in (m.SparseConv3d(4, 4, 2, 2, record_voxel_count=True),
                  m.SparseMaxPool3d(2, record_voxel_count=True)):  # fmt: skip
        old = {key: value for key, value in layer.state_dict().items() if key != name}
        counts = [len(layer(tensor(m, most=most)).indices) for most in (200, 30)]
        assert layer.state_dict()[name].tolist() == [max(counts)] == [counts[0]]
        assert layer.get_max_num_voxels().dtype == torch.int32
        layer.load_state_dict(old)  # of a model that did not record
        assert deepcopy(layer).get_max_num_voxels().tolist() == [0]
    assert m.SparseConv3d(4, 4, 2).get_max_num_voxels() is None
    assert {*m.SubMConv2d(4, 5, 3).state_dict()} == {"weight", "bias"}
    assert m.SubMConv2d(4, 5, 3, bias=False).weight.shape == (5, 3, 3, 4)


def test_mmcv_tensors_share_maps_and_let_features_be_assigned():
    m = mmcv_ops
    x = tensor(m)
    assert "replace_feature" not in dir(x) and x.sparity == 260 / prod(SHAPE) / 2
    conv = m.SparseConv3d(4, 4, 3, 2, 1, **KEY)
    first, second = conv(x), conv(x)
    assert first.indices is second.indices and conv.weight.shape == (3, 3, 3, 4, 4)
    assert first.indice_dict is x.indice_dict and x.find_indice_pair("a")
    with pytest.raises(ValueError, match="stride"):
        m.SparseConv3d(4, 4, 3, 1, 1, **KEY)(x)
    placed = m.scatter_nd(torch.tensor([[1], [0]]), torch.eye(2), [3, 2])
    assert placed.tolist() == [[0, 1], [1, 0], [0, 0]]


MMENGINE = """
class Registry:
    def __init__(self, **names):
        self.module_dict = {name: type(name, (), {"__module__": of}) for name, of in names.items()}
    def register_module(self, name, force, module):
        self.module_dict[name] = module
MODELS = Registry(SubMConv2d="spconv.pytorch", SparseConv2d="mmcv.ops.sparse_conv")
"""


def test_mmengine_builds_the_layers_by_name(fresh):
    fresh({"mmengine/__init__.py": "", "mmengine/registry.py": MMENGINE})
    with compat.installed("mmcv"):
        made = importlib.import_module("mmcv.ops").SubMConv3d
    models = importlib.import_module("mmengine.registry").MODELS.module_dict
    assert models["SubMConv3d"] is made is mmcv_ops.SubMConv3d and len(models) == 6
    assert models["SparseConv2d"] is mmcv_ops.SparseConv2d  # mmcv's own
    assert models["SubMConv2d"].__module__ == "spconv.pytorch"  # registered after mmcv's
