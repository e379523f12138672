# SPDX-License-Identifier: Apache-2.0
"""What holds for the functions of every adapter: indices outside, no points, half precision,
TorchScript."""

import importlib
import re

import pytest
import torch

from torchvox.compat import (
    mmcv_ops,
    pointnet2_plain,
    pointops,
    pyg_lib_ops,
    pytorch3d_ops,
    spconv_utils,
    torch_cluster,
    torch_scatter,
)

ROWS = torch.arange(12.0).view(4, 3)
CLOUD = ROWS[None]
INDEXED = {  # function of an index -> what is wrong for it besides 9
    "scatter": (lambda i: torch_scatter.scatter(ROWS, i, 0, dim_size=4), -1),
    "scatter of columns": (lambda i: torch_scatter.scatter_max(ROWS[:, :1], i[:, None], 0), -1),
    "scatter out": (lambda i: torch_scatter.scatter_sum(ROWS, i, 0, torch.zeros(4, 3)), -2),
    "scatter softmax": (lambda i: torch_scatter.scatter_softmax(ROWS, i, 0, 4), -1),
    "segment_coo": (lambda i: torch_scatter.segment_coo(ROWS, i, dim_size=4), -1),
    "gather_coo": (lambda i: torch_scatter.gather_coo(ROWS, i), -1),
    "segment_csr": (lambda i: torch_scatter.segment_csr(ROWS, i), -1),
    "knn_gather": (lambda i: pytorch3d_ops.knn_gather(CLOUD, i[None, :, None]), -1),
    "masked_gather": (lambda i: pytorch3d_ops.masked_gather(CLOUD, i[None]), -2),
    "index_points": (lambda i: pointnet2_plain.index_points(CLOUD, i[None]), -5),
    "grouping": (lambda i: pointops.grouping(i[:, None], ROWS, ROWS), -2),
    "by voxel": (lambda i: spconv_utils.gather_features_by_pc_voxel_id(ROWS, i), -2),
}


@pytest.mark.parametrize("name", INDEXED)
def test_indices_outside_are_errors_on_the_cpu(name):
    call, below = INDEXED[name]
    call(torch.tensor([0, 1, 2, 3]))
    for wrong in (below,) if name == "scatter of columns" else (below, 9, 2**32 + 1):
        with pytest.raises(IndexError, match=rf"{name.split()[0]}.*size \d+.*got {wrong}"):
            call(torch.tensor([0, 1, 2, wrong]).sort().values)


def test_where_indices_are_not_read_those_outside_are_left_out(monkeypatch):
    monkeypatch.setattr(torch_scatter, "check_index", lambda *_: None)  # as on CUDA
    index = torch.tensor([2**32 + 1, -1, 1, 2**32])
    assert torch_scatter.scatter(ROWS, index, 0, dim_size=2).tolist() == [[0] * 3, [6, 7, 8]]


# Calls with B clouds of N points and M boxes or queries, r: random, i: zeros, and the shape of what
# they return first, or write into `out`. Those before the empty line take half precision.
CALLS = """
mmcv_ops: RoIAwarePool3d((2, 3, 4), 8)(r(M, 7), r(N, 3), r(N, 5)) -> M, 2, 3, 4, 5
mmcv_ops: RoIAwarePool3d(2, 8, "avg")(r(M, 7), r(N, 3).float(), r(N, 5)) -> M, 2, 2, 2, 5
mmcv_ops: RoIPointPool3d(6)(r(B, N, 3), r(B, N, 5), r(B, M, 7)) -> B, M, 6, 8
mmcv_ops: points_in_boxes_all(r(B, N, 3), r(B, M, 7)) -> B, N, M
mmcv_ops: box_iou_rotated(r(N, 5), r(M, 5)) -> N, M
mmcv_ops: boxes_overlap_bev(r(N, 7), r(M, 7)) -> N, M
mmcv_ops: boxes_iou3d(r(N, 7), r(M, 7)) -> N, M
mmcv_ops: boxes_iou_bev(r(N, 5), r(M, 5)) -> N, M
mmcv_ops: diff_iou_rotated_2d(r(B, N, 5), r(B, N, 5)) -> B, N
mmcv_ops: diff_iou_rotated_3d(r(B, N, 7), r(B, N, 7)) -> B, N
mmcv_ops: nms3d(r(N, 7), r(N), 2.0) -> N
mmcv_ops: nms_rotated(r(N, 5), r(N), 2.0) -> N, 6 if N else 5
mmcv_ops: furthest_point_sample(r(B, N, 3), M) -> B, M
mmcv_ops: furthest_point_sample_with_dist(r(B, N, N), M) -> B, M
mmcv_ops: PointsSampler([M], ["FS"])(r(B, N, 3), r(B, 5, N)) -> B, 2 * M
mmcv_ops: ball_query(0, 0.5, 4, r(B, N, 3), r(B, M, 3)) -> B, M, 4
mmcv_ops: QueryAndGroup(0.5, 4)(r(B, N, 3), r(B, M, 3), r(B, 5, N)) -> B, 8, M, 4
mmcv_ops: QueryAndGroup(None, 4)(r(B, N, 3), r(B, M, 3), r(B, 5, N)) -> B, 8, M, 4
mmcv_ops: knn(3, r(B, N, 3), r(B, M, 3)) -> B, 3, M
mmcv_ops: three_nn(r(B, M, 3), r(B, N, 3)) -> B, M, 3
mmcv_ops: three_interpolate(r(B, 5, N), i(B, M, 3).int(), r(B, M, 3)) -> B, 5, M
mmcv_ops: chamfer_distance(r(B, N, 3), r(B, M, 3)) -> B, N
mmcv_ops: voxelization(r(N, 4), [2, 2, 2], [0, 0, 0, 4, 4, 4], -1, -1) -> N, 3
mmcv_ops: dynamic_scatter(r(N, 5), i(N, 3)) -> min(N, 1), 5
pcdet_ops.iou3d_nms_cuda: boxes_overlap_bev_gpu(r(N, 7), r(M, 7), out(N, M)) -> N, M
pcdet_ops.iou3d_nms_cuda: boxes_aligned_iou_bev_cpu(r(N, 7), r(N, 7), out(N, 1)) -> N, 1
pcdet_ops.iou3d_nms_cuda: nms_normal_gpu(r(N, 7), out(N).long(), 2.0) -> N
pcdet_ops.iou3d_nms_utils: boxes_iou3d_gpu(r(N, 7), r(M, 7)) -> N, M
pcdet_ops.iou3d_nms_utils: boxes_iou_bev(r(N, 7), r(M, 7)) -> N, M
pcdet_ops.iou3d_nms_utils: boxes_aligned_iou3d_gpu(r(N, 7), r(N, 7)) -> N, 1
pcdet_ops.roiaware_pool3d_cuda: forward(r(M, 7), r(N, 3), r(N, 5), i(*G), i(*L), out(*G), 0) -> *G
pcdet_ops.roiaware_pool3d_cuda: points_in_boxes_cpu(r(M, 7), r(N, 3), out(M, N)) -> M, N
pcdet_ops.roiaware_pool3d_cuda: points_in_boxes_gpu(r(B, M, 7), r(B, N, 3), out(B, N)) -> B, N
pcdet_ops.roiaware_pool3d_utils: RoIAwarePool3d(2, 8)(r(M, 7), r(N, 3), r(N, 5), "avg") -> *G
pcdet_ops.roiaware_pool3d_utils: points_in_boxes_gpu(r(B, N, 3), r(B, M, 7)) -> B, N
pcdet_ops.roipoint_pool3d_cuda: forward(r(B, N, 3), r(B, M, 7), r(B, N, 5), out(*R), i(B, M)) -> *R
pcdet_ops.pointnet2_stack_utils: stack_farthest_point_sample(r(B * N, 3), i(B) + N, M) -> B * M
pointnet2_ops.pointnet2_utils: QueryAndGroup(0.5, 4)(r(B, N, 3), r(B, M, 3), None) -> B, 3, M, 4
pointnet2_ops.pointnet2_utils: three_nn(r(B, M, 3), r(B, N, 3)) -> B, M, 3

pointnet2_plain: farthest_point_sample(r(B, N, 3), M) -> B, M
pointops: farthest_point_sampling(r(B * N, 3), ends(N), ends(M)) -> B * M
pytorch3d_ops: sample_farthest_points(r(B, N, 3), K=[M] * B) -> B, M * (B > 0), 3
pytorch3d_ops: sample_farthest_points(r(B, N, 3), K=i(B) + M) -> B, M * (B > 0), 3
pytorch3d_ops: knn_points(r(B, M, 3), r(B, N, 3), K=4, return_nn=True) -> B, M, 4
pytorch3d_c: sample_farthest_points(r(B, N, 3), i(B) + N, i(B) + M, i(B)) -> B, M * (B > 0)
torch_scatter: scatter(r(N, M), i(N, M), 0, dim_size=3) -> 3, M
torch_scatter: scatter_max(r(M, N), i(M, N), dim_size=3) -> M, 3
torch_scatter: scatter_softmax(r(N, M), i(N), 0) -> N, M
torch_scatter: gather_coo(r(1, M), i(N)) -> N, M
torch_scatter: gather_csr(r(N, M), torch.arange(N + 1)) -> N, M
torch_cluster: fps(r(N, 3), i(N)) -> (N + 1) // 2
torch_cluster: knn(r(N, 3), r(M, 3), 3) -> 2, M * min(N, 3)
torch_cluster: grid_cluster(r(N, 3), torch.ones(3)) -> N
torch_cluster: grid_cluster(r(N), torch.ones(1), torch.zeros(1), torch.ones(1)) -> N
"""
HALVES, _, OTHERS = (part.strip().splitlines() for part in CALLS.partition("\n\n"))


def result(line, dtype, B, N, M):
    """The result of a line of CALLS, and its shape."""
    module, call, shape = re.split(": | -> ", line)
    generator, outputs = torch.Generator().manual_seed(1), []

    def out(*shape):
        outputs.append(torch.zeros(shape, dtype=dtype))
        return outputs[0]

    scope = {
        **vars(importlib.import_module(f"torchvox.compat.{module}")),
        **{"torch": torch, "B": B, "N": N, "M": M, "out": out},
        **{"G": (M, 2, 2, 2, 5), "L": (M, 2, 2, 2, 8), "R": (B, M, 6, 8)},
        "r": lambda *shape: torch.rand(shape, generator=generator).half().to(dtype),
        "i": lambda *shape: torch.zeros(shape, dtype=torch.long),
        "ends": lambda rows: torch.arange(1, B + 1) * rows,
    }
    first = eval(call, scope)
    first = outputs[0] if outputs else first[0] if isinstance(first, tuple) else first
    return first, eval(f"({shape},)", scope)


@pytest.mark.parametrize("line", [*HALVES, *OTHERS], ids=lambda line: line.partition("(")[0])
@pytest.mark.parametrize("sizes", [(2, 9, 4), (0, 9, 4), (2, 0, 4), (2, 9, 0), (0, 0, 0)])
def test_no_points_boxes_or_clouds_give_the_empty_result(line, sizes):
    first, shape = result(line, torch.float32, *sizes)
    assert first.shape == shape


@pytest.mark.parametrize("line", HALVES, ids=lambda line: line.partition("(")[0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32_and_rounded(line, dtype):
    half, _ = result(line, dtype, 2, 9, 4)
    full, _ = result(line, torch.float32, 2, 9, 4)
    if dtype == torch.float16:
        torch.testing.assert_close(half, full.to(half.dtype), rtol=0, atol=1e-3)
    kept = half.is_floating_point() and "three_nn" not in line and "chamfer" not in line
    assert half.dtype == (dtype if kept else full.dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64])
def test_other_dtypes_of_features_and_boxes_round_no_coordinates(dtype):
    points, boxes = ROWS[None] / 7, torch.tensor([[[0.5, 0.5, 0, 2, 2, 2, 0]]])
    pooled, _ = mmcv_ops.RoIPointPool3d(1)(points, torch.ones(1, 4, 2, dtype=dtype), boxes)
    assert torch.equal(pooled[0, 0, 0, :3], points[0, 0])
    boxes = torch.tensor([[0, 0, 3, 3, 0], [0, 0, 3, 1, 0]], dtype=dtype)
    iou = mmcv_ops.boxes_iou_bev(boxes[:1], boxes[1:])
    torch.testing.assert_close(iou.float(), torch.tensor([[1 / 3]]), atol=1e-3, rtol=0)


BATCH, PTR = torch.tensor([0, 0, 2, 2]), torch.tensor([0, 2, 4])
SEARCHES = {
    "fps": (ROWS, PTR, 0.3, False),
    "grid_cluster": (ROWS, torch.full((3,), 2.0)),
    **{"nearest": (ROWS, ROWS[:2]), "knn": (ROWS, ROWS, 3), "knn_graph": (ROWS, 2)},
    **{"radius": (ROWS, ROWS, 6.0), "radius_graph": (ROWS, 6.0)},
}
SCATTERS = {
    name: (ROWS, PTR) if "csr" in name else (ROWS, BATCH, *([0] * name.startswith("scatter")))
    for name in torch_scatter.__all__
}
SCRIPTED = {
    torch_cluster: {**SEARCHES, "fps": (ROWS, BATCH, 0.3, False)},
    pyg_lib_ops: SEARCHES,
    torch_scatter: {**SCATTERS, "gather_csr": (ROWS[:2], PTR)},
}


@pytest.mark.parametrize("module", SCRIPTED, ids=lambda module: module.__name__)
def test_every_function_scripts(module):
    assert set(SCRIPTED[module]) == set(module.__all__)
    for name, values in SCRIPTED[module].items():
        function = getattr(module, name)
        torch.testing.assert_close(
            torch.jit.script(function)(*values), function(*values), equal_nan=True, msg=name
        )
