# SPDX-License-Identifier: Apache-2.0
"""Stands for the searches of `pyg_lib.ops` 0.9: torch_cluster's, with offsets for batches."""

from typing import Optional

import torch
from torch import Tensor

from torchvox.compat import _edges

__all__ = ["fps", "grid_cluster", "knn", "knn_graph", "nearest", "radius", "radius_graph"]
# fmt: off
NOT_COVERED = (
    "edge_sample", "fused_scatter_reduce", "graclus_cluster", "grouped_matmul", "index_sort",
    "random_walk", "sampled_add", "sampled_div", "sampled_mul", "sampled_sub", "scatter_add",
    "scatter_max", "scatter_mean", "scatter_min", "scatter_mul", "scatter_sum", "segment_coo",
    "segment_csr", "segment_matmul", "softmax_csr", "spline_basis", "spline_conv",
    "spline_weighting", "spmm",
)
# fmt: on
ABSENT = True  # torch_geometric asks by hasattr
DIFFERS = {
    "fps": "Random starts come from torch's generator; ties are those of the peer's CPU code.",
    "knn": "Among equal distances the lower index comes first; cosine works on the CPU too.",
    "radius": "The first neighbors by index, where the peer's CPU code takes any.",
}
grid_cluster = _edges.grid_cluster


def fps(src: Tensor, ptr: Tensor, ratio: float = 0.5, random_start: bool = True) -> Tensor:
    """int64: rows of src, ceil(ratio * rows) of each cloud, furthest first."""
    return _edges.sampled_rows(src, ptr, torch.tensor(ratio, dtype=torch.float32), random_start)


def knn(
    x: Tensor,
    y: Tensor,
    k: int = 1,
    ptr_x: Optional[Tensor] = None,
    ptr_y: Optional[Tensor] = None,
    cosine: bool = False,
    num_workers: int = 1,
) -> Tensor:
    """[2, E] int64: rows of y, and for each the k nearest rows of x, nearest first."""
    return _edges.knn_edges(x, y, k, ptr_x, ptr_y, cosine)


def knn_graph(
    x: Tensor,
    k: int,
    ptr: Optional[Tensor] = None,
    loop: bool = False,
    flow: str = "source_to_target",
    cosine: bool = False,
    num_workers: int = 1,
) -> Tensor:
    """[2, E] int64: each row, then its k nearest; the other way for target_to_source."""
    edges = _edges.knn_edges(x, x, k if loop else k + 1, ptr, ptr, cosine, loop)
    return edges.flip(0) if flow == "target_to_source" else edges


def radius(
    x: Tensor,
    y: Tensor,
    r: float = 1.0,
    ptr_x: Optional[Tensor] = None,
    ptr_y: Optional[Tensor] = None,
    max_num_neighbors: int = 32,
    num_workers: int = 1,
    ignore_same_index: bool = False,
) -> Tensor:
    """[2, E] int64: rows of y, and for each the first max_num_neighbors rows of x nearer than r."""
    return _edges.radius_edges(x, y, r, ptr_x, ptr_y, max_num_neighbors, not ignore_same_index)


def radius_graph(
    x: Tensor,
    r: float,
    ptr: Optional[Tensor] = None,
    loop: bool = False,
    max_num_neighbors: int = 32,
    flow: str = "source_to_target",
    num_workers: int = 1,
) -> Tensor:
    """[2, E] int64: each row, then those nearer than r; the other way for target_to_source."""
    edges = _edges.radius_edges(x, x, r, ptr, ptr, max_num_neighbors, loop)
    return edges.flip(0) if flow == "target_to_source" else edges


def nearest(
    x: Tensor, y: Tensor, ptr_x: Optional[Tensor] = None, ptr_y: Optional[Tensor] = None
) -> Tensor:
    """int64 [N]: the row of y that is nearest to each row of x."""
    return _edges.nearest_rows(x, y, ptr_x, ptr_y)
