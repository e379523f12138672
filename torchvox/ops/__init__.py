# SPDX-License-Identifier: Apache-2.0
"""Typed public functions over `torch.ops.torchvox.*`, re-exported as `torchvox.<name>`."""

from torch.utils import _pytree

from torchvox.ops import (
    bev,
    boxes,
    cells,
    detection,
    filter,
    grouping,
    neighbor_lists,
    neighbors,
    occupancy,
    pillars,
    rays,
    sampling,
    targets,
    voxel,
)
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
from torchvox.ops.targets import *
from torchvox.ops.voxel import *

__all__ = []
__all__ += bev.__all__
__all__ += boxes.__all__
__all__ += cells.__all__
__all__ += detection.__all__
__all__ += filter.__all__
__all__ += grouping.__all__
__all__ += neighbor_lists.__all__
__all__ += neighbors.__all__
__all__ += occupancy.__all__
__all__ += pillars.__all__
__all__ += rays.__all__
__all__ += sampling.__all__
__all__ += targets.__all__
__all__ += voxel.__all__

for _name in __all__:
    if isinstance(globals()[_name], type):
        # torch.export.save writes the type of a program's result by this name.
        _pytree._register_namedtuple(globals()[_name], serialized_type_name=f"torchvox.{_name}")
