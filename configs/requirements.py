# SPDX-License-Identifier: Apache-2.0
"""Prints the requirements of pyproject.toml that a development environment needs besides torch: the
build tools and every extra, those named, or with `build` none."""

import re
import sys
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
extras = {**project["project"]["optional-dependencies"], "build": []}
wanted = list(project["build-system"]["requires"])
for name in sys.argv[1:] or extras:
    wanted += [item for item in extras[name] if not re.match(r"torchvox\[", item)]
print(" ".join(dict.fromkeys(item.replace(" ", "") for item in wanted)))
