# SPDX-License-Identifier: Apache-2.0
"""Does an imported model run, with finite outputs on a generated scene? `torchvox import --verify`
compares it with the upstream network."""

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from torchvox.models.importing.convert import Imported
from torchvox.models.importing.settings import shown

CLOUDS = 2
SWEEPS, SWEEP_SECONDS = 10, 0.05  # of a nuScenes scan


@dataclass(frozen=True)
class SmokeReport:
    """output: the greatest of the heads or scores, NaN where one is. boxes: detections, None of
    a network that gives scores."""

    imported: Imported
    scene: str
    output: float
    boxes: Optional[int]

    def trouble(self) -> Optional[str]:
        """Why the model is unusable; None when it runs."""
        finite = self.output < float("inf")
        return None if finite else f"its greatest output on {self.scene} is {self.output}"

    def rows(self) -> List[Tuple[str, str]]:
        """What to print: names and values."""
        boxes = [] if self.boxes is None else [("boxes", str(self.boxes))]
        return [*rows_of(self.imported, self.scene, self.output), *boxes]


def rows_of(imported: Imported, scene: str, output: float) -> List[Tuple[str, str]]:
    """The first rows of any report of a model that ran on a scene."""
    model, used, layout = imported.model, imported.used, imported.layout
    return [
        ("layout", f"{layout.name} ({layout.source})"),
        ("model", f"{type(model).__name__}: {_sizes(model.config())}"),
        ("tensors", f"{used} of {used} used, each once"),
        ("parameters", f"{sum(p.numel() for p in model.parameters()):,}"),
        *shown(list(imported.flags)),
        *(("note", note) for note in imported.notes),
        ("scene", scene),
        ("greatest output", f"{output:.4g}"),
    ]


def _sizes(config: Dict[str, Any]) -> str:
    if "config" in config:
        return ", ".join(config["config"]["classes"])
    return ", ".join(f"{k} {v}" for k, v in config.items() if not isinstance(v, list))


@torch.no_grad()
def smoke(imported: Imported) -> SmokeReport:
    """Runs the model on `street` or `scene`."""
    model, boxes = imported.model, None
    if imported.layout.boxes:
        words, points = street(model.config()["config"]["columns"])
        count = torch.tensor([len(points)], dtype=torch.int32)
        outputs = [one for kind in model.maps(points[None], count) for one in kind]
        outputs = [one[one != -float("inf")] for one in outputs]  # of cells without a row
        boxes = int(model(points[None], count)[3])
    else:
        words, inputs = scene(model)
        outputs = [model(*inputs)]
    greatest = torch.stack([one.abs().max() for one in outputs]).max()  # NaN if one is
    return SmokeReport(imported, words, float(greatest), boxes)


def street(columns: int) -> Tuple[str, Tensor]:
    """Points [N, columns] of a generated street: x, y, z in meters, intensity in 0..1; with five
    columns as nuScenes has them, intensity in 0..255 and the age of a point in seconds."""
    from torchvox.data import generate_scan

    points = torch.from_numpy(generate_scan(0, azimuths=875).points).float()
    if columns >= 5:
        points[:, 3] *= 255
        age = (torch.arange(len(points)) % SWEEPS) * SWEEP_SECONDS
        points = torch.cat([points, age[:, None]], 1)
    more = torch.zeros(len(points), max(0, columns - points.size(1)))
    points = torch.cat([points, more], 1)[:, :columns]
    return f"a generated street of {len(points):,} points", points


def scene(model: nn.Module) -> Tuple[str, Tuple[Tensor, ...]]:
    """Points for a model, and a category when it takes one: a seeded cloud in the unit ball, or a
    block of a room of unit size, other columns in [0, 1]."""
    generator = torch.Generator().manual_seed(0)
    room = type(model).__name__ == "PointNet2Segmenter"
    count = 1280 if room else 1024
    points = torch.rand(CLOUDS, count, model.in_channels, generator=generator)
    if not room:
        xyz = points[..., :3] * 2 - 1
        points[..., :3] = xyz / xyz.norm(dim=-1, keepdim=True).clamp(min=1.0)
    where = "a block of a room" if room else "the unit ball"
    inputs: Tuple[Tensor, ...] = (points,)
    if hasattr(model, "num_categories"):
        inputs += (torch.arange(CLOUDS) % model.num_categories,)
    return f"{CLOUDS} seeded clouds of {count} points in {where}", inputs
