# SPDX-License-Identifier: Apache-2.0
"""Does an imported PointNet++ give what the reference gives? Both run on one generated scene."""

from dataclasses import asdict, dataclass
from typing import Dict

import torch

from torchvox.models.conventions import Conventions, conventions
from torchvox.models.importing.convert import Imported
from torchvox.models.importing.smoke import rows_of, scene

from . import pn2, yanx27

# Of the greatest output, above which an import is not what the original computes. Rounding takes up
# to 2e-5 of it in nets of published size, the wrong eps in one batch norm of a head from 2e-4 on.
TOLERANCE = 1e-4
# How the reference took distances.
EXACT = "distances from differences"
EXPANDED = "distances expanded, as published"


@dataclass(frozen=True)
class Report:
    """Of a model beside its original on a scene. output: the greatest one. differences: the
    greatest of the outputs, by kind."""

    imported: Imported
    scene: str
    output: float
    differences: Dict[str, float]

    def worst(self):
        """The greatest difference; NaN when there is one."""
        return float(torch.tensor(list(self.differences.values())).max())

    def trouble(self, tolerance=TOLERANCE):
        """Why the import is not what the original computes; None when it is. tolerance: of the
        greatest output."""
        if not self.worst() <= tolerance * max(1.0, self.output):  # NaN fails too
            return f"its outputs differ by {self.worst():.3g} of {self.output:.3g}"
        return None


@dataclass(frozen=True)
class ParityReport(Report):
    """differences: by how the reference took distances. same_class: share of outputs whose greatest
    score is the same one, likewise."""

    same_class: Dict[str, float]

    def worst(self):
        """The difference to the reference with exact distances: there both see the same balls."""
        return self.differences[EXACT]

    def rows(self):
        """What to print: names and values."""
        changes = self.imported.model.config()
        names = [one for one in changes if one in Conventions.__dataclass_fields__]
        flags = conventions(self.imported.layout.name, {name: changes[name] for name in names})
        rows = rows_of(self.imported, self.scene, self.output)
        rows += [(f"flag {name}", str(value)) for name, value in asdict(flags).items()]
        for how, value in self.differences.items():
            share = 100 * self.same_class[how]
            rows.append((f"difference, {how}", f"{value:.3g}, same class {share:.2f} %"))
        return rows


def reference(imported):
    """The plain-torch network of the layout, with the checkpoint's tensors."""
    module = {"yanx27": yanx27, "pn2": pn2}[imported.layout.name]
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
def pointnet2_parity(imported):
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
    return ParityReport(imported, words, float(mine.abs().max()), differences, same)
