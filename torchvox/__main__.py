# SPDX-License-Identifier: Apache-2.0
"""python -m torchvox: the command line."""

import sys

from torchvox.cli import main

sys.exit(main())
