# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of other implementations."""

from pathlib import Path
from typing import Any, Mapping, Optional, Union

from torchvox.models.importing.convert import LAYOUTS, Imported, convert
from torchvox.models.importing.detector_parity import DetectorReport, detector_parity
from torchvox.models.importing.pointnet2_parity import ParityReport, pointnet2_parity
from torchvox.models.importing.unpickling import read_foreign
from torchvox.models.importing.upstream_configs import Declared, mmdet3d_config, openpcdet_config

__all__ = [
    "LAYOUTS",
    "Declared",
    "DetectorReport",
    "Imported",
    "ParityReport",
    "convert",
    "import_checkpoint",
    "mmdet3d_config",
    "openpcdet_config",
    "parity",
    "read_foreign",
]


def import_checkpoint(
    path: Union[str, Path],
    layout: Optional[str] = None,
    settings: Optional[Mapping[str, Any]] = None,
    declared: Optional[Declared] = None,
) -> Imported:
    """The model of a checkpoint file of another program.

    layout: "yanx27" (yanx27/Pointnet_Pointnet2_pytorch), "pn2" (erikwijmans/Pointnet2_PyTorch),
    "openpcdet", "mmdet3d", "mmdet3d_0" (mmdetection3d before 1.0), "zhulf0804"
    (zhulf0804/PointPillars) or "det3d" (tianweiy/CenterPoint); None: inferred from the tensors'
    names and the release that the file names. settings: of a detector's configuration, nested or by
    dotted names ("encoder.legacy"): what no tensor tells and is not as in the published network.
    declared: the same, from the program's configuration (`openpcdet_config`, `mmdet3d_config`).

    Raises CheckpointError for a file that cannot be read without running code, and, naming them,
    for tensors that are missing, left over or of another shape.
    """
    return convert(read_foreign(path), layout, settings, declared)


def parity(imported: Imported) -> Union[ParityReport, DetectorReport]:
    """Runs the model beside the original, rewritten in plain torch, and compares."""
    return detector_parity(imported) if imported.layout.boxes else pointnet2_parity(imported)
