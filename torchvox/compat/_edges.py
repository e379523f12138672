# SPDX-License-Identifier: Apache-2.0
"""Searches of packed clouds whose results are edges, as torch_cluster and pyg_lib have them.

Everything here scripts. ptr: [B + 1] offsets of the clouds, None for one cloud. Edges are counted
once, the only synchronization.
"""

from typing import Optional

import torch
from torch import Tensor


def _rows(x: Tensor) -> Tensor:
    return x.view(-1, 1) if x.dim() == 1 else x


def _edges(idx: Tensor) -> Tensor:
    """[2, E] int64 of [M, k]: the query and the point, where the index is not -1."""
    flat = idx.flatten()
    slot = torch.nonzero(flat >= 0).flatten()
    return torch.stack([torch.div(slot, idx.size(1), rounding_mode="floor"), flat[slot].long()])


def _nearest(
    points: Tensor, query: Tensor, k: int, ptr: Optional[Tensor], query_ptr: Optional[Tensor]
) -> Tensor:
    """[M, k] int32 rows of points, nearest first, -1 where there are no more."""
    if ptr is None or query_ptr is None:
        return torch.ops.torchvox.knn(points[None], query[None], k, dist_order="loop")[1][0]
    return torch.ops.torchvox.knn(
        points, query, k, dist_order="loop", batch_offsets=ptr, query_batch_offsets=query_ptr
    )[1]


def knn_edges(
    x: Tensor,
    y: Tensor,
    k: int,
    ptr_x: Optional[Tensor],
    ptr_y: Optional[Tensor],
    cosine: bool,
    loop: bool = True,
) -> Tensor:
    """Of each y the k nearest x. loop: with edges from a row to itself."""
    if x.numel() == 0 or y.numel() == 0:
        return torch.empty(2, 0, dtype=torch.long, device=x.device)
    points, query = _rows(x), _rows(y)
    if cosine:  # unit vectors are as far apart as their angles are
        points = torch.nn.functional.normalize(points, dim=1)
        query = torch.nn.functional.normalize(query, dim=1)
    idx = _nearest(points, query, k, ptr_x, ptr_y)
    if not loop:
        own = torch.arange(idx.size(0), device=idx.device).unsqueeze(1)
        idx = idx.masked_fill(idx == own, -1)
    return _edges(idx)


def radius_edges(
    x: Tensor,
    y: Tensor,
    r: float,
    ptr_x: Optional[Tensor],
    ptr_y: Optional[Tensor],
    most: int,
    loop: bool,
) -> Tensor:
    """Of each y the first `most` x that are nearer than r. loop: with edges from a row to
    itself."""
    if x.numel() == 0 or y.numel() == 0:
        return torch.empty(2, 0, dtype=torch.long, device=x.device)
    points, query = _rows(x), _rows(y)
    largest = points.size(0) if ptr_x is None else int(torch.diff(ptr_x).max())
    k = min(most if loop else most + 1, largest)  # longer lists would be empty at the end
    if ptr_x is None or ptr_y is None:
        points, query = points[None], query[None]
    idx = torch.ops.torchvox.ball_query(
        points,
        query,
        r,
        k,
        radius2=r * r,
        core_dist2=-1.0,
        fill="pad",
        dist_order="loop",
        batch_offsets=ptr_x,
        query_batch_offsets=ptr_y,
    )[1].flatten(0, -2)
    if not loop:
        own = torch.arange(idx.size(0), device=idx.device).unsqueeze(1)
        other = (idx >= 0) & (idx != own)
        idx = idx.masked_fill(~other | (other.cumsum(1) > most), -1)
    return _edges(idx)


def sampled_rows(src: Tensor, ptr: Tensor, ratio: Tensor, random_start: bool) -> Tensor:
    """int64: of each cloud ceil(ratio * rows) furthest points. ptr may lie on the host, which saves
    the synchronization."""
    rows = src.reshape(src.size(0), -1)
    sizes = torch.diff(ptr)
    counts = (sizes.float() * ratio.to(ptr.device)).ceil().long()
    ends = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    start: Optional[Tensor] = None
    if random_start:
        drawn = torch.rand(sizes.size(0), dtype=torch.double, device=ptr.device)
        start = torch.minimum((drawn * sizes).long(), sizes - 1).to(src.device)
    return torch.ops.torchvox.furthest_point_sample_ragged(
        rows,
        ptr.to(src.device),
        ends.to(src.device),
        int(ends[-1]),
        start_idx=start,
        dist_order="loop",
        exhausted="repeat",
    )[0].long()


def nearest_rows(x: Tensor, y: Tensor, ptr_x: Optional[Tensor], ptr_y: Optional[Tensor]) -> Tensor:
    """int64 [N]: the row of y that is nearest to each x."""
    return _nearest(_rows(y), _rows(x), 1, ptr_y, ptr_x).flatten().long()


def grid_cluster(
    pos: Tensor, size: Tensor, start: Optional[Tensor] = None, end: Optional[Tensor] = None
) -> Tensor:
    """int64 [N]: the cell of each row in a grid from start to end, x fastest."""
    pos = pos.view(pos.size(0), -1)
    low = pos.amin(0) if start is None else start
    high = pos.amax(0) if end is None else end
    cells = torch.true_divide(high - low, size).long() + 1
    steps = torch.cat([torch.ones_like(cells[:1]), cells.cumprod(0)[:-1]])
    return (torch.true_divide(pos - low, size).long() * steps).sum(1)
