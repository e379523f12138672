# SPDX-License-Identifier: Apache-2.0
"""Optional packages: torchvox needs torch and numpy, everything else is an extra."""

import importlib
from types import ModuleType

from torchvox._util.errors import MissingExtraError

# import name -> (name on PyPI, extra of torchvox that brings it)
EXTRAS = {
    "typer": ("typer", "cli"),
    "rich": ("rich", "cli"),
    "yaml": ("PyYAML", "cli"),
    "matplotlib": ("matplotlib", "viz"),
    "laspy": ("laspy", "las"),
    "lazrs": ("lazrs", "las"),
    "pypcd4": ("pypcd4", "pcd"),
    "rosbags": ("rosbags", "ros"),
    "pyarrow": ("pyarrow", "arrow"),
    "pye57": ("pye57", "e57"),
    "h5py": ("h5py", "hdf5"),
    "lightning": ("lightning", "train"),
    "torchmetrics": ("torchmetrics", "train"),
    "pydantic": ("pydantic", "train"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "onnx": ("onnx", "onnx"),
    "onnxscript": ("onnxscript", "onnx"),
    "onnxruntime": ("onnxruntime", "onnx"),
}


def require(module: str, purpose: str) -> ModuleType:
    """The optional module, imported; the error says what to install.

    module: import name, a key of EXTRAS, or a submodule of one ("matplotlib.figure").
    purpose: why it is needed, for the message: "to read LAS files".
    Raises MissingExtraError, an ImportError.
    """
    top = module.split(".")[0]
    package, extra = EXTRAS[top]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] != top:
            raise  # installed but broken: its own message says more
        names = list(EXTRAS)[list(EXTRAS).index(top) :]  # and what the extra lists after it
        packages = " ".join(EXTRAS[name][0] for name in names if EXTRAS[name][1] == extra)
        raise MissingExtraError(
            f"{package} is needed {purpose}: run pip install {packages}"
        ) from None
