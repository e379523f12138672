# SPDX-License-Identifier: Apache-2.0
"""The pillar feature net of PointPillars."""

import copy
from typing import Final, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchvox._util.errors import expect
from torchvox.nn.conv import autocast_dtype
from torchvox.ops.annotations import PadSemantics


class PillarNorm(nn.Module):
    """Parameters and running statistics of a BatchNorm1d behind a linear layer, under its names.

    Not a torch batch norm: it never sees the rows, and converters to SyncBatchNorm must not touch
    it. statistics() keeps the running values, fuse() moves everything into the linear layer.
    """

    def __init__(self, channels: int, eps: float = 1e-3, momentum: float = 0.01) -> None:
        super().__init__()
        if not eps > 0:
            raise ValueError(f"PillarNorm: eps must be > 0, got {eps}")
        if momentum is None:
            raise TypeError("PillarNorm: momentum must be a number, got None")
        self.eps = float(eps)
        self.momentum = float(momentum)
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    @torch.jit.export
    def remember(self, count: Tensor, mean: Tensor, var: Tensor) -> None:
        """Updates the running statistics by a batch's mean and unbiased variance, as BatchNorm1d
        does; a batch of no rows changes nothing."""
        with torch.no_grad():
            any_rows = count > 0
            share = any_rows.to(self.running_mean.dtype) * self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
            self.running_var.lerp_(var.to(self.running_var.dtype), share)
            self.num_batches_tracked.add_(any_rows)

    @torch.jit.export
    def fuse(self, weight: Tensor, mean: Tensor, var: Tensor) -> Tuple[Tensor, Tensor]:
        """Weight and bias of the layer that norms the outputs of `weight`, in its dtype."""
        scale = self.weight.double() * torch.rsqrt(var.double() + self.eps)
        fused = weight.double() * scale[:, None]
        return fused.to(weight.dtype), (self.bias - mean.double() * scale).to(weight.dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.numel()}, eps={self.eps}, momentum={self.momentum}"


class PillarLayer(nn.Module):
    """Linear without bias, and norm; or, fused, linear with bias."""

    fused: Final[bool]

    def __init__(
        self, in_channels: int, out_channels: int, eps: float, momentum: float, fused: bool = False
    ) -> None:
        super().__init__()
        self.fused = fused
        self.linear = nn.Linear(in_channels, out_channels, bias=fused)
        self.norm = nn.Identity() if fused else PillarNorm(out_channels, eps, momentum)

    @torch.jit.export
    def in_evaluation(self) -> Tuple[Tensor, Tensor]:
        """Weight and bias with the running statistics fused in."""
        if self.fused:
            bias = self.linear.bias
            assert bias is not None
            return self.linear.weight, bias
        return self.norm.fuse(self.linear.weight, self.norm.running_mean, self.norm.running_var)

    def _evaluated(self, x: Tensor, pad: Tensor) -> Tuple[Tensor, Tensor]:
        weight, bias = self.in_evaluation()
        weight, bias = weight.to(x.dtype), bias.to(x.dtype)
        return F.relu(F.linear(x, weight, bias)), F.relu(F.linear(pad, weight, bias))

    @torch.jit.export
    def in_torch(
        self, x: Tensor, pad: Tensor, stored: Tensor, empty: Tensor
    ) -> Tuple[Tensor, Tensor]:
        """The layer over rows x [N, D], those of `stored`, and pad [V, D], each of which stands
        for `empty` equal rows. In training the statistics are those of all of them."""
        if self.fused:
            return self._evaluated(x, pad)
        if not self.training:
            return self._evaluated(x, pad)
        weight = self.linear.weight.to(x.dtype)
        x, pad = F.linear(x, weight), F.linear(pad, weight)
        share, times = stored[:, None].to(x.dtype), empty[:, None].to(x.dtype)
        count = share.sum(dtype=torch.float64) + times.sum(dtype=torch.float64)
        scale = (1.0 / count.clamp(min=1)).to(x.dtype)
        mean = ((x * share).sum(0) + (pad * times).sum(0)) * scale
        x, pad = x - mean, pad - mean
        var = ((x * x * share).sum(0) + (pad * pad * times).sum(0)) * scale
        self.norm.remember(count, mean, var * (count / (count - 1).clamp(min=1)))
        factor = self.norm.weight * torch.rsqrt(var + self.norm.eps)
        bias = self.norm.bias
        return F.relu(x * factor + bias), F.relu(pad * factor + bias)


class PillarFeatureNet(nn.Module):
    """Points of pillars to a canvas: decorate, layers of linear, norm and ReLU, maximum, scatter.

    in_channels: F, columns of the points: x, y, z in meters and other features.
    feat_channels: outputs of the layers. A layer before the last has half as many units and appends
        their maximum over the pillar to every point.
    voxel_size, point_cloud_range, max_points: those of the voxel map; one cell along z.
    center_axes, legacy, pad_semantics: see `torchvox.pillar_encode`.
    eps, momentum: of the norm. Statistics in training are exact, over all rows that pad_semantics
        counts. sync: over all processes of the default group too; the gradients are those of one
        process with all samples once DDP has averaged them.

    forward(points [N, F], indices, num_points, point_voxel, point_slot, batch_size) takes the
    outputs of `torchvox.voxel_map` and returns [B, feat_channels[-1], ny, nx], channels_last, in
    the dtype of the weights, under autocast in its own. Points get no gradient. One layer is one
    fused op, in training two more passes over the points and no tensor of all rows; several layers
    run in torch over N points and V rows. Autocast rounds only the canvas: coordinates and
    statistics are never in half precision. Only TorchScript cannot switch it off: run scripts of
    several layers outside it.
    State-dict names are those of OpenPCDet and mmdetection3d: pfn_layers.i.linear, .norm.
    """

    sync: Final[bool]
    single: Final[bool]
    fused: Final[bool]

    def __init__(
        self,
        in_channels: int,
        feat_channels: Sequence[int] = (64,),
        *,
        voxel_size: Sequence[float],
        point_cloud_range: Sequence[float],
        max_points: int = 32,
        center_axes: int = 3,
        legacy: bool = False,
        pad_semantics: PadSemantics = "reference",
        eps: float = 1e-3,
        momentum: float = 0.01,
        sync: bool = False,
    ) -> None:
        super().__init__()
        channels, me = [int(c) for c in feat_channels], "PillarFeatureNet:"
        expect(len(channels) > 0, f"{me} feat_channels must name at least one layer", channels)
        expect(min(channels) > 0, f"{me} feat_channels must be 1 or more each", channels)
        even = all(c % 2 == 0 for c in channels[:-1])
        expect(even, f"{me} feat_channels before the last must be even", channels)
        is_valid = pad_semantics in ("reference", "none")
        expect(is_valid, f"{me} pad_semantics must be 'reference' or 'none'", pad_semantics)
        expect(max_points >= -1, f"{me} max_points must be -1 (no limit) or more", max_points)
        expect(center_axes in (2, 3), f"{me} center_axes must be 2 or 3", center_axes)
        self.single = len(channels) == 1
        expect(self.single or not sync, f"{me} sync takes one layer in feat_channels", channels)
        self.in_channels = int(in_channels)
        self.out_channels = channels[-1]
        self.voxel_size = [float(v) for v in voxel_size]
        self.point_cloud_range = [float(v) for v in point_cloud_range]
        cells = torch.ops.torchvox.grid_size(self.voxel_size, self.point_cloud_range)
        flat = f"{me} voxel_size and point_cloud_range must give one cell along z"
        expect(cells[2] == 1, flat, cells[2])
        self.size = cells[:2]
        # As the kernels have them, rounded to float32.
        self.cell = torch.tensor(self.voxel_size, device="cpu").tolist()
        self.lower = torch.tensor(self.point_cloud_range[:3], device="cpu").tolist()
        self.max_points = int(max_points)
        self.center_axes = int(center_axes)
        self.legacy = bool(legacy)
        self.pad_semantics = pad_semantics
        self.sync = bool(sync)
        self.fused = False
        widths = [self.in_channels + 3 + self.center_axes, *channels]
        last = len(widths) - 2
        self.pfn_layers = nn.ModuleList(
            PillarLayer(widths[i], widths[i + 1] // (1 if i == last else 2), eps, momentum)
            for i in range(last + 1)
        )

    def fuse_batch_norm(self) -> "PillarFeatureNet":
        """A copy for inference whose layers are linear with bias: one op and nothing else."""
        net = copy.deepcopy(self).eval()
        net.fused = True
        for i, layer in enumerate(self.pfn_layers):
            if layer.fused:
                continue
            with torch.no_grad():
                weight, bias = layer.in_evaluation()
            plain = PillarLayer(weight.size(1), weight.size(0), 1.0, 0.0, fused=True).to(weight)
            plain.linear.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
            plain.linear.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
            net.pfn_layers[i] = plain.eval()
        return net

    @torch.jit.unused
    def _all_reduced(self, moments: Tensor) -> Tensor:
        group = torch.distributed
        if group.is_available() and group.is_initialized():
            group.all_reduce(moments)
        return moments

    def _decorated(self, points: Tensor, row: Tensor, indices: Tensor, mean: Tensor) -> Tensor:
        """[N, D] decorated points. `row` is V for dropped ones, `mean` [V + 1, 3]."""
        # Numbers, not tensors: these would be copied from the host, which a graph cannot capture.
        index = [indices[:, 3 - axis].to(points.dtype) + 0.5 for axis in range(3)]
        center = torch.stack([index[a] * self.cell[a] + self.lower[a] for a in range(3)], 1)
        xyz = points[:, :3]
        offset = xyz - F.pad(center, [0, 0, 0, 1]).index_select(0, row)
        axes = self.center_axes
        own = torch.cat([offset[:, :axes], points[:, axes:]], 1) if self.legacy else points
        return torch.cat([own, xyz - mean.index_select(0, row), offset[:, :axes]], 1)

    def _several_layers(
        self,
        points: Tensor,
        indices: Tensor,
        num_points: Tensor,
        point_voxel: Tensor,
        point_slot: Tensor,
        batch_size: int,
    ) -> Tensor:
        """The layers over the points and, apart, over one empty slot of each pillar, which stands
        for all of them."""
        dtype = self.pfn_layers[0].linear.weight.dtype
        wide = points.dtype == torch.float64 or dtype == torch.float64
        points = points.to(torch.float64 if wide else torch.float32)
        count = indices.size(0)
        stored = point_slot >= 0
        map_row = torch.where(stored, point_voxel, torch.full_like(point_voxel, -1))
        row = torch.where(stored, point_voxel, torch.full_like(point_voxel, count)).long()
        offsets, perm = torch.ops.torchvox.voxel_csr(map_row, count)
        mean, _ = torch.ops.torchvox.voxel_scatter(
            points[:, :3], map_row, count, "mean", offsets=offsets, perm=perm
        )
        x = self._decorated(points, row, indices, F.pad(mean, [0, 0, 0, 1]))
        x = torch.where(stored[:, None], x, torch.zeros_like(x))
        empty = torch.zeros_like(num_points)
        if self.pad_semantics == "reference" and self.max_points >= 0:
            slots = (self.max_points - num_points).clamp(min=0)
            empty = torch.where(indices[:, 0] >= 0, slots, empty)
        pad = torch.zeros(count, x.size(1), dtype=x.dtype, device=x.device)
        last = len(self.pfn_layers) - 1
        for i, layer in enumerate(self.pfn_layers):
            x, pad = layer.in_torch(x, pad, stored, empty)
            best, _ = torch.ops.torchvox.voxel_scatter(
                x, map_row, count, "max", offsets=offsets, perm=perm
            )
            best = torch.where((empty[:, None] > 0) & (pad > best), pad, best)
            if i < last:
                x = torch.cat([x, F.pad(best, [0, 0, 0, 1]).index_select(0, row)], 1)
                pad = torch.cat([pad, best], 1)
            else:
                x = best
        return torch.ops.torchvox.pillar_scatter(x.to(dtype), indices, batch_size, self.size)

    def forward(
        self,
        points: Tensor,
        indices: Tensor,
        num_points: Tensor,
        point_voxel: Tensor,
        point_slot: Tensor,
        batch_size: int = 1,
    ) -> Tensor:
        rounded: Optional[torch.dtype] = None
        if not torch.jit.is_scripting():
            rounded = autocast_dtype(points)
        if self.single:
            layer = self.pfn_layers[0]
            if self.fused:
                weight, bias = layer.in_evaluation()
            elif self.training:
                norm = layer.norm
                moments = torch.ops.torchvox.pillar_moments(
                    points,
                    indices,
                    num_points,
                    point_voxel,
                    point_slot,
                    self.voxel_size,
                    self.point_cloud_range,
                    self.max_points,
                    center_axes=self.center_axes,
                    legacy=self.legacy,
                    pad_semantics=self.pad_semantics,
                )
                if self.sync:
                    moments = self._all_reduced(moments)
                # The weights, and the gradients that pass through them, follow from the moments.
                weight, bias, mean, var = torch.ops.torchvox.pillar_norm(
                    moments, layer.linear.weight, norm.weight, norm.bias, norm.eps
                )
                norm.remember(moments[0], mean, var)
            else:
                weight, bias = layer.in_evaluation()
            return torch.ops.torchvox.pillar_encode(
                points,
                indices,
                num_points,
                point_voxel,
                point_slot,
                weight,
                bias,
                self.voxel_size,
                self.point_cloud_range,
                self.max_points,
                batch_size,
                center_axes=self.center_axes,
                legacy=self.legacy,
                pad_semantics=self.pad_semantics,
                out_dtype=rounded,
            )
        if not torch.jit.is_scripting() and rounded is not None:
            # Half precision is too coarse for meters, and too narrow for sums over rows.
            with torch.autocast(points.device.type, enabled=False):
                return self._several_layers(
                    points, indices, num_points, point_voxel, point_slot, batch_size
                ).to(rounded)
        return self._several_layers(
            points, indices, num_points, point_voxel, point_slot, batch_size
        )

    def extra_repr(self) -> str:
        return (
            f"size={self.size}, max_points={self.max_points}, center_axes={self.center_axes}, "
            f"legacy={self.legacy}, pad_semantics={self.pad_semantics!r}"
        )
