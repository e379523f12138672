# SPDX-License-Identifier: Apache-2.0
import sys

import pytest

import torchvox.compat
from torchvox.compat import table

FAKE = ("models", "fork", "broken", "user", "mmengine")


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A folder on the path for fake peers; whatever was imported and installed goes in the end."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    yield write
    torchvox.compat.uninstall()
    roots = {
        root for root in (peer.root.partition(".")[0] for peer in table.PEERS.values()) if root
    }
    for name in list(sys.modules):
        if name.partition(".")[0] in {*roots, *FAKE}:
            del sys.modules[name]
