# SPDX-License-Identifier: Apache-2.0
"""`install(..)` when a peer is first imported, in processes that nobody edits.

Run by path, from a .pth file (`torchvox compat enable`) or from sitecustomize.py (`torchvox compat
run`), with NAMES in its globals, "pcdet::pcdet pcdet:det3d.ops:det3d": what install() takes, at,
and the package whose import asks for it. So no process pays for torch before.
"""

import sys


class Boot:
    def __init__(self, names):
        self.wanted = {tuple(name.split(":")) for name in names.split()}

    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        if self not in sys.meta_path or all(root != one for _, _, one in self.wanted):
            return None
        sys.meta_path.remove(self)
        from torchvox.compat._finder import FINDER, install

        for one, at, _ in sorted(self.wanted):
            install(one, at=at or None)
        return FINDER.find_spec(name, path, target)


boot = Boot(NAMES)  # type: ignore[name-defined]  # noqa: F821
for finder in list(sys.meta_path):
    if type(finder).__name__ == "Boot":  # of this file, run before: .pth files may be read twice
        boot.wanted |= finder.wanted  # type: ignore[attr-defined]
        sys.meta_path.remove(finder)
sys.meta_path.insert(0, boot)
