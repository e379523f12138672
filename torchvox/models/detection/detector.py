# SPDX-License-Identifier: Apache-2.0
"""PointPillars (Lang et al., CVPR 2019), SECOND (Yan et al., Sensors 2018) and their variants with
heat maps (CenterPoint, Yin et al., CVPR 2021).

Raw points in, boxes out, with one `forward` for eager, TorchScript, torch.export, torch.compile and
CUDA graphs: fixed shapes, no host synchronization.
"""

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type, Union

import torch
from torch import Tensor, nn

from torchvox._util.values import plain
from torchvox.models.detection.anchor_head import (
    AnchorDecoder,
    AnchorHead,
    MultiHead,
    anchor_boxes,
    anchors_of_tasks,
)
from torchvox.models.detection.backbone import Backbone, Neck
from torchvox.models.detection.center_head import CenterDecoder, CenterHead
from torchvox.models.detection.config import (
    AnchorHeadConfig,
    AnchorLossConfig,
    AnyConfig,
    CanvasConfig,
    CenterHeadConfig,
    CenterLossConfig,
    CenterPointPillarsConfig,
    CenterPointVoxelConfig,
    MultiHeadConfig,
    PointPillarsConfig,
    SecondConfig,
    VisibilityConfig,
)
from torchvox.models.detection.losses import AnchorLoss, CenterLoss
from torchvox.models.detection.sparse_backbone import MeanVoxels, SparseBackbone, depth_after
from torchvox.models.detection.validation import map_size, stride_of, validated
from torchvox.nn import PillarFeatureNet, RayVisibility, ToDense
from torchvox.nn.rays import channel_count, visibility_channels


class VisibilityPlanes(nn.Module):
    """Packed points of scans from one place each to [B, out_channels, ny, nx] float32."""

    def __init__(self, config: VisibilityConfig, grid: PillarFeatureNet) -> None:
        super().__init__()
        limits = grid.point_cloud_range
        self.rays = RayVisibility([*grid.voxel_size[:2], config.height], limits)
        self.channels: List[str] = list(config.channels)
        cells = torch.ops.torchvox.grid_size(self.rays.voxel_size, limits)
        self.out_channels = channel_count(self.channels, cells[2])
        self.register_buffer("origin", torch.tensor([config.origin]), persistent=False)

    def forward(
        self, points: Tensor, batch: int, batch_offsets: Optional[Tensor], num_points: Tensor
    ) -> Tensor:
        rays = self.rays
        seen = rays(points, self.origin.expand(batch, 3), None, batch_offsets, num_points)
        grid = rays.voxel_size, rays.point_cloud_range
        return visibility_channels(seen.visibility, self.channels, grid[0], grid[1])


class DetectionNet(nn.Module):
    """Base of the detectors: from points to boxes by way of maps, which each kind makes."""

    def __init__(self, config: AnyConfig) -> None:
        super().__init__()
        self.columns = config.columns
        self.point_cloud_range: List[float] = list(config.point_cloud_range)
        self.max_points = config.max_points
        self.order = config.order
        self.scaled = any(factor != 1.0 for factor in config.column_scale)
        scale = torch.tensor(config.column_scale if self.scaled else (1.0,), dtype=torch.float32)
        self.register_buffer("column_scale", scale, persistent=False)
        self.classes: List[str] = list(config.classes)
        self._config = config

    def add_centers(
        self, config: AnyConfig, head: CenterHeadConfig, loss: Type[CenterLoss]
    ) -> None:
        """The decoder of a center head, and its loss."""
        groups = _groups(config.classes, head.tasks)
        grid = config.point_cloud_range, config.cell, stride_of(config)
        labels = [label for group in groups for label in group]
        self.decoder: nn.Module = CenterDecoder(labels, *grid, head.rot, config.detections)
        if isinstance(config.loss, CenterLossConfig):
            nx, ny = map_size(config)
            self.criterion: nn.Module = loss(groups, *grid, (ny, nx), head, config.loss)

    def check(self, points: Tensor, num_points: Tensor) -> None:
        if points.dim() != 3 or points.size(2) != self.columns:
            raise ValueError(f"points must be [B, N, {self.columns}], got {list(points.shape)}")
        if num_points.dim() != 1 or num_points.size(0) != points.size(0):
            raise ValueError(
                f"num_points must be [B], a count for each of {points.size(0)} clouds, got "
                f"{list(num_points.shape)}"
            )

    def packed(self, points: Tensor, num_points: Tensor) -> Tuple[Tensor, Optional[Tensor]]:
        """The points of all scans one behind the other, scaled; the offsets of the scans, None for
        one."""
        self.check(points, num_points)
        batch, capacity = points.size(0), points.size(1)
        rows = points.flatten(0, 1)
        if self.scaled:
            rows = rows * self.column_scale
        offsets: Optional[Tensor] = None
        if not _is_one(batch):
            offsets = torch.arange(batch + 1, device=points.device) * capacity
        return rows, offsets

    def maps(self, points: Tensor, num_points: Tensor) -> List[List[Tensor]]:
        """What the head gives: a list per kind with a map per task, see its class."""
        raise NotImplementedError

    def forward(
        self, points: Tensor, num_points: Optional[Tensor] = None
    ) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        if not torch.jit.is_scripting():
            for name, value in (("points", points), ("num_points", num_points)):
                if not isinstance(value, Tensor) and (value is not None or name == "points"):
                    kind = type(value).__name__
                    hint = "torchvox.models.Detector takes arrays and files"
                    raise TypeError(f"{name} must be a tensor, got {kind}; {hint}")
        if num_points is None:
            num_points = torch.full(
                [points.size(0)], points.size(1), dtype=torch.int32, device=points.device
            )
        return self.decoder(self.maps(points, num_points))

    @torch.jit.unused
    def loss(
        self,
        points: Tensor,
        num_points: Tensor,
        boxes: Tensor,
        labels: Tensor,
        num_boxes: Optional[Tensor] = None,
        weight: Optional[Tensor] = None,
    ) -> Dict[str, Tensor]:
        """The terms of the loss of a batch, and "loss", their sum; differentiable scalars.

        points, num_points: as of `forward`. boxes: [B, G, 7 or 9] float32; labels: [B, G] int32,
        -1 where there is no box; num_boxes: [B] int32. weight: [B, G] float32, 0 for boxes that
        produce no loss, neither as object nor as background. No host synchronization.
        Raises ValueError without `loss` in the configuration, or where boxes are not "lwh".
        """
        config = self._config
        if config.loss is None or config.detections.box_format != "lwh":
            why = "has no loss" if config.loss is None else "must have boxes as lwh for a loss"
            raise ValueError(f"{type(self).__name__}: the configuration {why}")
        maps = self.maps(points, num_points)
        with torch.autocast(points.device.type, enabled=False):
            terms = self.teach(maps, boxes, labels, num_boxes, weight)
        return {**terms, "loss": torch.stack(list(terms.values())).sum()}

    @torch.jit.unused
    def teach(self, maps: List[List[Tensor]], *batch: Optional[Tensor]) -> Dict[str, Tensor]:
        if isinstance(self.decoder, AnchorDecoder):
            return self.criterion(maps, [task.boxes for task in self.decoder.tasks], *batch)
        return self.criterion(maps, *batch)

    @torch.jit.unused
    def column_weight(self) -> Tensor:
        """The first weight, whose last axis are the columns of the points (and what follows)."""
        raise NotImplementedError

    @torch.jit.unused
    def fuse_scale(self) -> None:
        """The factors of the columns in the first weight from now on."""
        if self.scaled:
            with torch.no_grad():
                self.column_weight()[..., : self.columns] *= self.column_scale
            self.scaled = False

    @torch.jit.unused
    def config(self) -> Dict[str, Any]:
        """Arguments that build the same model, plain types only."""
        return {"config": plain(self._config)}


class CanvasNet(DetectionNet):
    """Base of the detectors with a dense map, the canvas, which each kind makes."""

    def add_network(self, config: CanvasConfig, channels: int) -> None:
        """All behind a canvas of so many channels."""
        self.backbone = Backbone(channels, config.backbone)
        self.neck = Neck(list(config.backbone.channels), config.neck)
        if isinstance(config.head, CenterHeadConfig):
            self.head = CenterHead(self.neck.out_channels, config.head)
            self.add_centers(config, config.head, CenterLoss)
        else:
            self._add_anchor_head(config, config.head)

    def _add_anchor_head(
        self, config: CanvasConfig, head: Union[AnchorHeadConfig, MultiHeadConfig]
    ) -> None:
        size, area = map_size(config), _area(config, head.area)
        if isinstance(head, MultiHeadConfig):
            self.head = MultiHead(self.neck.out_channels, config.classes, head)
            anchors = anchors_of_tasks(config.classes, head)
            groups = _groups(config.classes, head.tasks)
        else:
            self.head = AnchorHead(self.neck.out_channels, len(config.classes), head)
            anchors, groups = [head.anchors], [list(range(len(config.classes)))]
        tasks = [anchor_boxes(mine, size, area, head.grid) for mine in anchors]
        labels = [label for group in groups for label in group]
        self.decoder = AnchorDecoder(
            tasks, labels, head.code_size, head.direction, config.detections
        )
        if isinstance(config.loss, AnchorLossConfig):
            rotations = [len(anchor.rotations) for anchor in head.anchors]
            self.criterion = AnchorLoss(groups, rotations, config.loss, head.direction)

    def canvas(self, points: Tensor, num_points: Tensor) -> Tensor:
        """The features of every cell at its place: [B, C, ny, nx], channels last in memory."""
        raise NotImplementedError

    def features(self, canvas: Tensor) -> Tensor:
        """What the heads see: [B, C, H, W]."""
        return self.neck(self.backbone(canvas))

    def maps(self, points: Tensor, num_points: Tensor) -> List[List[Tensor]]:
        return self.head(self.features(self.canvas(points, num_points)))


class PillarDetector(CanvasNet):
    """Base of the detectors on pillars."""

    def __init__(self, config: Union[PointPillarsConfig, CenterPointPillarsConfig]) -> None:
        super().__init__(config)
        self.pillar_size: List[float] = list(config.pillar_size)
        self.max_pillars_train, self.max_pillars_eval = config.max_pillars
        options = plain(config.encoder)
        self.encoder = PillarFeatureNet(
            config.columns,
            options.pop("channels"),
            voxel_size=self.pillar_size,
            point_cloud_range=self.point_cloud_range,
            max_points=config.max_points,
            **options,
        )
        self.visibility: Optional[VisibilityPlanes] = None
        channels = config.encoder.channels[-1]
        if config.visibility is not None:
            self.visibility = VisibilityPlanes(config.visibility, self.encoder)
            channels += self.visibility.out_channels
        self.add_network(config, channels)

    def canvas(self, points: Tensor, num_points: Tensor) -> Tensor:
        """The features of every pillar at its place, and planes of visibility: [B, C, ny, nx],
        channels last in memory."""
        rows, offsets = self.packed(points, num_points)
        batch = points.size(0)
        indices, counts, pillar, slot, _ = torch.ops.torchvox.voxel_map(
            rows,
            self.pillar_size,
            self.point_cloud_range,
            self.max_points,
            self.max_pillars_train if self.training else self.max_pillars_eval,
            batch_offsets=offsets,
            num_valid=num_points,
            order=self.order,
            finite="all",  # a feature that is not finite would spread over the maps
        )
        canvas = self.encoder(rows, indices, counts, pillar, slot, batch)
        if self.visibility is not None:
            rows = torch.where(torch.isfinite(rows).all(1, keepdim=True), rows, float("nan"))
            planes = self.visibility(rows, batch, offsets, num_points).to(canvas.dtype)
            both = [canvas.permute(0, 2, 3, 1), planes.permute(0, 2, 3, 1)]
            canvas = torch.cat(both, 3).permute(0, 3, 1, 2)
        return canvas

    @torch.jit.unused
    def column_weight(self) -> Tensor:
        return self.encoder.pfn_layers[0].linear.weight

    @torch.jit.unused
    def fuse_scale(self) -> None:
        """The pillar net as one op too."""
        self.encoder = self.encoder.fuse_batch_norm()
        super().fuse_scale()


class VoxelDetector(CanvasNet):
    """Base of the detectors on voxels: the mean of the points of each, sparse convolutions, and
    what they leave along z as channels."""

    def __init__(self, config: Union[SecondConfig, CenterPointVoxelConfig]) -> None:
        super().__init__(config)
        self.voxels = MeanVoxels(config)
        self.sparse_backbone = SparseBackbone(config.columns, config.sparse)
        self.dense = ToDense()
        planes = depth_after(config.sparse, self.voxels.spatial_shape[0])
        self.add_network(config, config.sparse.out_channels * planes)

    def canvas(self, points: Tensor, num_points: Tensor) -> Tensor:
        rows, offsets = self.packed(points, num_points)
        x = self.voxels(rows, points.size(0), offsets, num_points)
        return self.dense(self.sparse_backbone(x)).flatten(1, 2)

    @torch.jit.unused
    def column_weight(self) -> Tensor:
        return self.sparse_backbone.first.layers[0].weight


class PointPillars(PillarDetector):
    """A pillar detector with anchors; a configuration with `tasks` in its head has a head for each.

    config: `PointPillarsConfig`, or a mapping of the same values.

    forward(points [B, N, columns] float32, num_points [B] int32, None: all N) returns (boxes
    [B, K, 7 or 9] float32: x, y, z of the center, l, w, h, yaw, and velocities where the head has
    them; scores [B, K] float32; labels [B, K] int32; count [B] int32, how many rows of the others
    are in use; overflow [B] int32, candidates past the cap before the suppression). Unused rows are
    0, their labels -1. Rows of points past num_points do not exist; points out of range, and those
    with a column that is not finite, are dropped. An empty scan is a count of 0 in a buffer of two
    rows at least. `torchvox.models.Detector` takes one scan, also an array or a file.
    """

    def __init__(self, config: Union[PointPillarsConfig, Mapping[str, Any]]) -> None:
        super().__init__(validated(PointPillarsConfig, config))


class CenterPointPillars(PillarDetector):
    """A pillar detector with a heat map per class. Everything else as `PointPillars`."""

    def __init__(self, config: Union[CenterPointPillarsConfig, Mapping[str, Any]]) -> None:
        super().__init__(validated(CenterPointPillarsConfig, config))


class Second(VoxelDetector):
    """SECOND: anchors behind sparse convolutions over voxels. Everything else as `PointPillars`."""

    def __init__(self, config: Union[SecondConfig, Mapping[str, Any]]) -> None:
        super().__init__(validated(SecondConfig, config))


class CenterPointVoxel(VoxelDetector):
    """CenterPoint over voxels: a heat map per class. Everything else as `Second`."""

    def __init__(self, config: Union[CenterPointVoxelConfig, Mapping[str, Any]]) -> None:
        super().__init__(validated(CenterPointVoxelConfig, config))


def _is_one(batch: int) -> bool:
    """Whether it is known to be 1; a size that is free in a program is not."""
    if torch.jit.is_scripting():
        return batch == 1
    return isinstance(batch, int) and batch == 1


def _groups(classes: Sequence[str], tasks: Sequence[Sequence[str]]) -> List[List[int]]:
    return [[classes.index(name) for name in names] for names in tasks]


def _area(config: AnyConfig, given: Sequence[float]) -> Sequence[float]:
    limits = config.point_cloud_range
    return given or (limits[0], limits[1], limits[3], limits[4])
