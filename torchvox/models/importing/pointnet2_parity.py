# SPDX-License-Identifier: Apache-2.0
"""Does an imported PointNet++ give what the reference gives? Both run on one generated scene."""

from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from torchvox.models.conventions import Conventions, conventions
from torchvox.models.importing.convert import Imported

# Of the greatest output, above which an import is not what the original computes. Rounding takes up
# to 2e-5 of it in nets of published size, the wrong eps in one batch norm of a head from 2e-4 on.
TOLERANCE = 1e-4
CLOUDS = 2
# How the reference took distances.
EXACT = "distances from differences"
EXPANDED = "distances expanded, as published"


@dataclass(frozen=True)
class ParityReport:
    """differences: the greatest of the outputs, by how the reference took distances.
    same_class: share of outputs whose greatest score is the same one, likewise."""

    layout: str
    model: str
    tensors: int
    parameters: int
    config: Dict[str, Any]
    flags: Conventions
    scene: str
    output: float
    differences: Dict[str, float]
    same_class: Dict[str, float]

    def worst(self) -> float:
        """The difference to the reference with exact distances: there both see the same balls."""
        return self.differences[EXACT]

    def trouble(self, tolerance: float) -> Optional[str]:
        """Why the import is not what the reference computes; None when it is. tolerance: of the
        greatest output."""
        if not self.worst() <= tolerance * max(1.0, self.output):  # NaN fails too
            return f"its outputs differ by {self.worst():.3g} of {self.output:.3g}"
        return None

    def rows(self) -> List[Tuple[str, str]]:
        """What to print: names and values."""
        config = {k: v for k, v in self.config.items() if k not in ("levels", "propagation")}
        sizes = ", ".join(f"{k} {v}" for k, v in config.items() if not isinstance(v, list))
        rows = [
            ("layout", self.layout),
            ("model", f"{self.model}: {sizes}"),
            ("tensors", f"{self.tensors} of {self.tensors} used, each once"),
            ("parameters", f"{self.parameters:,}"),
            *((f"flag {name}", str(value)) for name, value in asdict(self.flags).items()),
            ("scene", self.scene),
            ("greatest output", f"{self.output:.4g}"),
        ]
        for how, value in self.differences.items():
            share = 100 * self.same_class[how]
            rows.append((f"difference, {how}", f"{value:.3g}, same class {share:.2f} %"))
        return rows


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


def reference(imported: Imported) -> nn.Module:
    """The plain-torch network of the layout, with the checkpoint's tensors."""
    from torchvox.reference import pointnet2_pn2, pointnet2_yanx27

    module = {"yanx27": pointnet2_yanx27, "pn2": pointnet2_pn2}[imported.layout.name]
    config = imported.model.config()
    kind = getattr(module, type(imported.model).__name__.removeprefix("PointNet2"))
    more = {"use_xyz": config["use_xyz"]} if "use_xyz" in config else {}
    plain = kind(config["num_classes"], config["in_channels"], config["scales"], **more)
    state = dict(imported.state)
    for name, value in plain.state_dict().items():
        if name.endswith("num_batches_tracked"):
            state.setdefault(name, value)
    plain.load_state_dict(state)
    return plain.eval()


@torch.no_grad()
def pointnet2_parity(imported: Imported) -> ParityReport:
    """Runs both and compares."""
    model, plain = imported.model, reference(imported)
    words, inputs = scene(model)
    mine = model(*inputs)
    differences, same = {}, {}
    for how in (EXACT, EXPANDED) if hasattr(plain, "exact") else (EXACT,):
        plain.exact = how == EXACT
        theirs = plain(*inputs)
        differences[how] = float((mine - theirs).abs().max())
        same[how] = float((mine.argmax(-1) == theirs.argmax(-1)).float().mean())
    config = model.config()
    names = Conventions.__dataclass_fields__
    changes = {k: v for k, v in config.items() if k in names}
    return ParityReport(
        layout=f"{imported.layout.name} ({imported.layout.source})",
        model=type(model).__name__,
        tensors=imported.used,
        parameters=sum(p.numel() for p in model.parameters()),
        config=config,
        flags=conventions(imported.layout.name, changes),
        scene=words,
        output=float(mine.abs().max()),
        differences=differences,
        same_class=same,
    )
