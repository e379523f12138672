# SPDX-License-Identifier: Apache-2.0
"""The adapters beside the peers, where these are installed, on the CPU."""

import importlib

import pytest
import torch

from tests.compat.inputs import boxes_of, corners, turn
from tests.helpers import cube

ADAPTERS = {
    "mmcv.ops": "mmcv_ops",
    "pytorch3d.ops": "pytorch3d_ops",
    "spconv.pytorch.utils": "spconv_utils",
    "torch_cluster": "torch_cluster",
    "torch_scatter": "torch_scatter",
}
# Calls of a module m with points p and q and their clouds of_p and of_q, rows r of 4 columns, and
# boxes with scores and classes.
CALLS = """
mmcv.ops: m.points_in_boxes_cpu(20 * p[None], boxes[None])
mmcv.ops: m.box_iou_rotated(flat, flat)
mmcv.ops: m.box_iou_rotated(flat, flat, clockwise=False)
mmcv.ops: m.box_iou_rotated(flat, flat, aligned=True)
mmcv.ops: m.nms(rectangles, scores, 0.3)
mmcv.ops: m.nms_rotated(flat, scores, 0.3)
mmcv.ops: m.nms_bev(corners, scores, 0.3, 100, 20)
mmcv.ops: m.nms_normal_bev(corners, scores, 0.3)
mmcv.ops: m.batched_nms(rectangles, scores, classes, {"type": "nms", "iou_threshold": 0.3})
mmcv.ops: m.batched_nms(flat, scores, classes, {"type": "nms_rotated", "iou_threshold": 0.3})
mmcv.ops: m.voxelization(r, *grid, 3, 20)
mmcv.ops: m.voxelization(r, *grid, -1, -1)
pytorch3d.ops: m.knn_points(p[None], q[None], lengths2=torch.tensor([30]), K=5, return_nn=True)
pytorch3d.ops: m.ball_query(p[None], q[None], lengths2=torch.tensor([30]), K=5)
pytorch3d.ops: m.sample_farthest_points(torch.stack([q, q]), torch.tensor([60, 3]), 9)
spconv.pytorch.utils: m.PointToVoxel(*grid, 4, 6, 3).generate_voxel_with_id(r)
spconv.pytorch.utils: m.gather_features_by_pc_voxel_id(q, of_p - 1, -7)
torch_cluster: m.fps(p, of_p, 0.2, False)
torch_cluster: m.knn(p, q, 7, of_p, of_q)
torch_cluster: m.knn_graph(p, 7, of_p)
torch_cluster: m.nearest(p, q, of_p, of_q)
torch_cluster: sorted(m.radius(p, q, 0.3, of_p, of_q, 999).T.tolist())
torch_cluster: sorted(m.radius_graph(p, 0.3, of_p, False, 999).T.tolist())
torch_cluster: m.grid_cluster(50 * p, torch.tensor([7.0, 9.0, 11.0]))
torch_cluster: m.grid_cluster((50 * p).long(), torch.tensor([7, 9, 11]))
torch_scatter: [m.scatter(p, of_p.roll(7), 0, reduce=name) for name in reductions]
torch_scatter: [m.segment_coo(p, of_p, reduce=name) for name in reductions]
torch_scatter: [m.segment_csr(p, torch.tensor([0, 7, 7, 300]), reduce=name) for name in reductions]
torch_scatter: [m.scatter((9 * p).long() - 4, of_p, 0, reduce=name) for name in reductions]
torch_scatter: [m.segment_coo((9 * p).long() - 4, of_p, reduce=name) for name in reductions]
torch_scatter: [*m.scatter_min(p.T, of_p), *m.scatter_max(p.T, of_p), m.scatter_std(p.T, of_p)]
torch_scatter: [m.scatter_softmax(p, of_p, 0), m.scatter_log_softmax(p, of_p, 0)]
torch_scatter: m.scatter_logsumexp(p, of_p, 0)
"""


def installed(name):
    """The peer itself; skips the test where it is not installed, or cannot be imported."""
    return pytest.importorskip(name, reason=f"{name} is not installed", exc_type=ImportError)


@pytest.mark.parametrize("line", CALLS.strip().splitlines())
def test_results_are_those_of_the_installed_peer(line):
    name, _, call = line.partition(": ")
    if "spconv" in name:
        installed("cumm")  # without it spconv is an empty package of ours
    adapter = importlib.import_module(f"torchvox.compat.{ADAPTERS[name]}")
    boxes = boxes_of(200, scale=20.0)
    values = {
        "p": cube(300, seed=4)[0],
        "q": cube(60, seed=5)[0],
        "of_p": torch.arange(3).repeat_interleave(torch.tensor([100, 150, 50])),
        "of_q": torch.arange(3).repeat_interleave(torch.tensor([20, 10, 30])),
        "r": cube(500, 4, scale=1.2)[0] - 0.1,
        "grid": ([0.25, 0.5, 1.0], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]),
        "boxes": boxes,
        "flat": turn(boxes),
        "corners": corners(boxes),
        "rectangles": corners(boxes)[:, :4],
        "scores": cube(200, 1)[0][:, 0],
        "reductions": ["sum", "mean", "min", "max"],
        "classes": torch.arange(200) % 3,
    }
    ours, theirs = (
        eval(call, {"torch": torch, **values, "m": module}) for module in (adapter, installed(name))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
