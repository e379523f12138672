# SPDX-License-Identifier: Apache-2.0
"""The sparse convolutions of `mmcv.ops`: weights are [kernel.., Cin, Cout], features can be
assigned, and maps stay in the dictionary that all tensors of a chain share."""

import importlib

from torch import nn

from torchvox.compat._sparse import Convolution, MaxPool, Rows, Sequential, by_axes, scatter_nd

LAYERS = ["SparseConv2d", "SparseConv3d", "SparseInverseConv2d", "SparseInverseConv3d",
          "SubMConv2d", "SubMConv3d"]  # fmt: skip
__all__ = [
    *LAYERS, "SparseConvTensor", "SparseMaxPool2d", "SparseMaxPool3d", "SparseModule",
    "SparseSequential", "register_layers", "scatter_nd",
]  # fmt: skip


class SparseConvTensor(Rows):
    """features [M, C]; indices [M, 1 + n], the sample first, n = 2 or 3 axes."""

    def __init__(self, features, indices, spatial_shape, batch_size, grid=None):
        self.features, self.indices = features, indices.int()
        self.spatial_shape, self.batch_size = spatial_shape, batch_size
        self.indice_dict, self.grid = {}, grid

    @property
    def sparity(self):
        return len(self.indices) / self.spatial_size / self.batch_size

    def derive(self, features, indices, spatial_shape, indice_dict):
        new = SparseConvTensor(features, indices, spatial_shape, self.batch_size, self.grid)
        new.indice_dict = indice_dict
        return new


class SparseModule(nn.Module):
    """A module that a SparseSequential gives the tensor; others get its features."""


class SparseSequential(Sequential, SparseModule):
    def forward(self, input):
        for module in self._modules.values():
            if isinstance(module, SparseModule) or not isinstance(input, SparseConvTensor):
                input = module(input)
            elif len(input.indices) != 0:
                input.features = module(input.features)
        return input


class _Layer(Convolution, SparseModule):
    """mmcv's layers with a map under their key use it."""

    def weight_shape(self):
        return (*self.kernel_size, self.in_channels, self.out_channels)

    def keep(self, x, found):
        if self.indice_key is not None:
            x.indice_dict[self.indice_key] = found
        return x.indice_dict

    def forward(self, input):
        return self.run(input, self.weight.movedim(-1, 0))


class _SparseConv(_Layer):
    """The cells that the kernel reaches, ascending."""

    def __init__(
        self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1,
        bias=True, indice_key=None,
    ):  # fmt: skip
        super().__init__()
        self.set_window(self.NDIM, kernel_size, stride, padding, dilation)
        self.set_layer(in_channels, out_channels, groups, self.subm, False, indice_key, bias)


class _SubMConv(_SparseConv):
    """The rows stay; stride and padding are ignored."""

    subm = True


class _SparseInverseConv(_Layer):
    """Back to the rows before the layer of that indice_key."""

    def __init__(self, in_channels, out_channels, kernel_size, indice_key=None, bias=True):
        super().__init__()
        self.set_window(self.NDIM, kernel_size, 1, 0, 1)
        self.set_layer(in_channels, out_channels, 1, False, True, indice_key, bias)


class _SparseMaxPool(MaxPool, SparseModule):
    """The largest value of each channel within the kernel."""

    def __init__(self, kernel_size, stride=1, padding=0, dilation=1):
        super().__init__()
        self.set_window(self.NDIM, kernel_size, stride, padding, dilation)


SparseConv2d, SparseConv3d = by_axes(_SparseConv)
SparseInverseConv2d, SparseInverseConv3d = by_axes(_SparseInverseConv)
SparseMaxPool2d, SparseMaxPool3d = by_axes(_SparseMaxPool)
SubMConv2d, SubMConv3d = by_axes(_SubMConv)


def register_layers():
    """Make mmengine build them by name, `build_conv_layer(dict(type="SubMConv3d"))`, in place of
    mmcv's own; what others have registered, mmdetection3d spconv's layers, stays."""
    try:
        models = importlib.import_module("mmengine.registry").MODELS
    except ImportError:
        return
    for name in LAYERS:
        found = models.module_dict.get(name)
        if found is None or found.__module__.startswith("mmcv."):
            models.register_module(name, force=True, module=globals()[name])
