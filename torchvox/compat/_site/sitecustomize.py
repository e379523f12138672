# SPDX-License-Identifier: Apache-2.0
"""First on the path of what `torchvox compat run` starts, and of the processes that it starts."""

import contextlib
import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(os.path.dirname(here), "_boot.py")) as file:
    exec(compile(file.read(), file.name, "exec"), {"NAMES": os.environ.get("TORCHVOX_COMPAT", "")})
sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
this = sys.modules.pop("sitecustomize", None)
with contextlib.suppress(ImportError):
    import sitecustomize  # noqa: F401  # the environment's own
if this is not None:
    sys.modules.setdefault("sitecustomize", this)
