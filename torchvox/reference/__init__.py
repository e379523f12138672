# SPDX-License-Identifier: Apache-2.0
"""Slow, independent definitions of the ops: plain Python and NumPy on CPU tensors.

Each function takes the arguments of the registered op of the same name and returns the same
tuple of tensors, bit for bit. What an op refuses is not refused here. Nothing here is shared with
the C++ and CUDA code except the names and defaults of arguments; when the two disagree, one of them
is wrong.
"""

import inspect

from torchvox.reference.bev import *
from torchvox.reference.boxes import *
from torchvox.reference.cells import *
from torchvox.reference.detection import *
from torchvox.reference.filter import *
from torchvox.reference.grouping import *
from torchvox.reference.neighbors import *
from torchvox.reference.neighbors_knn import *
from torchvox.reference.occupancy import *
from torchvox.reference.pillars import *
from torchvox.reference.rays import *
from torchvox.reference.sampling import *
from torchvox.reference.segments import *
from torchvox.reference.sparse import *
from torchvox.reference.sweeps import *
from torchvox.reference.targets import *
from torchvox.reference.voxel import *
from torchvox.reference.voxel_grid import *

__all__ = [name for name, thing in list(globals().items()) if inspect.isfunction(thing)]
