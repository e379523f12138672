# SPDX-License-Identifier: Apache-2.0
"""What differs between the two reference implementations of PointNet++, and their standard nets."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from torchvox._util.errors import expect
from torchvox.ops.annotations import Weight

Widths = Tuple[int, ...]


@dataclass(frozen=True)
class Conventions:
    """Choices that the layer sizes do not show. Each is an argument of the models.

    start: first center of a cloud: "first" point, "random", "random_train" (in training alone, so
        that evaluation repeats). skip_origin: points with |p|^2 <= 1e-3 are no centers. Of points
        that are equally far the lowest index is taken, whichever reference the rest follows.
    closed: a ball holds the points at exactly its radius.
    weight: of the interpolation: 1 / (d + 1e-8), "dist", or 1 / (d^2 + 1e-8), "dist2".
    scales_features_first: layers with several scales see [features, xyz], not [xyz, features].
    skip_first: propagation sees [skip, interpolated], not [interpolated, skip].
    use_xyz: relative coordinates are among the inputs of a layer.
    bias: linear maps have a bias although batch norm follows.
    xyz_features: absolute coordinates are features of the segmenters too, beside relative ones.
    log_softmax: outputs are log-probabilities, not logits.
    """

    start: str
    skip_origin: bool
    closed: bool
    weight: Weight
    scales_features_first: bool
    skip_first: bool
    use_xyz: bool
    bias: bool
    xyz_features: bool
    log_softmax: bool


# Of yanx27/Pointnet_Pointnet2_pytorch, and of erikwijmans/Pointnet2_PyTorch; OpenPCDet and mmdet3d
# are as the latter without skip_origin.
_YANX27_AND_PN2: Dict[str, Tuple[Any, Any]] = {
    "start": ("random_train", "first"),
    "skip_origin": (False, True),
    "closed": (True, False),
    "weight": ("dist2", "dist"),
    "scales_features_first": (True, False),
    "skip_first": (True, False),
    "use_xyz": (True, True),
    "bias": (True, False),
    "xyz_features": (True, False),
    "log_softmax": (True, False),
}
PRESETS: Dict[str, Conventions] = {
    name: Conventions(**{rule: values[i] for rule, values in _YANX27_AND_PN2.items()})
    for i, name in enumerate(("yanx27", "pn2"))
}


def conventions(preset: str, changes: Mapping[str, Any]) -> Conventions:
    """The preset with changes by name. Raises ValueError and TypeError for unknown ones."""
    expect(preset in PRESETS, f"preset must be one of {sorted(PRESETS)}", preset)
    names = [field.name for field in fields(Conventions)]
    if unknown := sorted(set(changes) - set(names)):
        raise TypeError(f"unknown argument {unknown[0]!r}: conventions are {', '.join(names)}")
    return replace(PRESETS[preset], **changes)


@dataclass(frozen=True)
class Level:
    """One set abstraction. points None: all of them, in one group."""

    points: Optional[int]
    radii: Tuple[float, ...]
    neighbors: Tuple[int, ...]
    channels: Tuple[Widths, ...]

    @property
    def out_channels(self) -> int:
        return sum(widths[-1] for widths in self.channels)


Levels = Sequence[Union[Level, Mapping[str, Any]]]


def as_level(level: Union[Level, Mapping[str, Any]]) -> Level:
    """A level from a mapping with its field names, as a configuration file has it."""
    if isinstance(level, Mapping):
        level = Level(**level)
    return Level(
        None if level.points is None else int(level.points),
        tuple(float(r) for r in level.radii),
        tuple(int(k) for k in level.neighbors),
        tuple(tuple(int(c) for c in widths) for widths in level.channels),
    )


def plain(level: Level) -> Dict[str, Any]:
    """The level as lists and numbers, for configurations and checkpoints."""
    values = asdict(level)
    values["channels"] = [list(widths) for widths in level.channels]
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


@dataclass(frozen=True)
class Net:
    """Sizes of a standard net. `propagation` goes from the deepest level up."""

    levels: Tuple[Level, ...]
    head: Widths
    dropout: Tuple[float, ...]
    propagation: Tuple[Widths, ...] = ()


GLOBAL = Level(None, (), (), ((256, 512, 1024),))
OBJECT_SSG = (
    Level(512, (0.2,), (32,), ((64, 64, 128),)),
    Level(128, (0.4,), (64,), ((128, 128, 256),)),
    GLOBAL,
)
OBJECT_MSG = (
    Level(512, (0.1, 0.2, 0.4), (16, 32, 128), ((32, 32, 64), (64, 64, 128), (64, 96, 128))),
    Level(128, (0.2, 0.4, 0.8), (32, 64, 128), ((64, 64, 128), (128, 128, 256), (128, 128, 256))),
    GLOBAL,
)
PART_MSG = (
    replace(OBJECT_MSG[0], neighbors=(32, 64, 128)),
    Level(128, (0.4, 0.8), (64, 128), ((128, 128, 256), (128, 196, 256))),
    GLOBAL,
)
ROOM_SSG = (
    Level(1024, (0.1,), (32,), ((32, 32, 64),)),
    Level(256, (0.2,), (32,), ((64, 64, 128),)),
    Level(64, (0.4,), (32,), ((128, 128, 256),)),
    Level(16, (0.8,), (32,), ((256, 256, 512),)),
)
ROOM_MSG = (
    Level(1024, (0.05, 0.1), (16, 32), ((16, 16, 32), (32, 32, 64))),
    Level(256, (0.1, 0.2), (16, 32), ((64, 64, 128), (64, 96, 128))),
    Level(64, (0.2, 0.4), (16, 32), ((128, 196, 256), (128, 196, 256))),
    Level(16, (0.4, 0.8), (16, 32), ((256, 256, 512), (256, 384, 512))),
)
ROOM_PROPAGATION = ((256, 256), (256, 256), (256, 128), (128, 128, 128))
PN2_ROOM_MSG_PROPAGATION = ((512, 512), (512, 512), (256, 256), (128, 128))


OBJECT_UP = ((256, 256), (256, 128))
# Of yanx27, and what Pointnet2_PyTorch, which has no net of parts, has instead.
NETS: Dict[Tuple[str, str], Net] = {
    ("classifier", "ssg"): Net(OBJECT_SSG, (512, 256), (0.4, 0.4)),
    ("classifier", "msg"): Net(OBJECT_MSG, (512, 256), (0.4, 0.5)),
    ("parts", "ssg"): Net(OBJECT_SSG, (128,), (0.5,), (*OBJECT_UP, (128, 128, 128))),
    ("parts", "msg"): Net(PART_MSG, (128,), (0.5,), (*OBJECT_UP, (128, 128))),
    ("rooms", "ssg"): Net(ROOM_SSG, (128,), (0.5,), ROOM_PROPAGATION),
    ("rooms", "msg"): Net(ROOM_MSG, (128,), (0.5,), ROOM_PROPAGATION),
}
NEAR = replace(OBJECT_SSG[0], neighbors=(64,))
PN2_NETS: Dict[Tuple[str, str], Net] = {
    ("classifier", "ssg"): Net((NEAR, *OBJECT_SSG[1:]), (512, 256), (0.0, 0.5)),
    ("classifier", "msg"): Net(OBJECT_MSG, (512, 256), (0.0, 0.5)),
    ("rooms", "msg"): Net(ROOM_MSG, (128,), (0.5,), PN2_ROOM_MSG_PROPAGATION),
}


def standard_net(kind: str, preset: str, scales: str) -> Net:
    expect(scales in ("ssg", "msg"), "scales must be ssg or msg", scales)
    standard = NETS[kind, scales]
    return PN2_NETS.get((kind, scales), standard) if preset == "pn2" else standard


def sizes(
    net: Net,
    levels: Optional[Levels],
    head: Optional[Sequence[int]],
    dropout: Optional[Sequence[float]],
    propagation: Optional[Sequence[Sequence[int]]],
) -> Net:
    """The standard net with what is given in place of its own."""
    chosen = net.levels if levels is None else tuple(as_level(level) for level in levels)
    widths = net.head if head is None else tuple(int(c) for c in head)
    rates: List[float] = [float(p) for p in (net.dropout if dropout is None else dropout)]
    if dropout is None:
        rates = (rates + rates[-1:] * len(widths))[: len(widths)]
    expect(len(rates) == len(widths), "dropout must have one rate per layer of head", rates)
    up = net.propagation if propagation is None else propagation
    return Net(chosen, widths, tuple(rates), tuple(tuple(int(c) for c in w) for w in up))
