# SPDX-License-Identifier: Apache-2.0
"""torch_cluster and pyg_lib: edges against loops; all of it scripts."""

import math

import numpy as np
import pytest
import torch

from tests.compat import loops
from tests.helpers import cube, lattice
from torchvox.compat import pyg_lib_ops, torch_cluster

SIZES_X, SIZES_Y = (40, 0, 3, 25), (10, 4, 5, 0)


def batch_of(sizes):
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))


def ptr_of(sizes):
    return torch.tensor([0, *np.cumsum(sizes).tolist()])


@pytest.fixture
def clouds(device):
    x, y = lattice(sum(SIZES_X), 6)[0], lattice(sum(SIZES_Y), 6, seed=1)[0]
    batches = (batch_of(SIZES_X), batch_of(SIZES_Y))
    ptrs = (ptr_of(SIZES_X), ptr_of(SIZES_Y))
    return [one.to(device) for one in (x, y, *batches, *ptrs)]


def per_cloud(x, y, search):
    """Edges (query, point) of a search of each cloud, in packed rows."""
    edges, of_x, of_y = [], ptr_of(SIZES_X), ptr_of(SIZES_Y)
    for b in range(len(SIZES_X)):
        found = search(x[of_x[b] : of_x[b + 1]], y[of_y[b] : of_y[b + 1]])
        for i, row in enumerate(found):
            edges += [(int(of_y[b]) + i, int(of_x[b]) + j) for j in row]
    return torch.tensor(edges).reshape(-1, 2).T


def nearest(k):
    return lambda x, y: [[i for _, i in row] for row in loops.nearest(x, y, k)]


def test_knn(clouds):
    x, y, batch_x, batch_y, ptr_x, ptr_y = clouds
    wanted = per_cloud(x, y, nearest(5))
    found = torch_cluster.knn(x, y, 5, batch_x, batch_y, batch_size=len(SIZES_X))
    assert found.dtype == torch.int64
    assert torch.equal(found.cpu(), wanted)
    assert torch.equal(pyg_lib_ops.knn(x, y, 5, ptr_x, ptr_y).cpu(), wanted)
    one = torch.tensor(nearest(3)(x, y)).flatten()
    assert torch.equal(torch_cluster.knn(x, y, 3)[1].cpu(), one)
    line = torch_cluster.knn(x[:, 0], y[:, 0], 1)
    assert torch.equal(line[1].cpu(), torch.tensor(nearest(1)(x[:, :1], y[:, :1])).flatten())


def test_cosine(device):
    x, y = cube(30, 4, seed=2)[0] - 0.5, cube(8, 4, seed=3)[0] - 0.5
    unit = [loops.numpy(one) / np.linalg.norm(loops.numpy(one), axis=1)[:, None] for one in (x, y)]
    wanted = np.argsort(1 - unit[1] @ unit[0].T, axis=1)[:, :4].flatten()
    found = torch_cluster.knn(x.to(device), y.to(device), 4, cosine=True)
    assert found[1].tolist() == wanted.tolist()


@pytest.mark.parametrize("most", (3, 1000))
def test_radius(clouds, most):
    x, y, batch_x, batch_y, ptr_x, ptr_y = clouds
    wanted = per_cloud(x, y, lambda a, b: [row[:most] for row in loops.in_ball(a, b, 2.0)])
    assert torch.equal(torch_cluster.radius(x, y, 2.0, batch_x, batch_y, most).cpu(), wanted)
    assert torch.equal(pyg_lib_ops.radius(x, y, 2.0, ptr_x, ptr_y, most).cpu(), wanted)
    other = [
        [(i, j) for j in row if j != i][:most] for i, row in enumerate(loops.in_ball(x, x, 2.0))
    ]
    edges = torch.tensor([pair for row in other for pair in row]).T
    assert torch.equal(torch_cluster.radius_graph(x, 2.0, None, False, most).flip(0).cpu(), edges)
    assert torch.equal(pyg_lib_ops.radius_graph(x, 2.0, None, False, most).cpu(), edges)
    same = torch_cluster.radius(x, x, 2.0, None, None, most, ignore_same_index=True)
    assert torch.equal(same.cpu(), edges)


def test_graphs_and_flow(clouds):
    x = clouds[0]
    both = [[i for _, i in row] for row in loops.nearest(x, x, 4)]
    edges = torch.tensor([(i, j) for i, row in enumerate(both) for j in row if i != j]).T
    there = torch_cluster.knn_graph(x, 3)
    assert torch.equal(there.flip(0).cpu(), edges)
    assert torch.equal(torch_cluster.knn_graph(x, 3, flow="target_to_source").cpu(), edges)
    assert torch.equal(pyg_lib_ops.knn_graph(x, 3).cpu(), edges)
    assert torch_cluster.knn_graph(x, 3, loop=True).shape[1] == 3 * len(x)
    with pytest.raises(AssertionError):
        torch_cluster.knn_graph(x, 3, flow="up")


@pytest.mark.parametrize(
    "ratio", (None, 0.3, torch.tensor(0.3), torch.tensor([0.5, 1.0, 0.1, 0.6]))
)
def test_fps(device, ratio):
    src, batch, ptr = cube(sum(SIZES_X))[0], batch_of(SIZES_X), ptr_of(SIZES_X)
    wanted, part = [], torch.as_tensor(0.5 if ratio is None else ratio).expand(4).tolist()
    for b, size in enumerate(SIZES_X):
        count = math.ceil(np.float32(size) * np.float32(part[b]))
        cloud = src[ptr[b] : ptr[b + 1]]
        wanted += [int(ptr[b]) + i for i in loops.furthest(cloud, count)] if size else []
    src, batch = src.to(device), batch.to(device)
    assert torch_cluster.fps(src, batch, ratio, False).tolist() == wanted
    assert torch_cluster.fps(src, None, ratio, False, ptr=ptr.tolist()).tolist() == wanted
    assert torch_cluster.fps(src, None, ratio, False, ptr=ptr.to(device)).tolist() == wanted
    if isinstance(ratio, float):
        assert pyg_lib_ops.fps(src, ptr.to(device), ratio, False).tolist() == wanted
    wide = src[:50].double()  # in float32, 50 * 0.3 is more than 15
    assert (
        len(torch_cluster.fps(wide, ratio=0.3)) == 15 and len(torch_cluster.fps(src, ratio=1)) == 68
    )
    assert "batch_size" in torch_cluster.knn.__doc__  # as torch_geometric looks for it
    starts = {int(torch_cluster.fps(src[:40], ratio=0.1)[0]) for _ in range(20)}
    assert len(starts) > 1 and max(starts) < 40


def test_nearest(clouds):
    x, y = clouds[:2]
    of_x, of_y = batch_of((30, 0, 38)).to(x.device), batch_of((9, 0, 10)).to(x.device)
    wanted = nearest(1)(y[:9], x[:30]) + [[9 + i[0]] for i in nearest(1)(y[9:], x[30:])]
    assert torch_cluster.nearest(x, y, of_x, of_y).tolist() == [row[0] for row in wanted]
    assert torch_cluster.nearest(x, y).tolist() == [row[0] for row in nearest(1)(y, x)]
    with pytest.raises(ValueError, match="'batch_x' is not sorted"):
        torch_cluster.nearest(x, y, of_x.flip(0), of_y)
    with pytest.raises(ValueError, match="Some batch indices occur in 'batch_x'"):
        torch_cluster.nearest(x, y, of_x, of_y * 0)


@pytest.mark.parametrize("dtype", (torch.float32, torch.int64))
def test_grid_cluster(device, dtype):
    pos = torch.tensor([[0, 0], [11, 9], [2, 8], [2, 2], [8, 3]], dtype=dtype, device=device)
    size = torch.tensor([5, 5], dtype=dtype, device=device)
    assert torch_cluster.grid_cluster(pos, size).tolist() == [0, 5, 3, 0, 1]
    ends = (torch.tensor([0, 0]).to(pos), torch.tensor([19, 19]).to(pos))
    assert pyg_lib_ops.grid_cluster(pos, size, *ends).tolist() == [0, 6, 4, 0, 1]


@pytest.mark.parametrize("module", (torch_cluster, pyg_lib_ops))
def test_everything_scripts(module):
    x, b = cube(60)[0], batch_of((30, 30))
    arguments = {
        "fps": (x, b if module is torch_cluster else ptr_of((30, 30)), 0.3, False),
        "grid_cluster": (x, torch.full((3,), 0.2)),
        "knn_graph": (x, 4),
        "nearest": (x, x[:20]),
        "radius_graph": (x, 0.3),
        "radius": (x, x, 0.3),
        "knn": (x, x, 4),
    }
    assert set(arguments) == set(module.__all__)
    for name, values in arguments.items():
        function = getattr(module, name)
        assert torch.equal(torch.jit.script(function)(*values), function(*values)), name
