# SPDX-License-Identifier: Apache-2.0
"""torchvox: deterministic, sync-free point-cloud ops for PyTorch.

Importing it registers `torch.ops.torchvox.*`; it starts no compiler and no CUDA context.
"""

from pathlib import Path

from torchvox import _library

_library.load()

from torchvox import models, nn, ops  # noqa: E402
from torchvox.data.collate import collate_points  # noqa: E402
from torchvox.graphs import GraphRunner  # noqa: E402
from torchvox.ops import *  # noqa: E402, F403

__version__: str = _library.BUILD_INFO["version"]

# For CMake: find_package(TorchVox) with -DCMAKE_PREFIX_PATH of this folder.
cmake_prefix_path: str = str(Path(__file__).parent / "share" / "cmake")

__all__ = [
    "GraphRunner",
    "__version__",
    "cmake_prefix_path",
    "collate_points",
    "models",
    "nn",
    "ops",
    *ops.__all__,
]
