# SPDX-License-Identifier: Apache-2.0
import sys

import pytest
from helpers import ROOT

# The benchmark is no installed package: it is imported from the source tree.
sys.path.append(str(ROOT))
if not (ROOT / "benchmarks").exists():
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def clouds():
    """Generated clouds on the CPU: no data folder."""
    from benchmarks.clouds import Clouds

    return Clouds(None, "cpu")


@pytest.fixture
def fake_package(monkeypatch, tmp_path):
    """Makes a package of that name importable, with this source."""

    def make(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, name, raising=False)

    yield make
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)
