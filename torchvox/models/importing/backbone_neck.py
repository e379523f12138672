# SPDX-License-Identifier: Apache-2.0
"""Pillar net, backbone and neck of a detector: their sizes and names in a checkpoint."""

from dataclasses import dataclass
from math import prod
from typing import Any, Dict, List, Mapping, Optional, Tuple

from torch import Tensor, nn

from torchvox.models.checkpoints import CheckpointError
from torchvox.models.importing.published import Size, anchors
from torchvox.models.importing.settings import ASSUMED, SHAPES, Settings

State = Mapping[str, Tensor]
# The tensor there and its name here; None: a tensor that is read but not kept.
Pair = Tuple[str, Optional[str]]
NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def shape(state: State, name: str, axes: int = 1) -> List[int]:
    """Of a tensor that must have so many axes, or more."""
    if name not in state:
        raise CheckpointError(f"the checkpoint has no {name}, which has the size of its network")
    sizes = list(state[name].shape)
    if len(sizes) < axes or 0 in sizes:
        raise CheckpointError(f"{name} must have {axes} or more axes, none of size 0, got {sizes}")
    return sizes


def per_cell_of(state: State, name: str) -> int:
    """Anchors of a cell, from the weight that gives the seven numbers of each."""
    outputs = shape(state, name)[0]
    if outputs % 7:
        raise CheckpointError(f"{name} must have 7 outputs for each anchor, got {outputs}")
    return outputs // 7


def norm(theirs: str, ours: str) -> List[Pair]:
    return [(f"{theirs}.{part}", f"{ours}.{part}") for part in NORM]


def conv(theirs: str, ours: str, bias: bool = False) -> List[Pair]:
    parts = ("weight", "bias") if bias else ("weight",)
    return [(f"{theirs}.{part}", f"{ours}.{part}") for part in parts]


@dataclass(frozen=True)
class BevNames:
    """blocks, deblocks: the lists of blocks of backbone and neck. first: number of the first
    convolution in a block."""

    blocks: str
    deblocks: str
    first: int

    def backbone_neck(
        self, state: State, settings: Settings, stride_one: str, first_stride: int
    ) -> Dict[str, Any]:
        """Their configurations. stride_one: see `neck`. first_stride: of the backbone, where
        nothing else is declared; the further ones are 2."""
        blocks = backbone(state, settings, self.blocks, self.first, first_stride)
        return {
            "backbone": blocks,
            "neck": neck(state, settings, self.deblocks, blocks, stride_one),
        }

    def bev_pairs(self, config: Mapping[str, Any]) -> List[Pair]:
        """Every tensor of backbone and neck with its name here."""
        pairs: List[Pair] = []
        for i, more in enumerate(config["backbone"]["layers"]):
            for j in range(more + 1):
                at, ours = self.first + 3 * j, f"backbone.blocks.{i}.{j}"
                pairs += conv(f"{self.blocks}.{i}.{at}", f"{ours}.conv")
                pairs += norm(f"{self.blocks}.{i}.{at + 1}", f"{ours}.norm")
        for i in range(len(config["neck"]["strides"])):
            pairs += conv(f"{self.deblocks}.{i}.0", f"neck.deblocks.{i}.conv")
            pairs += norm(f"{self.deblocks}.{i}.1", f"neck.deblocks.{i}.norm")
        return pairs


@dataclass(frozen=True)
class PillarNames(BevNames):
    """linear, norm: of a layer of the pillar net, {} its number."""

    linear: str
    norm: str

    def inputs(self, state: State) -> int:
        """Of the first layer."""
        return shape(state, f"{self.linear}.weight".format(0), 2)[1]

    def describe(
        self,
        state: State,
        settings: Settings,
        grid: Mapping[str, Any],
        unknown: str,
        stride_one: str,
        *,
        columns: Optional[int] = None,
        pad_semantics: str = "reference",
        legacy: bool = False,
    ) -> Dict[str, Any]:
        """The configuration up to the head. columns: of the points, where the center offset may
        have two axes or three; None: it has three. grid, unknown: see `grid_of`; stride_one: see
        `neck`."""
        layer, axes = f"{self.linear}.weight", 3
        outs: List[int] = []
        while layer.format(len(outs)) in state:
            outs.append(shape(state, layer.format(len(outs)))[0])
        inputs = shape(state, layer.format(0), 2)[1]
        if columns is None:
            columns = settings.choose("columns", inputs - 3 - axes, SHAPES)
        else:
            columns = settings.choose("columns", columns)
            axes = settings.choose("encoder.center_axes", inputs - 3 - columns, SHAPES)
        if columns < 3 or axes not in (2, 3):
            raise CheckpointError(
                f"{layer.format(0)} has {inputs} inputs: columns + 3 + 2 or 3 are known, "
                f"with columns of {columns} it has {inputs - 3 - columns} more"
            )
        rules = settings.choices("encoder", {"pad_semantics": pad_semantics, "legacy": legacy})
        channels = [2 * c for c in outs[:-1]] + outs[-1:]
        place = grid_of(settings, grid, unknown)
        return {
            **place,
            "columns": columns,
            "encoder": {"channels": channels, "center_axes": axes, **rules},
            **self.backbone_neck(state, settings, stride_one, first_stride=2),
        }

    def pairs(self, model: nn.Module, state: State) -> List[Pair]:
        """Every tensor before the head with its name here."""
        config = model.config()["config"]
        pairs: List[Pair] = []
        for i in range(len(config["encoder"]["channels"])):
            pairs += conv(self.linear.format(i), f"encoder.pfn_layers.{i}.linear")
            pairs += norm(self.norm.format(i), f"encoder.pfn_layers.{i}.norm")
        return pairs + self.bev_pairs(config)


def classes_and_anchors(
    settings: Settings,
    unknown: str,
    names: List[str],
    table: Mapping[str, Tuple[Size, float]],
    width_first: bool = False,
) -> Tuple[List[str], List[Dict[str, Any]]]:
    """Those of the published network, or as given; unknown: see `grid_of`."""
    if unknown:
        return settings.need("classes", unknown), settings.need("head.anchors", unknown)
    boxes = anchors(table, names, width_first)
    return settings.choose("classes", names), settings.choose("head.anchors", boxes)


def grid_of(settings: Settings, grid: Mapping[str, Any], unknown: str) -> Dict[str, Any]:
    """Range, cells and caps, and what the columns are scaled by. grid: as published. unknown: why
    the network is none of the published ones, whose grid must be given; "" when it is."""
    if unknown:
        place = {name: settings.need(name, unknown) for name in grid if name != "column_scale"}
        return {**place, "column_scale": settings.choose("column_scale", [])}
    return {name: settings.choose(name, value) for name, value in grid.items()}


def backbone(
    state: State, settings: Settings, blocks: str, first: int, first_stride: int
) -> Dict[str, Any]:
    """blocks: name of the list of blocks. first: number of the first convolution in a block."""
    layers: List[int] = []
    channels: List[int] = []
    while f"{blocks}.{len(layers)}.{first}.weight" in state:
        at = f"{blocks}.{len(layers)}"
        channels.append(shape(state, f"{at}.{first}.weight")[0])
        count = 0
        while f"{at}.{first + 3 * (count + 1)}.weight" in state:
            count += 1
        layers.append(count)
    if not layers:
        raise CheckpointError(f"the checkpoint has no {blocks}.0.{first}.weight")
    strides = settings.choose("backbone.strides", [first_stride] + [2] * (len(layers) - 1))
    if len(strides) != len(layers):
        raise CheckpointError(f"backbone.strides must have {len(layers)} values, got {strides}")
    return {"layers": layers, "strides": list(strides), "channels": channels}


def neck(
    state: State, settings: Settings, deblocks: str, backbone_neck: Dict[str, Any], stride_one: str
) -> Dict[str, Any]:
    """A transposed convolution has its inputs first, a convolution its outputs. Where the two are
    equal in number, the size that all levels are brought to decides; for a stride of 1 nothing
    does, and stride_one is what the layout has."""
    widths: List[int] = []
    fits: List[Dict[str, bool]] = []  # which of the two a level can be
    kernels: List[int] = []
    for i, inputs in enumerate(backbone_neck["channels"]):
        a, b, k = shape(state, f"{deblocks}.{i}.0.weight", 4)[:3]
        width = shape(state, f"{deblocks}.{i}.1.weight")[0]
        fit = {"transposed": (inputs, width) == (a, b), "conv": (width, inputs) == (a, b)}
        if not any(fit.values()):
            raise CheckpointError(
                f"{deblocks}.{i}.0.weight is [{a}, {b}, ..], which maps no {inputs} to {width}"
            )
        widths.append(width)
        fits.append(fit)
        kernels.append(k)
    strides = _neck_strides(settings, deblocks, backbone_neck["strides"], fits, kernels)
    how = ASSUMED
    for stride, fit in zip(strides, fits, strict=True):
        if float(stride) == 1.0 and not all(fit.values()):
            stride_one, how = next(kind for kind, one in fit.items() if one), SHAPES
    return {
        "strides": list(strides),
        "channels": widths,
        "stride_one": settings.choose("neck.stride_one", stride_one, how),
    }


def _neck_strides(
    settings: Settings,
    deblocks: str,
    down: List[int],
    fits: List[Dict[str, bool]],
    kernels: List[int],
) -> List[float]:
    """Strides that bring all levels to one size."""
    total = [prod(down[: i + 1]) for i in range(len(down))]
    sizes = []
    for size, fit, k in zip(total, fits, kernels, strict=True):
        ways = {"transposed": size / k, "conv": size * float(k)}
        sizes.append({ways[kind] for kind, one in fit.items() if one})
    common = sorted(set.intersection(*sizes))
    if settings.has("neck.strides") or len(common) != 1:
        return settings.need("neck.strides", f"{deblocks} can have several strides")
    return settings.choose("neck.strides", [size / common[0] for size in total], SHAPES)
