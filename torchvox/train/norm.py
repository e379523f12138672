# SPDX-License-Identifier: Apache-2.0
"""Batch norm over the batches of all processes, on any device.

Training on two devices must equal training on one with the whole batch, so batch norm needs the
statistics of the whole batch. torch's SyncBatchNorm computes them on GPUs, and only there; this one
runs on CPUs, from sums that the processes add up, and stays an ordinary batch norm elsewhere.
"""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.modules.batchnorm import _BatchNorm

from torchvox._util.errors import WrongUseError
from torchvox.nn import PillarFeatureNet, SparseBatchNorm, SparseTensor
from torchvox.nn.sparse import with_features


class GlobalBatchNorm(_BatchNorm):
    """Batch norm whose training statistics are those of all processes together."""

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(f"GlobalBatchNorm: expected at least 2 dimensions, got {x.dim()}")

    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        if not self.training or not distributed.is_initialized():
            return super().forward(x)
        rows = x.transpose(1, -1).flatten(0, -2) if x.dim() > 2 else x
        wide = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
        count = torch.tensor([len(wide)], dtype=wide.dtype, device=wide.device)
        total = all_reduce(torch.cat([wide.sum(0), count]))
        mean = total[:-1] / total[-1]
        centered = wide - mean
        variance = all_reduce((centered * centered).sum(0)) / total[-1]
        self._remember(mean.detach(), variance.detach(), total[-1].detach())
        scale = torch.rsqrt(variance + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        result = centered * scale
        result = (result if self.bias is None else result + self.bias).to(x.dtype)
        if x.dim() == 2:
            return result
        return result.view(x.transpose(1, -1).shape).transpose(1, -1)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        if not self.track_running_stats:
            return
        self.num_batches_tracked += 1
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / float(self.num_batches_tracked)
        unbiased = variance * (count / (count - 1))
        self.running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
        self.running_var.mul_(1 - momentum).add_(unbiased, alpha=momentum)


class GlobalSparseBatchNorm(SparseBatchNorm):
    """`SparseBatchNorm` whose training statistics are those of all processes together."""

    def forward(self, x: SparseTensor) -> SparseTensor:
        if not self.training or not distributed.is_initialized():
            return super().forward(x)
        capacity = x.features.size(0)
        rows = x.num_valid.flatten()[0].clamp(0, capacity)
        used = (torch.arange(capacity, device=rows.device) < rows)[:, None]
        kind = torch.float64 if x.features.dtype == torch.float64 else torch.float32
        wide = torch.where(used, x.features.to(kind), 0)
        total = all_reduce(torch.cat([wide.sum(0, dtype=torch.double), rows.double()[None]]))
        count = total[-1].clamp(min=1)
        mean = (total[:-1] / count).to(kind)
        centered = torch.where(used, wide - mean, 0)
        squares = all_reduce((centered * centered).sum(0, dtype=torch.double))
        variance = (squares / count).to(kind)
        self.remember(total[-1].detach(), mean.detach(), variance.detach())
        scale = torch.rsqrt(variance + self.eps) * self.weight
        result = torch.where(used, centered * scale + self.bias, 0)
        return with_features(x, result.to(x.features.dtype))


def convert_batch_norm(module: nn.Module, on_gpu: bool = False) -> nn.Module:
    """The module with all batch norms over all processes; names and values stay. on_gpu: whether it
    is trained there. Raises WrongUseError for a pillar net of several layers."""
    if isinstance(module, PillarFeatureNet):
        if not module.single:
            raise WrongUseError("a pillar net of several layers is trained on one device alone")
        module.sync = True  # type: ignore[misc]  # it is final for TorchScript
        return module
    options, kind = ["num_features", "eps", "momentum"], GlobalSparseBatchNorm
    if isinstance(module, _BatchNorm):
        options += ["affine", "track_running_stats"]
        kind = nn.SyncBatchNorm if on_gpu else GlobalBatchNorm
    if isinstance(module, (_BatchNorm, SparseBatchNorm)) and not isinstance(module, kind):
        norm = kind(*(getattr(module, name) for name in options))
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            setattr(norm, name, getattr(module, name))
        norm.train(module.training)
        return norm
    for name, child in module.named_children():
        setattr(module, name, convert_batch_norm(child, on_gpu))
    return module
