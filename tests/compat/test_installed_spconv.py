# SPDX-License-Identifier: Apache-2.0
"""The layers of spconv.pytorch beside the peer's CPU build, where it is installed. It cannot be
imported a second time, so that this file runs before those that remove its modules."""

import importlib
from copy import deepcopy
from math import prod

import pytest
import torch

from tests.compat.inputs import SHAPE, sparse_rows
from torchvox.compat import spconv_pytorch

KEY = {"indice_key": "a"}


@pytest.fixture(autouse=True)
def one_thread():
    """The peer's CPU build does not give the same sums in each call of several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


CHAINS = """
3: m.SubMConv3d(4, 6, 1, bias=False)
3: m.SparseSequential(m.SubMConv3d(4, 4, 3, **KEY), m.SparseReLU(), m.SubMConv3d(4, 5, 3, **KEY))
3: m.SparseSequential(m.SparseConv3d(4, 5, 2, 2, **KEY), m.SparseInverseConv3d(5, 3, 2, "a"))
2: m.SparseSequential(m.SparseConv2d(4, 5, 3, 2, 1, **KEY), m.SparseInverseConv2d(5, 3, 3, "a"))
3: m.SparseConv3d(4, 5, 3, 2, 1, record_voxel_count=True)
3: m.SparseConv3d(4, 5, 1, 2)
3: m.SparseMaxPool3d(3, 2, 1)
2: m.SparseSequential(m.SparseMaxPool2d(2, **KEY), m.SparseInverseConv2d(4, 3, 2, "a"))
3: m.SparseSequential(m.SubMConv3d(4, 4, 3), m.SparseBatchNorm(4), m.SparseReLU(), torch.nn.ReLU())
"""


def random_layer(seed):
    """A line as of CHAINS."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high):
        return torch.randint(low, high + 1, (axes,), generator=generator).tolist()

    axes = 2 + seed % 2
    kernel, stride, padding, dilation = draw(1, 3), draw(1, 3), draw(0, 1), draw(1, 2)
    if seed % 3 == 0:
        odd = [k | 1 for k in kernel]
        return f"{axes}: m.SubMConv{axes}d(4, 6, {odd}, dilation={dilation})"
    if kernel == stride == [1] * axes:
        padding = [0] * axes
    made = f"m.SparseConv{axes}d(4, 6, {kernel}, {stride}, {padding}, {dilation}, **KEY)"
    back = f"m.SparseInverseConv{axes}d(6, 3, {kernel}, 'a')"
    pair = seed % 3 == 1 and prod(kernel) > 1
    return f"{axes}: m.SparseSequential({made}, {back})" if pair else f"{axes}: {made}"


@pytest.mark.parametrize("line", [*CHAINS.strip().splitlines(), *map(random_layer, range(60))])
def test_values_and_gradients_are_those_of_the_installed_peer(line, monkeypatch):
    pytest.importorskip("cumm", reason="spconv is not installed")
    peer = importlib.import_module("spconv.pytorch")
    monkeypatch.setattr(peer.ops, "get_current_stream", lambda: 0)  # its CPU build has none
    axes, _, code = line.partition(": ")
    results, state = [], None
    for m in (peer, spconv_pytorch):
        torch.manual_seed(0)
        layer = eval(code, {**globals(), "m": m})
        state = state or deepcopy(layer.state_dict())
        layer.load_state_dict(state)
        features, indices = sparse_rows(int(axes))
        x = m.SparseConvTensor(features.abs().requires_grad_(), indices, SHAPE[-int(axes) :], 2)
        out = layer(x)
        dense = out.dense()
        noise = torch.rand(dense.shape, generator=torch.Generator().manual_seed(1))
        sources = [x.features, *layer.parameters()]
        grads = torch.autograd.grad((dense * noise).sum(), sources)
        shape = [*out.spatial_shape, len(out.indices)]
        results.append(
            (shape, torch.unique(out.indices, dim=0), dense, *grads, *layer.state_dict().values())
        )
    # A bias before a norm has no gradient but what rounding leaves.
    torch.testing.assert_close(*results, rtol=1e-5, atol=3e-5 if "Norm" in line else 1e-5)
