# SPDX-License-Identifier: Apache-2.0
"""Replaces Pointcept's `pointops`: packed clouds, whose offsets are ends without the leading 0.

Indices are packed rows too. `farthest_point_sampling` reads the number of samples from the device,
as the peer does.
"""

import torch

import torchvox
from torchvox.compat._errors import stubs
from torchvox.compat._shared import check_index, offsets_of_ends, rows_of

__all__ = [
    "aggregation", "batch2offset", "farthest_point_sampling", "grouping", "grouping2",
    "interpolation", "interpolation2", "knn_query", "knn_query_and_group", "offset2batch",
    "query_and_group", "subtraction",
]  # fmt: skip
NOT_COVERED = """
attention_fusion_step attention_relation_step ball_query ball_query_and_group random_ball_query
"""
DIFFERS = {
    "interpolation": "Missing neighbors have weight 0; the peer takes the last row.",
    "knn_query": "Among equal distances the lower index comes first; k may be 128 or more.",
    "query_and_group": "Missing neighbors are zeros; the peer takes the last row.",
}
__getattr__ = stubs("pointops", NOT_COVERED)


def farthest_point_sampling(xyz, offset, new_offset):
    """int32 rows of xyz, new_offset[b] - new_offset[b - 1] of cloud b."""
    fps, ends = torchvox.furthest_point_sample_ragged, offsets_of_ends(new_offset)
    total = int(new_offset[-1:].sum())
    return fps(xyz, offsets_of_ends(offset), ends, total, convention="pointops").idx


def nearest(nsample, xyz, offset, new_xyz, new_offset):
    """int32 rows [M, nsample], nearest first, and squared distances; -1 and 1e10 for missing ones.
    Not differentiable."""
    clouds, query_clouds = offsets_of_ends(offset), offsets_of_ends(new_offset)
    dist2, idx = torchvox.knn(
        xyz.detach(),
        new_xyz.detach(),
        nsample,
        batch_offsets=clouds,
        query_batch_offsets=query_clouds,
    )
    return idx, dist2.clamp_(max=1e10)


def knn_query(nsample, xyz, offset, new_xyz=None, new_offset=None):
    """`nearest` with distances in place of squares; without new_xyz, of xyz itself."""
    if new_xyz is None or new_offset is None:
        new_xyz, new_offset = xyz, offset
    idx, dist2 = nearest(nsample, xyz, offset, new_xyz, new_offset)
    return idx, dist2.sqrt_()


def grouping(idx, feat, xyz, new_xyz=None, with_xyz=False):
    """[M, nsample, C], or 3 + C with_xyz: relative coordinates first. Index -1 gives zeros."""
    check_index("grouping", idx, -1, feat.size(0) + 1)  # the peer also gives zeros for N
    grouped = rows_of(feat, idx)
    if not with_xyz:
        return grouped
    relative = rows_of(xyz, idx) - (xyz if new_xyz is None else new_xyz).unsqueeze(1)
    return torch.cat([relative.masked_fill((idx < 0).unsqueeze(-1), 0), grouped], dim=-1)


def grouping2(input, idx):
    """[M, nsample, C] of [N, C]."""
    return rows_of(input, idx)


def interpolation(xyz, new_xyz, feat, offset, new_offset, k=3):
    """[M, C]: features of the k nearest rows, weighted by 1 / (distance + 1e-8)."""
    idx, dist = knn_query(k, xyz, offset, new_xyz, new_offset)
    weight = (1 / (dist + 1e-8)).masked_fill(idx < 0, 0)
    weight = (weight / weight.sum(1, keepdim=True)).to(feat.dtype)
    return (rows_of(feat, idx) * weight.unsqueeze(-1)).sum(1)


interpolation2 = interpolation


def knn_query_and_group(
    feat, xyz, offset=None, new_xyz=None, new_offset=None, idx=None, nsample=None, with_xyz=False
):
    """(`grouping`, rows) of the nearest rows, or of idx."""
    if idx is None:
        assert nsample is not None
        idx, _ = knn_query(nsample, xyz, offset, new_xyz, new_offset)
    return grouping(idx, feat, xyz, new_xyz, with_xyz), idx


def _dilated(idx, nsample, dilation, offset, new_offset):
    """Every (dilation + 1)-th neighbor; a cloud with too few spreads those that it has."""
    sizes = torch.diff(offsets_of_ends(offset)).double()
    spread = (sizes - 1) / max(nsample - 1, 1) - 1
    step = spread.where(sizes < idx.size(1), dilation) + 1
    slots = (step[:, None] * torch.arange(nsample, device=idx.device)).long()
    query = torch.arange(idx.size(0), dtype=new_offset.dtype, device=idx.device)
    return idx.gather(1, slots[torch.bucketize(query, new_offset, right=True)])


def query_and_group(
    nsample, xyz, new_xyz, feat, idx, offset, new_offset, dilation=0, with_feat=True, with_xyz=True
):
    """([M, nsample, 3 + C], rows); without with_feat, only rows."""
    new_xyz = xyz if new_xyz is None else new_xyz
    if idx is None:
        reach = 1 + (nsample - 1) * (dilation + 1)
        near, _ = knn_query(reach, xyz, offset, new_xyz, new_offset)
        idx = _dilated(near, nsample, dilation, offset, new_offset)
    return (grouping(idx, feat, xyz, new_xyz, with_xyz), idx) if with_feat else idx


def subtraction(input1, input2, idx):
    """[N, nsample, C]: rows of input1 minus their neighbors of input2."""
    return input1.unsqueeze(1) - rows_of(input2, idx)


def aggregation(input, position, weight, idx):
    """[N, C]: sum over the neighbors of (input + position [N, nsample, C]) * weight
    [N, nsample, C'], whose channels repeat."""
    shared = weight.repeat(1, 1, position.size(2) // weight.size(2))
    return ((rows_of(input, idx) + position) * shared).sum(1)


def offset2batch(offset):
    """int64 cloud of each row."""
    sizes = torch.diff(offsets_of_ends(offset))
    return torch.repeat_interleave(torch.arange(len(offset), device=offset.device), sizes)


def batch2offset(batch):
    """int32 end of each cloud."""
    return batch.bincount().cumsum(0).int()
