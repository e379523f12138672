# SPDX-License-Identifier: Apache-2.0
"""Code written for other libraries' point-cloud ops, run on torchvox: by another import line or,
if the code must not be edited, by `install` before it is imported. See docs/switching.md.

    _errors.py   what is refused, and the stubs of names that are not covered
    table.py     which module of which peer is which module here
    page.py      the list in docs/switching.md
    _finder.py   `install`: the import system asks here first
    _modules.py  the modules that it gets
    scan.py      which names of peers a codebase uses
    _shared.py   what several adapters need
    others       one module, or package, per module of a peer

Signatures are the peers': they have the types that TorchScript reads, and shapes in the docstrings.
"""

from torchvox.compat._errors import CompatOrderError, CompatWarning, NotCoveredError
from torchvox.compat._finder import install, installed, report, uninstall

__all__ = [
    "CompatOrderError", "CompatWarning", "NotCoveredError", "install", "installed", "report",
    "uninstall",
]  # fmt: skip
