# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of other implementations."""

from pathlib import Path
from typing import Any, Mapping, Optional, Union

from torchvox.models.importing.convert import Imported, convert
from torchvox.models.importing.settings import Declared
from torchvox.models.importing.smoke import SmokeReport, smoke
from torchvox.models.importing.sources import LAYOUTS
from torchvox.models.importing.sources.mmdet3d import mmdet3d_config
from torchvox.models.importing.sources.openpcdet import openpcdet_config
from torchvox.models.importing.unpickling import read_foreign
from torchvox.models.importing.verify import parity

__all__ = [
    "LAYOUTS", "Declared", "Imported", "SmokeReport", "convert", "import_checkpoint",
    "mmdet3d_config", "openpcdet_config", "parity", "read_foreign", "smoke",
]  # fmt: skip


def import_checkpoint(
    path: Union[str, Path],
    layout: Optional[str] = None,
    settings: Optional[Mapping[str, Any]] = None,
    declared: Optional[Declared] = None,
) -> Imported:
    """The model of a checkpoint file of another program.

    layout: "yanx27" (yanx27/Pointnet_Pointnet2_pytorch), "pn2" (erikwijmans/Pointnet2_PyTorch),
    "openpcdet", "det3d" (tianweiy/CenterPoint), "mmdet3d" or "mmdet3d_0" (mmdetection3d before
    1.0); None: inferred from the tensors' names and the release that the file names. settings: of a
    detector's configuration, nested or by dotted names ("encoder.legacy"), where they are not those
    of the published network and no tensor shows them.
    declared: the same, from the program's configuration (`openpcdet_config`, `mmdet3d_config`).

    Raises CheckpointError for a file that cannot be read without running code, and, naming them,
    for tensors that are missing, left over or of another shape.
    """
    return convert(read_foreign(path), layout, settings, declared)
