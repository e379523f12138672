# SPDX-License-Identifier: Apache-2.0
"""What a detector is made of, as frozen plain values: the arguments of its class, the `args`
of a configuration file, and what a checkpoint keeps. Lengths are meters, angles radians."""

from dataclasses import dataclass, field
from typing import Annotated, Dict, Literal, Optional, Tuple, Union

from torchvox._util.values import AboveZero, Count, Limits, NotNegative, Number, Positive, Share

Floats3 = Tuple[float, float, float]
Floats6 = Tuple[float, float, float, float, float, float]
Names = Tuple[str, ...]
PARTS = {"reg": 2, "z": 1, "dim": 3, "rot": 2, "vel": 2}  # of a box, with their channels
Size3 = Annotated[Floats3, Limits(gt=0)]
Sizes = Annotated[Tuple[int, ...], Limits(gt=0)]
Numbers = Annotated[Tuple[float, ...], Limits()]
Kept = Annotated[int, Limits(gt=0, lt=2**31)]
Grid = Literal["ends", "centers"]


@dataclass(frozen=True)
class EncoderConfig:
    """The pillar net: a decorated row per point, linear layers with batch norm, maximum per pillar.

    A row holds the columns of the point, x, y, z less the mean of the pillar, and x, y (, z) less
    its center: center_axes, 2 or 3 of them.
    channels: a layer that is not the last has half as many outputs and concatenates their maximum.
    pad_semantics: "reference": a pillar with fewer points than its cap competes with rows of zeros,
        and batch statistics count them, as in the hard voxelization of the upstream programs;
        "none": neither, as in the dynamic one. Weights of the two are not interchangeable.
    legacy: the center offset also stands in for the absolute coordinates of its axes.
    """

    channels: Sizes = (64,)
    pad_semantics: Literal["reference", "none"] = "reference"
    legacy: bool = False
    center_axes: Literal[2, 3] = 3
    eps: AboveZero = 1e-3
    momentum: Share = 0.01


@dataclass(frozen=True)
class VisibilityConfig:
    """Planes that say what the rays of a scan saw, behind the channels of the pillars.

    channels: of `torchvox.visibility_channels`. height: of a cell of the volume that they reduce,
    which has the pillars' cells along x and y. origin: the sensor, of every scan.
    """

    channels: Names
    height: AboveZero = 0.25
    origin: Annotated[Floats3, Limits()] = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class BackboneConfig:
    """Blocks of 3x3 convolutions: one with the stride, then `layers` further ones."""

    layers: Annotated[Tuple[int, ...], Limits(ge=0)] = (3, 5, 5)
    strides: Sizes = (2, 2, 2)
    channels: Sizes = (64, 128, 256)
    eps: AboveZero = 1e-3
    momentum: Share = 0.01


@dataclass(frozen=True)
class NeckConfig:
    """Every block's map brought to one size, concatenated.

    strides: of transposed convolutions; 1 / n is a convolution of n by n cells with stride n.
    stride_one: "transposed" or "conv": which 1x1 map has stride 1. Their weights look alike.
    """

    strides: Annotated[Tuple[float, ...], Limits(gt=0)] = (1.0, 2.0, 4.0)
    channels: Sizes = (128, 128, 128)
    stride_one: Literal["transposed", "conv"] = "transposed"
    eps: AboveZero = 1e-3
    momentum: Share = 0.01


@dataclass(frozen=True)
class AnchorConfig:
    """The boxes of a class at every cell. bottom: z of their lower side."""

    size: Size3
    bottom: Number
    rotations: Numbers = (0.0, 1.57)


@dataclass(frozen=True)
class DirectionConfig:
    """How the direction bin completes the yaw: yaw' = wrap(yaw - offset) + offset + period * bin,
    wrap(v) = v - floor(v / period + limit) * period. flip: bins count down (zhulf0804)."""

    offset: Number = 0.78539
    limit: Number = 0.0
    flip: bool = False
    bins: Annotated[int, Limits(ge=0, le=64)] = 2


@dataclass(frozen=True)
class AnchorHeadConfig:
    """One 1x1 convolution each for scores, boxes and directions.

    anchors: one entry per class, in class order. grid: "ends", from one end of the range to the
        other, or "centers", at the centers of the cells; area: x0, y0, x1, y1 of the anchors where
        they do not span the range of the points.
    code_size: numbers that code a box: 7, 8 with cos and sin of the yaw, 9 and 10 with velocities.
    """

    anchors: Tuple[AnchorConfig, ...]
    grid: Grid = "ends"
    area: Numbers = ()
    code_size: Literal[7, 8, 9, 10] = 7
    direction: Optional[DirectionConfig] = None


@dataclass(frozen=True)
class MultiHeadConfig:
    """Anchors in tasks, groups of classes with a head each, behind one shared convolution.

    convs: 3x3 convolutions of `width` channels before the last one of a branch. branches: parts of
    the code of a box in their order, the scores apart.
    """

    anchors: Tuple[AnchorConfig, ...]
    tasks: Tuple[Names, ...]
    grid: Grid = "ends"
    area: Numbers = ()
    code_size: Literal[7, 8, 9, 10] = 10
    direction: Optional[DirectionConfig] = None
    shared: Positive = 64
    width: Positive = 64
    convs: Count = 1
    branches: Dict[str, Positive] = field(default_factory=PARTS.copy)
    shared_eps: AboveZero = 1e-3
    shared_momentum: Share = 0.01
    eps: AboveZero = 1e-5
    momentum: Share = 0.1


@dataclass(frozen=True)
class CenterHeadConfig:
    """A heat map per class and the box at its peaks, in tasks, behind one shared convolution.

    rot: order of the two channels of the yaw, "cos_sin" or "sin_cos". conv_bias: convolutions have
    a bias although batch norm follows. convs, width: see `MultiHeadConfig`.
    """

    tasks: Tuple[Names, ...]
    shared: Positive = 64
    width: Positive = 64
    convs: Count = 1
    velocity: bool = True
    rot: Literal["cos_sin", "sin_cos"] = "cos_sin"
    conv_bias: bool = False
    heat_bias: Number = -2.19
    eps: AboveZero = 1e-5
    momentum: Share = 0.1


@dataclass(frozen=True)
class RowHeadConfig(CenterHeadConfig):
    """The same by sparse convolutions. kernel: cells along x and y of those in branches."""

    shared: Positive = 128
    width: Positive = 128
    conv_bias: bool = True
    kernel: Literal[1, 3] = 1


@dataclass(frozen=True)
class DetectionsConfig:
    """From maps to boxes; see docs/detection.md.

    score: threshold of the sigmoid; strict: it must be exceeded. pre, post: candidates before and
        boxes after the suppression, per sample and group. nms: threshold, or one per group; mode:
        "rotated", by IoU, or "circle", by squared center distance.
    group: boxes of different groups never suppress each other: "none", "class" or "task".
    shared_pre: the `pre` boxes of best class first, then classes. global_post: the best `post` of
        all groups. best_class: a cell of a heat map gives its best class alone.
    center_range: centers outside are dropped.
    box_format: "lwh", or "wlh_clockwise" of networks whose boxes are w, l, h and turn clockwise
        from -y; the boxes that come out are l, w, h and turn counterclockwise from x in both.
    """

    score: Share = 0.1
    strict: bool = False
    pre: Kept = 4096
    post: Kept = 500
    nms: Annotated[Tuple[float, ...], Limits(ge=0)] = (0.01,)
    mode: Literal["rotated", "circle"] = "rotated"
    group: Literal["none", "class", "task"] = "none"
    shared_pre: bool = False
    global_post: bool = False
    best_class: bool = False
    center_range: Tuple[float, ...] = ()
    box_format: Literal["lwh", "wlh_clockwise"] = "lwh"


@dataclass(frozen=True)
class AnchorLossConfig:
    """The loss of a head with anchors; see `torchvox.anchor_targets` and `torchvox.anchor_loss`.

    matched, unmatched: overlaps, one of each class. any_class: anchors meet boxes of all classes.
    mode: "pcdet" or "mmdet". weights: of the terms of classes, boxes and directions.
    normalizer: "sample": each sample is divided by its positive anchors, then their mean; "batch":
        all by the positive anchors of the batch.
    """

    matched: Numbers
    unmatched: Numbers
    any_class: bool = False
    mode: Literal["pcdet", "mmdet"] = "pcdet"
    weights: Annotated[Floats3, Limits(ge=0)] = (1.0, 2.0, 0.2)
    code_weights: Numbers = ()
    beta: NotNegative = 1 / 9
    negative_weight: Number = 1.0
    normalizer: Literal["sample", "batch"] = "sample"


@dataclass(frozen=True)
class CenterLossConfig:
    """The loss of heat maps and their boxes; see `torchvox.center_targets`.

    peaks: what the loss of heat maps is divided by: "cells" that are centers, or "objects".
    divisor: of the loss of boxes, with n objects: "max", of 1 and n, or "eps", n + 1e-4.
    velocity_weight: of velocities among the numbers of a box.
    """

    overlap: Number = 0.1
    min_radius: int = 2
    max_objects: int = 500
    peaks: Literal["cells", "objects"] = "cells"
    divisor: Literal["max", "eps"] = "max"
    heat_weight: Number = 1.0
    box_weight: Number = 0.25
    velocity_weight: Number = 0.2


@dataclass(frozen=True)
class SparseLevelsConfig:
    """Levels of sparse convolutions of 3 cells, each but the first behind one of stride 2; then a
    last one, to `out_channels`.

    layers, channels: of each level; its layers are submanifold convolutions ("conv") or blocks of
        two with the input added ("residual"), with bias where `bias` is true.
    max_rows: most voxels of a sample behind each convolution with a stride, and behind the last
        one; those past it, in the order of z, y, x, are dropped. See
        `torchvox.models.measure_rows`. (): as many as can be, up to eight times as many as before.
    """

    layers: Annotated[Tuple[int, ...], Limits(ge=0)] = (1, 2, 2, 2)
    channels: Sizes = (16, 32, 64, 64)
    block: Literal["conv", "residual"] = "conv"
    bias: bool = False
    out_channels: Positive = 128
    max_rows: Sizes = ()
    eps: AboveZero = 1e-3
    momentum: Share = 0.01


@dataclass(frozen=True)
class SparseBackboneConfig(SparseLevelsConfig):
    """Levels whose last convolution has 3 cells and stride 2 along z alone. last_pad: cells of
    padding along z before it."""

    last_pad: Count = 0


@dataclass(frozen=True)
class JoinedLevelsConfig(SparseLevelsConfig):
    """Levels of which the last `joined` become one plane: rows are summed in that cell of the first
    of these, along x and y, where their own begins. The last convolution of 3 x 3 adds rows."""

    joined: Positive = 3


RESIDUAL = SparseBackboneConfig((2, 2, 2, 2), (16, 32, 64, 128), "residual", bias=True)
JOINED = JoinedLevelsConfig((2,) * 6, (16, 32, 64, 128, 128, 128), "residual", bias=True)
BEHIND_VOXELS = BackboneConfig((5, 5), (1, 2), (128, 256)), NeckConfig((1.0, 2.0), (256, 256))


@dataclass(frozen=True)
class _Pillars:
    classes: Names
    point_cloud_range: Floats6
    pillar_size: Floats3


@dataclass(frozen=True)
class _Voxels:
    classes: Names
    point_cloud_range: Floats6
    voxel_size: Floats3


@dataclass(frozen=True)
class _Detector:
    head: object  # of another type in each detector
    columns: int = 4
    column_scale: Tuple[float, ...] = ()
    max_points: int = 32
    order: str = "first"
    detections: DetectionsConfig = DetectionsConfig()


@dataclass(frozen=True)
class PillarConfig(_Detector, _Pillars):
    """What the detectors on pillars share."""

    max_pillars: Tuple[int, int] = (16_000, 40_000)
    encoder: EncoderConfig = EncoderConfig()
    visibility: Optional[VisibilityConfig] = None
    backbone: BackboneConfig = BackboneConfig()
    neck: NeckConfig = NeckConfig()

    @property
    def cell(self) -> Floats3:
        return self.pillar_size


@dataclass(frozen=True)
class _OnVoxels(_Detector, _Voxels):
    max_points: int = 5
    max_voxels: Tuple[int, int] = (16_000, 40_000)

    @property
    def cell(self) -> Floats3:
        return self.voxel_size


@dataclass(frozen=True)
class VoxelConfig(_OnVoxels):
    """What the detectors with a dense map behind voxels share."""

    sparse: SparseBackboneConfig = SparseBackboneConfig()
    backbone: BackboneConfig = BEHIND_VOXELS[0]
    neck: NeckConfig = BEHIND_VOXELS[1]


@dataclass(frozen=True)
class PointPillarsConfig(PillarConfig):
    """A detector with anchors.

    classes: names; labels are their numbers. columns: of the points, x, y, z first. column_scale: a
        factor for each, applied inside the model.
    max_points: of a pillar, the first ones in input order; max_pillars: (training, evaluation);
        -1: no limit, which is the dynamic voxelization.
    loss: None: it cannot be trained.
    """

    head: Union[AnchorHeadConfig, MultiHeadConfig]
    loss: Optional[AnchorLossConfig] = None


@dataclass(frozen=True)
class CenterPointPillarsConfig(PillarConfig):
    """A detector with heat maps. Fields as `PointPillarsConfig`."""

    head: CenterHeadConfig
    loss: Optional[CenterLossConfig] = CenterLossConfig()


@dataclass(frozen=True)
class SecondConfig(VoxelConfig):
    """A detector with anchors on voxels. Fields as `PointPillarsConfig`, with voxel_size and
    max_voxels for pillar_size and max_pillars, and sparse for encoder."""

    head: Union[AnchorHeadConfig, MultiHeadConfig]
    loss: Optional[AnchorLossConfig] = None


@dataclass(frozen=True)
class CenterPointVoxelConfig(VoxelConfig):
    """A detector with heat maps on voxels. Fields as `SecondConfig`."""

    head: CenterHeadConfig
    max_points: int = 10
    max_voxels: Tuple[int, int] = (120_000, 160_000)
    sparse: SparseBackboneConfig = RESIDUAL
    loss: Optional[CenterLossConfig] = CenterLossConfig()


@dataclass(frozen=True)
class VoxelNeXtConfig(_OnVoxels):
    """A detector on rows alone. Fields as `CenterPointVoxelConfig` without backbone and neck."""

    head: RowHeadConfig
    max_points: int = 10
    max_voxels: Tuple[int, int] = (120_000, 160_000)
    sparse: JoinedLevelsConfig = JOINED
    loss: Optional[CenterLossConfig] = CenterLossConfig()


CanvasConfig = Union[
    PointPillarsConfig, CenterPointPillarsConfig, SecondConfig, CenterPointVoxelConfig
]
AnyConfig = Union[CanvasConfig, VoxelNeXtConfig]
