# SPDX-License-Identifier: Apache-2.0
"""Training and evaluation: configurations, Lightning, metrics. Needs the extra train."""

from torchvox._util.extras import require

for _module in ("yaml", "lightning", "torchmetrics", "rich"):
    require(_module, "to train and evaluate models")

from torchvox.train.checkpoint import load_checkpoint  # noqa: E402
from torchvox.train.config import Config, load_config  # noqa: E402
from torchvox.train.evaluation import evaluate  # noqa: E402
from torchvox.train.metrics import ConfusionOfSamples  # noqa: E402
from torchvox.train.runs import fit  # noqa: E402

__all__ = ["Config", "ConfusionOfSamples", "evaluate", "fit", "load_checkpoint", "load_config"]
