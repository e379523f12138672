# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of other implementations."""

from pathlib import Path
from typing import Optional, Union

from torchvox.models.checkpoints import read
from torchvox.models.importing.convert import Imported, convert
from torchvox.models.importing.parity import ParityReport, parity

__all__ = ["Imported", "ParityReport", "convert", "import_checkpoint", "parity"]


def import_checkpoint(path: Union[str, Path], layout: Optional[str] = None) -> Imported:
    """The model of a checkpoint file of yanx27/Pointnet_Pointnet2_pytorch or
    erikwijmans/Pointnet2_PyTorch. layout: "yanx27" or "pn2"; None: told by the tensors' names.

    Raises CheckpointError for a file of anything but tensors and plain types, and, naming them, for
    tensors that are missing, left over or of another shape.
    """
    return convert(read(path), layout)
