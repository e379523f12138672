# SPDX-License-Identifier: Apache-2.0
"""torchvox: deterministic, sync-free point-cloud ops for PyTorch.

Importing it registers `torch.ops.torchvox.*`; it starts no compiler and no CUDA context.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchvox import _library

_library.load()

from torchvox import nn, ops  # noqa: E402
from torchvox._library import onnx_library  # noqa: E402
from torchvox.graphs import GraphRunner  # noqa: E402
from torchvox.nn.rays import visibility_channels  # noqa: E402
from torchvox.ops import *  # noqa: E402, F403

__version__: str = _library.BUILD_INFO["version"]

# For CMake: find_package(TorchVox) with -DCMAKE_PREFIX_PATH of this folder.
cmake_prefix_path: str = str(Path(__file__).parent / "share" / "cmake")

if TYPE_CHECKING:  # what editors and type checkers see of the names below
    from torchvox import compat, data, evaluation, io, mapping, models, onnx, reference  # noqa: F401
    from torchvox.data.collate import collate_points
    from torchvox.mapping import OccupancyMap


_ON_FIRST_USE = ("compat", "data", "evaluation", "io", "mapping", "models", "onnx", "reference")


def __getattr__(name: str) -> Any:
    """What models do not need in every process is imported on first use."""
    if name in _ON_FIRST_USE:
        return importlib.import_module(f"torchvox.{name}")
    if name == "collate_points":
        return importlib.import_module("torchvox.data.collate").collate_points
    if name == "OccupancyMap":
        return importlib.import_module("torchvox.mapping").OccupancyMap
    raise AttributeError(f"module 'torchvox' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*__all__, *_ON_FIRST_USE, *(n for n in globals() if n.startswith("__"))})


__all__ = [
    "GraphRunner",
    "OccupancyMap",
    "__version__",
    "cmake_prefix_path",
    "collate_points",
    "models",
    "nn",
    "onnx_library",
    "ops",
    "visibility_channels",
    *ops.NAMES,
]
