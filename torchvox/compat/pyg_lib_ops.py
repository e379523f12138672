# SPDX-License-Identifier: Apache-2.0
"""Replaces the searches of `pyg_lib.ops` 0.9; the adapter of torch_cluster uses them too.

ptr: [B + 1] offsets of the clouds, None for one cloud. Everything scripts. The only
synchronization is one read of the number of edges.
"""

from typing import Optional

import torch
from torch import Tensor

__all__ = ["fps", "grid_cluster", "knn", "knn_graph", "nearest", "radius", "radius_graph"]
NOT_COVERED = """
edge_sample fused_scatter_reduce graclus_cluster grouped_matmul index_sort random_walk sampled_add
sampled_div sampled_mul sampled_sub scatter_add scatter_max scatter_mean scatter_min scatter_mul
scatter_sum segment_coo segment_csr segment_matmul softmax_csr spline_basis spline_conv
spline_weighting spmm
"""
ABSENT = True  # torch_geometric asks by hasattr
DIFFERS = {
    "fps": "Random starts come from torch's generator; ties are those of the peer's CPU code.",
    "knn": "Among equal distances the lower index comes first; cosine works on the CPU too.",
    "radius": "The first neighbors by index, where the peer's CPU code takes any.",
}
MaybeTensor = Optional[Tensor]


def _edges(idx):
    """[2, E] int64 of [M, k]: the query and the point of each index except -1."""
    flat = idx.flatten()
    slot = torch.nonzero(flat >= 0).flatten()
    query = torch.div(slot, max(idx.size(1), 1), rounding_mode="floor")
    return torch.stack([query, flat[slot].long()])


def _rows(x, cosine: bool = False):
    """[N, D]; cosine: unit vectors, whose distances are ordered as their angles."""
    rows = x.view(-1, 1) if x.dim() == 1 else x
    return torch.nn.functional.normalize(rows, dim=1) if cosine else rows


def _other(idx):
    """Which entries are another row than the query."""
    return (idx >= 0) & (idx != torch.arange(idx.size(0), device=idx.device).unsqueeze(1))


def _nearest(points, query, k: int, ptr: MaybeTensor, query_ptr: MaybeTensor):
    """[M, k] int32 rows of points, nearest first, then -1."""
    if ptr is None or query_ptr is None:
        return torch.ops.torchvox.knn(points[None], query[None], k, dist_order="loop")[1][0]
    return torch.ops.torchvox.knn(
        points, query, k, dist_order="loop", batch_offsets=ptr, query_batch_offsets=query_ptr
    )[1]


def sampled(src, ptr, ratio, random_start: bool):
    """`fps` with one ratio or one per cloud, in whose dtype the samples are counted. If ptr is on
    the host, there is no synchronization."""
    sizes = torch.diff(ptr)
    counts = (sizes.to(ratio.dtype) * ratio.to(ptr.device)).ceil().long()
    ends = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    start: MaybeTensor = None
    if random_start:
        drawn = torch.rand(sizes.size(0), dtype=torch.double, device=ptr.device)
        start = torch.minimum((drawn * sizes).long(), sizes - 1).to(src.device)
    return torch.ops.torchvox.furthest_point_sample_ragged(
        src.flatten(1) if src.dim() > 1 else src.unsqueeze(1),
        ptr.to(src.device),
        ends.to(src.device),
        int(ends[-1]),
        start_idx=start,
        dist_order="loop",
        exhausted="repeat",
    )[0].long()


def fps(src, ptr, ratio: float = 0.5, random_start: bool = True):
    """int64: rows of src, ceil(ratio * rows) of each cloud, furthest first."""
    return sampled(src, ptr, torch.tensor(ratio, dtype=torch.float32), random_start)


def knn(
    x,
    y,
    k: int = 1,
    ptr_x: MaybeTensor = None,
    ptr_y: MaybeTensor = None,
    cosine: bool = False,
    num_workers: int = 1,
):
    """[2, E] int64: rows of y, and for each the k nearest rows of x, nearest first."""
    return _edges(_nearest(_rows(x, cosine), _rows(y, cosine), k, ptr_x, ptr_y))


def knn_graph(
    x,
    k: int,
    ptr: MaybeTensor = None,
    loop: bool = False,
    flow: str = "source_to_target",
    cosine: bool = False,
    num_workers: int = 1,
):
    """[2, E] int64: each row and its k nearest; swapped for target_to_source."""
    rows = _rows(x, cosine)
    idx = _nearest(rows, rows, k if loop else k + 1, ptr, ptr)
    edges = _edges(idx if loop else idx.masked_fill(~_other(idx), -1))
    return edges.flip(0) if flow == "target_to_source" else edges


def radius(
    x,
    y,
    r: float = 1.0,
    ptr_x: MaybeTensor = None,
    ptr_y: MaybeTensor = None,
    max_num_neighbors: int = 32,
    num_workers: int = 1,
    ignore_same_index: bool = False,
):
    """[2, E] int64: rows of y, and for each the first max_num_neighbors rows of x nearer than r."""
    if x.numel() == 0 or y.numel() == 0:
        return torch.empty(2, 0, dtype=torch.long, device=x.device)
    points, query = _rows(x), _rows(y)
    largest = points.size(0) if ptr_x is None else int(torch.diff(ptr_x).max())
    most = max_num_neighbors + 1 if ignore_same_index else max_num_neighbors
    if ptr_x is None or ptr_y is None:
        points, query = points[None], query[None]
    idx = torch.ops.torchvox.ball_query(
        points,
        query,
        r,
        min(most, largest),  # longer lists would end in padding
        radius2=r * r,
        core_dist2=-1.0,
        fill="pad",
        dist_order="loop",
        batch_offsets=ptr_x,
        query_batch_offsets=ptr_y,
    )[1].flatten(0, -2)
    if ignore_same_index:
        other = _other(idx)
        idx = idx.masked_fill(~other | (other.cumsum(1) > max_num_neighbors), -1)
    return _edges(idx)


def radius_graph(
    x,
    r: float,
    ptr: MaybeTensor = None,
    loop: bool = False,
    max_num_neighbors: int = 32,
    flow: str = "source_to_target",
    num_workers: int = 1,
):
    """[2, E] int64: each row and those nearer than r; swapped for target_to_source."""
    edges = radius(x, x, r, ptr, ptr, max_num_neighbors, ignore_same_index=not loop)
    return edges.flip(0) if flow == "target_to_source" else edges


def nearest(x, y, ptr_x: MaybeTensor = None, ptr_y: MaybeTensor = None):
    """int64 [N]: the row of y that is nearest to each row of x."""
    return _nearest(_rows(y), _rows(x), 1, ptr_y, ptr_x).flatten().long()


def grid_cluster(pos, size, start: MaybeTensor = None, end: MaybeTensor = None):
    """int64 [N]: the cell of each row in a grid from start to end, x fastest."""
    if pos.size(0) == 0:
        return torch.empty(0, dtype=torch.long, device=pos.device)
    pos = _rows(pos).flatten(1)
    low = pos.amin(0) if start is None else start
    high = pos.amax(0) if end is None else end
    cells = torch.true_divide(high - low, size).long() + 1
    steps = torch.cat([torch.ones_like(cells[:1]), cells.cumprod(0)[:-1]])
    return (torch.true_divide(pos - low, size).long() * steps).sum(1)
