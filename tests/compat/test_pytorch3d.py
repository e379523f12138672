# SPDX-License-Identifier: Apache-2.0
"""pytorch3d.ops and pytorch3d._C: pads, lengths, gradients and sentences, against loops."""

import pytest
import torch

from tests.compat import loops
from tests.helpers import cube, lattice
from torchvox.compat import pytorch3d_c, pytorch3d_ops

LENGTHS1, LENGTHS2 = (7, 0, 20), (30, 10, 2)


@pytest.fixture
def clouds(device):
    """p1 [3, 20, 3], p2 [3, 30, 3] and their lengths."""
    p1, p2 = lattice(20, 5, batch=3), lattice(30, 5, seed=1, batch=3)
    return [one.to(device) for one in (p1, p2, torch.tensor(LENGTHS1), torch.tensor(LENGTHS2))]


def rows(p1, p2, search, k, fill):
    """[3, 20, k] of a search of each cloud."""
    out = []
    for a, b, length1, length2 in zip(p1, p2, LENGTHS1, LENGTHS2, strict=True):
        found = search(b[:length2], a[:length1])
        out.append(loops.padded(found + [[]] * (20 - length1), k, fill))
    return torch.stack(out)


@pytest.mark.parametrize("norm", (1, 2))
def test_knn_points(clouds, norm):
    p1, p2, lengths1, lengths2 = clouds
    if norm == 2:
        nearest = lambda b, a: loops.nearest(b, a, 4)  # noqa: E731
    else:

        def nearest(b, a):
            far = (loops.numpy(a)[:, None] - loops.numpy(b)[None]).__abs__().sum(-1)
            return [sorted((d, i) for i, d in enumerate(row))[:4] for row in far]

    idx = rows(p1, p2, lambda b, a: [[i for _, i in r] for r in nearest(b, a)], 4, 0)
    dists = rows(p1, p2, lambda b, a: [[d for d, _ in r] for r in nearest(b, a)], 4, 0)
    found = pytorch3d_ops.knn_points(p1, p2, lengths1, lengths2, norm, 4, return_nn=True)
    assert found.idx.dtype == torch.int64 and torch.equal(found.idx.cpu(), idx)
    assert torch.equal(found.dists.cpu(), dists.float())
    assert found._fields == ("dists", "idx", "knn") and found.knn.shape == (3, 20, 4, 3)
    assert torch.equal(found.knn[0, 3, 1], p2[0, idx[0, 3, 1]])
    assert not found.knn[2, :, 2:].any()  # past the two points of that cloud
    pair = pytorch3d_c.knn_points_idx(p1, p2, lengths1, lengths2, norm, 4, -1)
    assert torch.equal(pair[0], found.idx) and torch.equal(pair[1], found.dists)
    assert pytorch3d_c.MAX_UINT == 2**32 - 1 and not hasattr(pytorch3d_c, "knn_check_version")


@pytest.mark.parametrize("norm", (1, 2))
def test_gradients_of_distances(clouds, norm):
    _, _, lengths1, lengths2 = clouds
    leaves = [cube(n, seed=n, batch=3).double().to(lengths1.device) for n in (20, 30)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    options = {"lengths1": lengths1, "lengths2": lengths2, "K": 4, "norm": norm}

    def search(p1, p2):
        return pytorch3d_ops.knn_points(p1, p2, **options).dists

    assert torch.autograd.gradcheck(search, leaves)
    found = pytorch3d_ops.knn_points(*leaves, **options)
    assert not found.idx.requires_grad
    grad = torch.rand_like(found.dists)
    wanted = torch.autograd.grad(found.dists, leaves, grad)
    raw = pytorch3d_c.knn_points_backward(
        *(leaf.detach() for leaf in leaves), lengths1, lengths2, found.idx, norm, grad
    )
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(raw, wanted, strict=True))


def test_ball_query(clouds):
    p1, p2, lengths1, lengths2 = clouds
    ball = lambda b, a: loops.in_ball(b, a, 2.0)  # noqa: E731
    idx = rows(p1, p2, ball, 5, -1)
    found = pytorch3d_ops.ball_query(p1, p2, lengths1, lengths2, 5, 2.0)
    assert found.idx.dtype == torch.int64 and torch.equal(found.idx.cpu(), idx)
    far = [
        [d[j] for j in row]
        for row, d in zip(ball(p2[0], p1[0]), loops.distances(p2[0], p1[0]), strict=True)
    ]
    assert torch.equal(found.dists[0].cpu()[:7], loops.padded(far, 5, 0.0)[:7].float())
    assert not found.knn[found.idx < 0].any() and torch.equal(
        found.knn[0, 0, 0], p2[0, idx[0, 0, 0]]
    )
    assert pytorch3d_ops.ball_query(p1, p2, radius=2.0, return_nn=False).idx.shape == (3, 20, 500)
    pair = pytorch3d_c.ball_query(p1, p2, lengths1, lengths2, 5, 2.0, True)
    assert torch.equal(pair[0], found.idx) and torch.equal(pair[1], found.dists)


@pytest.mark.parametrize("wanted", (12, [12, 3, 5], torch.tensor([12, 3, 5])))
def test_sample_farthest_points(device, wanted):
    points, lengths = cube(30, batch=3), torch.tensor([30, 2, 4])
    counts = [wanted] * 3 if isinstance(wanted, int) else list(wanted)
    chosen = [
        loops.furthest(cloud[:n], min(int(n), int(count)))
        for cloud, n, count in zip(points, lengths, counts, strict=True)
    ]
    idx = loops.padded(chosen, 12)
    leaf = points.to(device).double().requires_grad_()
    k = wanted.to(device) if isinstance(wanted, torch.Tensor) else wanted
    found, rows = pytorch3d_ops.sample_farthest_points(leaf, lengths.to(device), k)
    assert rows.dtype == torch.int64 and torch.equal(rows.cpu(), idx)
    assert torch.equal(found, pytorch3d_ops.masked_gather(leaf.float(), rows))
    assert not found[rows < 0].any() and found.requires_grad and found.dtype == torch.float32
    counts, starts = torch.as_tensor(wanted).expand(3).to(device), torch.tensor([3, 1, 0])
    raw = pytorch3d_c.sample_farthest_points(
        leaf.detach(), lengths.to(device), counts, starts.to(device)
    )
    assert raw[:, 0].tolist() == [3, 1, 0]
    some = pytorch3d_ops.sample_farthest_points(leaf, lengths.to(device), k, True)[1]
    assert bool((some.amax(1).cpu() < lengths).all())


def test_gathers_and_sentences(device):
    x, idx = cube(6, 4, batch=2).to(device), torch.tensor([[[0, 5, 2]], [[1, 1, 3]]]).to(device)
    lengths = torch.tensor([6, 2]).to(device)
    gathered = pytorch3d_ops.knn_gather(x, idx, lengths)
    assert torch.equal(gathered[0, 0], x[0, [0, 5, 2]])
    assert torch.equal(gathered[1, 0, :2], x[1, [1, 1]]) and not gathered[1, 0, 2].any()
    assert torch.equal(pytorch3d_ops.masked_gather(x, idx), pytorch3d_ops.knn_gather(x, idx))
    for call, sentence in (
        (lambda: pytorch3d_ops.sample_farthest_points(x, K=[1]), "K and points must have the same"),
        (lambda: pytorch3d_ops.sample_farthest_points(x, lengths[:1]), "points and lengths must"),
        (lambda: pytorch3d_ops.sample_farthest_points(x, lengths + 1), "too large"),
        (lambda: pytorch3d_ops.knn_points(x, x, norm=3), "Support for 1 or 2 norm."),
        (lambda: pytorch3d_ops.knn_points(x, x[:1]), "the same batch dimension"),
        (lambda: pytorch3d_ops.ball_query(x, x[..., :2]), "the same point dimension"),
        (lambda: pytorch3d_ops.knn_gather(x, idx[:1]), "must have same batch dimension"),
        (lambda: pytorch3d_ops.masked_gather(x, idx[0, 0]), "batch dimension|format is not"),
    ):
        with pytest.raises(ValueError, match=sentence):
            call()
