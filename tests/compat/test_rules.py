# SPDX-License-Identifier: Apache-2.0
"""Rules of the peers that no single expression says: refusals, random starts, names of parameters,
voxels and their order, and pools that fill the caller's tensors."""

import math

import numpy as np
import pytest
import torch

import torchvox
from tests.compat import inputs
from tests.helpers import cube, lattice
from torchvox.compat import (
    CompatWarning,
    NotCoveredError,
    mmcv_ops,
    pointnet2_plain,
    pointops,
    pointops_c,
    pytorch3d_c,
    pytorch3d_ops,
    spconv_utils,
    torch_cluster,
    torch_scatter,
)
from torchvox.compat.pcdet_ops import iou3d_nms_cuda, pointnet2_batch_cuda, roiaware_pool3d_cuda
from torchvox.compat.pointnet2_ops import pointnet2_modules, pointnet2_utils

X, IDX = cube(40, batch=2), torch.tensor([[[0, 5, 2]], [[1, 1, 3]]])
BOXES, SCORES = inputs.boxes_of(40), cube(40, 1)[0][:, 0]
SIZE, BOUNDS, P, V = [0.25, 0.5, 1.0], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0], 3, 6
ROWS, GROUPS = torch.arange(12.0).view(4, 3), torch.tensor([0, 1, 1, 3])
# Module, function, its arguments, and the error with a part of its sentence.
REFUSALS = [
    (mmcv_ops, "get_sampler_cls", ("FPS",), KeyError, "Supported `sampler_type`"),
    (mmcv_ops, "QueryAndGroup", (1, 5, 0, True, False, False, True), NotCoveredError,
     "QueryAndGroup: uniform_sample=True is not covered"),
    (mmcv_ops, "nms", (BOXES[:, :4], SCORES, 0.2, 1), NotCoveredError, "nms: offset=1 is not cov"),
    (mmcv_ops, "batched_nms", (BOXES[:, :5], SCORES, SCORES, {"type": "soft_nms"}),
     NotCoveredError, "batched_nms: type='soft_nms' is not covered"),
    (spconv_utils, "PointToVoxel", ([1.0, 1.0], [0.0, 0.0, 1.0, 1.0], 4, V, P), NotCoveredError,
     "PointToVoxel: vsize_xyz of 2 axes is not covered"),
    (spconv_utils, "VoxelGeneratorV2", (SIZE, BOUNDS, P, 9, False, True), NotCoveredError,
     "block_filtering=True"),
    (torch_scatter, "segment_csr", (ROWS, torch.tensor([[0, 3]] * 4)), NotCoveredError,
     "indptr of several lines"),
    (torch_scatter, "scatter_max", (ROWS, GROUPS, 0, ROWS.clone()), NotCoveredError,
     "out with max"),
    (torch_scatter, "scatter", (ROWS, GROUPS, 0, None, None, "mul"), NotCoveredError,
     "reduce='mul'"),
    (torch_scatter, "scatter", (ROWS, GROUPS, 0, None, None, "median"), ValueError,
     "reduce must be"),
    (torch_scatter, "scatter_sum", (ROWS[:2], torch.tensor([[0, 1, 0], [1, 0, 1]]), 0, None,
     1 << 30), ValueError, r"must be below 2\^31 .*, got 3221225472"),
    (pytorch3d_ops, "sample_farthest_points", (X, None, [1]), ValueError,
     "K and points must have the same"),
    (pytorch3d_ops, "sample_farthest_points", (X, torch.tensor([9])), ValueError,
     "points and lengths must"),
    (pytorch3d_ops, "sample_farthest_points", (X, torch.tensor([9, 41])), ValueError, "too large"),
    (pytorch3d_ops, "knn_points", (X, X, None, None, 3), ValueError, "Support for 1 or 2 norm."),
    (pytorch3d_ops, "knn_points", (X, X[:1]), ValueError, "the same batch dimension"),
    (pytorch3d_ops, "ball_query", (X, X[..., :2]), ValueError, "the same point dimension"),
    (pytorch3d_ops, "knn_gather", (X, IDX[:1]), ValueError, "must have same batch dimension"),
    (pytorch3d_ops, "masked_gather", (X, IDX[0, 0]), ValueError, "batch dimension"),
    (torch_cluster, "knn_graph", (X[0], 3, None, False, "up"), AssertionError, ""),
    (torch_cluster, "nearest", (ROWS, ROWS, GROUPS.flip(0), GROUPS), ValueError,
     "'batch_x' is not sorted"),
    (torch_cluster, "nearest", (ROWS, ROWS, GROUPS, GROUPS * 0), ValueError,
     "Some batch indices occur in 'batch_x'"),
    (pointnet2_batch_cuda, "ball_query_wrapper", (2, 40, 40, 0.3, 5, X, X, IDX), ValueError,
     r"ball_query_wrapper: idx must be \[2, 40, 5\], got \[2, 1, 3\]"),
    (pointnet2_batch_cuda, "ball_query_wrapper", (2, 40, 40, 0.3, 5, X, X), TypeError,
     r"ball_query_wrapper\(b, n, m, radius, .*\) got 7"),
    (iou3d_nms_cuda, "boxes_iou_bev_gpu", (BOXES, BOXES, ROWS), ValueError,
     "boxes_iou_bev_gpu: ans_iou must be"),
    (pointops_c, "grouping_forward_cuda", (4, 1, 3, ROWS, GROUPS[:, None], ROWS), ValueError,
     "grouping_forward_cuda: .* must be"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("module", "name", "arguments", "error", "words"), REFUSALS, ids=[r[1] for r in REFUSALS]
)
def test_refusals(module, name, arguments, error, words):
    with pytest.raises(error, match=words or None):
        getattr(module, name)(*arguments)


@pytest.mark.parametrize("clockwise", (True, False))
def test_angles_of_mmcv_turn_as_documented(device, clockwise):
    box, sign = torch.tensor([[1.0, 2.0, 4.0, 1.0, 0.5]], device=device), 1 if clockwise else -1
    cos, sin = math.cos(0.5 * sign), math.sin(0.5 * sign)  # [cos -sin; sin cos] turns a corner
    x, y = -0.48 * 4, -0.48 * 1
    speck = [[1 + x * cos - y * sin, 2 + x * sin + y * cos, 0.01, 0.01, 0.0]]
    iou = mmcv_ops.box_iou_rotated(torch.tensor(speck, device=device), box, clockwise=clockwise)
    assert abs(float(iou) - 1e-4 / 4) < 1e-6


def test_suppression_takes_arrays_warns_of_labels_and_writes_rows(device):
    boxes, scores = BOXES.to(device), SCORES.to(device)
    corners, flat = inputs.corners(BOXES)[:, :4], inputs.turn(boxes)
    arrays = mmcv_ops.nms(corners.numpy(), SCORES.numpy(), 0.2)
    for array, tensor in zip(arrays, mmcv_ops.nms(corners, SCORES, 0.2), strict=True):
        np.testing.assert_array_equal(array, tensor.numpy())
    kept = mmcv_ops.nms_rotated(flat, scores, 0.2)[1]
    with pytest.warns(CompatWarning, match="labels are not read"):
        labels = torch.arange(40, device=device)
        assert torch.equal(mmcv_ops.nms_rotated(flat, scores, 0.2, labels)[1], kept)
    order = scores.argsort(descending=True)
    for function, same in (("nms_gpu", "nms3d"), ("nms_normal_gpu", "nms3d_normal")):
        wanted, keep = getattr(mmcv_ops, same)(boxes, scores, 0.2), torch.full((40,), -7)
        count = getattr(iou3d_nms_cuda, function)(boxes[order], keep, 0.2)
        assert order[keep[:count].to(device)].tolist() == wanted.tolist()
        assert count == len(wanted) < 40 and bool((keep[count:] == -7).all())


def test_compiled_functions_keep_the_strides_of_their_outputs():
    idx = torch.zeros(2, 5, 40, dtype=torch.int32).transpose(1, 2)
    assert pointnet2_batch_cuda.ball_query_wrapper(2, 40, 40, 0.3, 5, X, X, idx) == 1
    assert idx.stride() == (200, 1, 40)
    assert torch.equal(idx, torchvox.ball_query(X, X, 0.3, 5, convention="openpcdet").idx)


@pytest.mark.parametrize("method", [0, 1])
def test_roiaware_pooling_fills_the_peers_tensors_and_its_backward_reads_them(method):
    points, features, k, shape = cube(300)[0] * 8, cube(300, 5)[0], 4, (4, 3, 2, 2)
    argmax, lists = torch.zeros(*shape, 5).int(), torch.zeros(*shape, k).int()
    pooled = torch.zeros(*shape, 5)
    cells = torchvox.box_query(points[None], BOXES[None, :4], k - 1, grid=shape[1:], margin=1e-5)
    cells = cells.index.view(*shape, k - 1)
    assert roiaware_pool3d_cuda.forward(
        BOXES[:4], points, features, argmax, lists, pooled, method
    ) == 1  # fmt: skip
    grad, total = torch.rand(*shape, 5), torch.zeros(300, 5)
    for cell in np.ndindex(shape):
        rows = [row for row in cells[cell].tolist() if row >= 0]
        assert lists[cell].tolist() == [len(rows), *rows, *[0] * (k - 1 - len(rows))]
        best = [-1] * 5
        if method and rows:
            total[rows] += grad[cell] / len(rows)
        elif rows:
            best = [rows[i] for i in features[rows].argmax(0)]
            total[best, range(5)] += grad[cell]
        wanted = features[rows].mean(0) if method else features[best, range(5)]
        torch.testing.assert_close(pooled[cell], wanted if rows else torch.zeros(5))
        assert method or argmax[cell].tolist() == best
    into = torch.ones(300, 5)
    assert roiaware_pool3d_cuda.backward(lists, argmax, grad, into, method) == 1
    torch.testing.assert_close(into, total + 1)


def test_modules_have_the_names_and_results_of_the_published_ones(device):
    xyz, features = X.to(device), cube(40, 4, batch=2).transpose(1, 2).contiguous().to(device)
    widths = [[4, 8, 6], [4, 5]]
    module = pointnet2_modules.PointnetSAModuleMSG(7, [0.2, 0.4], [4, 6], widths).to(device)
    assert widths == [[7, 8, 6], [7, 5]]
    keys = {key: tuple(value.shape) for key, value in module.named_parameters()}
    conv = {"mlps.0.0.weight": (8, 7, 1, 1), "mlps.0.3.weight": (6, 8, 1, 1)}
    norm = {f"mlps.0.{i}.{name}": (n,) for i, n in ((1, 8), (4, 6)) for name in ("weight", "bias")}
    other = {"mlps.1.0.weight": (5, 7, 1, 1), "mlps.1.1.weight": (5,), "mlps.1.1.bias": (5,)}
    assert keys == {**conv, **norm, **other}
    new, out = module(xyz, features)
    idx = pointnet2_utils.furthest_point_sample(xyz, 7).long()
    torch.testing.assert_close(new, torch.stack([x[i] for x, i in zip(xyz, idx, strict=True)]))
    groups = (pointnet2_utils.QueryAndGroup(*ball) for ball in ((0.2, 4), (0.4, 6)))
    scales = zip(groups, module.mlps, strict=True)
    pooled = [mlp(group(xyz, new, features)).amax(3) for group, mlp in scales]
    torch.testing.assert_close(out, torch.cat(pooled, 1))
    whole = pointnet2_modules.PointnetSAModule([4, 8], bn=False, use_xyz=False).to(device)
    assert list(whole.state_dict()) == ["mlps.0.0.weight", "mlps.0.0.bias"]
    none, pooled = whole(xyz, features)
    torch.testing.assert_close(pooled, whole.mlps[0](features[:, :, None]).amax(3))
    back = pointnet2_modules.PointnetFPModule([12, 9]).to(device)
    assert none is None and next(iter(back.state_dict())) == "mlp.0.weight"
    spread = back.mlp(torch.cat([pooled.expand(-1, -1, 40), features], 1)[..., None])[..., 0]
    torch.testing.assert_close(back(xyz, None, features, pooled), spread)
    deep = torch.rand(2, 8, 7, device=device)
    dist, idx = pointnet2_utils.three_nn(xyz, xyz[:, :7])
    weight = 1 / (dist + 1e-8)
    mixed = pointnet2_utils.three_interpolate(deep, idx, weight / weight.sum(2, keepdim=True))
    mixed = back.mlp(torch.cat([mixed, features], 1)[..., None])[..., 0]
    torch.testing.assert_close(back(xyz, xyz[:, :7], features, deep), mixed)
    with pytest.raises(AssertionError):
        pointnet2_utils.QueryAndGroup(0.3, 5, use_xyz=False)(xyz, new)


def test_plain_samples_start_at_random_and_their_groups_are_relative(device):
    xyz, points = X.to(device), X.sin().to(device)
    idx = pointnet2_plain.farthest_point_sample(xyz, 9)
    assert idx.dtype == torch.int64 and idx.shape == (2, 9)
    starts = {tuple(pointnet2_plain.farthest_point_sample(xyz, 1)[:, 0].tolist()) for _ in range(9)}
    assert len(starts) > 3
    for cloud, rows in zip(xyz, idx, strict=True):  # each is furthest from those before it
        for i in range(1, 9):
            distance = torch.cdist(cloud, cloud[rows[:i]]).amin(1)
            torch.testing.assert_close(distance[rows[i]], distance.max())
    center, groups, near, rows = pointnet2_plain.sample_and_group(6, 0.3, 5, xyz, points, True)
    torch.testing.assert_close(center, pointnet2_plain.index_points(xyz, rows))
    columns = torch.cat([near - center[:, :, None], near.sin()], -1)
    torch.testing.assert_close(groups, columns)


def test_torch_cluster_samples_start_at_random_and_batches_have_a_size():
    starts = {int(torch_cluster.fps(X[0], ratio=0.1)[0]) for _ in range(20)}
    assert len(starts) > 1 and max(starts) < 40
    assert "batch_size" in torch_cluster.knn.__doc__  # as torch_geometric looks for it


@pytest.mark.parametrize("dilation", (0, 2))
def test_query_and_group_of_pointops_spreads_small_clouds(device, dilation):
    ends, new_ends, total = (30, 34, 70), (5, 12, 20), 1 + 5 * (dilation + 1)
    xyz, new, offsets = lattice(70, 6)[0], lattice(20, 6, seed=1)[0], (0, *ends)
    wanted, begin = [], 0
    for b, end in enumerate(new_ends):
        cloud = xyz[offsets[b] : offsets[b + 1]]
        step = (len(cloud) - 1) / 5 - 1 if len(cloud) < total else dilation
        slots = [int((step + 1) * i) for i in range(6)]
        rows = torchvox.knn(cloud[None], new[None, begin:end], total).idx[0]
        wanted += torch.where(rows < 0, -1, rows + offsets[b])[:, slots].tolist()
        begin = end
    clouds = [one.to(device) for one in (xyz, new, xyz.sin())]
    sizes = [torch.tensor(one, device=device).int() for one in (ends, new_ends)]
    grouped, idx = pointops.query_and_group(6, *clouds, None, *sizes, dilation)
    assert idx.tolist() == wanted and grouped.shape == (20, 6, 6)


@pytest.mark.parametrize("norm", (1, 2))
def test_pytorch3d_distances_have_exact_gradients_and_starts_are_random(device, norm):
    lengths = [torch.tensor(one, device=device) for one in ([7, 4], [30, 10])]
    leaves = [cube(n, seed=n, batch=2).double().to(device).requires_grad_() for n in (20, 30)]

    def search(p1, p2):
        return pytorch3d_ops.knn_points(p1, p2, *lengths, norm, 4).dists

    assert torch.autograd.gradcheck(search, leaves)
    points, rows = pytorch3d_ops.sample_farthest_points(leaves[1], lengths[1], 3, True)
    assert points.dtype == torch.float32 and bool((rows.amax(1) < lengths[1]).all())
    assert pytorch3d_ops.knn_points(*leaves)._fields == ("dists", "idx", "knn")
    assert pytorch3d_c.MAX_UINT == 2**32 - 1 and not hasattr(pytorch3d_c, "knn_check_version")


@pytest.fixture
def points():
    return cube(60, 4, scale=1.2)[0] - 0.1


def voxels(points, mean=False):
    """Voxels [M, P, 4], z y x, points of each, the voxel of each point."""
    found = torchvox.voxelize(points, SIZE, BOUNDS, P, V, trim=True)
    for voxel, count in zip(found.features, found.num_points, strict=True):
        voxel[count:] = voxel[:count].mean(0) if mean else 0
    return found.features, found.indices[:, 1:], found.num_points, found.point_voxel


def assert_near(ours, wanted):
    for one, two in zip(ours, wanted, strict=True):
        assert np.allclose(one.cpu().numpy() if hasattr(one, "cpu") else one, two, rtol=1e-6)


@pytest.mark.parametrize("mean", (False, True))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_voxels_come_by_their_first_point(device, points, mean, dtype):
    here, wanted = points.to(device, dtype), voxels(points, mean)
    generator = spconv_utils.PointToVoxel(SIZE, BOUNDS, 4, V, P, torch.device(device))
    assert generator.grid_size == [1, 2, 4]
    found = generator.generate_voxel_with_id(here, empty_mean=mean)
    assert [one.dtype for one in found] == [torch.float32, torch.int32, torch.int32, torch.int64]
    assert_near(found, wanted)
    assert len(generator(here, True, mean)) == 3
    assert [len(one) for one in generator.generate_voxel_with_id(here[:0])] == [0] * 4
    features = cube(len(found[0]), 2, seed=5)[0].to(device)
    back = spconv_utils.gather_features_by_pc_voxel_id(features, found[3], -7)
    inside = found[3] >= 0
    assert torch.equal(back[inside], features[found[3][inside]])
    assert bool((back[~inside] == -7).all()) and bool((~inside).any())
    hard = mmcv_ops.voxelization(here, SIZE, BOUNDS, P, V)
    assert hard[0].dtype == dtype and hard[1].dtype == hard[2].dtype == torch.int32
    assert_near(hard, voxels(points)[:3])
    module = mmcv_ops.Voxelization(SIZE, BOUNDS, P, [V, 2])
    assert module.grid_size.tolist() == [4, 2, 1]
    assert [int(n) for n in module.pcd_shape] == [1, 2, 4]
    assert len(module(here)[0]) == V and len(module.eval()(here)[0]) == 2


@pytest.mark.parametrize("mean", (False, True))
def test_voxel_generators_of_arrays(device, points, mean):
    kinds = {"cpu": spconv_utils.Point2VoxelCPU3d, "cuda": spconv_utils.Point2VoxelGPU3d}
    generator, wanted = kinds[device](SIZE, BOUNDS, 4, V, P), voxels(points, mean)
    call = generator.point_to_voxel_empty_mean if mean else generator.point_to_voxel
    for rows in (points.numpy(), points):  # a tensor of cumm has cpu() and numpy() too
        assert_near(call(rows), wanted[:3])
        assert_near([one.cpu().numpy_view() for one in call(rows)], wanted[:3])
    first = spconv_utils.VoxelGenerator(SIZE, BOUNDS, P, V, full_mean=mean)
    assert_near(first.generate(np.flip(np.flip(points.numpy()).copy())), wanted[:3])
    assert len(first.generate(points.numpy(), 2)[0]) == 2 and first.grid_size.tolist() == [4, 2, 1]
    second = spconv_utils.VoxelGeneratorV2(SIZE, BOUNDS, P, V).generate(points.numpy())
    names = ("voxels", "coordinates", "num_points_per_voxel")
    assert_near([second[name] for name in names], voxels(points)[:3])
    assert second["voxel_num"] == len(wanted[0])
    assert np.array_equal(second["voxel_point_mask"].sum((1, 2)), wanted[2])
