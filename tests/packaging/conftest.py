# SPDX-License-Identifier: Apache-2.0
import pytest
from shipping import ROOT, build_wheel, clean_venv, once, same_build_env


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The wheel of this tree, with the settings of the build in it."""
    folder = once(
        tmp_path_factory, "wheel", lambda folder: build_wheel(ROOT, folder, same_build_env())
    )
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def python(tmp_path_factory, wheel):
    """The interpreter of a clean environment with the wheel."""
    folder = once(tmp_path_factory, "wheel_venv", lambda folder: clean_venv(folder / "v", wheel))
    return folder / "v" / "bin" / "python"
