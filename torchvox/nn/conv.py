# SPDX-License-Identifier: Apache-2.0
"""Layers of bird's-eye-view networks: convolution, batch norm, ReLU."""

from typing import Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def resampling(
    in_channels: int, out_channels: int, stride: float, *, transposed: bool, bias: bool = False
) -> nn.Module:
    """A map of blocks of cells to others: stride n > 1 makes n by n cells of one, stride 1 / n one
    of n by n. transposed: which of the two kinds of weight a stride of 1 has."""
    if stride > 1 or (stride == 1 and transposed):
        size = round(stride)
        return nn.ConvTranspose2d(in_channels, out_channels, size, size, bias=bias)
    size = round(1 / stride)
    return nn.Conv2d(in_channels, out_channels, size, size, bias=bias)


def conv3x3(
    in_channels: int, out_channels: int, stride: int = 1, *, bias: bool = False
) -> nn.Conv2d:
    """A convolution that keeps the size, except for its stride."""
    return nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=bias)


def channels_last(conv: nn.Conv2d) -> nn.Conv2d:
    """The convolution itself, its weight in the order of `FusedConv`."""
    conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)
    return conv


def eager_on_gpu(x: Tensor) -> bool:
    """Whether torch runs a kernel per call here: compilers fuse better what is written plainly."""
    if torch.jit.is_scripting():
        return x.is_cuda
    return x.is_cuda and not torch.compiler.is_compiling()


@torch.jit.unused
def for_onnx() -> bool:
    """Whether an ONNX file is written, whose hosts know maps in the order [B, C, H, W] alone. A
    model that runs meanwhile in another thread rounds as its file would. Not for TorchScript."""
    return torch.onnx.is_in_onnx_export()


@torch.jit.unused
def autocast_dtype(x: Tensor) -> Optional[torch.dtype]:
    """The dtype of convolutions of x under autocast, None outside. Not for TorchScript."""
    device = x.device.type
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None


def as_weight(x: Tensor, weight: Tensor) -> Tensor:
    """x in the dtype of the weight. Under autocast, which would take it back, x as it is."""
    if not torch.jit.is_scripting() and autocast_dtype(x) is not None:
        return x
    return x.to(weight.dtype)


class ConvBlock(nn.Module):
    """Convolution, batch norm and ReLU: [B, C, H, W] to [B, out_channels, H', W']."""

    def __init__(self, conv: nn.Module, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.conv = conv
        self.norm = nn.BatchNorm2d(int(conv.out_channels), eps=eps, momentum=momentum)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class FusedConv(nn.Module):
    """A `ConvBlock` in evaluation, its batch norm fused into weight and bias.

    Computes in the dtype of the weight. Weights lie in channels-last order, which the fast
    convolutions of GPUs want; maps follow.
    """

    def __init__(self, weight: Tensor, bias: Tensor, stride: int, padding: int) -> None:
        super().__init__()
        weight = weight.contiguous(memory_format=torch.channels_last)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)
        self.stride = stride
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        if eager_on_gpu(x):  # one kernel, which took 60 % of the time of three
            strides, padding = [self.stride, self.stride], [self.padding, self.padding]
            return torch.cudnn_convolution_relu(
                x, self.weight, self.bias, strides, padding, [1, 1], 1
            )
        return F.relu(F.conv2d(x, self.weight, self.bias, self.stride, self.padding))

    def blocks(self, x: Tensor) -> Tensor:
        """The map as [B, H', 1, W', 1, channels], see `FusedUpsample`."""
        return self.forward(x).permute(0, 2, 3, 1).unsqueeze(2).unsqueeze(4)

    def extra_repr(self) -> str:
        return f"{list(self.weight.shape)}, stride={self.stride}"


class FusedUpsample(nn.Module):
    """A transposed convolution without overlap, batch norm and ReLU, fused: one matrix product.

    blocks(x [B, C, H, W]) returns a view [B, H, n, W, n, channels] of what each cell becomes.
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        """weight: [C, channels, n, n], of the transposed convolution."""
        super().__init__()
        self.size = int(weight.size(2))
        rows = weight.permute(2, 3, 1, 0).reshape(-1, weight.size(0))
        self.weight = nn.Parameter(rows, requires_grad=False)
        self.bias = nn.Parameter(bias.repeat(self.size * self.size), requires_grad=False)

    def blocks(self, x: Tensor) -> Tensor:
        rows = x.to(self.weight.dtype).permute(0, 2, 3, 1)
        blocks = torch._addmm_activation(self.bias, rows.flatten(0, 2), self.weight.t())
        channels = self.bias.size(0) // (self.size * self.size)
        shape = [rows.size(0), rows.size(1), rows.size(2), self.size, self.size, channels]
        return blocks.view(shape).permute(0, 1, 3, 2, 4, 5)

    @torch.jit.unused
    def forward(self, x: Tensor) -> Tensor:
        """The map [B, channels, n * H, n * W], by a convolution, as ONNX has it fast."""
        weight, bias = (
            t.view(self.size * self.size, -1, t.numel() // self.bias.numel()).transpose(0, 1)
            for t in (self.weight, self.bias)
        )
        weight = weight.reshape(self.weight.size(0), -1, 1, 1)
        x = F.conv2d(x.to(weight.dtype), weight, bias.flatten())
        return F.pixel_shuffle(F.relu(x), self.size)

    def extra_repr(self) -> str:
        return f"{list(self.weight.shape)}, size={self.size}"


@torch.no_grad()
def fused_norm(
    linear: nn.Module, norm: nn.Module, axis: Sequence[int], dtype: Optional[torch.dtype]
) -> Tuple[Tensor, Tensor]:
    """Weight and bias of a linear map with its batch norm, fused in float64 and rounded once. axis:
    the shape in which a scale per output multiplies the weight."""
    scale = norm.weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
    shift = norm.bias.double() - norm.running_mean.double() * scale
    if linear.bias is not None:
        shift = shift + linear.bias.double() * scale
    kind = linear.weight.dtype if dtype is None else dtype
    return (linear.weight.double() * scale.view(axis)).to(kind), shift.to(kind)


def fused_conv(block: ConvBlock, dtype: Optional[torch.dtype]) -> Union[FusedConv, FusedUpsample]:
    """The block as one linear map."""
    conv, transposed = block.conv, isinstance(block.conv, nn.ConvTranspose2d)
    axis = [1, -1, 1, 1] if transposed else [-1, 1, 1, 1]
    weight, bias = fused_norm(conv, block.norm, axis, dtype)
    if transposed and conv.stride[0] > 1:
        return FusedUpsample(weight, bias)
    if transposed:
        weight = weight.transpose(0, 1)
    return FusedConv(weight, bias, conv.stride[0], conv.padding[0])
