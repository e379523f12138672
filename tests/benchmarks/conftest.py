# SPDX-License-Identifier: Apache-2.0
import sys

from helpers import ROOT

# The benchmark is not an installed package: it is imported from the source tree.
sys.path.append(str(ROOT))
if not (ROOT / "benchmarks").exists():
    collect_ignore_glob = ["test_*.py"]
