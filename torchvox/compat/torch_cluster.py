# SPDX-License-Identifier: Apache-2.0
"""Replaces `torch_cluster` 1.6.3. Its functions script, as the peer's do.

As in the peer, the host reads the largest batch number and the number of edges.
"""

from typing import List, Optional, Union

import torch
from torch import Tensor

from torchvox.compat import pyg_lib_ops

__all__ = ["fps", "grid_cluster", "knn", "knn_graph", "nearest", "radius", "radius_graph"]
NOT_COVERED = "graclus_cluster neighbor_sampler random_walk"
ABSENT = True  # torch_geometric works without them
DIFFERS = {
    "fps": "Random starts come from torch's generator; ties are those of the peer's CPU code.",
    "knn": "Among equal distances the lower index comes first; cosine works on the CPU too.",
    "radius": "The first neighbors by index, where the peer's CPU code takes any.",
    "radius_graph": "At most max_num_neighbors without loops: 1.6.3 may return one more.",
}
grid_cluster = pyg_lib_ops.grid_cluster
MaybeTensor = Optional[Tensor]


def _ptr(batch, clouds: int):
    numbers = torch.arange(clouds + 1, dtype=batch.dtype, device=batch.device)
    return torch.bucketize(numbers, batch)


def _ptrs(x, y, batch_x: MaybeTensor, batch_y: MaybeTensor, batch_size: Optional[int]):
    clouds = 1 if batch_size is None else batch_size
    if batch_size is None and x.numel() > 0 and y.numel() > 0:
        for batch, rows in ((batch_x, x), (batch_y, y)):
            if batch is not None:
                assert rows.size(0) == batch.numel()
                clouds = max(clouds, int(batch.max()) + 1)
    if clouds <= 1:
        return None, None
    assert batch_x is not None
    assert batch_y is not None
    return _ptr(batch_x, clouds), _ptr(batch_y, clouds)


def fps(
    src,
    batch: MaybeTensor = None,
    ratio: Optional[Union[Tensor, float]] = None,
    random_start: bool = True,
    batch_size: Optional[int] = None,
    ptr: Optional[Union[Tensor, List[int]]] = None,
):
    """int64: rows of src, ceil(ratio * rows) of each cloud (ratio: 0.5), furthest first."""
    if isinstance(ratio, Tensor):
        part = ratio
    else:
        part = torch.tensor(0.5 if ratio is None else ratio, dtype=src.dtype)
    if isinstance(ptr, Tensor):
        offsets = ptr
    elif ptr is not None:
        offsets = torch.tensor(ptr)
    elif batch is not None:
        assert src.size(0) == batch.numel()
        last = int(batch.max()) if batch_size is None and batch.numel() > 0 else -1
        clouds = last + 1 if batch_size is None else batch_size
        offsets = _ptr(batch, clouds)
    else:
        offsets = torch.tensor([0, src.size(0)])
    return pyg_lib_ops.sampled(src, offsets, part, random_start)


def knn(
    x,
    y,
    k: int,
    batch_x: MaybeTensor = None,
    batch_y: MaybeTensor = None,
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: Optional[int] = None,
):
    """[2, E] int64: rows of y, and for each the k nearest rows of x, nearest first.
    batch_size: number of clouds, read if None. (torch_geometric looks for this word here.)"""
    ptr_x, ptr_y = _ptrs(x, y, batch_x, batch_y, batch_size)
    return pyg_lib_ops.knn(x, y, k, ptr_x, ptr_y, cosine)


def knn_graph(
    x,
    k: int,
    batch: MaybeTensor = None,
    loop: bool = False,
    flow: str = "source_to_target",
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: Optional[int] = None,
):
    """[2, E] int64: the k nearest rows and each row; swapped for target_to_source."""
    assert flow in ["source_to_target", "target_to_source"]
    ptr = _ptrs(x, x, batch, batch, batch_size)[0]
    edges = pyg_lib_ops.knn_graph(x, k, ptr, loop, cosine=cosine)
    return edges.flip(0) if flow == "source_to_target" else edges


def radius(
    x,
    y,
    r: float,
    batch_x: MaybeTensor = None,
    batch_y: MaybeTensor = None,
    max_num_neighbors: int = 32,
    num_workers: int = 1,
    batch_size: Optional[int] = None,
    ignore_same_index: bool = False,
):
    """[2, E] int64: rows of y, and for each the first max_num_neighbors rows of x nearer than r.
    ignore_same_index (later than 1.6.3): without edges of equal row."""
    ptr_x, ptr_y = _ptrs(x, y, batch_x, batch_y, batch_size)
    return pyg_lib_ops.radius(x, y, r, ptr_x, ptr_y, max_num_neighbors, 1, ignore_same_index)


def radius_graph(
    x,
    r: float,
    batch: MaybeTensor = None,
    loop: bool = False,
    max_num_neighbors: int = 32,
    flow: str = "source_to_target",
    num_workers: int = 1,
    batch_size: Optional[int] = None,
):
    """[2, E] int64: the rows nearer than r and each row; swapped for target_to_source."""
    assert flow in ["source_to_target", "target_to_source"]
    ptr = _ptrs(x, x, batch, batch, batch_size)[0]
    edges = pyg_lib_ops.radius_graph(x, r, ptr, loop, max_num_neighbors)
    return edges.flip(0) if flow == "source_to_target" else edges


def nearest(x, y, batch_x: MaybeTensor = None, batch_y: MaybeTensor = None):
    """int64 [N]: the row of y that is nearest to each row of x. Raises ValueError for batches that
    are not sorted, or of other clouds."""
    if batch_x is None and batch_y is None:
        return pyg_lib_ops.nearest(x, y, None, None)
    of_x = torch.zeros_like(x.flatten(1)[:, 0], dtype=torch.long) if batch_x is None else batch_x
    of_y = torch.zeros_like(y.flatten(1)[:, 0], dtype=torch.long) if batch_y is None else batch_y
    if bool((torch.diff(of_x) < 0).any()):
        raise ValueError("'batch_x' is not sorted")
    if bool((torch.diff(of_y) < 0).any()):
        raise ValueError("'batch_y' is not sorted")
    names = torch.unique_consecutive(of_x)
    if not torch.equal(names, torch.unique_consecutive(of_y)):
        raise ValueError("Some batch indices occur in 'batch_x' that do not occur in 'batch_y'")
    clouds = int(names[-1]) + 1 if names.numel() > 0 else 1
    return pyg_lib_ops.nearest(x, y, _ptr(of_x, clouds), _ptr(of_y, clouds))
