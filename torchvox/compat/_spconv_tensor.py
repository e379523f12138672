# SPDX-License-Identifier: Apache-2.0
"""The tensor and the containers of `spconv.pytorch`."""

from copy import copy

import torch
from torch import nn

from torchvox.compat._sparse import Rows, Sequential

__all__ = [
    "AddTable", "ConcatTable", "Identity", "JoinTable", "RemoveGrid", "SparseBatchNorm",
    "SparseConvTensor", "SparseIdentity", "SparseModule", "SparseReLU", "SparseSequential",
    "ToDense", "assign_name_for_sparse_modules", "is_spconv_module",
]  # fmt: skip


class SparseConvTensor(Rows):
    """features [M, C]; indices [M, 1 + n] int32, the sample first, n = 2 or 3 axes."""

    def __init__(
        self, features, indices, spatial_shape, batch_size, grid=None, voxel_num=None,
        indice_dict=None, benchmark=False, permanent_thrust_allocator=False, enable_timer=False,
        force_algo=None,
    ):  # fmt: skip
        assert features.ndim == 2 and indices.ndim == 2
        assert len(spatial_shape) == indices.shape[1] - 1, "spatial shape must equal to ndim"
        assert indices.dtype == torch.int32, "only support int32"
        assert batch_size > 0
        self._features, self.indices = features, indices
        self.spatial_shape = [int(n) for n in spatial_shape]
        self.batch_size, self.voxel_num = batch_size, voxel_num
        self.indice_dict = {} if indice_dict is None else indice_dict
        self.grid = torch.Tensor() if grid is None else grid
        self.benchmark, self.benchmark_record, self.force_algo = benchmark, {}, force_algo

    def __repr__(self):
        return f"SparseConvTensor[shape={self._features.shape}]"

    @property
    def features(self):
        return self._features

    @features.setter
    def features(self, val):
        raise ValueError("features cannot be assigned: use x = x.replace_feature(features)")

    @classmethod
    def from_dense(cls, x):
        """Of the cells of [B, cells.., C] that are not all zero."""
        found = x.to_sparse(x.ndim - 1)
        indices = found.indices().t().contiguous().int()
        return cls(found.values(), indices, found.shape[1:-1], found.shape[0])

    def derive(self, features, indices, spatial_shape, indice_dict):
        new = self.shadow_copy()
        new._features, new.indices = features, indices
        new.spatial_shape, new.indice_dict = list(spatial_shape), indice_dict
        return new

    def shadow_copy(self):
        return copy(self)

    def replace_feature(self, feature):
        return self.derive(feature, self.indices, self.spatial_shape, self.indice_dict)

    def select_by_index(self, valid_indices):
        """Those rows, without maps."""
        features, indices = self.features[valid_indices], self.indices[valid_indices]
        return self.derive(features, indices, self.spatial_shape, {})

    def minus(self):
        return self.replace_feature(-self.features)

    def _sum(self, other):
        assert isinstance(other, (SparseConvTensor, torch.Tensor))
        return self.features + getattr(other, "features", other)

    def __add__(self, other):
        return self.replace_feature(self._sum(other))

    __radd__ = __add__

    def __iadd__(self, other):
        self._features = self._sum(other)
        return self


class SparseModule(nn.Module):
    """A module that a SparseSequential gives the tensor; others get its features."""

    def __init__(self, name=None):
        super().__init__()
        self.name, self._sparse_unique_name = name, ""


class SparseSequential(Sequential, SparseModule):
    def forward(self, input):
        for module in self._modules.values():
            if is_spconv_module(module) or not isinstance(input, SparseConvTensor):
                input = module(input)
            elif len(input.indices) != 0:
                input = input.replace_feature(module(input.features))
        return input


class _OnFeatures(nn.Module):
    def forward(self, input):
        if isinstance(input, SparseConvTensor):
            return input.replace_feature(super().forward(input.features))
        return super().forward(input)


class SparseBatchNorm(_OnFeatures, nn.BatchNorm1d):
    """Of a sparse tensor or of rows."""


class SparseReLU(_OnFeatures, nn.ReLU):
    """Of a sparse tensor or of rows."""


class SparseIdentity(_OnFeatures, nn.Identity):
    """Of a sparse tensor or of rows."""


class Identity(nn.Module):
    def forward(self, input):
        return input


class ToDense(SparseModule):
    def forward(self, x):
        return x.dense()


class RemoveGrid(SparseModule):
    def forward(self, x):
        x.grid = None
        return x


def _same_rows(tensors):
    sizes = [(x.spatial_shape, x.batch_size, x.features.shape, len(x.indices)) for x in tensors]
    assert all(size == sizes[0] for size in sizes), "the tensors differ in rows or channels"


class JoinTable(SparseModule):
    def forward(self, input):
        _same_rows(input)
        return input[0].replace_feature(torch.cat([one.features for one in input], 1))


class AddTable(SparseModule):
    def forward(self, input):
        _same_rows(input)
        return input[0].replace_feature(sum(one.features for one in input))


class ConcatTable(SparseModule):
    def forward(self, input):
        return [module(input) for module in self._modules.values()]

    def add(self, module):
        self.add_module(str(len(self._modules)), module)
        return self


def is_spconv_module(module):
    return isinstance(module, (SparseModule, SparseBatchNorm, SparseReLU))


def assign_name_for_sparse_modules(module):
    for name, one in module.named_modules():
        if isinstance(one, SparseModule):
            one._sparse_unique_name = name
