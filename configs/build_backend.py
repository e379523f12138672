# SPDX-License-Identifier: Apache-2.0
"""The build backend: that of setuptools, after a check of what the build needs.

pip asks for requirements first, so a plain `pip install .` stops here within seconds. An sdist
needs no torch.
"""

import importlib.util
import os
import sys
from importlib import metadata

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

OLDEST = 77  # whose licenses and wheels pyproject.toml and setup.py use


def check_setuptools():
    """Stops where setuptools is too old, which pip does not check without build isolation."""
    version = metadata.version("setuptools")
    if int(version.split(".")[0]) < OLDEST:
        sys.exit(
            f"torchvox is built with setuptools >= {OLDEST}, and {version} is installed: run "
            f'`pip install "setuptools>={OLDEST},<82" cmake ninja pybind11`'
        )


def check_torch():
    """Stops in a build environment of pip's own, from which torch is missing."""
    if importlib.util.find_spec("torch") is None and not os.environ.get("TORCHVOX_TORCH_DIRS"):
        sys.exit(
            "torchvox builds against the torch that is installed, and pip builds in an environment "
            f'without it: run `pip install torch "setuptools>={OLDEST},<82" cmake ninja pybind11`, '
            "then `pip install --no-build-isolation .`"
        )


def build_wheel(*arguments, **options):
    check_torch()
    return build_meta.build_wheel(*arguments, **options)


def get_requires_for_build_wheel(config_settings=None):
    check_torch()
    return build_meta.get_requires_for_build_wheel(config_settings)


def get_requires_for_build_editable(config_settings=None):
    check_torch()
    return build_meta.get_requires_for_build_editable(config_settings)


check_setuptools()
