# SPDX-License-Identifier: Apache-2.0
"""The comparison of an imported model with the original, which is part of the source tree."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any, Optional

from torch import Tensor

from torchvox._util.errors import WrongUseError
from torchvox.models.importing.convert import Imported

UPSTREAM = Path(__file__).resolve().parents[3] / "tests" / "upstream"
NAME = "torchvox_upstream"  # of its package, so that no other one named upstream is taken


def parity(imported: Imported, points: Optional[Tensor] = None) -> Any:
    """Runs the model beside the original, rewritten in plain torch, and compares: a report with
    rows(), worst() and trouble(), which is None where both compute the same.

    points: [N, columns] for a detector; None: a generated street, or for PointNet++ seeded clouds.

    Raises WrongUseError where torchvox is not used from its source tree.
    """
    if not (UPSTREAM / "detector_parity.py").is_file():
        raise WrongUseError(
            "verifying needs the source tree of torchvox, where the upstream networks are "
            "(tests/upstream): use torchvox from a clone of it"
        )
    if NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            NAME, UPSTREAM / "__init__.py", submodule_search_locations=[str(UPSTREAM)]
        )
        assert spec is not None and spec.loader is not None
        sys.modules[NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[NAME])
    if imported.layout.boxes:
        return importlib.import_module(f"{NAME}.detector_parity").detector_parity(imported, points)
    return importlib.import_module(f"{NAME}.pointnet2_parity").pointnet2_parity(imported)
