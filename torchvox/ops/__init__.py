# SPDX-License-Identifier: Apache-2.0
"""Typed public functions over `torch.ops.torchvox.*`, re-exported as `torchvox.<name>`.

Where a docstring says nothing else, an op is exact and deterministic: it gives the same bits in
every run, on the CPU and with CUDA, and never waits for the device (no host synchronization).
"""

import sys
from typing import TYPE_CHECKING

from torch.utils import _pytree

from torchvox.ops import mistakes
from torchvox.ops.bev import *
from torchvox.ops.boxes import *
from torchvox.ops.cells import *
from torchvox.ops.detection import *
from torchvox.ops.filter import *
from torchvox.ops.grouping import *
from torchvox.ops.neighbor_lists import *
from torchvox.ops.neighbors import *
from torchvox.ops.occupancy import *
from torchvox.ops.pillars import *
from torchvox.ops.rays import *
from torchvox.ops.sampling import *
from torchvox.ops.sparse import *
from torchvox.ops.targets import *
from torchvox.ops.voxel import *

# What the modules above export.
NAMES = [k for k, v in list(globals().items()) if getattr(v, "__module__", "").startswith(__name__)]
if not TYPE_CHECKING:  # mypy knows the imports above, and would hide them for a list it cannot read
    __all__ = NAMES


def __dir__() -> list[str]:
    return NAMES


for _name in NAMES:
    _thing = globals()[_name]
    if isinstance(_thing, type):
        # torch.export.save writes the type of a program's result by this name.
        _pytree._register_namedtuple(_thing, serialized_type_name=f"torchvox.{_name}")
    else:
        globals()[_name] = mistakes.naming_mistakes(_thing)
        setattr(sys.modules[_thing.__module__], _name, globals()[_name])  # pickle looks there
