# SPDX-License-Identifier: Apache-2.0
"""`install(..)` when a peer is first imported, in processes that nobody edits.

Run by path from a .pth file (`torchvox compat enable`) or sitecustomize.py (`torchvox compat run`), with
NAMES, "mmcv pcdet@det3d.ops", in its globals: no process pays for torch before it asks for a peer.
"""

import sys


class Boot:
    def __init__(self, names):
        self.names = [name.partition("@")[::2] for name in names.split()]
        self.roots = {(at or name).partition(".")[0] for name, at in self.names}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self.roots or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        from torchvox.compat._finder import FINDER, install

        for one, at in self.names:
            install(one, at=at or None)
        return FINDER.find_spec(name, path, target)


sys.meta_path.insert(0, Boot(NAMES))  # type: ignore[name-defined]  # noqa: F821
