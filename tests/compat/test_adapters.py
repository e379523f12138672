# SPDX-License-Identifier: Apache-2.0
"""What holds for the functions of every adapter: indices outside, no points, half precision."""

import pytest
import torch

from torchvox.compat import pointnet2_plain, pointops, pytorch3d_ops, spconv_utils, torch_scatter

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
