# SPDX-License-Identifier: Apache-2.0
"""Replaces `spconv.pytorch` 2.3.8 and its modules conv, core, modules, pool, tables, functional,
ops, identity and constants.

Row counts are exact: a strided layer reads its number of rows from the device, once; code without
such reads uses `torchvox.nn`. `algo`, `fp32_accum` and `large_kernel_fast_algo` are accepted and
mean nothing. Parameters and buffers have the peer's names and layouts.
"""

from copy import copy

import torch
from torch import nn

from torchvox.compat._errors import refuse, stubs
from torchvox.compat._sparse import (
    Convolution,
    MaxPool,
    Rows,
    Sequential,
    by_axes,
    expand_nd,
    get_conv_output_size,
    scatter_nd,
)
from torchvox.compat.spconv_core import ConvAlgo

__all__ = [
    "AddTable", "ConcatTable", "ConvAlgo", "Identity", "JoinTable", "RemoveGrid", "SparseBatchNorm",
    "SparseConv2d", "SparseConv3d", "SparseConvTensor", "SparseConvolution", "SparseIdentity",
    "SparseInverseConv2d", "SparseInverseConv3d", "SparseMaxPool", "SparseMaxPool2d",
    "SparseMaxPool3d", "SparseModule", "SparseReLU", "SparseSequential", "SubMConv2d", "SubMConv3d",
    "ToDense", "assign_name_for_sparse_modules", "expand_nd", "get_conv_output_size",
    "is_sparse_conv", "is_spconv_module", "scatter_nd",
]  # fmt: skip
NOT_COVERED = """
AddTableMisaligned ImplicitGemmIndiceData IndiceData PrintCurrentTime PrintTensorMeta SparseAvgPool
SparseAvgPool1d SparseAvgPool2d SparseAvgPool3d SparseConv1d SparseConv4d SparseConvTranspose1d
SparseConvTranspose2d SparseConvTranspose3d SparseConvTranspose4d SparseGlobalAvgPool
SparseGlobalMaxOrAvgPool SparseGlobalMaxPool SparseInverseConv1d SparseInverseConv4d SparseMaxPool1d
SparseMaxPool4d SparseSyncBatchNorm SubMConv1d SubMConv4d get_deconv_output_size get_indice_pairs
get_indice_pairs_implicit_gemm implicit_gemm implicit_gemm_backward indice_conv indice_conv_backward
indice_inverse_conv indice_maxpool indice_maxpool_backward indice_subm_conv sparse_add
sparse_add_hash_based
"""
PARTLY = {
    "SparseConvolution": "groups other than 1; a kernel of over 125 cells; transposed; act_type",
    "SparseConv2d SparseConv3d SparseInverseConv2d SparseInverseConv3d SubMConv2d SubMConv3d": (
        "groups other than 1; a kernel of over 125 cells"
    ),
    "SparseMaxPool": "subm=True; a kernel of over 125 cells",
}
DIFFERS = {
    "SparseConv2d SparseConv3d": (
        "Rows ascend by (sample, z, y, x); the peer's order on a GPU differs from call to call."
    ),
    "SparseConvTensor": "Of rows with one cell the lowest counts; rows outside are skipped.",
    "SparseMaxPool2d SparseMaxPool3d": (
        "Of equal values the first has the gradient, the peer gives it to each; the peer's CPU "
        "build pools against 0."
    ),
}
__getattr__ = stubs("spconv.pytorch", NOT_COVERED)


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


COUNT = "max_num_voxels_during_training"


def _add_count(module, state_dict, prefix, *_):
    state_dict.setdefault(f"{prefix}{COUNT}", torch.zeros(1, dtype=torch.int32))


class _Layer(SparseModule):
    subm = inverse = False

    def set_count(self, record_voxel_count, device=None):
        self.record_voxel_count = record_voxel_count
        if record_voxel_count and not self.subm and not self.inverse:
            self.register_buffer(COUNT, torch.zeros(1, dtype=torch.int32, device=device))
            self._register_load_state_dict_pre_hook(_add_count, with_module=True)

    def get_max_num_voxels(self):
        return getattr(self, COUNT, None)

    def make_map(self, x):
        found = super().make_map(x)
        if self.get_max_num_voxels() is not None:
            self.get_max_num_voxels().clamp_(min=len(found.out_indices))
        return found

    def find_map(self, x):
        kept = x.find_indice_pair(self.indice_key)
        assert self.subm or kept is None, f"indice_key={self.indice_key!r} exists in this tensor"
        return super().find_map(x)


class SparseConvolution(_Layer, Convolution):
    """weight [Cout, kernel.., Cin]; one of kernel volume 1 is the memory of [Cin, Cout]."""

    def __init__(
        self, ndim, in_channels, out_channels, kernel_size=3, stride=1, padding=0, dilation=1,
        groups=1, bias=True, subm=False, output_padding=0, transposed=False, inverse=False,
        indice_key=None, algo=None, fp32_accum=None, record_voxel_count=False, act_type=None,
        act_alpha=0, act_beta=0, large_kernel_fast_algo=False, name=None, device=None, dtype=None,
    ):  # fmt: skip
        super().__init__(name)
        if transposed or getattr(act_type, "name", "None_") != "None_":
            refuse(f"{type(self).__name__}: transposed={transposed}, act_type={act_type}")
        self.set_window(ndim, kernel_size, stride, padding, dilation)
        options = (groups, subm, inverse, indice_key, bias, device, dtype)
        self.set_layer(in_channels, out_channels, *options)
        self.output_padding = expand_nd(ndim, output_padding)
        self.algo, self.fp32_accum, self.act_type = algo, fp32_accum, act_type
        if not subm:
            self.conv1x1 = self.conv1x1 and self.stride == [1] * ndim
            free = not self.conv1x1 or self.padding == [0] * ndim
            assert free, "padding must be zero for 1x1 conv (k=1,s=1)"
        self.set_count(record_voxel_count, device)

    def forward(self, input, add_input=None):
        weight = self.weight
        if self.conv1x1:
            weight = weight.view(self.in_channels, self.out_channels).t().reshape(weight.shape)
        out = self.run(input, weight)
        return out if add_input is None else out + add_input.features


def is_sparse_conv(module):
    return isinstance(module, SparseConvolution)


class _SubMConv(SparseConvolution):
    """The rows stay; stride and padding are ignored."""

    def __init__(
        self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1,
        bias=True, indice_key=None, algo=None, fp32_accum=None, large_kernel_fast_algo=False,
        name=None,
    ):  # fmt: skip
        sizes = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)
        options = {"algo": algo, "fp32_accum": fp32_accum, "name": name}
        super().__init__(self.NDIM, *sizes, subm=True, indice_key=indice_key, **options)


class _SparseConv(SparseConvolution):
    """The cells that the kernel reaches, ascending."""

    def __init__(
        self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1,
        bias=True, indice_key=None, algo=None, fp32_accum=None, record_voxel_count=False,
        large_kernel_fast_algo=False, name=None,
    ):  # fmt: skip
        sizes = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)
        options = {"algo": algo, "fp32_accum": fp32_accum, "name": name}
        options["record_voxel_count"] = record_voxel_count
        super().__init__(self.NDIM, *sizes, indice_key=indice_key, **options)


class _SparseInverseConv(SparseConvolution):
    """Back to the rows before the layer of that indice_key."""

    def __init__(
        self, in_channels, out_channels, kernel_size, indice_key, bias=True, algo=None,
        fp32_accum=None, large_kernel_fast_algo=False, name=None,
    ):  # fmt: skip
        sizes = (self.NDIM, in_channels, out_channels, kernel_size)
        options = {"indice_key": indice_key, "bias": bias, "algo": algo, "name": name}
        super().__init__(*sizes, inverse=True, fp32_accum=fp32_accum, **options)


class SparseMaxPool(_Layer, MaxPool):
    """The largest value of each channel within the kernel."""

    def __init__(
        self, ndim, kernel_size=3, stride=1, padding=0, dilation=1, indice_key=None, subm=False,
        algo=None, record_voxel_count=False, name=None,
    ):  # fmt: skip
        super().__init__(name)
        if subm:
            refuse("SparseMaxPool: subm=True")
        stride = kernel_size if stride is None else stride
        self.set_window(ndim, kernel_size, stride, padding, dilation)
        self.indice_key, self.algo = indice_key, algo
        self.set_count(record_voxel_count)


class _SparseMaxPool(SparseMaxPool):
    """As SparseConv; stride None: the kernel."""

    def __init__(
        self, kernel_size, stride=None, padding=0, dilation=1, indice_key=None, algo=None,
        record_voxel_count=False, name=None,
    ):  # fmt: skip
        sizes = (self.NDIM, kernel_size, stride, padding, dilation)
        options = {"record_voxel_count": record_voxel_count, "name": name}
        super().__init__(*sizes, indice_key=indice_key, algo=algo, **options)


SubMConv2d, SubMConv3d = by_axes(_SubMConv)
SparseConv2d, SparseConv3d = by_axes(_SparseConv)
SparseInverseConv2d, SparseInverseConv3d = by_axes(_SparseInverseConv)
SparseMaxPool2d, SparseMaxPool3d = by_axes(_SparseMaxPool)
